"""The join index among peers that crash: who says what about how far it is, and what ends an attempt."""

from __future__ import annotations

from typing import Any

from protocols.catalogue.messages import ShowStream
from protocols.delivery.messages import Batch, Opened, OpenSubscription, Origin, Rows
from protocols.effects import Effect, Route, Send, Tell
from protocols.events import Received, Requested
from protocols.execution.executor import AttemptLost, ResultsReady
from protocols.execution.messages import Deploy, Deployed, Progress, Reach, StreamInput, Subgraph, SubgraphStatus
from protocols.ids import PeerId, RequestId
from protocols.inside import Inside
from protocols.join_index.attribute_level import LEASE_MS, SILENT_MS, AttributeLevel, nearest
from protocols.join_index.condition import Prepared
from protocols.join_index.keys import attribute_key, value_key, value_text
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    Covered,
    Heard,
    KeepQuery,
    Notified,
    Notify,
    Parcel,
    Query,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    Receipt,
    RemoveQuery,
    VlIndex,
)
from protocols.join_index.proxy_side import AWAIT_MS, IndexedQueries
from protocols.join_index.value_level import LAPSE_MS, RESEND_MS, ValueLevel
from protocols.messages import Refused
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
    join,
    query,
    r,
    s,
)

LIMITS = JoinLimits()
ORIGIN = Origin(PUBLISHER, "R", 1)
LIFE = 100


# The value level.


def value_level(limits: JoinLimits = LIMITS) -> ValueLevel:
    level = ValueLevel(EVALUATOR, limits)
    level.begin(LIFE)
    return level


def parcel(*parts: Any, number: int = 1) -> Parcel:
    return Parcel(number=number, parts=parts)


def vl_part(sequence: int = 0) -> VlIndex:
    return VlIndex(tuple=s(5, 7, at=2, sequence=sequence), at=S_E, value=value_text(7), keep_ms=1000)


def meeting(level: ValueLevel) -> tuple[Notify, list[Effect]]:
    """A rewritten query and a tuple meet."""
    rewritten = parcel(join(r(1, 7, at=1), S_E, 7, query(name="q~1")))
    assert level.unpack(REWRITER, rewritten, now=LIFE) == [
        Send(REWRITER, Receipt(number=1, life=LIFE, told=(("q~1", 0),)))
    ]
    effects = level.unpack(REWRITER, parcel(vl_part(), number=2), now=LIFE)
    assert isinstance(effects[0], Send)
    assert isinstance(effects[0].message, Notify)
    return effects[0].message, effects


def test_a_receipt_says_how_many_results_had_left_by_then():
    level = value_level()
    told, effects = meeting(level)
    assert (told.life, told.sequence, len(told.notifications)) == (LIFE, 1, 1)
    receipt = Receipt(number=2, life=LIFE, told=(("q~1", 1),))
    assert effects == [Send(SUBSCRIBER, told), Send(REWRITER, receipt)]
    again = level.unpack(REWRITER, parcel(vl_part(), number=2), now=LIFE)
    assert again == [Send(REWRITER, receipt)], "a parcel that comes twice tells nothing twice, and says the same"


def test_results_are_told_until_they_have_arrived():
    level = value_level()
    told, _ = meeting(level)
    assert level.sweep(LIFE + RESEND_MS - 1) == []
    assert level.sweep(LIFE + RESEND_MS) == [Send(SUBSCRIBER, told)]
    level.notified(Notified(query="q~1", sequence=1))
    assert level.sweep(LIFE + 2 * RESEND_MS) == []


def test_a_full_evaluator_says_so():
    level = value_level(JoinLimits(tuples_max=1))
    level.unpack(REWRITER, parcel(vl_part()), now=LIFE)
    (effect,) = level.unpack(REWRITER, parcel(vl_part(sequence=1), number=2), now=LIFE)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Receipt)
    assert "no room" in effect.message.refused


def test_a_query_that_its_subscriber_has_ended_or_begun_anew_leaves_nothing():
    for end in (Parcel(number=0, parts=(), over=("q~1",)), parcel(join(r(1, 8, at=1), S_E, 8, query(name="q~2")))):
        level = value_level()
        meeting(level)
        level.unpack(REWRITER, end, now=LIFE)
        assert level.evaluator.queries_at(S_E, value_text(7)) == ()
        assert level.sweep(LIFE + RESEND_MS) == []
        level.validate()


