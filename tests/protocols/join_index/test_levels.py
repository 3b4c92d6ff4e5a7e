"""The join index among peers that crash: who says what about how far it is, and what ends an attempt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocols.catalogue.messages import ShowStream
from protocols.delivery.messages import Batch, Opened, OpenSubscription, Origin, Position, Rows
from protocols.effects import Effect, Route, Send, Tell
from protocols.errors import RemoteProtocolError
from protocols.events import Received, Requested
from protocols.ids import Millis, PeerId, RequestId
from protocols.inside import Inside
from protocols.join_index.condition import CompiledJoin
from protocols.join_index.evaluator import LAPSE_MS, RESEND_MS, Evaluator
from protocols.join_index.heavy import evaluators_of
from protocols.join_index.keys import attribute_key, value_key, value_text
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    Covered,
    Heard,
    IndexQuery,
    JoinQuery,
    JoinResults,
    KeepQueries,
    Load,
    Notified,
    Parcel,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    Receipt,
    RemoveQuery,
    ResultRows,
    Told,
)
from protocols.join_index.rewriter import LEASE_MS, OVER_MS, SILENT_MS, Rewriter
from protocols.join_index.selections import Member
from protocols.join_index.subscriber import AWAIT_MS, SAY_MS, Subscriber
from protocols.messages import Refused
from protocols.subgraphs import (
    AttemptLost,
    Deploy,
    Deployed,
    Indexed,
    Progress,
    Reach,
    ResultsReady,
    ResultsSafe,
    StreamInput,
    Subgraph,
    SubgraphStatus,
)
from protocols.wire import MESSAGES
from queries import sql
from tests.protocols.join_index.things import (
    EQUI_JOIN,
    EVALUATOR,
    PUBLISHER,
    R_B,
    REWRITER,
    S_E,
    STREAMS,
    SUBSCRIBER,
    query,
)

LIMITS = JoinLimits()
ORIGIN = Origin(PUBLISHER, "R", 1)
LIFE = 100


# The evaluator.


def an_evaluator(limits: JoinLimits = LIMITS) -> Evaluator:
    evaluator = Evaluator(EVALUATOR, limits)
    evaluator.begin(LIFE)
    return evaluator


def load(stream: str, row: tuple[int, int], value: int, *, group: bytes = b"", sequence: int = 0, at: int = 1) -> Load:
    """One tuple, or one trigger on the left, under a value of S.E."""
    schema, origin = STREAMS[stream].schema, Origin(PUBLISHER, stream, 1)
    place = (origin, at << 16, (sequence,), (value_text(value),), schema.encode([row]))
    return Load(S_E, group, 0, schema, *place)


def parcel(*loads: Load, number: int = 1, queries: tuple[JoinQuery, ...] = (), after: int = 0) -> Parcel:
    return Parcel(number=number, loads=loads, queries=queries, counts_on=True, after=after, settled=1)


def trigger(asked: JoinQuery, value: int = 7, sequence: int = 0) -> Load:
    return load("R", (1, value), value, group=Member(asked).group, sequence=sequence)


def vl_part(sequence: int = 0) -> Load:
    return load("S", (5, 7), 7, sequence=sequence, at=2)


Q_1 = query(name="q~1", life=9)


def meeting(evaluator: Evaluator) -> tuple[JoinResults, list[Effect]]:
    """A rewritten query and a tuple meet."""
    rewritten = parcel(trigger(Q_1), queries=(Q_1,))
    assert evaluator.unpack(REWRITER, rewritten, now=LIFE) == [Send(REWRITER, Receipt(number=1, life=LIFE))]
    effects = evaluator.unpack(REWRITER, parcel(vl_part(), number=2), now=LIFE)
    assert isinstance(effects[0], Send)
    assert isinstance(effects[0].message, JoinResults)
    return effects[0].message, effects


def test_a_receipt_says_how_many_results_had_left_by_then():
    evaluator = an_evaluator()
    told, effects = meeting(evaluator)
    (results,) = told.results
    assert (told.life, told.subscriber_life, told.sequence, results.query) == (LIFE, 9, 1, "q~1")
    assert [results.origins[place] for place in results.made_of[::2]] == [ORIGIN, Origin(PUBLISHER, "S", 1)]
    receipt = Receipt(number=2, life=LIFE, told=(Told(SUBSCRIBER, 9, 1),))
    assert effects == [Send(SUBSCRIBER, told), Send(REWRITER, receipt)]
    again = evaluator.unpack(REWRITER, parcel(vl_part(), number=2), now=LIFE)
    assert again == [Send(REWRITER, receipt)], "a parcel that comes twice tells nothing twice, and says the same"


def test_results_are_told_until_they_have_arrived():
    evaluator = an_evaluator()
    told, _ = meeting(evaluator)
    assert evaluator.sweep(LIFE + RESEND_MS - 1) == []
    assert evaluator.sweep(LIFE + RESEND_MS) == [Send(SUBSCRIBER, told)]
    evaluator.notified(SUBSCRIBER, Notified(subscriber_life=9, sequence=1))
    assert evaluator.sweep(LIFE + 2 * RESEND_MS) == []


def test_a_parcel_waits_for_the_queries_it_is_for():
    evaluator = an_evaluator()
    assert evaluator.unpack(REWRITER, parcel(trigger(Q_1), number=2, after=1), now=LIFE) == []
    evaluator.unpack(REWRITER, parcel(vl_part(), queries=(Q_1,)), now=LIFE)
    told, receipt = evaluator.unpack(REWRITER, parcel(trigger(Q_1), number=2, after=1), now=LIFE)
    assert isinstance(told, Send)
    assert isinstance(told.message, JoinResults)
    assert receipt == Send(REWRITER, Receipt(number=2, life=LIFE, told=(Told(SUBSCRIBER, 9, 1),)))


def test_nobody_may_send_more_while_a_subscriber_is_slow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("protocols.join_index.evaluator.UNHEARD_BYTES_MAX", 1)
    evaluator = an_evaluator()
    evaluator.unpack(REWRITER, parcel(trigger(Q_1), queries=(Q_1,)), now=LIFE)
    (told,) = evaluator.unpack(REWRITER, parcel(vl_part(), number=2), now=LIFE)
    assert isinstance(told, Send)
    assert isinstance(told.message, JoinResults)
    assert evaluator.unpack(REWRITER, Parcel(number=0), now=LIFE) == [Send(REWRITER, Receipt(number=0, life=LIFE))]
    receipt = Receipt(number=2, life=LIFE, told=(Told(SUBSCRIBER, 9, 1),))
    assert evaluator.notified(SUBSCRIBER, Notified(subscriber_life=9, sequence=1)) == [Send(REWRITER, receipt)]


def test_a_full_evaluator_says_so():
    evaluator = an_evaluator(JoinLimits(tuples_max=1))
    evaluator.unpack(REWRITER, parcel(vl_part(), queries=(Q_1,)), now=LIFE)
    (effect,) = evaluator.unpack(REWRITER, parcel(vl_part(sequence=1), number=2), now=LIFE)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Receipt)
    assert "no room" in effect.message.refused


def test_a_query_that_its_subscriber_has_ended_or_begun_anew_leaves_nothing():
    for end in (Parcel(number=0, over=("q~1",)), parcel(number=3, queries=(query(name="q~2", life=9),))):
        evaluator = an_evaluator()
        meeting(evaluator)
        evaluator.unpack(REWRITER, end, now=LIFE)
        assert "q~1" not in evaluator.tables.queries
        assert all(not each.message.results for each in evaluator.sweep(LIFE + RESEND_MS))  # type: ignore[attr-defined]
        evaluator.validate()


def test_what_comes_late_of_a_query_that_has_ended_is_not_kept():
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(REWRITER, Parcel(number=0, over=("q~1",)), now=LIFE)
    stored = evaluator.tables.stored
    late = parcel(trigger(Q_1, sequence=1), number=3, queries=(Q_1,))
    assert evaluator.unpack(REWRITER, late, now=LIFE + 1) == [Send(REWRITER, Receipt(number=3, life=LIFE))]
    assert evaluator.tables.stored == stored


def test_a_query_whose_rewriters_are_gone_ends_the_life_of_the_evaluator():
    """Somebody may count on it still, and would not notice if the query alone were forgotten."""
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(REWRITER, Parcel(number=0, counts_on=True), now=LIFE + 1000)
    evaluator.unpack(SUBSCRIBER, Parcel(number=0), now=LIFE + LAPSE_MS)
    evaluator.sweep(LIFE + LAPSE_MS + 1000)
    assert evaluator.life == LIFE
    evaluator.sweep(LIFE + LAPSE_MS + 1001)
    assert evaluator.life == LIFE + LAPSE_MS + 1001
    assert evaluator.is_empty()


def test_a_query_that_one_rewriter_has_let_go_is_kept_for_another():
    """It was posed at two, for who is nearest to an attribute may change, and only one of them counts."""
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(PUBLISHER, parcel(queries=(Q_1,)), now=LIFE)
    evaluator.unpack(REWRITER, Parcel(number=0, released=("q~1",)), now=LIFE)
    assert "q~1" in evaluator.tables.queries
    evaluator.unpack(PUBLISHER, Parcel(number=0, released=("q~1",)), now=LIFE)
    assert "q~1" not in evaluator.tables.queries
    (answer,) = evaluator.unpack(PUBLISHER, parcel(number=2, queries=(Q_1,)), now=LIFE)
    assert "q~1" not in evaluator.tables.queries
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Receipt)
    assert answer.message.refused, "what came of it before is gone, in this very life"


def test_a_rewriter_that_is_gone_harms_nobody_once_its_queries_are_over():
    evaluator = an_evaluator()
    meeting(evaluator)
    evaluator.unpack(SUBSCRIBER, Parcel(number=0, over=("q~1",)), now=LIFE + LAPSE_MS)
    evaluator.sweep(LIFE + LAPSE_MS + 1)
    assert evaluator.life == LIFE


def test_tuples_go_with_the_last_query_that_waits_for_them():
    evaluator = an_evaluator(JoinLimits(late_ms=10 * LAPSE_MS))
    meeting(evaluator)
    assert evaluator.tables.stored > 0
    evaluator.unpack(REWRITER, Parcel(number=0, over=("q~1",)), now=LIFE)
    assert evaluator.is_empty()


# The rewriter.


def posed(name: str = "q~1", at: int = 0, rewrites: bool = True, algorithm: Any = "sai", side: Any = 0) -> IndexQuery:
    return IndexQuery(
        query=query(name=name, at=at, algorithm=algorithm),
        side=side,
        replica=0,
        rewrites=rewrites,
        evaluators=(EVALUATOR, REWRITER),
    )


def opened(rewriter: Rewriter, message: IndexQuery) -> RequestId:
    """Pose a query, and have its stream opened."""
    (effect,) = rewriter.index(SUBSCRIBER, message, now=0)
    assert isinstance(effect, Tell)
    assert isinstance(effect.event, Requested)
    assert isinstance(effect.event.command, OpenSubscription)
    request = effect.event.request
    name = effect.event.command.subscription
    indexed = QueryIndexed(query=message.query.id, side=message.side, replica=0, reader=name, report=1)
    assert rewriter.answered(request, Opened(subscription=name, stamp=0), now=0) == [Send(SUBSCRIBER, indexed)]
    return request


def rows(*values: int, first: int = 0, at: int = 1) -> Rows:
    schema = STREAMS["R"].schema
    batch = Batch(ORIGIN, first, len(values), at << 16, schema.encode([(n, n) for n in values]))
    return Rows(batches=(batch,))


def parcels(effects: list[Effect]) -> list[Send]:
    return [each for each in effects if isinstance(each, Send) and isinstance(each.message, Parcel)]


def covers_of(effects: list[Effect]) -> list[Covered]:
    return [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Covered)]


def test_what_is_read_is_covered_once_everything_of_it_is_unpacked():
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    sent = parcels(rewriter.answered(request, rows(7, 8, 9, 10), now=1))
    places = {
        value: evaluators_of(value_key(S_E, value_text(value)), (EVALUATOR, REWRITER))[0] for value in (7, 8, 9, 10)
    }
    assert {each.peer for each in sent} == set(places.values())
    loads = [each for send in sent for each in send.message.loads]  # type: ignore[attr-defined]
    assert sorted(sequence for each in loads for sequence in each.sequences) == [0, 1, 2, 3]
    (report,) = covers_of(rewriter.sweep(2))
    assert (report.tuples, report.messages, report.covers) == (4, 4, ())
    for each in sent:
        assert isinstance(each.message, Parcel)
        told = (Told(SUBSCRIBER, 0, 3),)
        rewriter.received(each.peer, Receipt(number=each.message.number, life=LIFE, told=told), now=3)
    (report,) = covers_of(rewriter.sweep(4))
    assert report.covers == (Position(ORIGIN, 4),)
    assert {each.peer: each for each in report.heard} == {each.peer: Heard(each.peer, LIFE, 3) for each in sent}


def test_a_parcel_is_sent_again_until_there_is_a_receipt():
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    (sent,) = parcels(rewriter.answered(request, rows(7), now=1))
    assert sent in rewriter.sweep(1 + RESEND_MS)


def test_a_parcel_waits_only_for_queries_that_are_still_on_their_way(monkeypatch: pytest.MonkeyPatch):
    """Of three readings the one between has ended: its parcel may never have arrived, the first one's still will."""
    monkeypatch.setattr("protocols.join_index.reader.RECENT_BYTES", 0)
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    (first,) = parcels(rewriter.answered(opened(rewriter, posed()), rows(7, at=10), now=10))
    (second,) = parcels(rewriter.answered(opened(rewriter, posed("q2~1", at=5)), rows(7, at=10), now=10))
    (third,) = parcels(rewriter.answered(opened(rewriter, posed("q3~1", at=3)), rows(7, at=10), now=10))
    assert isinstance(first.message, Parcel)
    assert isinstance(second.message, Parcel)
    assert isinstance(third.message, Parcel)
    assert first.peer == second.peer == third.peer
    assert (second.message.after, third.message.after) == (first.message.number, second.message.number)
    rewriter.remove(RemoveQuery(query="q2~1"), now=11)
    assert after_again(rewriter, 10 + RESEND_MS) == {
        first.message.number: 0,
        third.message.number: first.message.number,
    }
    rewriter.remove(RemoveQuery(query="q~1"), now=11)
    assert after_again(rewriter, 10 + 2 * RESEND_MS) == {third.message.number: 0}


