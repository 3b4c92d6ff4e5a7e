"""What is to be planned, and what a plan is: a tree of joins in any order, their places, and what is read from others.

A problem is one query over several streams, given what flows already. Its streams are numbered, and a set of them is
an int with one bit for each. A plan of any planner costs what `Problem.cost` says: Σ β × distance over all its edges,
in bytes under way (IFLOW, section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from protocols.ids import PeerId
from queries.expressions import Expression

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
else:
    Numbers = Any

Streams = int
"""A set of the streams of a problem, one bit for each."""

Betas = Callable[[Streams], float]
"""Bytes per second of the join of a set of streams, with all conditions among them."""


class Distances(Protocol):
    """How far peers are apart, in milliseconds: a `NetworkView`, or coordinates."""

    def distance(self, a: PeerId, b: PeerId) -> float: ...

    def between(self, froms: Sequence[PeerId], tos: Sequence[PeerId]) -> Numbers:
        """The distance from each peer (a row) to each other (a column)."""

    def rows_between(self, froms: Sequence[PeerId], tos: Sequence[PeerId]) -> Sequence[Sequence[float]]:
        """The same without numpy, where few are asked for."""


class Origin(NamedTuple):
    """A peer from which something comes, and how much."""

    peer: PeerId
    beta: float  # Bytes per second, behind whatever narrows it there.


class Stream(NamedTuple):
    """A base stream: all its publishers together are the stream."""

    name: str
    publishers: tuple[Origin, ...]


class Derived(NamedTuple):
    """What some peer makes already: the join of some streams, or one stream as it has come to a host.

    A reader has its rows narrowed there by what is left of its conditions. If it needs more than there is (a wider
    filter, further columns), what that adds upstream is part of what the reader costs.
    """

    streams: Streams
    origin: Origin
    residual: tuple[Expression, ...] = ()
    widening: float = 0.0  # β × distance that is added upstream.


class Base(NamedTuple):
    """A plan that reads a base stream from its publishers."""

    stream: int  # Its number.


class Reused(NamedTuple):
    """A plan that reads what flows already."""

    derived: int  # Its number.


class Joined(NamedTuple):
    """A plan that joins what two others give, at a peer."""

    streams: Streams
    peer: PeerId
    left: Plan
    right: Plan


Plan = Base | Reused | Joined


@dataclass(frozen=True, slots=True)
class Problem:
    """One query that is to be planned."""

    network: Distances
    hosts: tuple[PeerId, ...]  # Where a join may be.
    streams: tuple[Stream, ...]
    graph: tuple[Streams, ...]  # For each stream those that a condition connects it with.
    beta: Betas
    sink: PeerId
    derived: tuple[Derived, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.graph) == len(self.streams) > 0, "a query reads streams"
        assert len(self.streams) == 1 or self.hosts, "somebody can host a join"
        wanted = dict.fromkeys((self.whole, *(each.streams for each in self.derived)))
        assert all(is_connected(self.graph, each) for each in wanted), "a join of streams has conditions"

    @property
    def whole(self) -> Streams:
        """All streams of the query."""
        return (1 << len(self.graph)) - 1

    def among(self, hosts: tuple[PeerId, ...]) -> Problem:
        """The same problem with other hosts."""
        return replace(self, hosts=hosts)

    def streams_of(self, plan: Plan) -> Streams:
        match plan:
            case Base(stream):
                return 1 << stream
            case Reused(derived):
                return self.derived[derived].streams
            case Joined(streams):
                return streams

    def origins(self, plan: Plan) -> tuple[Origin, ...]:
        """Where the rows of a plan come from."""
        match plan:
            case Base(stream):
                return self.streams[stream].publishers
            case Reused(derived):
                return (self.derived[derived].origin,)
            case Joined(streams, peer):
                return (Origin(peer, self.beta(streams)),)

    def cost(self, plan: Plan, to: PeerId | None = None) -> float:
        """Bytes under way if the rows of a plan go to a peer; without one, to the sink."""
        target = self.sink if to is None else to
        origins = self.origins(plan)
        own = math.fsum(beta * self.network.distance(peer, target) for peer, beta in origins) if origins else math.inf
        match plan:
            case Base():
                return own
            case Reused(derived):
                return own + self.derived[derived].widening
            case Joined(_, peer, left, right):
                return own + self.cost(left, peer) + self.cost(right, peer)

    def validate(self, plan: Plan) -> None:
        """Check that a plan answers the query: each stream once, joins at hosts, on what conditions connect."""
        assert self.streams_of(plan) == self.whole, "a plan has all streams"
        for joined in joins_of(plan):
            left, right = self.streams_of(joined.left), self.streams_of(joined.right)
            assert left & right == 0, "a plan has no stream twice"
            assert joined.streams == left | right, "a join has the streams of its inputs"
            assert is_connected(self.graph, joined.streams), "a join has a condition"
            assert joined.peer in self.hosts, "a join is at a host"


class Decision(NamedTuple):
    """What a planner decided."""

    planner: str
    plan: Plan
    cost: float
    examined: float  # Plans that its search decided among, as IFLOW's Lemma 1 counts them.
    bound: float = 0.0  # No plan costs less: the proof of how far this one can be from the optimum.

    @property
    def gap(self) -> float:
        """How much of the cost an optimal plan might save; 0 is proved to be optimal."""
        return 1 - self.bound / self.cost if self.cost else 0.0


def lemma_1(streams: int, hosts: int) -> float:
    """The number of plans: K! (K - 1)! / 2^(K - 1) orders, each with N^(K - 1) places (IFLOW, Lemma 1).

    >>> f"{lemma_1(5, 64):.3g}", f"{lemma_1(5, 128):.3g}"
    ('3.02e+09', '4.83e+10')
    """
    orders = math.factorial(streams) * math.factorial(streams - 1) / math.pow(2.0, streams - 1)
    return orders * math.pow(hosts, streams - 1)


def joins_of(plan: Plan) -> Iterator[Joined]:
    """The joins that a plan deploys, inputs before what reads them."""
    if isinstance(plan, Joined):
        yield from joins_of(plan.left)
        yield from joins_of(plan.right)
        yield plan


def members_of(streams: Streams) -> Iterator[int]:
    """The numbers of the streams in a set.

    >>> list(members_of(0b1101))
    [0, 2, 3]
    """
    while streams:
        lowest = streams & -streams
        yield lowest.bit_length() - 1
        streams ^= lowest


def reached(graph: Sequence[Streams], streams: Streams) -> Streams:
    """What conditions connect with any of some streams, and these."""
    found = streams
    for each in members_of(streams):
        found |= graph[each]
    return found


def is_connected(graph: Sequence[Streams], streams: Streams) -> bool:
    """Whether conditions connect a set of streams; a join of others would be a cross product."""
    found = streams & -streams
    while (more := reached(graph, found) & streams) != found:
        found = more
    return found == streams != 0