def test_what_comes_late_of_a_query_that_has_ended_is_not_kept():
    level = value_level()
    meeting(level)
    level.unpack(REWRITER, Parcel(number=0, parts=(), over=("q~1",)), now=LIFE)
    late = parcel(join(r(2, 7, at=3, sequence=1), S_E, 7, query(name="q~1")), number=3)
    assert level.unpack(REWRITER, late, now=LIFE + 1) == [Send(REWRITER, Receipt(number=3, life=LIFE))]
    level.unpack(REWRITER, Parcel(number=0, parts=()), now=LIFE + 2)
    level.sweep(LIFE + LAPSE_MS + 2)
    assert level.life == LIFE


def test_a_query_that_nobody_mentions_ends_the_life_of_the_evaluator():
    """Somebody may count on it still, and would not notice if the query alone were forgotten."""
    level = value_level()
    meeting(level)
    level.unpack(REWRITER, Parcel(number=0, parts=(), wanted=("q~1",)), now=LIFE + 1000)
    level.sweep(LIFE + LAPSE_MS + 1000)
    assert level.life == LIFE
    level.sweep(LIFE + LAPSE_MS + 1001)
    assert level.life == LIFE + LAPSE_MS + 1001
    assert level.is_empty()


def test_tuples_that_nobody_asks_after_are_forgotten():
    level = value_level(JoinLimits(late_ms=10 * LAPSE_MS))
    meeting(level)
    level.unpack(REWRITER, Parcel(number=0, parts=(), over=("q~1",)), now=LIFE)
    level.sweep(LIFE + LAPSE_MS)
    assert not level.is_empty()
    level.sweep(LIFE + LAPSE_MS + 1)
    assert level.is_empty()
    assert level.evaluator.stored_tuples == 0


# The attribute level.


def posed(name: str = "q~1", at: int = 0, rewrites: bool = True, algorithm: Any = "sai", side: Any = 0) -> Query:
    return Query(
        query=query(name=name, at=at, algorithm=algorithm),
        side=side,
        replica=0,
        rewrites=rewrites,
        evaluators=(EVALUATOR, REWRITER),
    )


def opened(level: AttributeLevel, message: Query) -> RequestId:
    """Pose a query, and have its stream opened."""
    (effect,) = level.index(SUBSCRIBER, message, now=0)
    assert isinstance(effect, Tell)
    assert isinstance(effect.event, Requested)
    assert isinstance(effect.event.command, OpenSubscription)
    request = effect.event.request
    name = effect.event.command.subscription
    indexed = QueryIndexed(query=message.query.id, side=message.side, replica=0)
    assert level.answered(request, Opened(subscription=name, stamp=0), now=0) == [Send(SUBSCRIBER, indexed)]
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
    level = AttributeLevel(REWRITER, LIMITS, Inside())
    request = opened(level, posed())
    sent = parcels(level.answered(request, rows(7, 8, 9, 10), now=1))
    places = {value: nearest(value_key(S_E, value_text(value)), (EVALUATOR, REWRITER)) for value in (7, 8, 9, 10)}
    assert {each.peer for each in sent} == set(places.values())
    assert sum(len(each.message.parts) for each in sent) == 4  # type: ignore[attr-defined]
    (report,) = covers_of(level.sweep(2))
    assert (report.tuples, report.messages, report.covers) == (4, 4, ())
    for each in sent:
        assert isinstance(each.message, Parcel)
        level.received(each.peer, Receipt(number=each.message.number, life=LIFE, told=(("q~1", 3),)), now=3)
    (report,) = covers_of(level.sweep(4))
    assert report.covers == (Reach("R", ORIGIN, 4),)
    assert {each.peer: each for each in report.heard} == {each.peer: Heard(each.peer, LIFE, 3) for each in sent}


def test_a_parcel_is_sent_again_until_there_is_a_receipt():
    level = AttributeLevel(REWRITER, LIMITS, Inside())
    request = opened(level, posed())
    (sent,) = parcels(level.answered(request, rows(7), now=1))
    assert sent in level.sweep(1 + RESEND_MS)