def after_again(rewriter: Rewriter, now: Millis) -> dict[int, int]:
    """What the parcels wait for that are sent again."""
    again = [send.message for send in parcels(rewriter.sweep(now))]
    return {each.number: each.after for each in again if isinstance(each, Parcel) and each.loads}


def test_a_large_batch_goes_in_several_parcels_and_a_tuple_that_fits_none_ends_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("protocols.join_index.reader.PIECE_BYTES", 10)
    monkeypatch.setattr("protocols.join_index.rewriter.PARCEL_BYTES", 1)
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    sent = parcels(rewriter.answered(request, rows(*[7] * 8), now=1))
    assert [len(load.sequences) for each in sent for load in each.message.loads] == [3, 3, 2]  # type: ignore[attr-defined]
    assert [len(each.message.queries) for each in sent] == [1, 0, 0, 0]  # type: ignore[attr-defined]
    monkeypatch.setattr("protocols.join_index.reader.TUPLE_BYTES_MAX", 2)
    lost = rewriter.answered(request, rows(*[7] * 8, first=8), now=1)
    reason = "a tuple of 3 bytes is too large for the join index"
    assert lost[0] == Send(SUBSCRIBER, QueryLost(query="q~1", reason=reason))


def test_an_evaluator_in_another_life_or_silent_or_full_ends_the_attempt():
    def read() -> tuple[Rewriter, Send, int]:
        rewriter = Rewriter(REWRITER, LIMITS, Inside())
        request = opened(rewriter, posed())
        (sent,) = parcels(rewriter.answered(request, rows(7), now=1))
        assert isinstance(sent.message, Parcel)
        rewriter.received(sent.peer, Receipt(number=sent.message.number, life=LIFE), now=1)
        return rewriter, sent, request

    rewriter, sent, _ = read()
    restarted = rewriter.received(sent.peer, Receipt(number=0, life=LIFE + 1), now=2)
    level_2, sent_2, _ = read()
    silent = level_2.sweep(2 + SILENT_MS)
    level_3, _, request_3 = read()
    (more,) = parcels(level_3.answered(request_3, rows(7, first=1), now=2))
    assert isinstance(more.message, Parcel)
    full = level_3.received(more.peer, Receipt(number=more.message.number, life=LIFE, refused="full"), now=2)
    for effects, reason, culprit in (
        (restarted, f"peer {sent.peer.short} was restarted", None),
        (silent, f"peer {sent_2.peer.short} was silent for 6 s", sent_2.peer),
        (full, "full", None),
    ):
        assert Send(SUBSCRIBER, QueryLost(query="q~1", reason=reason, culprit=culprit)) in effects
    assert not rewriter.readers
    assert rewriter.keep(SUBSCRIBER, KeepQueries(queries=(("q~1", 0, 0),)), now=3) == [
        Send(SUBSCRIBER, QueryLost(query="q~1", reason=f"peer {REWRITER.short} has forgotten it"))
    ]


