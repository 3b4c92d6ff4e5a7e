"""From a plan of inner joins to a planning problem, and from what was decided back to an order of its joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocols.ids import PeerId
from protocols.planning.problem import Base, Derived, Distances, Joined, Origin, Plan, Problem, Stream, members_of
from queries.reorder import Order, SetEstimates

Shares = Mapping[str, Sequence[tuple[PeerId, float]]]
"""For each stream its publishers, each with its share of the rate."""


def problem_of(
    sets: SetEstimates,
    publishers: Shares,
    network: Distances,
    hosts: tuple[PeerId, ...],
    sink: PeerId,
    derived: tuple[Derived, ...] = (),
) -> Problem:
    """The problem of a query: sources narrowed where they are published, joins of any order at any host."""
    streams = []
    for number, source in enumerate(sets.graph.sources):
        beta = sets.beta(1 << number)
        origins = (Origin(peer, beta * share) for peer, share in publishers[source.stream])
        streams.append(Stream(source.alias, tuple(origins)))
    return Problem(network, hosts, tuple(streams), sets.graph.neighbours, sets.beta, sink, derived)


def order_of(problem: Problem, plan: Plan) -> Order:
    """The order of the joins in a plan. What is reused is joined already: any order describes it."""
    match plan:
        case Base(stream):
            return stream
        case Joined(_, _, left, right):
            return order_of(problem, left), order_of(problem, right)
        case _:
            first, *others = members_of(problem.streams_of(plan))
            order: Order = first
            for each in others:
                order = (order, each)
            return order
