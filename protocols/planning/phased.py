"""Plan first, then deploy: the join order is chosen by rates alone, before anybody asks where things are (figure 1a).

The best such planner then finds the best place for each operator; Relaxation and In-Network begin with the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols.ids import PeerId
from protocols.planning.problem import Base, Decision, Joined, Plan, Problem, Streams, lemma_1
from protocols.planning.programme import Splits, all_splits, best_plan, ways_to_read


def plan_in_phases(problem: Problem) -> Decision:
    """The order with the least between operators, then its best placement; what flows is reused where it fits."""
    plan = best_plan(problem, best_order(problem))
    return Decision("phased", plan, problem.cost(plan), phased_plans(problem, len(problem.hosts)))


def phased_plans(problem: Problem, hosts: int) -> float:
    """Plans that two phases decide among: all orders, then all places of one of them."""
    joins = len(problem.streams) - 1
    return lemma_1(len(problem.streams), 1) + float(hosts) ** joins if joins else 0.0


def best_order(problem: Problem) -> Splits:
    """The tree whose operators hand the fewest bytes to each other, as one split for each of its joins."""
    splits = all_splits(problem.graph)
    best: dict[Streams, tuple[float, Streams]] = {1 << number: (0.0, 0) for number in range(len(problem.streams))}

    def handed_on(streams: Streams) -> float:
        return best[streams][0] + (problem.beta(streams) if streams in splits else 0.0)

    for streams, parts in splits.items():
        best[streams] = min((handed_on(part) + handed_on(streams ^ part), part) for part in parts)
    chosen: dict[Streams, tuple[Streams, ...]] = {}
    waiting = [problem.whole]
    while waiting:
        streams = waiting.pop()
        if streams in splits:
            part = best[streams][1]
            chosen[streams] = (part,)
            waiting += [part, streams ^ part]
    return dict(sorted(chosen.items(), key=lambda each: each[0].bit_count()))


def deployed(order: Splits, places: Mapping[Streams, PeerId], streams: Streams) -> Plan:
    """The tree of an order with each join at its place."""
    if streams not in order:
        return Base(streams.bit_length() - 1)
    part = order[streams][0]
    left, right = (deployed(order, places, side) for side in (part, streams ^ part))
    return Joined(streams, places[streams], left, right)


def reusing(problem: Problem, plan: Plan) -> Plan:
    """The same plan with each part read from what flows already, where that is cheaper than making it.

    A planner of phases hears of streams only when its operators have their places.
    """
    ways = ways_to_read(problem)

    def improved(part: Plan) -> Plan:
        if isinstance(part, Joined):
            part = part._replace(left=best(part.left, part), right=best(part.right, part))
        return part

    def best(part: Plan, reader: Joined | None) -> Plan:
        part, to = improved(part), None if reader is None else reader.peer
        options: list[Plan] = [part, *ways.get(problem.streams_of(part), ())]
        return min(options, key=lambda way: problem.cost(way, to))

    return best(plan, None)