def test_queries_share_a_reading_and_what_one_missed_is_done_again_for_it():
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    (first,) = parcels(rewriter.answered(request, rows(7, at=10), now=10))
    (reader,) = rewriter.readers.values()
    young = rewriter.index(SUBSCRIBER, posed("q2~1", at=11), now=11)
    assert young == [
        Send(SUBSCRIBER, QueryIndexed(query="q2~1", side=0, replica=0, reader=reader.name, report=reader.report + 1))
    ]
    (again,) = rewriter.index(SUBSCRIBER, posed("q3~1", at=10), now=11)
    assert isinstance(again, Send)
    assert isinstance(again.message, Parcel)
    assert isinstance(first.message, Parcel)
    assert again.message.loads == first.message.loads, "it wants the tuple that was read"
    assert [each.id for each in again.message.queries] == ["q2~1", "q3~1"]
    assert again.message.after == first.message.number
    assert rewriter.received(again.peer, Receipt(number=again.message.number, life=LIFE), now=12) == []
    done = rewriter.received(first.peer, Receipt(number=first.message.number, life=LIFE), now=12)
    indexed = [each.message for each in done if isinstance(each, Send) and isinstance(each.message, QueryIndexed)]
    assert [(each.query, each.report) for each in indexed] == [("q3~1", 1)]
    assert len(rewriter.readers) == 1
    rewriter.validate()


