"""The value level: when a pair is told, what is kept and for how long."""

from __future__ import annotations

import pytest

from experiments.cqdht.evaluator import Evaluator
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import Finger, ForgetQuery, JoinQuery, Notify, StreamTuple
from experiments.cqdht.ready import ReadyQuery
from protocols.effects import Effect, Send
from protocols.events import Unreachable
from protocols.join_index.keys import value_key, value_text
from protocols.subgraphs import Algorithm
from tests.experiments.cqdht.things import join, query, r, s, vl
from tests.protocols.join_index.things import HOUR_MS, REWRITER, S_E, SUBSCRIBER, received

LIMITS = JoinLimits(recent_ms=1000, late_ms=1000, rewritten_max=2, tuples_max=2)


def told(each: JoinQuery, left: StreamTuple, right: StreamTuple) -> list[Effect]:
    """One notification of a pair."""
    ready = ReadyQuery.of(each)
    found = ready.meet(ready.read(left, 0), ready.read(right, 1))
    assert found is not None
    return [Send(SUBSCRIBER, Notify(notifications=(found,)))]


@pytest.mark.parametrize(
    ("algorithm", "by_join", "by_tuple"),
    [("sai", True, True), ("dai-q", False, False), ("dai-t", True, True)],
)
def test_of_the_two_evaluators_of_a_pair_one_tells_it_whatever_comes_first(
    algorithm: Algorithm, by_join: bool, by_tuple: bool
):
    """At S.E the rewritten query has the earlier tuple, of R: DAI-Q leaves the pair to the evaluator at R.B."""
    each, early, late = query(algorithm=algorithm), r(1, 7, at=1), s(2, 7, at=2)
    joined = received(join(early, S_E, 7, each))
    first = Evaluator(LIMITS)
    assert first.handle(joined, now=3) == []
    assert first.handle(vl(late, S_E, 7), now=3) == (told(each, early, late) if by_tuple else [])
    other = Evaluator(LIMITS)
    assert other.handle(vl(late, S_E, 7), now=3) == []
    assert other.handle(joined, now=3) == (told(each, early, late) if by_join else [])
    for evaluator in (first, other):
        assert evaluator.handle(joined, now=4) == []
        assert evaluator.handle(vl(late, S_E, 7), now=4) == []
        evaluator.validate()


def test_in_dai_v_rewritten_queries_meet_each_other():
    each = query("SELECT R.A, S.D FROM R, S WHERE R.A + R.B = S.D + S.E", "dai-v")
    left, right = r(1, 7, at=1), s(2, 6, at=2)
    evaluator = Evaluator(LIMITS)
    assert evaluator.handle(received(join(left, None, 8, each, side=0)), now=3) == []
    assert evaluator.handle(received(join(right, None, 8, each, side=1)), now=3) == told(each, left, right)
    assert evaluator.handle(received(join(right, None, 8, each, side=1)), now=4) == []


def test_both_ends_of_a_window_count():
    each = query("SELECT R.A, S.D FROM R [RANGE 1 SECOND], S WHERE R.B = S.E")
    early = r(1, 7, at=1000)
    evaluator = Evaluator(JoinLimits())
    evaluator.handle(received(join(early, S_E, 7, each)), now=1000)
    in_time = s(2, 7, at=2000)
    assert evaluator.handle(vl(in_time, S_E, 7), now=2000) == told(each, early, in_time)
    assert evaluator.handle(vl(s(2, 7, at=2001, sequence=1), S_E, 7), now=2001) == []
    before = s(3, 7, at=0, sequence=2)
    assert evaluator.handle(vl(before, S_E, 7), now=2002) == told(each, early, before)


def test_who_comes_through_the_dht_learns_who_the_evaluator_is():
    asked = received(join(r(1, 7, at=1), S_E, 7, query(), asks=True), REWRITER)
    finger = Finger(key=value_key(S_E, value_text(7)))
    assert Evaluator(LIMITS).handle(asked, now=1) == [Send(REWRITER, finger)]


def test_results_for_one_subscriber_go_in_one_message_and_again_if_they_did_not_arrive():
    both = query(), query("SELECT S.D FROM R, S WHERE R.B = S.E", name="q2")
    evaluator = Evaluator(LIMITS)
    evaluator.handle(vl(s(2, 7, at=1), S_E, 7), now=1)
    (effect,) = evaluator.handle(received(join(r(1, 7, at=2), S_E, 7, *both)), now=2)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Notify)
    assert [each.query for each in effect.message.notifications] == ["q1", "q2"]
    assert evaluator.handle(Unreachable(SUBSCRIBER, effect.message), now=3) == [effect]


def test_a_forgotten_query_leaves_nothing_and_its_late_messages_do_nothing():
    evaluator = Evaluator(LIMITS)
    evaluator.handle(received(join(r(1, 7, at=1), S_E, 7, query())), now=1)
    assert evaluator.handle(received(ForgetQuery(query="q1", at=S_E, value=value_text(7))), now=2) == []
    assert evaluator.is_empty()
    late = received(join(r(2, 7, at=1, sequence=1), S_E, 7, query()))
    assert evaluator.handle(late, now=3) == []
    assert evaluator.is_empty()
    evaluator.validate()


@pytest.mark.parametrize(
    ("algorithm", "queries_ms", "tuples_ms"),
    [("sai", HOUR_MS, HOUR_MS), ("dai-q", 0, HOUR_MS), ("dai-t", HOUR_MS, 0)],
)
def test_each_algorithm_keeps_its_own_for_long_and_the_rest_for_what_is_late(
    algorithm: Algorithm, queries_ms: int, tuples_ms: int
):
    evaluator = Evaluator(LIMITS)
    evaluator.handle(received(join(r(1, 7, at=0), S_E, 7, query(algorithm=algorithm))), now=0)
    evaluator.handle(vl(s(1, 7, at=0), S_E, 7, keep_ms=tuples_ms), now=0)
    for now in (999, 1000, HOUR_MS + 999, HOUR_MS + 1000):
        evaluator.sweep(now)
        assert evaluator.stored_queries == (now < queries_ms + 1000)
        assert evaluator.stored_tuples == (now < tuples_ms + 1000)
        evaluator.validate()


def test_a_full_table_counts_what_it_has_no_room_for():
    evaluator = Evaluator(LIMITS)
    for number in range(3):
        evaluator.handle(received(join(r(1, 7, at=1, sequence=number), S_E, 7, query())), now=1)
        evaluator.handle(vl(s(1, 8, at=1, sequence=number), S_E, 8), now=1)
    assert (evaluator.stored_queries, evaluator.stored_tuples, evaluator.refused) == (2, 2, 2)
    evaluator.validate()
