"""Heuristics where few peers can run an operator: the nearest that can stands in for one that the paper would take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest

from protocols.ids import PeerId
from protocols.placement.messages import Distributed, Terms
from protocols.placement.place import Algorithm, Placement, place
from protocols.placement.tree import ProcessingTree
from protocols.placement.view import NetworkView
from tests.protocols.placement.asking import LONG_MS, ask, hosts_of
from tests.protocols.placement.network import PlacementNetwork
from tests.protocols.placement.trees import random_tree, random_view

SEED = 29
HEURISTICS: tuple[Distributed, ...] = get_args(Distributed)


def choosy(tree: ProcessingTree, able: Sequence[PeerId], view: NetworkView | None = None) -> ProcessingTree:
    """The same, with operators that only some can run; with a view, somebody stands in for the others."""
    unable = [each for each in dict.fromkeys((tree.proxy, *tree.source_peers)) if each not in able]
    instead = tuple((each, view.nearest(each, able)) for each in unable) if view is not None else ()
    return ProcessingTree(
        [
            msgspec.structs.replace(vertex, able=tuple(able), instead=instead) if number in tree.operators else vertex
            for number, vertex in enumerate(tree.vertices)
        ]
    )


def drawn(case: int, peers: int = 24) -> tuple[random.Random, NetworkView, ProcessingTree]:
    luck = random.Random(f"{SEED} {case}")
    view = random_view(luck, peers)
    return luck, view, random_tree(luck, view, luck.randint(1, 5), luck.randint(2, 6))


def placed(algorithm: Algorithm, tree: ProcessingTree, view: NetworkView) -> Placement:
    found = place(algorithm, tree, view)
    assert isinstance(found, Placement)
    return found


def test_where_everybody_can_run_everything_it_is_the_papers_algorithm():
    for case in range(100):
        _, view, tree = drawn(case)
        for algorithm in HEURISTICS:
            expected = placed(algorithm, tree, view)
            assert placed(algorithm, choosy(tree, view.peers, view), view) == expected, f"seed={SEED} {case}"


@pytest.mark.parametrize(("algorithm", "saved"), [("edge", 0.1), ("edge+", 0.02), ("in-network", 0.01)])
def test_stand_ins_save_something_where_few_can_run_an_operator(algorithm: Algorithm, saved: float):
    """Three peers of 24; over the optimum, in the mean of 200 trees."""
    without = []
    found = []
    for case in range(200):
        luck, view, tree = drawn(case)
        able = luck.sample(view.peers, 3)
        best = placed("exact", choosy(tree, able), view).cost
        if best:
            without.append(placed(algorithm, choosy(tree, able), view).cost / best)
            placement = placed(algorithm, choosy(tree, able, view), view)
            assert all(placement.hosts[operator] in able for operator in tree.operators), f"seed={SEED} {case}"
            found.append(placement.cost / best)
    means = sum(without) / len(without), sum(found) / len(found)
    print(f"{algorithm}: {means[1]:.3f} times the optimum, {means[0]:.3f} without stand-ins")
    assert means[1] < (1 - saved) * means[0]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["edge", "in-network"])  # Edge+ knows less of siblings there.
def test_coordinators_find_the_same_stand_ins(algorithm: Distributed):
    for case in range(200):
        luck, view, tree = drawn(case, peers=12)
        tree = choosy(tree, luck.sample(view.peers, luck.randint(1, 4)), view)
        network = PlacementNetwork(luck, len(view.peers))
        terms = Terms(algorithm, tree.proxy)
        if algorithm != "edge":
            candidates = view.peers if algorithm == "in-network" else ()
            terms = Terms(algorithm, tree.proxy, None, view.peers, tuple(map(tuple, view.rows)), candidates)
        ask(network, tree, terms)
        network.run(LONG_MS)
        assert hosts_of(network) == placed(algorithm, tree, view).hosts, f"seed={SEED} {case}"
