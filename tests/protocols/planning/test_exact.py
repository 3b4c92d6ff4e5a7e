"""The exact planner is brute force over orders, places and reuse; by hand and with arrays."""

from __future__ import annotations

from random import Random

import pytest

from protocols.planning import programme
from protocols.planning.exact import plan_exactly
from protocols.planning.exhaustive import plan_exhaustively, plans_of
from protocols.planning.problem import Joined, Problem, is_connected, joins_of, lemma_1
from tests.protocols.planning.problems import make_graph, make_problem, make_view
from tests.seeds import draw_seed

CASES = 1000
# Streams, hosts: as many as leave some thousand plans at most.
SIZES = ((1, 4), (2, 6), (3, 3), (3, 4), (4, 2), (4, 2), (4, 3), (5, 1))


def small_problem(luck: Random) -> Problem:
    streams, hosts = luck.choice(SIZES)
    view = make_view(luck, hosts + luck.randint(0, 3), is_metric=luck.random() < 0.5)
    return make_problem(luck, view, streams, hosts=hosts, derived=luck.choice((0.0, 0.2, 0.5)))


@pytest.mark.slow
def test_exact_is_brute_force_on_a_thousand_small_cases(monkeypatch: pytest.MonkeyPatch):
    luck = Random(draw_seed())
    reused = bushy = 0
    for case in range(CASES):
        monkeypatch.setattr(programme, "FEW", luck.choice((0, 1 << 40)))  # With arrays, or by hand.
        problem = small_problem(luck)
        best, found = plan_exhaustively(problem), plan_exactly(problem)
        problem.validate(found.plan)
        assert found.cost == pytest.approx(best.cost, rel=1e-9, abs=1e-9), case
        assert found.gap == 0
        joins = list(joins_of(found.plan))
        reused += len(joins) < len(problem.streams) - 1
        bushy += any(isinstance(each.left, Joined) and isinstance(each.right, Joined) for each in joins)
    assert reused > CASES / 20
    assert bushy > 0


def test_lemma_1_counts_the_plans_without_reuse():
    """Section 3, Lemma 1: K!(K-1)!/2^(K-1) · N^(K-1). It counts the order in which a tree's joins are chosen, so from
    four streams on it counts bushy trees more than once: 18 for the 15 trees of four streams.
    """
    luck = Random(1)
    for streams, trees in ((2, 1), (3, 3), (4, 15)):
        problem = make_problem(luck, make_view(luck, 3), streams, derived=0.0, extra=1.0)
        assert len(list(plans_of(problem))) == trees * 3 ** (streams - 1)
        assert lemma_1(streams, 3) == {4: 18}.get(streams, trees) * 3 ** (streams - 1)


def every_split(graph: tuple[int, ...]) -> dict[int, set[int]]:
    """All sets and splits, from the definition."""
    whole = 1 << len(graph)
    sets = [streams for streams in range(1, whole) if is_connected(graph, streams)]
    return {
        streams: {
            part for part in sets if part & ~streams == 0 and streams ^ part in sets and part & streams & -streams
        }
        for streams in sets
        if streams.bit_count() > 1
    }


def test_splits_are_those_of_connected_sets_into_connected_sets():
    luck = Random(draw_seed())
    for _ in range(40):
        graph = make_graph(luck, luck.randint(1, 6), luck.choice((0.0, 0.3, 1.0)))
        found = programme.all_splits(graph)
        assert {streams: set(parts) for streams, parts in found.items()} == every_split(graph)
        assert [each.bit_count() for each in found] == sorted(each.bit_count() for each in found)


def test_a_long_chain_is_planned_and_a_dense_query_is_not_begun():
    chain = tuple((1 << n >> 1 | 2 << n) & ((1 << 32) - 1) for n in range(32))
    assert programme.is_plannable(chain)
    assert len(programme.all_splits(chain)) == 32 * 31 / 2
    assert not programme.is_plannable(tuple(((1 << 32) - 1) ^ 1 << n for n in range(32)))


def test_the_ceiling_changes_nothing():
    luck = Random(draw_seed())
    for _ in range(20):
        problem = make_problem(luck, make_view(luck, 60), 5)
        found = plan_exactly(problem)
        splits = programme.all_splits(problem.graph)
        again = programme.best_plan(problem, splits, ceiling=found.cost * (1 + 1e-9))
        assert problem.cost(again) == pytest.approx(found.cost)
