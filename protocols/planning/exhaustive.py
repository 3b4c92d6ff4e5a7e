"""Every plan of a problem, one after the other: IFLOW's exhaustive search, for small problems and for tests."""

from __future__ import annotations

from collections.abc import Iterator

from protocols.planning.problem import Decision, Joined, Plan, Problem, Streams
from protocols.planning.programme import all_splits, ways_to_read


def plan_exhaustively(problem: Problem) -> Decision:
    """The cheapest of all trees, places and ways to reuse, each of which is made and weighed."""
    weighed = [(problem.cost(plan), number, plan) for number, plan in enumerate(plans_of(problem))]
    cost, _, plan = min(weighed)
    return Decision("exhaustive", plan, cost, float(len(weighed)), bound=cost)


def plans_of(problem: Problem) -> Iterator[Plan]:
    """Every plan: bushy trees of all connected joins, each join at every host, each part made or read."""
    splits, ways = all_splits(problem.graph), ways_to_read(problem)
    known: dict[Streams, list[Plan]] = {}
    for streams in dict.fromkeys((*ways, *splits)):
        known[streams] = list(ways.get(streams, ()))
    for streams, parts in splits.items():
        known[streams] += [
            Joined(streams, host, left, right)
            for part in parts
            for left in known[part]
            for right in known[streams ^ part]
            for host in problem.hosts
        ]
    yield from known[problem.whole]