def test_an_evaluator_in_another_life_or_silent_or_full_ends_the_attempt():
    def read() -> tuple[AttributeLevel, Send, int]:
        level = AttributeLevel(REWRITER, LIMITS, Inside())
        request = opened(level, posed())
        (sent,) = parcels(level.answered(request, rows(7), now=1))
        assert isinstance(sent.message, Parcel)
        level.received(sent.peer, Receipt(number=sent.message.number, life=LIFE), now=1)
        return level, sent, request

    level, sent, _ = read()
    restarted = level.received(sent.peer, Receipt(number=0, life=LIFE + 1), now=2)
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
    assert level.is_empty()
    assert level.keep(SUBSCRIBER, KeepQuery(query="q~1", side=0), now=3) == [
        Send(SUBSCRIBER, QueryLost(query="q~1", reason=f"peer {REWRITER.short} has forgotten it"))
    ]


def test_queries_share_a_reading_that_has_passed_nothing_they_want():
    level = AttributeLevel(REWRITER, LIMITS, Inside())
    request = opened(level, posed())
    level.answered(request, rows(7, at=10), now=10)
    assert level.index(SUBSCRIBER, posed("q2~1", at=11), now=11) == [
        Send(SUBSCRIBER, QueryIndexed(query="q2~1", side=0, replica=0))
    ]
    (effect,) = level.index(SUBSCRIBER, posed("q3~1", at=10), now=11)
    assert isinstance(effect, Tell), "it wants the tuple that was read"
    assert len(level.readers) == 2
    level.validate()


def test_a_query_without_a_lease_or_removed_is_read_for_no_longer():
    for end in ("lease", "removal"):
        level = AttributeLevel(REWRITER, LIMITS, Inside())
        opened(level, posed())
        if end == "lease":
            level.sweep(LEASE_MS + 1)
        else:
            level.remove(RemoveQuery(query="q~1"), now=1)
        assert level.is_empty()


def test_a_query_is_refused_where_there_is_no_room_or_no_evaluator():
    full = AttributeLevel(REWRITER, JoinLimits(queries_max=0), Inside())
    (effect,) = full.index(SUBSCRIBER, posed(), now=0)
    assert effect == Send(
        SUBSCRIBER, QueryRefused(query="q~1", reason=f"peer {REWRITER.short} has 0 join queries already")
    )
    nobody = Query(query=query(name="q~1"), side=0, replica=0)
    (effect,) = AttributeLevel(REWRITER, LIMITS, Inside()).index(SUBSCRIBER, nobody, now=0)
    assert effect == Send(SUBSCRIBER, QueryRefused(query="q~1", reason="it names no evaluators"))


# The proxy's part.


def in_place(resume: Progress | None = None) -> IndexedQueries:
    """A query whose rewriters have it."""
    queries = IndexedQueries(SUBSCRIBER, Inside(), lambda: (EVALUATOR, REWRITER))
    plan = sql.plan(EQUI_JOIN, STREAMS).plan
    inputs = tuple(StreamInput(name, name, 0, None, 0) for name in ("R", "S"))
    deploy = Deploy(
        query="q", attempt=1, subgraph=Subgraph(0, plan, inputs, "sai"), consumer_host=None, resume=resume or Progress()
    )
    asked = queries.deploy(deploy, now=0)
    refused = Refused(code="unavailable", error="")
    routed: list[Effect] = []
    for each in asked:
        assert isinstance(each, Tell)
        assert isinstance(each.event, Requested)
        assert isinstance(each.event.command, ShowStream)
        routed = queries.answered(each.event.request, refused, now=0)
    assert [each.key for each in routed if isinstance(each, Route)] == [attribute_key(R_B), attribute_key(S_E)]
    assert [each.message.rewrites for each in routed if isinstance(each, Route)] == [True, False]  # type: ignore[attr-defined]
    assert queries.indexed(REWRITER, QueryIndexed(query="q~1", side=0, replica=0), now=0) == []
    effects = queries.indexed(EVALUATOR, QueryIndexed(query="q~1", side=1, replica=0), now=0)
    told = [each.event.message for each in effects if isinstance(each, Tell) and isinstance(each.event, Received)]
    assert [type(each) for each in told] == [Deployed, SubgraphStatus]
    return queries


def notify(sequence: int = 1, life: int = LIFE, known: tuple[Reach, ...] = ()) -> Notify:
    prepared = Prepared.of(query(name="q~1", known=known))
    result = prepared.meet(prepared.read(r(1, 7, at=1), 0), prepared.read(s(5, 7, at=2), 1))
    assert result is not None
    return Notify(notifications=(result,), life=life, sequence=sequence)


def covered(side: Any, *heard: Heard, upto: int = 1) -> Covered:
    name = "RS"[side]
    reach = Reach(name, Origin(PUBLISHER, name, 1), upto)
    return Covered(query="q~1", side=side, tuples=1, messages=1, covers=(reach,), heard=heard)