def test_a_query_of_long_ago_reads_for_itself_until_it_has_caught_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("protocols.join_index.reader.RECENT_BYTES", 0)
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    request = opened(rewriter, posed())
    received_all(rewriter, rewriter.answered(request, rows(7, at=10), now=10))
    late = opened(rewriter, posed("q2~1", at=5))
    assert len(rewriter.readers) == 2
    rewriter.sweep(11)
    assert len(rewriter.readers) == 2, "it has not read what the other has"
    received_all(rewriter, rewriter.answered(late, rows(7, at=10), now=11))
    effects = rewriter.sweep(12)
    (reader,) = rewriter.readers.values()
    assert reader.request == request
    indexed = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, QueryIndexed)]
    assert [(each.query, each.reader) for each in indexed] == [("q2~1", reader.name)]
    assert [each.report for each in covers_of(effects)] == [indexed[0].report]
    rewriter.validate()


def received_all(rewriter: Rewriter, effects: list[Effect]) -> None:
    for each in parcels(effects):
        assert isinstance(each.message, Parcel)
        rewriter.received(each.peer, Receipt(number=each.message.number, life=LIFE), now=11)


def test_a_query_without_a_lease_or_removed_is_read_for_no_longer():
    for end in ("lease", "removal"):
        rewriter = Rewriter(REWRITER, LIMITS, Inside())
        opened(rewriter, posed())
        if end == "lease":
            rewriter.sweep(LEASE_MS + 1)
        else:
            rewriter.remove(RemoveQuery(query="q~1"), now=1)
        assert not rewriter.readers
        (refused,) = rewriter.index(SUBSCRIBER, posed(), now=LEASE_MS + 2)
        assert isinstance(refused, Send)
        assert isinstance(refused.message, QueryLost), "evaluators are being told to forget it"
        rewriter.sweep(LEASE_MS + OVER_MS + 2)
        assert rewriter.is_empty()


