"""The attribute level: what triggers a query, what is sent on, and how little of it."""

from __future__ import annotations

from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import (
    AskRate,
    Finger,
    ForgetQuery,
    JoinQuery,
    Query,
    QueryIndexed,
    QueryRefused,
    Rate,
    RemoveQuery,
)
from experiments.cqdht.rewriter import Rewriter
from protocols.effects import Route, Send
from protocols.events import Unreachable, Unroutable
from protocols.join_index.keys import value_key, value_text
from protocols.join_index.messages import Side
from tests.experiments.cqdht.things import al, join, query, r, s
from tests.protocols.join_index.things import EVALUATOR, R_B, S_E, SUBSCRIBER, received

LIMITS = JoinLimits(recent_ms=1000, queries_max=5, arrivals_max=3)
SEVEN = value_key(S_E, value_text(7))


def rewriter_with(*queries: JoinQuery, side: Side = 0) -> Rewriter:
    rewriter = Rewriter(LIMITS)
    for each in queries:
        rewriter.handle(received(Query(query=each, side=side, replica=0), SUBSCRIBER), now=0)
    return rewriter


def test_a_tuple_triggers_only_queries_no_younger_than_itself():
    old, young = query(at=10), query(at=11, name="q2")
    rewriter = rewriter_with(old, young)
    assert rewriter.handle(al(r(1, 7, at=9), R_B, 7), now=12) == []
    trigger = r(1, 7, at=10, sequence=1)
    assert rewriter.handle(al(trigger, R_B, 7), now=12) == [Route(SEVEN, join(trigger, S_E, 7, old, asks=True))]


def test_a_query_that_was_overtaken_is_triggered_by_the_tuples_of_its_time():
    """contract.md: a rewriter keeps recent tuples, or a tuple that overtakes its query is lost."""
    rewriter = Rewriter(LIMITS)
    before, after = r(1, 7, at=9), r(2, 7, at=10, sequence=1)
    for each in (before, after):
        assert rewriter.handle(al(each, R_B, 7), now=11) == []
    late = query(at=10)
    assert rewriter.handle(received(Query(query=late, side=0, replica=0), SUBSCRIBER), now=12) == [
        Send(SUBSCRIBER, QueryIndexed(query="q1", side=0, replica=0)),
        Route(SEVEN, join(after, S_E, 7, late, asks=True)),
    ]


def test_what_comes_twice_changes_nothing():
    rewriter = rewriter_with(query())
    trigger = al(r(1, 7, at=1), R_B, 7)
    assert len(rewriter.handle(trigger, now=1)) == 1
    assert rewriter.handle(trigger, now=2) == []
    again = received(Query(query=query(), side=0, replica=0), SUBSCRIBER)
    assert rewriter.handle(again, now=3) == [Send(SUBSCRIBER, QueryIndexed(query="q1", side=0, replica=0))]
    assert rewriter.stored == 1


def test_queries_that_open_one_attribute_for_different_values_do_not_share_a_message():
    one = query(text="SELECT R.A FROM R, S WHERE R.B = S.E + 1")
    other = query(text="SELECT R.A FROM R, S WHERE R.B = S.E + 2", name="q2")
    trigger = r(1, 7, at=1)
    assert rewriter_with(one, other).handle(al(trigger, R_B, 7), now=1) == [
        Route(value_key(S_E, value_text(6)), join(trigger, S_E, 6, one, asks=True)),
        Route(value_key(S_E, value_text(5)), join(trigger, S_E, 5, other, asks=True)),
    ]


def test_queries_with_equivalent_conditions_share_one_message():
    same = [query(name=f"q{number}", text=text) for number, text in enumerate((
        "SELECT R.A, S.D FROM R, S WHERE R.B = S.E",
        "SELECT x.A FROM R x, S y WHERE x.B = y.E AND x.A < 5",
        "SELECT S.D, R.A FROM R, S WHERE S.E = R.B AND S.D > 3",
        "SELECT R.A, S.D FROM R, S WHERE R.B = S.E AND R.A > 5",
    ))]  # fmt: skip
    rewriter = rewriter_with(*same)
    trigger = r(1, 7, at=1)
    expected = join(trigger, S_E, 7, *same[:3], asks=True)
    assert rewriter.handle(al(trigger, R_B, 7), now=1) == [Route(SEVEN, expected)]


def test_dai_v_sends_one_message_for_all_conditions_that_have_the_same_value():
    one = query("SELECT R.A FROM R, S WHERE R.B + 1 = S.E * 2", "dai-v")
    other = query("SELECT R.A FROM R, S WHERE R.B * 2 - 6 = S.D + S.E", "dai-v", "q2")
    rewriter = rewriter_with(one, other)
    trigger = r(1, 7, at=1)
    expected = Route(value_key(None, value_text(8)), join(trigger, None, 8, one, other, asks=True))
    assert rewriter.handle(al(trigger, R_B, 7), now=1) == [expected]


