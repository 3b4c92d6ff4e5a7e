"""IFLOW's virtual hierarchy (section 3.1): peers in clusters of at most max_cs, their coordinators clustered again.

The members of a cluster of level 1 are peers; those of a higher one are the coordinators of clusters below it. A member
knows the distances to all others in its cluster, so a coordinator estimates the distance between any two peers by that
between the members that stand for them; Theorem 1 bounds the error.

Nothing is ever built anew: a peer that joins asks from the top down for the nearest member. A cluster that has become
too large is halved, one too small joins its nearest sibling, and a coordinator is replaced by the first of its backups.
`Work` counts what that costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from protocols.ids import PeerId

Distance = Callable[[PeerId, PeerId], float]

SMALLEST: Final = 4  # The least max_cs: such a cluster can be halved and neither half is alone.
BACKUPS: Final = 2  # With the coordinator three know a cluster, as three own an entry of the store.
NEARER: Final = 0.8  # A member moves, and a coordinator is replaced, for what is so much nearer.
ROUNDS: Final = 10  # Of assigning members to the nearest medoid, at the first clustering.


@dataclass(slots=True)
class Work:
    """What keeping the hierarchy has cost so far."""

    asked: int = 0  # Distances that were measured or estimated for it.
    told: int = 0  # Members that had to hear of a change in their cluster.
    halved: int = 0
    merged: int = 0
    moved: int = 0
    replaced: int = 0  # Coordinators.


@dataclass(slots=True, eq=False)
class Cluster:
    """Some members with the distances between them. Its parent knows it by its coordinator."""

    level: int
    coordinator: PeerId
    costs: dict[PeerId, dict[PeerId, float]] = field(default_factory=dict)
    children: dict[PeerId, Cluster] = field(default_factory=dict, repr=False)  # By coordinator; none at level 1.
    parent: Cluster | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def members(self) -> tuple[PeerId, ...]:
        return tuple(self.costs)

    @property
    def backups(self) -> tuple[PeerId, ...]:
        """Who takes over if the coordinator is lost, the first one first: they know what it knows."""
        others = (each for each in self.costs if each != self.coordinator)
        # By what they would cost without the coordinator.
        left = sorted((self.cost_from(each) - self.costs[each][self.coordinator], each) for each in others)
        return tuple(each for _, each in left[:BACKUPS])

    @property
    def centre(self) -> PeerId:
        """The member with the least distance to all others."""
        return min(self.costs, key=lambda member: (self.cost_from(member), member))

    @property
    def width(self) -> float:
        """The largest distance between two members."""
        return max((ms for row in self.costs.values() for ms in row.values()), default=0.0)

    def cost_from(self, member: PeerId) -> float:
        return sum(self.costs[member].values())

    def peers(self) -> Iterator[PeerId]:
        """All peers below the cluster."""
        if self.level == 1:
            yield from self.costs
        for child in self.children.values():
            yield from child.peers()


class Hierarchy:
    """The clusters of all peers.

    Keeps:     for each peer its cluster of level 1; distances inside clusters, as they were when last measured
    Invariant: every peer is below exactly one cluster of each level, and clusters have between a quarter of max_cs (two
               at least) and max_cs members; one that is alone on its level may have fewer
    Paper:     Seshadri et al., TPDS 2009, section 3.1.1; departures in docs/papers.md
    """

    def __init__(self, max_cs: int, distance: Distance) -> None:
        assert max_cs >= SMALLEST, f"a cluster may have {SMALLEST} members at least"
        self.max_cs, self.work = max_cs, Work()
        self._min_cs = max(2, max_cs // 4)
        self._distance = distance
        self._homes: dict[PeerId, Cluster] = {}
        self._widths: dict[int, float] = {}
        self.top: Cluster | None = None

    @classmethod
    def of(cls, peers: Iterable[PeerId], distance: Distance, max_cs: int) -> Hierarchy:
        """The hierarchy of peers that are all known at once: each level grouped around medoids."""
        found = cls(max_cs, distance)
        level, members = 1, sorted(peers)
        below: dict[PeerId, Cluster] = {}
        while members and found.top is None:
            clusters = [found._formed(level, group, below) for group in found._grouped(members)]
            found.top = clusters[0] if len(clusters) == 1 else None
            below = {cluster.coordinator: cluster for cluster in clusters}
            level, members = level + 1, sorted(below)
        return found

    # What planners ask.

    @property
    def height(self) -> int:
        """The paper's h."""
        return self.top.level if self.top is not None else 0

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._homes

    def path(self, peer: PeerId) -> list[Cluster]:
        """The clusters above a peer, that of level 1 first."""
        found: list[Cluster] = []
        cluster: Cluster | None = self._homes[peer]
        while cluster is not None:
            found.append(cluster)
            cluster = cluster.parent
        return found

    def stands_for(self, peer: PeerId, cluster: Cluster) -> PeerId | None:
        """The member of a cluster that a peer is below; None if it is not in the cluster."""
        path = self.path(peer) if peer in self._homes else []
        if len(path) < cluster.level or path[cluster.level - 1] is not cluster:
            return None
        return peer if cluster.level == 1 else path[cluster.level - 2].coordinator

    def estimate(self, level: int, a: PeerId, b: PeerId) -> float:
        """The distance between two peers as it is known at a level: that of the members that stand for them."""
        if level == 1:
            return self._distance(a, b)
        return self._distance(*(self.path(each)[level - 2].coordinator for each in (a, b)))

    def width(self, level: int) -> float:
        """The paper's d_i: the largest distance between two members of one cluster of a level."""
        if level not in self._widths:
            self._widths[level] = max((each.width for each in self.clusters() if each.level == level), default=0.0)
        return self._widths[level]

    def slack(self, level: int) -> float:
        """Theorem 1: how much less than the distance an estimate at a level can be, Σ over i < level of 2 d_i."""
        return sum(2 * self.width(below) for below in range(1, level))

    def clusters(self) -> Iterator[Cluster]:
        """All clusters, the top first."""
        waiting = [self.top] if self.top is not None else []
        while waiting:
            cluster = waiting.pop()
            yield cluster
            waiting += cluster.children.values()

    # Changes.

    def join(self, peer: PeerId) -> None:
        """A peer is new: its cluster is found from the top down."""
        assert peer not in self._homes, "a peer joins once"
        if self.top is None:
            self.top = Cluster(1, peer)
        self._add(self._nearest(peer, 1), peer, None)

    def leave(self, peer: PeerId) -> None:
        """A peer has left, or has crashed: whatever it coordinated has the first backup in its place."""
        self._remove(self._homes[peer], peer)

    def drift(self, peer: PeerId) -> None:
        """The distances of a peer have changed: it measures them anew, and moves if others have become much nearer."""
        for cluster in self.path(peer):
            if peer in cluster.costs:
                self._measure(cluster, peer)
                self._told(cluster)
        for cluster in self.path(peer):
            if peer in cluster.costs:
                self._review(cluster)
        self._reseat(peer)

    def _reseat(self, peer: PeerId) -> None:
        """Move a peer, or a cluster that it coordinates, below the nearest coordinator."""
        for level, cluster in enumerate(self.path(peer), start=1):
            if peer not in cluster.costs or cluster.parent is None:
                return
            best = self._nearest(peer, level)
            near, now = (self._ask(peer, each.coordinator) for each in (best, cluster))
            if best is not cluster and near < NEARER * now:
                child = cluster.children.get(peer)
                self._remove(cluster, peer)
                self._add(self._nearest(peer, level), peer, child)
                self.work.moved += 1
                return

    # Members come and go.

    def _nearest(self, peer: PeerId, level: int) -> Cluster:
        """The cluster of a level that a peer comes to, from the top down to the nearest member each time."""
        cluster = self.top
        assert cluster is not None
        while cluster.level > level:
            nearest = min(cluster.children, key=lambda member: (self._ask(peer, member), member))
            cluster = cluster.children[nearest]
        return cluster

    def _add(self, cluster: Cluster, member: PeerId, child: Cluster | None) -> None:
        self._enter(cluster, member, child)
        if len(cluster) > self.max_cs:
            self._halve(cluster)
        else:
            self._review(cluster)

    def _enter(self, cluster: Cluster, member: PeerId, child: Cluster | None) -> None:
        cluster.costs[member] = {}
        self._measure(cluster, member)
        if child is None:
            self._homes[member] = cluster
        else:
            cluster.children[member], child.parent = child, cluster
        self._told(cluster)

    def _remove(self, cluster: Cluster, member: PeerId) -> None:
        self._take(cluster, member)
        if not cluster.costs:
            assert cluster is self.top, "only the last peer of all leaves a cluster empty"
            self.top = None
        elif cluster is self.top and len(cluster) == 1 and cluster.level > 1:
            (self.top,) = cluster.children.values()
            self.top.parent = None
        else:
            self._review(cluster)
            if cluster.parent is not None and len(cluster) < self._min_cs:
                self._merge(cluster)

    def _take(self, cluster: Cluster, member: PeerId) -> Cluster | None:
        """Take a member out, with what is below it."""
        del cluster.costs[member]
        for row in cluster.costs.values():
            del row[member]
        if cluster.level == 1:
            del self._homes[member]
        self._told(cluster)
        return cluster.children.pop(member, None)

    def _halve(self, cluster: Cluster) -> None:
        _, theirs = halves(cluster.costs, self._min_cs)
        self.work.halved += 1
        other = Cluster(cluster.level, theirs[0])
        for member in theirs:
            self._enter(other, member, self._take(cluster, member))
        other.coordinator = other.centre
        self._name(cluster, cluster.centre)
        parent = cluster.parent
        if parent is None:
            parent = self.top = Cluster(cluster.level + 1, cluster.coordinator)
            self._enter(parent, cluster.coordinator, cluster)
        self._add(parent, other.coordinator, other)

    def _merge(self, cluster: Cluster) -> None:
        """All members go to the nearest sibling, which is halved if it has become too large."""
        parent = cluster.parent
        assert parent is not None
        row = parent.costs[cluster.coordinator]
        sibling = parent.children[min(row, key=lambda member: (row[member], member))]
        self.work.merged += 1
        for member in cluster.members:
            self._enter(sibling, member, self._take(cluster, member))
        self._remove(parent, cluster.coordinator)
        if len(sibling) > self.max_cs:
            self._halve(sibling)
        else:
            self._review(sibling)

    # Coordinators.

    def _review(self, cluster: Cluster) -> None:
        """Replace the coordinator if it is gone, or if another member is much nearer to all."""
        best = cluster.centre
        is_gone = cluster.coordinator not in cluster.costs
        if is_gone or cluster.cost_from(best) < NEARER * cluster.cost_from(cluster.coordinator):
            self._name(cluster, best)

    def _name(self, cluster: Cluster, coordinator: PeerId) -> None:
        """Make a member the coordinator. It stands for the cluster above, and for whatever the former one did there."""
        former = cluster.coordinator
        if former == coordinator:
            return
        self.work.replaced += 1
        cluster.coordinator = coordinator
        self._told(cluster)
        parent = cluster.parent
        if parent is None:
            return
        self._take(parent, former)
        self._enter(parent, coordinator, cluster)
        if parent.coordinator == former:
            self._name(parent, coordinator)
        else:
            self._review(parent)

    # Measuring and counting.

    def _ask(self, a: PeerId, b: PeerId) -> float:
        self.work.asked += 1
        return self._distance(a, b)

    def _measure(self, cluster: Cluster, member: PeerId) -> None:
        for other, row in cluster.costs.items():
            if other != member:
                cluster.costs[member][other] = row[member] = self._ask(member, other)

    def _told(self, cluster: Cluster) -> None:
        self.work.told += len(cluster)
        self._widths.clear()

    # The first clustering.

    def _formed(self, level: int, group: Sequence[PeerId], below: dict[PeerId, Cluster]) -> Cluster:
        cluster = Cluster(level, group[0])
        for member in group:
            self._enter(cluster, member, below.get(member) if level > 1 else None)
        cluster.coordinator = cluster.centre
        return cluster

    def _grouped(self, members: Sequence[PeerId]) -> list[list[PeerId]]:
        """Members in groups that are not too large, around as few medoids as there must be."""
        costs = {a: {b: self._ask(a, b) for b in members if b != a} for a in members}
        waiting = around_medoids(costs, ceil(len(members) / self.max_cs))
        found: list[list[PeerId]] = []
        while waiting:
            group = waiting.pop()
            if len(group) > self.max_cs:
                inside = {a: {b: costs[a][b] for b in group if b != a} for a in group}
                waiting += halves(inside, self._min_cs)
            elif len(group) < self._min_cs and len(group) < len(members):
                others = [*waiting, *found]
                near = min(others, key=lambda other: min((costs[a][b], a, b) for a in group for b in other))
                found = [other for other in found if other is not near]
                waiting = [other for other in waiting if other is not near]
                waiting.append(near + group)
            else:
                found.append(group)
        return found

    def validate(self) -> None:
        """Every peer is below one cluster of each level; sizes, coordinators and what clusters know of each other."""
        for cluster in self.clusters():
            least = self._min_cs if cluster.parent is not None else 1 if cluster.level == 1 else 2
            assert least <= len(cluster) <= self.max_cs, "clusters are neither too small nor too large"
            assert cluster.coordinator in cluster.costs, "the coordinator is a member"
            assert not cluster.children.keys() ^ (cluster.costs.keys() if cluster.level > 1 else {}), "children"
            for member, row in cluster.costs.items():
                assert row.keys() == cluster.costs.keys() - {member}, "all distances inside a cluster are known"
                assert all(cluster.costs[other][member] == ms for other, ms in row.items()), "both ways"
            for member, child in cluster.children.items():
                assert child.coordinator == member, "a cluster is known by its coordinator"
                assert child.parent is cluster, "a cluster has one parent"
                assert child.level == cluster.level - 1, "all peers are equally deep"
        below = list(self.top.peers()) if self.top is not None else []
        assert sorted(below) == sorted(self._homes), "every peer is in one cluster"
        for peer, cluster in self._homes.items():
            assert peer in cluster.costs, "a peer is a member of its cluster"
            assert self.path(peer)[-1] is self.top, "every cluster is below the top"


