"""The placement algorithms: worked examples, and random trees against every mapping there is."""

from __future__ import annotations

import math
import random

import pytest

from protocols.placement import exact
from protocols.placement.configuration import Measure
from protocols.placement.delay import Infeasible, place_within
from protocols.placement.in_network import convex_set
from protocols.placement.place import ALGORITHMS, Placement, place
from protocols.placement.tree import ProcessingTree, Vertex, overlay_cost, path_delay, tree_of
from protocols.placement.view import NetworkView
from queries.catalogue import Stream
from queries.cost import Rates, StreamRates
from queries.schema import Schema
from queries.sql import plan
from tests.protocols.placement.trees import all_mappings, peer, random_tree, random_view

SEED = 20
CLOSE = 1e-9


@pytest.fixture(params=[0, exact.FEW], ids=["with numpy", "by hand"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to reckon the optimum, whatever the size."""
    monkeypatch.setattr(exact, "FEW", request.param)


def on_a_line(*places: float) -> NetworkView:
    """Peers 0, 1, 2, … along a line."""
    peers = [peer(number) for number in range(len(places))]
    at = dict(zip(peers, places, strict=True))
    return NetworkView.of(peers, lambda a, b: abs(at[a] - at[b]))


def join_of(left: tuple[int, float], right: tuple[int, float], beta: float, proxy: int) -> ProcessingTree:
    return ProcessingTree(
        [
            Vertex("left", (), left[1], peer(left[0])),
            Vertex("right", (), right[1], peer(right[0])),
            Vertex("join", (0, 1), beta),
            Vertex("delivery", (2,), 0.0, peer(proxy)),
        ]
    )


def test_the_child_case_goes_where_most_is_sent_from():
    """Section 3.2, case 1: the location that maximises the total tree cost to the children placed there."""
    view = on_a_line(0, 10, 50)
    found = place("edge", join_of((0, 5.0), (1, 9.0), 1.0, 2), view)
    assert isinstance(found, Placement)
    assert found.hosts == (peer(0), peer(1), peer(1), peer(2))


def test_an_operator_whose_inputs_share_a_location_goes_there_with_its_children():
    """Section 3.2, case 2: both joins have a source at peer 0."""
    view = on_a_line(0, 10, 20, 100)
    tree = ProcessingTree(
        [
            Vertex("a", (), 5.0, peer(0)),
            Vertex("b", (), 6.0, peer(1)),
            Vertex("ab", (0, 1), 10.0),
            Vertex("c", (), 5.0, peer(0)),
            Vertex("d", (), 6.0, peer(2)),
            Vertex("cd", (3, 4), 10.0),
            Vertex("top", (2, 5), 1.0),
            Vertex("delivery", (6,), 0.0, peer(3)),
        ]
    )
    found = place("edge", tree, view)
    assert isinstance(found, Placement)
    assert [found.hosts[index] for index in (2, 5, 6)] == [peer(0)] * 3


def test_an_operator_that_makes_more_than_it_reads_goes_to_the_proxy():
    """Section 3.2, case 3: the proxy helps when tree costs are higher near the root."""
    found = place("edge", join_of((0, 5.0), (1, 5.0), 50.0, 2), on_a_line(0, 10, 50))
    assert isinstance(found, Placement)
    assert found.hosts[2] == peer(2)


def test_distance_counts_for_edge_plus_and_not_for_edge():
    """Section 3.3: peer 1 sends the most, but peer 0 is far away on the proxy's side."""
    view, tree = on_a_line(0, 100, 1), join_of((0, 8.0), (1, 9.0), 7.0, 2)
    edge, aware = place("edge", tree, view), place("edge+", tree, view)
    assert isinstance(edge, Placement)
    assert isinstance(aware, Placement)
    assert edge.hosts[2] == peer(1)
    assert aware.hosts[2] in (peer(0), peer(2))
    assert aware.cost < edge.cost


def test_in_network_uses_a_peer_that_lies_between():
    """Section 3.4: three sources around an idle peer, and a proxy far away."""
    where = {0: (0.0, 0.0), 1: (10.0, 0.0), 2: (5.0, 8.7), 3: (5.0, 2.9), 4: (5.0, 60.0)}
    at = {peer(number): place for number, place in where.items()}
    view = NetworkView.of(at, lambda a, b: math.dist(at[a], at[b]))
    tree = ProcessingTree(
        [
            *(Vertex("source", (), 10.0, peer(number)) for number in range(3)),
            Vertex("join", (0, 1, 2), 1.0),
            Vertex("delivery", (3,), 0.0, peer(4)),
        ]
    )
    costs = {}
    for algorithm in ALGORITHMS:
        found = place(algorithm, tree, view)
        assert isinstance(found, Placement)
        costs[algorithm] = found.cost
        if algorithm in ("in-network", "exact"):
            assert found.hosts[3] == peer(3)
    assert costs["exact"] == costs["in-network"] < costs["edge+"] <= costs["edge"] < costs["baseline"]


def test_the_convex_set_lies_between_all_pairs_of_children():
    view = on_a_line(0, 40, 100, 50, 120)
    measure = Measure(peer(4), view.distance)
    assert convex_set([peer(0), peer(2)], view.peers, measure) == [peer(1), peer(3)]
    assert convex_set([peer(0), peer(2), peer(3)], view.peers, measure) == []
    assert convex_set([peer(0)], view.peers, measure) == []


def test_a_bound_that_no_placement_can_keep_is_reported():
    tree, view = join_of((0, 5.0), (1, 9.0), 1.0, 2), on_a_line(0, 10, 50)
    for algorithm in ALGORITHMS:
        assert place(algorithm, tree, view, 49.0) == Infeasible(49.0, peer(0), 50.0)
        assert isinstance(place(algorithm, tree, view, 50.0), Placement)


def test_a_search_beyond_its_limit_keeps_the_bound_and_says_that_it_proved_nothing():
    luck = random.Random(SEED)
    view = random_view(luck, 12)
    tree = random_tree(luck, view, 6)
    direct = path_delay(tree, tuple(vertex.peer or tree.proxy for vertex in tree.vertices), view.distance)
    hosts, is_proved = place_within(tree, view, direct * 1.2, labels_max=5)
    assert not is_proved
    assert path_delay(tree, hosts, view.distance) <= direct * 1.2
    assert place_within(tree, view, direct * 1.2)[1]


def test_a_plan_becomes_a_tree_with_its_rates():
    streams = {name: Stream(name, Schema.parse("k int, v int")) for name in ("r", "s")}
    query = plan("SELECT r.v FROM r [RANGE 5 SECONDS], s [RANGE 5 SECONDS] WHERE r.k = s.k AND s.v < 3", streams)
    rates = Rates({name: StreamRates(rate_per_s=10.0, row_bytes=20.0) for name in streams})
    tree = tree_of(query.plan, rates, {"r": peer(1), "s": peer(2)}, peer(3))
    assert tree.source_peers == (peer(1), peer(2))
    assert tree.proxy == peer(3)
    assert [tree.vertices[source].beta for source in tree.sources] == [200.0, 200.0]
    assert {tree.vertices[operator].name for operator in tree.operators} == {"Select", "Join", "Project"}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("block", range(10))
def test_exact_is_the_cheapest_of_all_mappings(block: int):
    """100 small cases for each block: 1,000 in all, with a bound and without."""
    for case in range(100):
        seed = f"{SEED} {block} {case}"
        luck = random.Random(seed)
        view = random_view(luck, luck.randint(2, 5), is_metric=luck.random() < 0.5)
        tree = random_tree(luck, view, luck.randint(1, 4))
        rated = [
            (overlay_cost(tree, hosts, view.distance), path_delay(tree, hosts, view.distance))
            for hosts in all_mappings(tree, view)
        ]
        found = place("exact", tree, view)
        assert isinstance(found, Placement)
        assert found.cost == pytest.approx(min(cost for cost, _ in rated), rel=CLOSE), f"seed={seed}"
        baseline = place("baseline", tree, view)
        assert isinstance(baseline, Placement)
        bound_ms = baseline.delay_ms + max(0.0, found.delay_ms - baseline.delay_ms) * luck.random()
        bounded = place("exact", tree, view, bound_ms)
        assert isinstance(bounded, Placement)
        assert bounded.is_optimal
        assert bounded.delay_ms <= bound_ms, f"seed={seed}"
        within = [cost for cost, delay in rated if delay <= bound_ms]
        assert bounded.cost == pytest.approx(min(within), rel=CLOSE), f"seed={seed}"


@pytest.mark.usefixtures("few")
def test_what_short_numbers_cannot_tell_apart_long_ones_can():
    """The first pass of the exact search rounds: peers that differ by less are all tried again."""
    for case in range(50):
        seed = f"{SEED} rounding {case}"
        luck = random.Random(seed)
        peers = [peer(number) for number in range(5)]
        apart = luck.choice((0.0, 1.0))  # At no distance at all nothing tells them apart.
        rows = [[0.0 if a == b else apart * (1 + luck.random() * 1e-9) for b in range(5)] for a in range(5)]
        view = NetworkView(peers, [[rows[min(a, b)][max(a, b)] for b in range(5)] for a in range(5)])
        tree = random_tree(luck, view, luck.randint(2, 4))
        found = place("exact", tree, view)
        assert isinstance(found, Placement)
        least = min(overlay_cost(tree, hosts, view.distance) for hosts in all_mappings(tree, view))
        assert found.cost == pytest.approx(least, rel=1e-14, abs=0.0), f"seed={seed}"


@pytest.mark.parametrize("block", range(2))
def test_operators_go_only_where_they_can_run(block: int):
    """Not every peer has an engine. Within a bound there may be no place at all; then no algorithm finds one."""
    for case in range(100):
        seed = f"{SEED} able {block} {case}"
        luck = random.Random(seed)
        view = random_view(luck, luck.randint(2, 5), is_metric=True)
        tree = random_tree(luck, view, luck.randint(1, 4), is_choosy=True)
        rated = {
            hosts: (overlay_cost(tree, hosts, view.distance), path_delay(tree, hosts, view.distance))
            for hosts in all_mappings(tree, view)
        }
        direct_ms = max(view.distance(each, tree.proxy) for each in tree.source_peers)
        for bound_ms in (math.inf, direct_ms * luck.uniform(1, 2)):
            within = [cost for cost, delay in rated.values() if delay <= bound_ms]
            for algorithm in ALGORITHMS:
                found = place(algorithm, tree, view, bound_ms)
                if isinstance(found, Infeasible):
                    assert not within or algorithm == "baseline", f"{algorithm} seed={seed}"
                    continue
                assert found.hosts in rated, f"{algorithm} seed={seed}"
                assert found.delay_ms <= bound_ms, f"{algorithm} seed={seed}"
                if algorithm == "exact":
                    assert found.cost == pytest.approx(min(within), rel=CLOSE), f"seed={seed}"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_heuristics_are_never_below_the_optimum_nor_over_the_bound(block: int):
    """1,000 random trees, without a bound, with the tightest there is, and with a looser one."""
    for case in range(100):
        seed = f"{SEED} heuristics {block} {case}"
        luck = random.Random(seed)
        view = random_view(luck, luck.randint(3, 25), is_metric=luck.random() < 0.5)
        tree = random_tree(luck, view, luck.randint(1, 12), luck.randint(1, 8))
        baseline = place("baseline", tree, view)
        assert isinstance(baseline, Placement)
        for bound_ms in (math.inf, baseline.delay_ms, baseline.delay_ms * luck.uniform(1, 2)):
            exact = place("exact", tree, view, bound_ms)
            assert isinstance(exact, Placement)
            assert exact.is_optimal
            for algorithm in ALGORITHMS:
                found = place(algorithm, tree, view, bound_ms)
                assert isinstance(found, Placement)
                assert found.cost >= exact.cost * (1 - CLOSE), f"{algorithm} seed={seed}"
                assert found.delay_ms <= bound_ms, f"{algorithm} seed={seed}"
                if algorithm != "edge":  # Edge does not see distances, so it may ship little over a long way.
                    assert found.cost <= baseline.cost * (1 + CLOSE), f"{algorithm} seed={seed}"
                else:
                    assert _flow(tree, found) <= _flow(tree, baseline) * (1 + CLOSE), f"seed={seed}"


def _flow(tree: ProcessingTree, placement: Placement) -> float:
    return overlay_cost(tree, placement.hosts, lambda a, b: 1.0)
