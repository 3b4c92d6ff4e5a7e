"""A plan drawn at random: what planning is worth at all."""

from __future__ import annotations

from random import Random

from protocols.planning.phased import reusing
from protocols.planning.problem import Base, Decision, Joined, Plan, Problem, is_connected


def plan_at_random(problem: Problem, luck: Random) -> Decision:
    """Any two parts that a condition connects, joined at any host, until all are one; then reuse."""
    parts: list[Plan] = [Base(number) for number in range(len(problem.streams))]
    while len(parts) > 1:
        left, right = luck.sample(parts, 2)
        streams = problem.streams_of(left) | problem.streams_of(right)
        if is_connected(problem.graph, streams):
            parts = [part for part in parts if part not in (left, right)]
            parts.append(Joined(streams, luck.choice(problem.hosts), left, right))
    plan = reusing(problem, parts[0])
    return Decision("random", plan, problem.cost(plan), 1.0)