def test_a_subscriber_hears_what_was_forgotten_without_its_word():
    rewriter = Rewriter(REWRITER, LIMITS, Inside())
    opened(rewriter, posed())
    rewriter.index(SUBSCRIBER, posed("q2~1"), now=LEASE_MS)
    (report,) = covers_of(rewriter.sweep(LEASE_MS + 1))
    assert report.forgotten == ("q~1",)
    rewriter.remove(RemoveQuery(query="q~1"), now=LEASE_MS + 2)
    (report,) = covers_of(rewriter.sweep(LEASE_MS + 3))
    assert report.forgotten == ()


def test_a_query_is_refused_where_there_is_no_room_or_no_evaluator():
    full = Rewriter(REWRITER, JoinLimits(queries_max=0), Inside())
    (effect,) = full.index(SUBSCRIBER, posed(), now=0)
    assert effect == Send(
        SUBSCRIBER, QueryRefused(query="q~1", reason=f"peer {REWRITER.short} has 0 join queries already")
    )
    nobody = IndexQuery(query=query(name="q~1"), side=0, replica=0)
    (effect,) = Rewriter(REWRITER, LIMITS, Inside()).index(SUBSCRIBER, nobody, now=0)
    assert effect == Send(SUBSCRIBER, QueryRefused(query="q~1", reason="it names no evaluators"))


