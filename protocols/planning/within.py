"""Exhaustive search inside clusters: what a coordinator decides, and how its decision comes down to physical peers.

A coordinator plans over its members: each stands for all peers below it, and what is outside the cluster is where it
is. The operators that it puts at one member are a view (IFLOW, section 3.2); the coordinator below plans the view in
the same way, order included, until level 1, where members are peers. A consumer is placed before what it reads, so the
place to which an input goes is known when the input is placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from protocols.ids import PeerId
from protocols.planning.hierarchy import Cluster, Hierarchy
from protocols.planning.problem import (
    Base,
    Derived,
    Joined,
    Origin,
    Plan,
    Problem,
    Reused,
    Stream,
    Streams,
    is_connected,
    lemma_1,
    members_of,
    reached,
)
from protocols.planning.programme import all_splits, best_plan


class Part(NamedTuple):
    """Something that a coordinator joins with others: a stream, what flows already, or what is made elsewhere."""

    streams: Streams
    origins: tuple[Origin, ...]
    plan: Plan | Later


@dataclass(frozen=True, slots=True)
class Later:
    """What another member makes: it is planned below that member once it is known who reads it."""

    asked: Asked
    plan: Joined


@dataclass(frozen=True, slots=True)
class Asked:
    """A problem as one coordinator sees it: its streams are parts of the query."""

    cluster: Cluster
    parts: tuple[Part, ...]
    problem: Problem
    derived: tuple[int, ...]  # For each derived stream of the problem, its number in the query's.

    def streams_of(self, streams: Streams) -> Streams:
        """The streams of the query in a set of parts."""
        return united(self.parts[number] for number in members_of(streams))


@dataclass(slots=True)
class Within:
    """Searches inside the clusters of one hierarchy for one query; counts the plans that it decides among."""

    problem: Problem
    hierarchy: Hierarchy
    examined: float = 0.0
    _able: dict[PeerId, None] = field(init=False)

    def __post_init__(self) -> None:
        self._able = dict.fromkeys(self.problem.hosts)

    def base_parts(self) -> list[Part]:
        """The query as it was asked: every stream from its publishers."""
        return [self.part(Base(number)) for number in range(len(self.problem.streams))]

    def part(self, plan: Plan) -> Part:
        return Part(self.problem.streams_of(plan), self.problem.origins(plan), plan)

    def hosts_in(self, cluster: Cluster) -> tuple[PeerId, ...]:
        """The members that can host a join, or have somebody below them who can."""
        if cluster.level == 1:
            return tuple(member for member in cluster.members if member in self._able)
        return tuple(
            member for member, child in cluster.children.items() if any(peer in self._able for peer in child.peers())
        )

    def is_inside(self, cluster: Cluster, part: Part) -> bool:
        return all(self.hierarchy.stands_for(origin.peer, cluster) is not None for origin in part.origins)

    def place(self, cluster: Cluster, parts: Sequence[Part], target: PeerId) -> Plan:
        """The best plan that the coordinators from this cluster downwards find; its rows go to the target."""
        asked = self._asked(cluster, tuple(parts), target)
        hosts = len(asked.problem.hosts)
        self.examined += lemma_1(len(parts), hosts) if len(parts) > 1 else 0.0
        return self._settled(asked, best_plan(asked.problem, all_splits(asked.problem.graph)), target)

    def _asked(self, cluster: Cluster, parts: tuple[Part, ...], target: PeerId) -> Asked:
        problem = self.problem
        numbers = {part.streams: number for number, part in enumerate(parts)}
        graph = tuple(
            sum(1 << numbers[other.streams] for other in parts if other is not part and self._meet(part, other))
            for part in parts
        )

        @cache
        def beta(streams: Streams) -> float:
            return problem.beta(united(parts[number] for number in members_of(streams)))

        derived, places = [], []
        for number, each in enumerate(problem.derived):
            inside = [part for part in parts if part.streams & each.streams]
            member = self.hierarchy.stands_for(each.origin.peer, cluster)
            if inside and united(inside) == each.streams and member is not None:
                covered = sum(1 << numbers[part.streams] for part in inside)
                derived.append(Derived(covered, Origin(member, each.origin.beta), each.residual, each.widening))
                places.append(number)
        streams = tuple(
            Stream(str(number), tuple(Origin(self._seen(cluster, peer), rate) for peer, rate in part.origins))
            for number, part in enumerate(parts)
        )
        hosts = self.hosts_in(cluster)
        sink = self._seen(cluster, target)
        seen = Problem(problem.network, hosts, streams, graph, beta, sink, tuple(derived))
        return Asked(cluster, parts, seen, tuple(places))

    def _meet(self, one: Part, other: Part) -> bool:
        return reached(self.problem.graph, one.streams) & other.streams != 0

    def _seen(self, cluster: Cluster, peer: PeerId) -> PeerId:
        """A peer as a coordinator sees it: the member that stands for it; outside the cluster, itself."""
        return self.hierarchy.stands_for(peer, cluster) or peer

    def _settled(self, asked: Asked, plan: Plan, target: PeerId) -> Plan:
        """A decision of a coordinator with physical places."""
        match plan:
            case Base(number):
                made = asked.parts[number].plan
                return self._settled(made.asked, made.plan, target) if isinstance(made, Later) else made
            case Reused(number):
                return self._nearest(asked, number, target)
            case Joined(_, peer, left, right) if asked.cluster.level == 1:
                sides = (self._settled(asked, each, peer) for each in (left, right))
                return Joined(asked.streams_of(plan.streams), peer, *sides)
            case Joined(_, member):
                view = tuple(self._view(asked, plan, member))
                return self.place(asked.cluster.children[member], view, target)

    def _nearest(self, asked: Asked, number: int, target: PeerId) -> Plan:
        """Of the equal streams below one member, the one that is cheapest where it is read."""
        wanted = asked.problem.derived[number]
        same = (
            Reused(asked.derived[other])
            for other, each in enumerate(asked.problem.derived)
            if (each.streams, each.origin.peer) == (wanted.streams, wanted.origin.peer)
        )
        return min(same, key=lambda way: (self.problem.cost(way, target), way))

    def _view(self, asked: Asked, plan: Joined, member: PeerId) -> Iterator[Part]:
        """The inputs of the joins that a coordinator put at one member."""
        for side in (plan.left, plan.right):
            match side:
                case Joined(streams, peer) if peer == member:
                    yield from self._view(asked, side, member)
                case Joined(streams, peer):
                    whole = asked.streams_of(streams)
                    yield Part(whole, (Origin(peer, self.problem.beta(whole)),), Later(asked, side))
                case Base(number):
                    yield asked.parts[number]
                case Reused(number):
                    yield self.part(Reused(asked.derived[number]))


def united(parts: Sequence[Part] | Iterator[Part]) -> Streams:
    streams = 0
    for part in parts:
        streams |= part.streams
    return streams


def can_be_joined(problem: Problem, parts: Sequence[Part]) -> bool:
    return is_connected(problem.graph, united(parts))
