"""Relaxation (Pietzuch et al., ICDE 2006), with which IFLOW compares: operators between springs in a cost space.

Each edge of the tree pulls its ends together by its rate times their distance. Operators come to rest where all pulls
cancel, and each goes to the host nearest to its point there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Final

from protocols.ids import PeerId
from protocols.planning.phased import best_order, deployed, phased_plans, reusing
from protocols.planning.problem import Decision, Origin, Problem, Streams
from protocols.planning.programme import Splits

Point = Sequence[float]

STEPS_MAX: Final = 4000  # The paper took as many iterations.
STILL: Final = 1e-6  # Of the size of the space: an operator that moves less is at rest.


def plan_by_relaxation(problem: Problem, points: Mapping[PeerId, Point]) -> Decision:
    """The best order by rates; places by springs among the points of peers; then reuse."""
    order = best_order(problem)
    rest = _at_rest(problem, order, points)
    nearest = {
        streams: min(problem.hosts, key=lambda host: (math.dist(points[host], point), host))
        for streams, point in rest.items()
    }
    plan = reusing(problem, deployed(order, nearest, problem.whole))
    return Decision("relaxation", plan, problem.cost(plan), phased_plans(problem, 1))


def _at_rest(problem: Problem, order: Splits, points: Mapping[PeerId, Point]) -> dict[Streams, Point]:
    """Where the springs leave each join: move each to the mean of what it is tied to until none moves."""
    ties = {streams: _ties(problem, order, streams) for streams in order}
    size = max((math.dist(points[problem.sink], point) for point in points.values()), default=0.0)
    found: dict[Streams, Point] = dict.fromkeys(order, points[problem.sink])
    for _ in range(STEPS_MAX):
        furthest = 0.0
        for streams, (fixed, joins) in ties.items():
            pulls = [(points[peer], beta) for peer, beta in fixed] + [(found[each], beta) for each, beta in joins]
            weight = sum(beta for _, beta in pulls)
            if weight > 0:
                columns = zip(*(point for point, _ in pulls), strict=True)
                betas = [beta for _, beta in pulls]
                mean = [sum(map(mul, column, betas)) / weight for column in columns]
                furthest = max(furthest, math.dist(mean, found[streams]))
                found[streams] = mean
        if furthest <= STILL * size:
            break
    return found


def _ties(problem: Problem, order: Splits, streams: Streams) -> tuple[list[Origin], list[tuple[Streams, float]]]:
    """What pulls at a join: peers, and other joins."""
    fixed: list[Origin] = []
    joins: list[tuple[Streams, float]] = []
    part = order[streams][0]
    for side in (part, streams ^ part):
        if side in order:
            joins.append((side, problem.beta(side)))
        else:
            fixed += problem.streams[side.bit_length() - 1].publishers
    readers = [each for each, (left,) in order.items() if streams in (left, each ^ left)]
    if readers:
        joins.append((readers[0], problem.beta(streams)))
    else:
        fixed.append(Origin(problem.sink, problem.beta(streams)))
    return fixed, joins