def test_a_peer_does_not_understand_a_query_of_an_algorithm_that_only_experiments_run():
    with pytest.raises(RemoteProtocolError, match="cells"):
        MESSAGES.decode(MESSAGES.encode(posed(algorithm="cells")))


# The subscriber.


def deployment(attempt: int = 1, resume: Progress | None = None) -> Deploy:
    plan = sql.plan(EQUI_JOIN, STREAMS).plan
    inputs = tuple(StreamInput(name, name, 0, None, 0) for name in ("R", "S"))
    subgraph = Subgraph(0, plan, inputs, Indexed("sai"))
    return Deploy(query="q", attempt=attempt, subgraph=subgraph, consumer_host=None, resume=resume or Progress())


def routed(queries: Subscriber, asked: list[Effect]) -> list[IndexQuery]:
    """What becomes of a query when nobody knows the rates of its streams."""
    effects: list[Effect] = []
    for each in asked:
        assert isinstance(each, Tell)
        assert isinstance(each.event, Requested)
        assert isinstance(each.event.command, ShowStream)
        effects = queries.answered(each.event.request, Refused(code="unavailable", error=""), now=0)
    assert [each.key for each in effects if isinstance(each, Route)] == [attribute_key(R_B), attribute_key(S_E)]
    return [each.message for each in effects if isinstance(each, Route) and isinstance(each.message, IndexQuery)]


def in_place(resume: Progress | None = None, late_ms: Millis = 0) -> Subscriber:
    """A query whose rewriters have it."""
    queries = Subscriber(SUBSCRIBER, Inside(), lambda: (EVALUATOR, REWRITER), late_ms)
    asked = queries.deploy(deployment(resume=resume), now=0)
    assert [each.rewrites for each in routed(queries, asked)] == [True, False]
    assert queries.indexed(REWRITER, indexed_by(0), now=0) == []
    effects = queries.indexed(EVALUATOR, indexed_by(1), now=0)
    told = [each.event.message for each in effects if isinstance(each, Tell) and isinstance(each.event, Received)]
    assert [type(each) for each in told] == [Deployed, SubgraphStatus]
    return queries


def indexed_by(side: Any, report: int = 1) -> QueryIndexed:
    return QueryIndexed(query="q~1", side=side, replica=0, reader=f"reader {side}", report=report)


def notify(sequence: int = 1, life: int = LIFE) -> JoinResults:
    origins = (ORIGIN, Origin(PUBLISHER, "S", 1))
    rows = CompiledJoin.of(query(name="q~1")).schema.encode([(1, 5)])
    result = ResultRows("q~1", origins, (0, 0, 1, 0), rows)
    return JoinResults(life=life, subscriber_life=0, sequence=sequence, results=(result,))