Costs = dict[PeerId, dict[PeerId, float]]


def halves(costs: Costs, least: int) -> tuple[list[PeerId], list[PeerId]]:
    """Members in two groups around two medoids, each with so many at least."""
    one = max(costs, key=lambda member: (sum(costs[member].values()), member))
    other = max(costs[one], key=lambda member: (costs[one][member], member))

    def leaning(member: PeerId) -> float:
        return costs[member].get(one, 0.0) - costs[member].get(other, 0.0)

    for _ in range(ROUNDS):
        ordered = sorted(costs, key=lambda member: (leaning(member), member))
        cut = sum(leaning(member) <= 0 for member in ordered)
        cut = min(max(cut, least), len(ordered) - least)
        groups = ordered[:cut], ordered[cut:]
        medoids = (_medoid(costs, groups[0]), _medoid(costs, groups[1]))
        if medoids == (one, other):
            break
        one, other = medoids
    return groups


def around_medoids(costs: Costs, count: int) -> list[list[PeerId]]:
    """Members in so many groups, each around the member nearest to all of it; medoids begin far from each other."""
    medoids = [_medoid(costs, list(costs))]
    while len(medoids) < count:
        others = (member for member in costs if member not in medoids)
        medoids.append(max(others, key=lambda member: (min(costs[member][each] for each in medoids), member)))
    for _ in range(ROUNDS):
        groups: dict[PeerId, list[PeerId]] = {each: [] for each in medoids}
        for member in costs:
            nearest = min(medoids, key=lambda each: (costs[member].get(each, 0.0), each))
            groups[nearest].append(member)
        now = [_medoid(costs, group) for group in groups.values()]
        if now == medoids:
            break
        medoids = now
    return list(groups.values())


def _medoid(costs: Costs, group: Sequence[PeerId]) -> PeerId:
    return min(group, key=lambda member: (sum(costs[member].get(other, 0.0) for other in group), member))
