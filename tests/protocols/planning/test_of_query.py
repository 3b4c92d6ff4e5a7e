"""From a text to an optimal plan: its order and places follow from the statistics of its streams."""

from __future__ import annotations

from protocols.placement.view import NetworkView
from protocols.planning.exact import plan_exactly
from protocols.planning.of_query import order_of, problem_of
from protocols.planning.problem import Base, Derived, Joined, Origin, Problem, Reused
from queries import sql
from queries.catalogue import Stream
from queries.cost import Rates, StreamRates
from queries.plan import Join, walk
from queries.reorder import SetEstimates, graph_of
from queries.schema import Schema
from queries.selectivity import ColumnStatistics
from tests.protocols.planning.problems import peer

STREAMS = {name: Stream(name, Schema.parse("k int, v int")) for name in ("checkins", "flights", "weather")}
TEXT = (
    "SELECT weather.v FROM checkins [RANGE 1 MINUTE], flights [RANGE 1 MINUTE], weather [RANGE 1 MINUTE]"
    " WHERE checkins.k = flights.k AND flights.v = weather.v"
)
NEAR, FAR, SINK, BESIDE = (peer(number) for number in range(4))


FEW, MANY = 10.0, 100_000.0  # Different values of a column: rows meet often, or hardly ever.


def rates(of_k: float, of_v: float) -> Rates:
    columns = {("k",): ColumnStatistics(distinct=of_k), ("v",): ColumnStatistics(distinct=of_v)}
    return Rates({name: StreamRates(rate_per_s=10.0, row_bytes=100.0, columns=columns) for name in STREAMS})


def asked(of_k: float, of_v: float, derived: tuple[Derived, ...] = ()) -> Problem:
    """Checkins and flights are published near each other, weather far away beside the sink."""
    far_ms, near_ms = 100.0, 1.0
    pairs = ((NEAR, BESIDE), (FAR, SINK))
    peers = (NEAR, FAR, SINK, BESIDE)
    rows = [
        [0.0 if a == b else near_ms if (a, b) in pairs or (b, a) in pairs else far_ms for b in peers] for a in peers
    ]
    graph = graph_of(sql.plan(TEXT, STREAMS).plan)
    assert graph is not None
    publishers = {"checkins": [(NEAR, 1.0)], "flights": [(NEAR, 0.5), (BESIDE, 0.5)], "weather": [(FAR, 1.0)]}
    view = NetworkView(peers, rows, is_metric=True)
    return problem_of(SetEstimates(graph, rates(of_k, of_v)), publishers, view, peers, SINK, derived)


def test_a_query_becomes_a_problem_with_its_conditions_and_publishers():
    problem = asked(FEW, FEW)
    assert [stream.name for stream in problem.streams] == ["checkins", "flights", "weather"]
    assert problem.graph == (0b010, 0b101, 0b010)
    one, other = problem.streams[1].publishers
    assert (one.peer, other.peer) == (NEAR, BESIDE)
    assert one.beta == other.beta == problem.beta(0b010) / 2


def test_selectivities_choose_the_order():
    """The join that leaves little of much comes first."""
    orders = []
    for of_k, of_v in ((MANY, FEW), (FEW, MANY)):
        problem = asked(of_k, of_v)
        found = plan_exactly(problem).plan
        assert isinstance(found, Joined)
        orders.append(order_of(problem, found))
    assert orders == [((0, 1), 2), (0, (1, 2))]
    graph = graph_of(sql.plan(TEXT, STREAMS).plan)
    assert graph is not None
    ordered = graph.ordered(orders[1])
    assert [str(each) for each in walk(ordered) if isinstance(each, Join)] == [
        "Join flights.v = weather.v",
        "Join checkins.k = flights.k",
    ]


def test_what_flows_already_changes_the_order():
    alone = asked(MANY, MANY)
    assert order_of(alone, plan_exactly(alone).plan) == ((0, 1), 2)
    flowing = Derived(0b110, Origin(BESIDE, alone.beta(0b110)))
    problem = asked(MANY, MANY, (flowing,))
    found = plan_exactly(problem)
    assert isinstance(found.plan, Joined)
    assert {found.plan.left, found.plan.right} == {Base(0), Reused(0)}
    assert order_of(problem, found.plan) in ((0, (1, 2)), ((1, 2), 0))
