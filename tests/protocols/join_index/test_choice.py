"""Which algorithm runs a join that nobody chose one for: from what is known of its streams, and for a reason."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.catalogue.messages import PublisherShown, StreamShown
from protocols.catalogue.statistics import FieldStatistics, StreamStatistics
from protocols.catalogue.streams import StreamDefinition
from protocols.effects import Effect, Tell
from protocols.events import Requested
from protocols.inside import Inside
from protocols.join_index.choice import Cost, choose, cost, rewriting
from protocols.join_index.condition import CompiledJoin
from protocols.join_index.keys import value_text
from protocols.join_index.known import BOUND_SHARE, EQUAL_SHARE, SideKnown
from protocols.join_index.messages import LEFT, RIGHT, Evaluators
from protocols.join_index.subscriber import Subscriber
from protocols.subgraphs import Algorithm, Deploy, Indexed, Progress, StreamInput, Subgraph
from queries import sql
from tests.protocols.join_index.things import EQUI_JOIN, EVALUATOR, PUBLISHER, R_B, S_E, STREAMS, SUBSCRIBER, query

T2 = "SELECT R.A, S.D FROM R, S WHERE R.A + R.B = S.D + S.E"
HALF = {value_text(7): 0.5}


def told(rate: float, name: str, share: float = 0.0, distinct: float = 9.0) -> StreamStatistics:
    frequent = (("7", share),) if share else ()
    fields = (FieldStatistics(name=name, distinct=distinct, frequent=frequent),)
    return StreamStatistics(rate_per_s=rate, row_bytes=9.0, fields=fields)


def test_sai_rewrites_by_the_slower_side_and_others_by_both():
    slow, fast = SideKnown(1.0), SideKnown(2.0)
    assert rewriting("sai", (slow, fast)) == (True, False)
    assert rewriting("sai", (fast, slow)) == (False, True)
    assert rewriting("dai-t", (slow, fast)) == (True, True)


def test_what_an_algorithm_costs():
    even = (SideKnown(100.0), SideKnown(300.0))
    assert cost("sai", (R_B, S_E), even, 8) == cost("dai-v", (R_B, S_E), even, 8) == Cost(400.0, 50.0)
    assert cost("dai-t", (R_B, S_E), even, 8) == Cost(800.0, 100.0)
    skewed = (SideKnown(100.0, HALF, HALF), SideKnown(300.0, HALF, HALF))
    assert cost("sai", (R_B, S_E), skewed, 8, "whole") == Cost(400.0, 200.0 + 200.0 / 8)
    assert cost("dai-q", (R_B, S_E), skewed, 8, "whole") == Cost(800.0, 200.0 + 400.0 / 8)
    split = cost("sai", (R_B, S_E), skewed, 8, "split")
    assert split.messages > 400.0
    assert split.busiest < 225.0


def test_a_light_join_goes_by_what_sends_least():
    assert choose(CompiledJoin.of(query()), {}, 5).algorithm == "sai"
    best = choose(CompiledJoin.of(query()), {LEFT: [told(10.0, "B")], RIGHT: [told(30.0, "E", 1.0)]}, 5)
    assert best == ("sai", "it sends least: 40 messages a second, 32 of them to the busiest evaluator")
    assert choose(CompiledJoin.of(query(T2, "dai-v")), {LEFT: [told(10.0, "B")]}, 5).algorithm == "dai-v"


SELECTIVE = f"{EQUI_JOIN} AND R.A = 3 AND S.D = 4"


def test_what_selections_leave_out_need_not_be_sent_by_both_sides():
    """In SAI one side sends everything, in DAI-V neither."""
    statistics = {LEFT: [told(1000.0, "A", distinct=100.0)], RIGHT: [told(1000.0, "D", distinct=50.0)]}
    best = choose(CompiledJoin.of(query(SELECTIVE)), statistics, 5)
    assert best == ("dai-v", "it sends least: 30 messages a second, 6 of them to the busiest evaluator")
    one_sided = choose(CompiledJoin.of(query(f"{EQUI_JOIN} AND S.D = 4")), statistics, 5)
    assert one_sided == ("sai", "it sends least: 1020 messages a second, 204 of them to the busiest evaluator")


def test_sai_rewrites_by_the_side_of_which_most_is_left_out():
    slow, fast = SideKnown(100.0), SideKnown(1000.0, wanted=0.1)
    assert rewriting("sai", (slow, fast)) == (False, True)
    assert cost("sai", (R_B, S_E), (slow, fast), 1) == Cost(200.0, 200.0)


def test_of_a_comparison_the_share_is_known_or_guessed():
    known = told(1.0, "A", 0.4, distinct=13.0)

    def wanted(condition: str) -> float:
        return SideKnown.of(CompiledJoin.of(query(f"{EQUI_JOIN} AND {condition}")), LEFT, [known]).wanted

    assert wanted("R.A = 7") == 0.4
    assert wanted("R.A = 8") == pytest.approx(0.6 / 12)
    assert wanted("R.A > 7") == BOUND_SHARE
    assert wanted("R.B = 7") == EQUAL_SHARE
    assert wanted("R.A <> 7") == 1.0


def test_a_join_that_others_have_shares_their_algorithm():
    statistics = {LEFT: [told(10.0, "B")], RIGHT: [told(30.0, "E")]}
    best = choose(CompiledJoin.of(query()), statistics, 5, shared={"dai-q": 1})
    assert best == ("dai-q", "it shares tuples and messages with 1 other query")
    assert choose(CompiledJoin.of(query(T2, "dai-v")), statistics, 5, shared={"sai": 3}).algorithm == "dai-v"


def deploy(queries: Subscriber, name: str, engine: Algorithm, *, is_open: bool) -> None:
    """A query, whose streams have been looked up."""
    inputs = tuple(StreamInput(each, each, 0, None, 0) for each in ("R", "S"))
    subgraph = Subgraph(0, sql.plan(EQUI_JOIN, STREAMS).plan, inputs, Indexed(engine, is_open=is_open))
    asked: list[Effect] = queries.deploy(
        Deploy(query=name, attempt=1, subgraph=subgraph, consumer_host=None, resume=Progress()), now=0
    )
    for each in asked:
        assert isinstance(each, Tell)
        assert isinstance(each.event, Requested)
        command: Any = each.event.command
        counted = {"accepted": 0, "processed": 0, "pending": 0, "dead_lettered": 0, "expired": 0}
        statistics = told(10.0, "B" if command.name == "R" else "E")
        publisher = PublisherShown(peer=PUBLISHER, epoch=1, backup=None, statistics=statistics, **counted)
        definition = StreamDefinition(name=command.name, schema=STREAMS[command.name].schema)
        shown = StreamShown(definition=definition, publishers=(publisher,), subscriptions=0)
        queries.answered(each.event.request, shown, now=0)
    queries.named(Evaluators(query=f"{name}~1", peers=(EVALUATOR,)), now=0)
    queries.validate()


@pytest.mark.parametrize(("is_open", "by"), [(True, "dai-t"), (False, "sai")])
def test_an_attempt_is_by_the_algorithm_that_was_chosen(is_open: bool, by: Algorithm):
    queries = Subscriber(SUBSCRIBER, Inside(), lambda: (EVALUATOR,))
    deploy(queries, "p", "dai-t", is_open=False)
    deploy(queries, "q", "sai", is_open=is_open)
    attempt = queries.attempts["q~1"]
    assert attempt.chosen is not None
    assert attempt.chosen.algorithm == by
    assert {each.query.algorithm for each in attempt.queries.values()} == {by}
    assert [each.rewrites for each in attempt.queries.values()] == [True, by != "sai"]
