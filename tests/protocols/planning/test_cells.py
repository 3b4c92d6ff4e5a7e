"""Large networks: the plan over candidates is within the bound of the cells, and the bound is below the optimum."""

from __future__ import annotations

from random import Random

import pytest

from protocols.planning.candidates import CANDIDATES, narrowed
from protocols.planning.cells import cells_of, prove
from protocols.planning.coordinates import Coordinates
from protocols.planning.exact import plan_exactly, plan_in_time
from protocols.planning.hierarchy import Hierarchy
from protocols.planning.planners import Known, plan
from protocols.planning.problem import Problem
from tests.protocols.planning.problems import make_problem, peer
from tests.seeds import draw_seed

CLOSE = 1 + 1e-6


def make_coordinates(luck: Random, peers: int) -> Coordinates:
    """Sites in a box, peers around them, access links as heights."""
    sites = [[luck.uniform(0, side) for side in (120, 100, 40)] for _ in range(40)]
    points = [[middle + luck.gauss(0, 3) for middle in luck.choice(sites)] for _ in range(peers)]
    return Coordinates([peer(number) for number in range(peers)], points, [luck.gammavariate(2, 1.5) for _ in points])


def make_large(luck: Random, peers: int, streams: int, derived: float) -> tuple[Coordinates, Problem]:
    network = make_coordinates(luck, peers)
    return network, make_problem(luck, network, streams, derived=derived)


def test_distances_of_coordinates_are_symmetric_and_zero_to_oneself():
    network = make_coordinates(Random(2), 9)
    rows = network.between(network.peers, network.peers)
    for a in range(9):
        for b in range(9):
            assert rows[a][b] == pytest.approx(network.distance(peer(a), peer(b)))
            assert rows[a][b] == rows[b][a]
        assert rows[a][a] == 0


def test_the_bound_of_the_cells_is_below_the_optimum_and_usually_is_it():
    luck = Random(draw_seed())
    proved = 0
    for case in range(12):
        network, problem = make_large(luck, 400, luck.choice((2, 3, 4)), luck.choice((0.0, 0.2)))
        found = plan_exactly(narrowed(problem))._replace(bound=0.0)
        best = plan_exactly(problem)
        told = prove(problem, network, cells_of(network, problem.hosts), found)
        problem.validate(told.plan)
        assert told.cost == pytest.approx(problem.cost(told.plan))
        assert told.bound <= best.cost * CLOSE, case
        assert best.cost <= told.cost * CLOSE <= found.cost * CLOSE**2, case
        proved += told.gap < 1e-6
    assert proved >= 6


def test_candidates_are_few_and_nearly_as_good_as_all():
    luck = Random(7)
    over = []
    for _ in range(10):
        _, problem = make_large(luck, 400, 4, 0.1)
        few = narrowed(problem)
        assert len(few.hosts) <= 2 * CANDIDATES
        over.append(plan_exactly(few).cost / plan_exactly(problem).cost - 1)
    assert max(over) < 0.05
    assert sum(over) / len(over) < 0.01


def test_the_exact_planner_looks_at_candidates_where_all_would_take_too_long_and_proves_the_gap():
    luck = Random(8)
    network, problem = make_large(luck, 3000, 5, 0.0)
    found = plan_in_time(problem)
    assert found.bound == 0
    hierarchy = Hierarchy(32, network.distance)
    proved = plan("exact", problem, Known(hierarchy, cells=cells_of(network, problem.hosts)))
    assert proved.cost <= found.cost
    assert proved.gap < 0.05
    few = problem.among(problem.hosts[:200])
    assert plan_in_time(few).gap == 0
