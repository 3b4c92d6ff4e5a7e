"""A peer alone whose stream is altered: what it takes, what it serves, and what it remembers across a restart."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.catalogue.entries import Claim, claim_item, encode
from protocols.catalogue.messages import AlterStream, DropStream, ShowStream, StreamShown
from protocols.catalogue.streams import Alteration, Reads, stream_key
from protocols.delivery.messages import (
    CloseSubscription,
    OpenSubscription,
    Publish,
    Published,
    Rows,
)
from protocols.execution.messages import QueryAccepted, QueryShown, ShowQuery, StopQuery, SubmitQuery
from protocols.ids import PeerId
from protocols.messages import Done, Refused
from queries.schema import Field, Schema
from tests.protocols.lone import SCHEMA, Lone

GATE = Field("gate", "string", nullable=True)
SECOND = SCHEMA.adding(GATE)
THIRD = SECOND.dropping("dest")


def publish(lone: Lone, schema: Schema, *row: Any) -> Any:
    return lone.answer(Publish(stream="flights", rows=schema.encode([row]), count=1, version=schema.version))


def alter(lone: Lone, **change: Any) -> None:
    answer = lone.answer(AlterStream(name="flights", **change))
    assert isinstance(answer, Done), answer


def read(lone: Lone, schema: Schema, name: str = "r", **how: Any) -> list[Any]:
    """All there is of the stream, as somebody sees it who knows these columns."""
    request = lone.ask(OpenSubscription(stream="flights", subscription=name, since="start", **how), within_ms=5_000)
    found = [answer for answer in lone.answers[request] if isinstance(answer, Rows)]
    lone.ask(CloseSubscription(subscription=name), within_ms=100)
    return [row for answer in found for batch in answer.batches for row in schema.decode(batch.rows)]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_rows_of_all_versions_are_taken_kept_and_read(restarts: bool, snapshot: bool) -> None:
    lone = Lone()
    lone.create()
    publish(lone, SCHEMA, 1, "VIE")
    alter(lone, adds=GATE)
    assert isinstance(publish(lone, SECOND, 2, "GRZ", "B7"), Published), "its peer looks the new version up"
    assert lone.peer.publisher.outboxes["flights"].feed.is_altered
    alter(lone, drops="dest")
    assert isinstance(publish(lone, THIRD, 3, "C1"), Published)
    assert isinstance(publish(lone, SCHEMA, 4, "LNZ"), Published), "a client may not have heard of it yet"
    if restarts:
        lone.restart(snapshot=snapshot)
        outbox = lone.peer.publisher.outboxes["flights"]
        assert (outbox.definition.version, outbox.feed.is_altered) == (3, True)
    assert isinstance(publish(lone, THIRD, 5, None), Published)
    assert read(lone, SCHEMA) == [(1, "VIE"), (2, "GRZ"), (3, None), (4, "LNZ"), (5, None)]
    assert read(lone, THIRD) == [(1, None), (2, "B7"), (3, "C1"), (4, None), (5, None)]


def test_statistics_are_those_of_the_columns_there_are() -> None:
    lone = Lone()
    lone.create()
    publish(lone, SCHEMA, 1, "VIE")
    alter(lone, adds=GATE)
    publish(lone, SECOND, 2, "GRZ", "B7")
    lone.wait(30_000)
    shown = lone.answer(ShowStream(name="flights"))
    assert isinstance(shown, StreamShown)
    statistics = shown.publishers[0].statistics
    assert statistics is not None
    assert [field.name for field in statistics.fields] == ["id", "dest", "gate"]


def test_rows_of_a_version_that_is_not_decided_are_refused() -> None:
    lone = Lone()
    lone.create()
    publish(lone, SCHEMA, 1, "VIE")
    refused = publish(lone, SECOND, 2, "GRZ", "B7")
    assert isinstance(refused, Refused)
    assert refused.error == 'stream "flights": row 0: expected 2 values, got 3'
    assert isinstance(publish(lone, SCHEMA, 3, "GRZ"), Published)


def test_a_stream_that_was_made_again_takes_its_own_rows() -> None:
    lone = Lone()
    lone.create()
    alter(lone, adds=GATE)
    publish(lone, SECOND, 1, "VIE", "A1")
    lone.answer(DropStream(name="flights"))
    lone.create()
    refused = publish(lone, SECOND, 2, "GRZ", "B7")
    assert isinstance(refused, Refused)
    assert isinstance(publish(lone, SCHEMA, 3, "GRZ"), Published)


def test_a_column_is_dropped_once_nobody_reads_it() -> None:
    lone = Lone()
    lone.create()
    reads = Reads(columns=("dest",), version=1, reader='query "q"')
    lone.ask(OpenSubscription(stream="flights", subscription="s", reads=reads), within_ms=90_000)
    refused = lone.answer(AlterStream(name="flights", drops="dest"))
    assert isinstance(refused, Refused)
    assert 'query "q" at peer' in refused.detail
    lone.ask(CloseSubscription(subscription="s"), within_ms=1_000)
    alter(lone, drops="dest")
    again = lone.answer(OpenSubscription(stream="flights", subscription="t", reads=reads))
    assert isinstance(again, Refused)
    assert again.error == 'stream "flights" no longer has the column "dest"'
    assert read(lone, SCHEMA, "u", reads=Reads(columns=("id",), version=1)) == []


def test_a_query_keeps_the_columns_it_was_planned_with_also_across_a_restart() -> None:
    lone = Lone()
    lone.create()
    publish(lone, SCHEMA, 1, "VIE")
    accepted = lone.answer(SubmitQuery(text="SELECT * FROM flights", name="q"))
    while not isinstance(accepted, QueryAccepted):
        accepted = lone.answers[lone.requests][-1]
        lone.wait(100)
    alter(lone, adds=GATE)
    publish(lone, SECOND, 2, "GRZ", "B7")
    lone.restart()
    lone.wait(90_000)
    publish(lone, SECOND, 3, "LNZ", "C1")
    lone.wait(5_000)
    shown = lone.answer(ShowQuery(query="q"))
    assert isinstance(shown, QueryShown)
    assert (shown.state, shown.results) == ("running", 2), shown.reason
    assert accepted.schema == SCHEMA
    reading = lone.ask(OpenSubscription(stream=shown.stream, subscription="r", since="start"), within_ms=5_000)
    assert lone.read(reading) == [2, 3]
    assert isinstance(lone.answer(StopQuery(query="q")), Done)


def test_a_query_that_a_drop_has_overtaken_waits_and_says_why() -> None:
    """It was dropped in the moment in which the query began: neither has seen the other."""
    lone = Lone()
    lone.create()
    publish(lone, SCHEMA, 1, "VIE")
    lone.answer(SubmitQuery(text="SELECT dest FROM flights", name="q"))
    lone.wait(5_000)
    created_at, other = lone.peer.publisher.outboxes["flights"].definition.created_at, PeerId(b"o" * 20)
    drop = Alteration(asked_at=7, asked_by=other, drops="dest")
    claim = Claim(stream="flights", begun=(7, other), backed_in=(7, other), backs=drop, is_decided=True)
    item, nobody = claim_item(created_at, 2, other), ("catalogue", 1 << 40)
    lone.perform(lone.peer.store.write(stream_key("flights"), item, encode(claim), 0, nobody, lone.now))
    lone.wait(60_000)
    shown = lone.answer(ShowQuery(query="q"))
    assert isinstance(shown, QueryShown)
    assert (shown.state, shown.reason) == ("waiting", 'stream "flights" no longer has the column "dest"')
    assert isinstance(lone.answer(StopQuery(query="q")), Done)
