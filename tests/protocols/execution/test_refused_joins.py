"""What is no join for the index is refused before anything is installed: with the reason, and what to do about it.

Each block of refused_joins.txt is a query, how it was asked for, and the answer; `pytest --rewrite` prints it anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from protocols.catalogue.messages import CreateStream, ListStreams, StreamsListed
from protocols.catalogue.streams import StreamDefinition
from protocols.execution import refusals
from protocols.execution.messages import EngineName, ListQueries, QueriesListed, QueryStarting, SubmitQuery
from protocols.join_index.evaluator import LAPSE_MS
from protocols.messages import Done, Refused
from queries.schema import Schema
from tests.protocols.execution.parts import Engined

GOLDEN = Path(__file__).parent / "refused_joins.txt"
STREAMS = {
    "R": "A int, B int, C int",
    "S": "D int, E int, F int",
    "orders": "id int, customer string, amount float, at timestamp",
    "payments": "of int, paid float, comment string",
}


def asker() -> Engined:
    alone = Engined()
    for name, schema in STREAMS.items():
        event_time = "at" if name == "orders" else None
        definition = StreamDefinition(name=name, schema=Schema.parse(schema), event_time=event_time)
        assert isinstance(alone.answer(CreateStream(definition=definition)), Done)
    return alone


def refusal(alone: Engined, text: str, how: str) -> Refused:
    assert how in ("auto", *get_args(EngineName))
    (answer,) = alone.answers[alone.ask(SubmitQuery(text=text, name="q", engine=how), within_ms=10_000)]  # type: ignore[arg-type]
    assert isinstance(answer, Refused), f"{text} runs as {how}"
    return answer


def installed(alone: Engined) -> tuple[object, ...]:
    """Whatever a query leaves at a peer."""
    peer, streams, queries = alone.peer, alone.answer(ListStreams()), alone.answer(ListQueries())
    assert isinstance(streams, StreamsListed)
    assert isinstance(queries, QueriesListed)
    known = [each.name for each in streams.streams if each.name not in STREAMS]
    is_indexed = not peer.joins.is_empty()
    return (
        *queries.queries,
        *known,
        *peer.proxy.queries,
        *peer.executor.hosted,
        *([is_indexed] if is_indexed else []),
    )


def test_refusals_say_why_and_what_to_do_and_install_nothing(rewrite: bool):
    alone = asker()
    blocks = []
    for block in GOLDEN.read_text().split("\n\n"):
        asked = block.partition("\n----")[0]
        how, _, text = asked.partition(": ")
        answer = refusal(alone, text, how)
        assert answer.code == "invalid", answer
        assert answer.hint or "\nexpected: " in answer.error, f"nobody is told what to do about {text}"
        said = [f"detail: {answer.detail}"] * bool(answer.detail) + [f"hint: {answer.hint}"] * bool(answer.hint)
        blocks.append("\n".join([asked, "----", answer.error, *said]))
        assert installed(alone) == (), text
    now = "\n\n".join(blocks) + "\n"
    if rewrite:
        GOLDEN.write_text(now)
    assert GOLDEN.read_text() == now


def test_a_peer_with_as_many_queries_as_it_may_have_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(refusals, "QUERIES_MAX", 0)
    alone = asker()
    answer = refusal(alone, "SELECT R.A FROM R, S WHERE R.B = S.E", "sai")
    assert (answer.code, answer.error) == ("full", 'query "q" has no room: this peer runs 0 queries already')
    assert answer.hint == "peer query stop NAME ends one (peer query ls lists them), or submit it at another peer."
    assert installed(alone) == ()


def test_a_query_that_a_rewriter_has_no_room_for_is_refused_and_taken_back():
    alone = asker()
    rewriter = alone.peer.joins.rewriter
    rewriter.limits = replace(rewriter.limits, queries_max=1)  # One of the two sides finds no room.
    request = alone.ask(SubmitQuery(text="SELECT R.A FROM R, S WHERE R.B = S.E", name="q"), within_ms=10_000)
    starting, answer = alone.answers[request]
    assert isinstance(starting, QueryStarting)
    assert isinstance(answer, Refused)
    assert answer.code == "unavailable"
    assert answer.error.startswith('query "q" cannot run: peer ')
    assert answer.error.endswith(" has 1 join queries already")
    assert answer.hint == "Try again later, or let it run without the index: --engine spark."
    alone.wait(LAPSE_MS)
    assert installed(alone) == ()