def ready(effects: list[Effect]) -> list[ResultsReady]:
    return [each.event for each in effects if isinstance(each, Tell) and isinstance(each.event, ResultsReady)]


def test_a_result_is_handed_on_once():
    queries = in_place()
    (first,) = ready(queries.notify(EVALUATOR, notify(), now=1))
    assert (first.rows, first.progress) == ([(1, 5)], None)
    again = queries.notify(EVALUATOR, notify(), now=2)
    assert again == [Send(EVALUATOR, Notified(query="q~1", sequence=1))]
    elsewhere = queries.notify(REWRITER, notify(), now=2)
    assert ready(elsewhere) == []


def test_what_is_covered_is_said_once_its_results_are_here():
    queries = in_place()
    assert ready(queries.covered(REWRITER, covered(0, Heard(EVALUATOR, LIFE, 0)), now=1)) == [
        ResultsReady("q", 1, (), Progress(covered(0).covers))
    ]
    assert ready(queries.covered(EVALUATOR, covered(1, Heard(EVALUATOR, LIFE, 1)), now=1)) == []
    result, progress = ready(queries.notify(EVALUATOR, notify(), now=2))
    assert result.rows == [(1, 5)]
    assert progress.progress == Progress(covered(0).covers + covered(1).covers)
    assert progress.beyond == (), "it is covered"
    assert ready(queries.notify(EVALUATOR, notify(), now=3)) == []


def test_a_result_of_which_one_tuple_is_not_covered_is_remembered_by_name():
    queries = in_place()
    queries.notify(EVALUATOR, notify(), now=1)
    (progress,) = ready(queries.covered(REWRITER, covered(0, Heard(EVALUATOR, LIFE, 1)), now=1))
    assert len(progress.beyond) == 1


def test_two_lives_of_one_evaluator_end_the_attempt():
    lost = Tell(AttemptLost("q", 1, f"peer {EVALUATOR.short} was restarted"))
    queries = in_place()
    queries.covered(REWRITER, covered(0, Heard(EVALUATOR, LIFE, 0)), now=1)
    effects = queries.covered(EVALUATOR, covered(1, Heard(EVALUATOR, LIFE + 1, 0)), now=1)
    assert lost in effects
    assert Send(REWRITER, RemoveQuery(query="q~1")) in effects
    assert Send(EVALUATOR, Parcel(number=0, parts=(), over=("q~1",))) in effects
    assert ready(effects) == []
    queries = in_place()
    queries.covered(REWRITER, covered(0, Heard(EVALUATOR, LIFE, 0)), now=1)
    assert lost in queries.notify(EVALUATOR, notify(life=LIFE + 1), now=1)
    assert queries.is_empty()


def test_a_silent_rewriter_and_two_peers_that_both_took_a_side_end_the_attempt():
    queries = in_place()
    assert Tell(AttemptLost("q", 1, f"peer {REWRITER.short} was silent")) in queries.sweep(SILENT_MS + 1)
    queries = in_place()
    effects = queries.indexed(PeerId(bytes(20)), QueryIndexed(query="q~1", side=0, replica=0), now=1)
    assert [type(each.event) for each in effects if isinstance(each, Tell)] == [AttemptLost]


def test_the_next_attempt_says_nothing_before_it_has_what_the_last_one_had():
    resume = Progress(covered(0, upto=3).covers)
    queries = in_place(resume)
    assert ready(queries.covered(EVALUATOR, covered(1), now=1)) == []
    assert ready(queries.covered(REWRITER, covered(0, upto=2), now=1)) == []
    (progress,) = ready(queries.covered(REWRITER, covered(0, upto=3), now=1))
    assert progress.progress == Progress(covered(1).covers + covered(0, upto=3).covers)
    queries = in_place(resume)
    assert len(ready(queries.covered(EVALUATOR, covered(1), now=AWAIT_MS))) == 1


def test_pairs_of_which_both_tuples_were_covered_are_not_told_again():
    known = covered(0).covers + covered(1).covers
    prepared = Prepared.of(query(known=known))
    met = prepared.read(r(1, 7, at=1), 0)
    assert prepared.meet(met, prepared.read(s(5, 7, at=2), 1)) is None
    assert prepared.meet(met, prepared.read(s(5, 7, at=2, sequence=1), 1)) is not None
