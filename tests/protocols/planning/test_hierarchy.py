"""The hierarchy under random joins, leaves, crashes and drift, and Theorem 1."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.ids import PeerId
from protocols.planning.hierarchy import Cluster, Hierarchy
from tests.protocols.planning.problems import peer
from tests.seeds import draw_seed

CLOSE = 1e-9


class Plane:
    """Peers that can be moved; how far they are apart."""

    def __init__(self, luck: Random) -> None:
        self.luck = luck
        self.points: dict[PeerId, tuple[float, float]] = {}

    def put(self, each: PeerId) -> None:
        """Around one of some sites, as networks are."""
        site = self.luck.randrange(6)
        self.points[each] = (20 * site + self.luck.gauss(0, 2), 50 * (site % 3) + self.luck.gauss(0, 2))

    def distance(self, a: PeerId, b: PeerId) -> float:
        return math.dist(self.points[a], self.points[b])


def make(luck: Random, peers: int, max_cs: int) -> tuple[Plane, Hierarchy]:
    plane = Plane(luck)
    for number in range(peers):
        plane.put(peer(number))
    return plane, Hierarchy.of(plane.points, plane.distance, max_cs)


def hold(hierarchy: Hierarchy, pairs: list[tuple[PeerId, PeerId]], plane: Plane) -> None:
    """Theorem 1, for some pairs at every level."""
    for a, b in pairs:
        for level in range(1, hierarchy.height + 1):
            assert plane.distance(a, b) <= hierarchy.estimate(level, a, b) + hierarchy.slack(level) + CLOSE


@given(st.integers(0, 1 << 32), st.sampled_from((4, 5, 8, 16)), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_the_hierarchy_is_valid_after_each_join_leave_crash_and_drift(seed: int, max_cs: int, first: int):
    luck = Random(seed)
    plane, hierarchy = make(luck, first, max_cs)
    hierarchy.validate()
    there = [peer(number) for number in range(first)]
    for number in range(first, first + 60):
        match luck.choice(("join", "join", "leave", "coordinator crashes", "drift")):
            case "join":
                plane.put(peer(number))
                hierarchy.join(peer(number))
                there.append(peer(number))
            case "leave" if there:
                hierarchy.leave(there.pop(luck.randrange(len(there))))
            case "coordinator crashes" if there:
                lost = luck.choice(hierarchy.path(luck.choice(there))).coordinator
                hierarchy.leave(lost)
                there.remove(lost)
            case "drift" if there:
                moved = luck.choice(there)
                plane.put(moved)
                hierarchy.drift(moved)
        hierarchy.validate()
        assert len(hierarchy) == len(there)


def test_the_first_backup_takes_over():
    _, hierarchy = make(Random(3), 60, 8)
    clusters = [each for each in hierarchy.clusters() if each.level == 1 and len(each) > 3]
    assert clusters
    for cluster in clusters:
        heir, above = cluster.backups[0], cluster.parent
        hierarchy.leave(cluster.coordinator)
        hierarchy.validate()
        assert cluster.coordinator == heir
        assert isinstance(above, Cluster)
        assert above.children[heir] is cluster


def test_estimates_are_within_theorem_1():
    """Section 3.1.1, Theorem 1: the actual cost is no more than the estimate plus the sum of 2 d_i of lower levels."""
    luck = Random(draw_seed())
    for max_cs in (4, 8, 16):
        plane, hierarchy = make(luck, 128, max_cs)
        pairs = [(peer(luck.randrange(128)), peer(luck.randrange(128))) for _ in range(100)]
        hold(hierarchy, pairs, plane)
        for number in range(128, 200):
            plane.put(peer(number))
            hierarchy.join(peer(number))
        pairs = [(peer(luck.randrange(200)), peer(luck.randrange(200))) for _ in range(100)]
        hold(hierarchy, pairs, plane)


def test_a_join_asks_no_more_than_the_members_of_a_cluster_at_each_level():
    luck = Random(4)
    plane = Plane(luck)
    hierarchy = Hierarchy(8, plane.distance)
    asked = [0]
    for number in range(600):
        plane.put(peer(number))
        hierarchy.join(peer(number))
        asked.append(hierarchy.work.asked)
    hierarchy.validate()
    late = sorted(after - before for before, after in pairwise(asked[300:]))
    assert late[len(late) // 2] <= 8 * hierarchy.height  # In the median; a cluster that is halved asks for more.
    assert sum(late) / len(late) <= 3 * 8 * hierarchy.height


def test_clusters_kept_one_by_one_are_as_good_as_those_formed_at_once():
    luck = Random(5)
    plane, at_once = make(luck, 128, 16)
    kept = Hierarchy(16, plane.distance)
    order = sorted(plane.points)
    luck.shuffle(order)
    for each in order:
        kept.join(each)
    kept.validate()

    def mean_width(hierarchy: Hierarchy) -> float:
        widths = [each.width for each in hierarchy.clusters() if each.level == 1]
        return sum(widths) / len(widths)

    assert mean_width(kept) == pytest.approx(mean_width(at_once), rel=1.0)