def covered(side: Any, *heard: Heard, upto: int = 1, report: int = 1, **more: Any) -> Covered:
    covers = (Position(Origin(PUBLISHER, "RS"[side], 1), upto),)
    return Covered(reader=f"reader {side}", report=report, tuples=1, messages=1, covers=covers, heard=heard, **more)


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
    assert ready(queries.covered(REWRITER, covered(0, Heard(EVALUATOR, LIFE, 0)), now=SAY_MS)) == [
        ResultsReady("q", 1, (), Progress(reaches(0)))
    ]
    assert ready(queries.covered(EVALUATOR, covered(1, Heard(EVALUATOR, LIFE, 1)), now=SAY_MS)) == []
    result, progress = ready(queries.results(EVALUATOR, notify(), now=SAY_MS))
    assert result.rows == [(1, 5)]
    assert progress.progress == Progress(reaches(0) + reaches(1))
    assert progress.beyond == (), "it is covered"
    assert ready(queries.results(EVALUATOR, notify(sequence=2), now=SAY_MS)) == []


def test_a_result_of_which_one_tuple_is_not_covered_is_remembered_by_name():
    queries = in_place()
    queries.results(EVALUATOR, notify(), now=1)
    (progress,) = ready(queries.covered(REWRITER, covered(0, Heard(EVALUATOR, LIFE, 1)), now=1))
    assert len(progress.beyond) == 1


def test_a_report_from_before_a_query_was_in_place_says_nothing_of_it():
    """It was on its way while the tuples of before were done again for the query."""
    queries = in_place()
    queries.results(EVALUATOR, notify(), now=1)
    queries.indexed(REWRITER, QueryIndexed(query="q~1", side=0, replica=0, reader="other", report=5), now=1)
    early = covered(0, Heard(EVALUATOR, LIFE, 1), report=4)
    assert ready(queries.covered(REWRITER, msgspec.structs.replace(early, reader="other"), now=1)) == []
    due = covered(0, Heard(EVALUATOR, LIFE, 1), report=5)
    assert len(ready(queries.covered(REWRITER, msgspec.structs.replace(due, reader="other"), now=1))) == 1
    queries.validate()


def test_a_query_that_a_reader_has_forgotten_is_lost_whatever_else_the_report_says():
    queries = in_place()
    effects = queries.covered(REWRITER, covered(0, forgotten=("q~1", "q~0")), now=SAY_MS)
    assert Tell(AttemptLost("q", 1, f"peer {REWRITER.short} has forgotten it")) in effects
    assert Send(REWRITER, RemoveQuery(query="q~0")) in effects
    assert ready(effects) == []


def test_two_lives_of_one_evaluator_end_the_attempt():
    lost = Tell(AttemptLost("q", 1, f"peer {EVALUATOR.short} was restarted"))
    queries = in_place()
    queries.covered(REWRITER, covered(0, Heard(EVALUATOR, LIFE, 0)), now=1)
    effects = queries.covered(EVALUATOR, covered(1, Heard(EVALUATOR, LIFE + 1, 0)), now=1)
    assert lost in effects
    assert Send(REWRITER, RemoveQuery(query="q~1")) in effects
    assert Send(EVALUATOR, Parcel(number=0, over=("q~1",))) in effects
    assert ready(effects) == []
    queries = in_place()
    queries.covered(REWRITER, covered(0, Heard(EVALUATOR, LIFE, 0)), now=1)
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
    assert ready(queries.covered(EVALUATOR, covered(1), now=SAY_MS)) == []
    assert ready(queries.covered(REWRITER, covered(0, upto=2), now=SAY_MS)) == []
    (progress,) = ready(queries.covered(REWRITER, covered(0, upto=3, report=2), now=SAY_MS))
    assert progress.progress == Progress(reaches(1) + reaches(0, upto=3))
    queries = in_place(resume)
    assert len(ready(queries.covered(EVALUATOR, covered(1), now=AWAIT_MS))) == 1


def test_pairs_of_which_both_tuples_were_covered_are_not_told_again():
    evaluator = an_evaluator()
    resumed = query(name="q~2", life=9, known=reaches(0) + reaches(1))
    evaluator.unpack(REWRITER, parcel(trigger(resumed), vl_part(), queries=(resumed,)), now=LIFE)
    effects = evaluator.unpack(REWRITER, parcel(vl_part(sequence=1), number=2), now=LIFE)
    told = [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, JoinResults)]
    assert [(each.sequence, each.results[0].made_of) for each in told] == [(1, (0, 0, 1, 1))], "neither the first pair"
