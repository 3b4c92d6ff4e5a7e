"""Many queries that share joins: each planned exactly given the others, and planned again while the whole gets cheaper.

A query that comes is planned beside what flows, so the first ones decide for all. A sweep takes each query away in
turn, plans it anew beside the joins that others still need, and keeps what is cheaper. That need not be the joint
optimum, but it is nearer to it than one query after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from protocols.ids import PeerId
from protocols.planning.exact import plan_in_time
from protocols.planning.problem import (
    Base,
    Derived,
    Distances,
    Joined,
    Origin,
    Plan,
    Problem,
    Reused,
    Stream,
    Streams,
    members_of,
)

LESS: float = 1e-9  # A sweep that gains less than this share has come to its end.


class Join(NamedTuple):
    """A join that runs: the streams in it and its host. Two queries that want it there have one."""

    streams: Streams
    peer: PeerId


Side = Join | int
"""What a join or a sink reads: a join, or a base stream by its number."""


class Wanted(NamedTuple):
    """A query over some of the streams that all queries share."""

    name: str
    streams: Streams
    sink: PeerId


@dataclass(slots=True)
class Together:
    """What runs for some queries over the same streams.

    Keeps:     the inputs of each join that some query needs, and what each query's sink reads
    Invariant: every join has a reader; its inputs are disjoint and are the whole of it
    """

    network: Distances
    hosts: tuple[PeerId, ...]
    streams: tuple[Stream, ...]
    graph: tuple[Streams, ...]
    beta: Callable[[Streams], float]
    wanted: dict[str, Wanted] = field(default_factory=dict)
    roots: dict[str, Side] = field(default_factory=dict)
    inputs: dict[Join, tuple[Side, Side]] = field(default_factory=dict)

    def cost(self) -> float:
        """Bytes under way: every edge once, however many queries gain by it."""
        joins = (self._way(side, join.peer) for join, sides in self.inputs.items() for side in sides)
        return sum(joins) + sum(self._way(side, self.wanted[name].sink) for name, side in self.roots.items())

    def add(self, query: Wanted) -> None:
        """Plan a query beside all that runs."""
        assert query.name not in self.wanted, "a query has a name of its own"
        self.wanted[query.name] = query
        self._plan(query)

    def remove(self, name: str) -> None:
        """Stop a query, with the joins that nobody else needs."""
        del self.wanted[name], self.roots[name]
        self._forget()

    def sweep(self) -> int:
        """Plan each query again beside the others; says how many have another plan."""
        moved = 0
        for query in list(self.wanted.values()):
            before, roots, inputs = self.cost(), dict(self.roots), dict(self.inputs)
            del self.roots[query.name]
            self._forget()
            self._plan(query)
            if self.cost() < before * (1 - LESS):
                moved += 1
            else:
                self.roots, self.inputs = roots, inputs
        return moved

    def settle(self, sweeps_max: int) -> int:
        """Sweep until nothing moves; says how many sweeps that took."""
        for number in range(1, sweeps_max + 1):
            if self.sweep() == 0:
                return number
        return sweeps_max

    def _plan(self, query: Wanted) -> None:
        numbers = list(members_of(query.streams))
        local = {stream: 1 << number for number, stream in enumerate(numbers)}

        def all_of(chosen: Streams) -> Streams:
            return sum(1 << numbers[each] for each in members_of(chosen))

        flowing = [join for join in self.inputs if join.streams & ~query.streams == 0]
        problem = Problem(
            self.network,
            self.hosts,
            tuple(self.streams[number] for number in numbers),
            tuple(sum(local[other] for other in members_of(self.graph[number] & query.streams)) for number in numbers),
            lambda chosen: self.beta(all_of(chosen)),
            query.sink,
            tuple(
                Derived(
                    sum(local[each] for each in members_of(join.streams)), Origin(join.peer, self.beta(join.streams))
                )
                for join in flowing
            ),
        )

        def settled(plan: Plan) -> Side:
            match plan:
                case Base(stream):
                    return numbers[stream]
                case Reused(derived):
                    return flowing[derived]
                case Joined(chosen, peer, left, right):
                    join = Join(all_of(chosen), peer)
                    if join not in self.inputs:  # If it runs already, its inputs are paid for.
                        self.inputs[join] = settled(left), settled(right)
                    return join

        self.roots[query.name] = settled(plan_in_time(problem).plan)

    def _forget(self) -> None:
        """Drop the joins that no sink needs any more."""
        needed: dict[Join, None] = {}
        waiting = [side for side in self.roots.values() if isinstance(side, Join)]
        while waiting:
            join = waiting.pop()
            if join not in needed:
                needed[join] = None
                waiting += [side for side in self.inputs[join] if isinstance(side, Join)]
        self.inputs = {join: sides for join, sides in self.inputs.items() if join in needed}

    def _way(self, side: Side, to: PeerId) -> float:
        return sum(origin.beta * self.network.distance(origin.peer, to) for origin in self._origins(side))

    def _origins(self, side: Side) -> Iterator[Origin]:
        if isinstance(side, Join):
            yield Origin(side.peer, self.beta(side.streams))
        else:
            yield from self.streams[side].publishers

    def validate(self) -> None:
        read = [side for sides in self.inputs.values() for side in sides] + list(self.roots.values())
        assert all(join in read for join in self.inputs), "every join has a reader"
        assert all(side in self.inputs for side in read if isinstance(side, Join)), "what is read runs"
        for join, sides in self.inputs.items():
            left, right = (side.streams if isinstance(side, Join) else 1 << side for side in sides)
            assert left & right == 0, "a join has no stream twice"
            assert left | right == join.streams, "a join is made of its inputs"
        for name, side in self.roots.items():
            streams = side.streams if isinstance(side, Join) else 1 << side
            assert streams == self.wanted[name].streams, "a query gets what it wants"
