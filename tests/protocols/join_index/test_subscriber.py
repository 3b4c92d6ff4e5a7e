"""A subscriber among peers that crash: each result once, how far an attempt is, and what ends it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocols.delivery.messages import Origin, Position
from protocols.effects import Effect, Send, Tell
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId
from protocols.join_index.attempt import AWAIT_MS
from protocols.join_index.condition import CompiledJoin
from protocols.join_index.messages import (
    Covered,
    JoinResults,
    Notified,
    Parcel,
    QueryIndexed,
    RemoveQuery,
    ResultRows,
    SentBy,
)
from protocols.join_index.rewriter import SILENT_MS
from protocols.join_index.subscriber import PROGRESS_MS
from protocols.subgraphs import (
    AttemptLost,
    Progress,
    Reach,
    ResultsReady,
    ResultsSafe,
)
from tests.protocols.join_index.posing import in_place, indexed_by
from tests.protocols.join_index.things import (
    EVALUATOR,
    PUBLISHER,
    REWRITER,
    query,
)

ORIGIN = Origin(PUBLISHER, "R", 1)
LIFE = 100


def notify(sequence: int = 1, life: int = LIFE) -> JoinResults:
    origins = (ORIGIN, Origin(PUBLISHER, "S", 1))
    rows = CompiledJoin.of(query(name="q~1")).schema.encode([(1, 5)])
    result = ResultRows("q~1", origins, (0, 0, 1, 0), rows)
    return JoinResults(life=life, subscriber_life=0, sequence=sequence, results=(result,))


def covered(side: Any, *sent: SentBy, upto: int = 1, report: int = 1, **more: Any) -> Covered:
    covers = (Position(Origin(PUBLISHER, "RS"[side], 1), upto),)
    return Covered(reader=f"reader {side}", report=report, tuples=1, messages=1, covers=covers, sent=sent, **more)


def reaches(side: Any, upto: int = 1) -> tuple[Reach, ...]:
    return (Reach("RS"[side], Origin(PUBLISHER, "RS"[side], 1), upto),)


def ready(effects: list[Effect]) -> list[ResultsReady]:
    return [each.event for each in effects if isinstance(each, Tell) and isinstance(each.event, ResultsReady)]


def test_a_result_is_handed_on_once():
    queries = in_place()
    (first,) = ready(queries.results(EVALUATOR, notify(), now=1))
    assert (first.rows, first.progress) == ([(1, 5)], None)
    again = queries.results(EVALUATOR, notify(), now=2)
    assert again == [Send(EVALUATOR, Notified(subscriber_life=0, sequence=1))]
    assert ready(queries.results(EVALUATOR, notify(sequence=2), now=2)) == [], "told anew, it is the same result"
    assert ready(queries.results(REWRITER, notify(), now=2)) == []


def test_an_evaluator_hears_that_results_have_arrived_once_there_is_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("protocols.join_index.subscriber.UNSAFE_MAX", 0)
    queries = in_place()
    (effect,) = queries.results(EVALUATOR, notify(), now=1)
    assert isinstance(effect, Tell)
    notified = Send(EVALUATOR, Notified(subscriber_life=0, sequence=1))
    assert queries.safe(ResultsSafe("q", 1)) == [notified]
    queries.validate()


def test_what_is_covered_is_said_once_its_results_are_here():
    queries = in_place()
    assert ready(queries.covered(REWRITER, covered(0, SentBy(EVALUATOR, LIFE, 0)), now=PROGRESS_MS)) == [
        ResultsReady("q", 1, (), Progress(reaches(0)))
    ]
    assert ready(queries.covered(EVALUATOR, covered(1, SentBy(EVALUATOR, LIFE, 1)), now=PROGRESS_MS)) == []
    result, progress = ready(queries.results(EVALUATOR, notify(), now=PROGRESS_MS))
    assert result.rows == [(1, 5)]
    assert progress.progress == Progress(reaches(0) + reaches(1))
    assert progress.beyond == (), "it is covered"
    assert ready(queries.results(EVALUATOR, notify(sequence=2), now=PROGRESS_MS)) == []


def test_a_result_of_which_one_tuple_is_not_covered_is_remembered_by_name():
    queries = in_place()
    queries.results(EVALUATOR, notify(), now=1)
    (progress,) = ready(queries.covered(REWRITER, covered(0, SentBy(EVALUATOR, LIFE, 1)), now=1))
    assert len(progress.beyond) == 1


def test_a_report_from_before_a_query_was_in_place_says_nothing_of_it():
    """It was on its way while the tuples of before were done again for the query."""
    queries = in_place()
    queries.results(EVALUATOR, notify(), now=1)
    queries.indexed(REWRITER, QueryIndexed(query="q~1", side=0, replica=0, reader="other", report=5), now=1)
    early = covered(0, SentBy(EVALUATOR, LIFE, 1), report=4)
    assert ready(queries.covered(REWRITER, msgspec.structs.replace(early, reader="other"), now=1)) == []
    due = covered(0, SentBy(EVALUATOR, LIFE, 1), report=5)
    assert len(ready(queries.covered(REWRITER, msgspec.structs.replace(due, reader="other"), now=1))) == 1
    queries.validate()


def test_a_query_that_a_reader_has_forgotten_is_lost_whatever_else_the_report_says():
    queries = in_place()
    effects = queries.covered(REWRITER, covered(0, forgotten=("q~1", "q~0")), now=PROGRESS_MS)
    assert Tell(AttemptLost("q", 1, f"peer {REWRITER.short} has forgotten it")) in effects
    assert Send(REWRITER, RemoveQuery(query="q~0")) in effects
    assert ready(effects) == []


def test_an_attempt_whose_results_an_evaluator_has_dropped_is_lost_before_anything_is_believed():
    queries = in_place()
    queries.covered(REWRITER, covered(0, SentBy(EVALUATOR, LIFE, 1)), now=PROGRESS_MS)
    message = msgspec.structs.replace(notify(), results=(), dropped=("q~1",))
    with pytest.raises(RemoteProtocolError):
        queries.results(PeerId(bytes(20)), message, now=PROGRESS_MS)  # Nobody else has a say in it.
    effects = queries.results(EVALUATOR, message, now=PROGRESS_MS)
    assert Tell(AttemptLost("q", 1, f"peer {EVALUATOR.short} has let go of it")) in effects
    assert ready(effects) == []


def test_two_lives_of_one_evaluator_end_the_attempt():
    lost = Tell(AttemptLost("q", 1, f"peer {EVALUATOR.short} was restarted"))
    queries = in_place()
    queries.covered(REWRITER, covered(0, SentBy(EVALUATOR, LIFE, 0)), now=1)
    effects = queries.covered(EVALUATOR, covered(1, SentBy(EVALUATOR, LIFE + 1, 0)), now=1)
    assert lost in effects
    assert Send(REWRITER, RemoveQuery(query="q~1")) in effects
    assert Send(EVALUATOR, Parcel(number=0, over=("q~1",))) in effects
    assert ready(effects) == []
    queries = in_place()
    queries.covered(REWRITER, covered(0, SentBy(EVALUATOR, LIFE, 0)), now=1)
    assert lost in queries.results(EVALUATOR, notify(life=LIFE + 1), now=1)
    assert queries.is_empty()


def test_a_silent_rewriter_and_two_peers_that_both_took_a_side_end_the_attempt():
    queries = in_place()
    assert Tell(AttemptLost("q", 1, f"peer {REWRITER.short} was silent")) in queries.sweep(SILENT_MS + 1)
    queries = in_place()
    effects = queries.indexed(PeerId(bytes(20)), indexed_by(0), now=1)
    assert [type(each.event) for each in effects if isinstance(each, Tell)] == [AttemptLost]


def test_the_next_attempt_says_nothing_before_it_has_what_the_last_one_had():
    resume = Progress(reaches(0, upto=3))
    queries = in_place(resume)
    assert ready(queries.covered(EVALUATOR, covered(1), now=PROGRESS_MS)) == []
    assert ready(queries.covered(REWRITER, covered(0, upto=2), now=PROGRESS_MS)) == []
    (progress,) = ready(queries.covered(REWRITER, covered(0, upto=3, report=2), now=PROGRESS_MS))
    assert progress.progress == Progress(reaches(1) + reaches(0, upto=3))
    queries = in_place(resume)
    assert len(ready(queries.covered(EVALUATOR, covered(1), now=AWAIT_MS))) == 1