def test_the_second_way_to_an_evaluator_is_one_hop():
    """Section 7, the join fingers routing table."""
    rewriter = rewriter_with(query())
    rewriter.handle(al(r(1, 7, at=1), R_B, 7), now=1)
    assert rewriter.handle(received(Finger(key=SEVEN), EVALUATOR), now=2) == []
    trigger = r(2, 7, at=3, sequence=1)
    sent = join(trigger, S_E, 7, query())
    assert rewriter.handle(al(trigger, R_B, 7), now=3) == [Send(EVALUATOR, sent)]
    assert rewriter.handle(Unreachable(EVALUATOR, sent), now=4) == [Route(SEVEN, sent)]
    assert rewriter.handle(Unroutable(SEVEN, sent), now=5) == [Route(SEVEN, sent)]
    assert len(rewriter.fingers) == 0


def test_dai_t_sends_a_rewritten_query_once_where_equal_results_may_be_told_once():
    once = query(algorithm="dai-t", is_set=True)
    rewriter = rewriter_with(once)
    first = r(1, 7, at=1)
    assert rewriter.handle(al(first, R_B, 7), now=1) == [Route(SEVEN, join(first, S_E, 7, once, asks=True))]
    assert rewriter.handle(al(r(1, 7, at=2, sequence=1), R_B, 7), now=2) == []
    other = r(2, 7, at=3, sequence=2)
    assert rewriter.handle(al(other, R_B, 7), now=3) == [Route(SEVEN, join(other, S_E, 7, once, asks=True))]


def test_in_dai_t_every_trigger_counts_where_results_are_counted():
    every = query(algorithm="dai-t")
    rewriter = rewriter_with(every)
    for number in range(2):
        each = r(1, 7, at=1, sequence=number)
        assert rewriter.handle(al(each, R_B, 7), now=1) == [Route(SEVEN, join(each, S_E, 7, every, asks=True))]


def test_a_removed_query_is_forgotten_where_it_went_and_does_not_come_back():
    rewriter = rewriter_with(query(), query(name="q2", text="SELECT R.A FROM R, S WHERE R.B = S.E"))
    rewriter.handle(al(r(1, 7, at=1), R_B, 7), now=1)
    forget = ForgetQuery(query="q1", at=S_E, value=value_text(7))
    assert rewriter.handle(received(RemoveQuery(query="q1")), now=2) == [Route(SEVEN, forget)]
    assert rewriter.handle(received(RemoveQuery(query="q1")), now=2) == []
    late = received(Query(query=query(), side=0, replica=0), SUBSCRIBER)
    assert rewriter.handle(late, now=3) == []
    rewriter.handle(received(RemoveQuery(query="q2")), now=4)
    assert rewriter.is_empty()
    rewriter.validate()


def test_a_full_table_refuses():
    rewriter = rewriter_with(*(query(name=f"q{number}") for number in range(5)))
    one_more = received(Query(query=query(name="q9"), side=0, replica=0), SUBSCRIBER)
    refused = QueryRefused(query="q9", reason="the query table of R.B is full at 5")
    assert rewriter.handle(one_more, now=1) == [Send(SUBSCRIBER, refused)]


def test_a_query_that_cannot_be_indexed_is_refused():
    wrong = received(Query(query=query("SELECT R.A FROM R, S WHERE R.B < S.E"), side=0, replica=0), SUBSCRIBER)
    reason = "a join is indexed by an equality between an expression of each stream; there is none"
    assert Rewriter(LIMITS).handle(wrong, now=1) == [Send(SUBSCRIBER, QueryRefused(query="q1", reason=reason))]


def test_rates_are_of_late_and_of_so_many_tuples():
    rewriter = Rewriter(LIMITS)
    for number, value in enumerate((5, 7, 7, 8)):
        rewriter.handle(al(s(1, value, at=number, sequence=number), S_E, value), now=number)
    ask = received(AskRate(query="q1", side=1, at=S_E), SUBSCRIBER)
    assert rewriter.handle(ask, now=4) == [Send(SUBSCRIBER, Rate(query="q1", side=1, tuples=3, top_share=2 / 3))]
    later = LIMITS.rate_ms + 10
    assert rewriter.handle(ask, now=later) == [Send(SUBSCRIBER, Rate(query="q1", side=1, tuples=0, top_share=0.0))]


def test_what_is_recent_ends():
    rewriter = rewriter_with(query("SELECT R.A FROM R [RANGE 1 SECOND], S [RANGE 1 SECOND] WHERE R.B = S.E"))
    rewriter.handle(al(r(1, 7, at=1), R_B, 7), now=1)
    rewriter.sweep(now=5000)
    assert rewriter.handle(received(RemoveQuery(query="q1")), now=5000) == []
    late = received(Query(query=query(name="q2"), side=0, replica=0), SUBSCRIBER)
    assert rewriter.handle(late, now=5000) == [Send(SUBSCRIBER, QueryIndexed(query="q2", side=0, replica=0))]
