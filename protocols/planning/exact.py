"""The optimal plan of one query: order, places and reuse at once, in milliseconds (see `programme.py`).

The time grows with the square of the hosts. Where that is too much, only those that are likely to be good are looked at
(`candidates.py`); `cells.py` then proves how far from the optimum that can be, or closes the gap.
"""

from __future__ import annotations

from typing import Final

from protocols.planning.candidates import narrowed
from protocols.planning.problem import Decision, Problem, lemma_1
from protocols.planning.programme import all_splits, best_plan

WHOLE_MAX: Final = 70_000_000  # Sets times pairs of hosts: ten streams on 256 hosts, or six on 1,000; some 70 ms.
_A_MATRIX: Final = 8  # What the distances take, beside one set.


def plan_exactly(problem: Problem) -> Decision:
    """The cheapest plan over all hosts, proved."""
    plan = best_plan(problem, all_splits(problem.graph))
    cost = problem.cost(plan)
    return Decision("exact", plan, cost, lemma_1(len(problem.streams), len(problem.hosts)), bound=cost)


def plan_in_time(problem: Problem) -> Decision:
    """The cheapest plan over all hosts where that is quick; elsewhere over candidates, and then nothing is proved."""
    if is_quick(problem):
        return plan_exactly(problem)
    return plan_exactly(narrowed(problem))._replace(bound=0.0)


def is_quick(problem: Problem) -> bool:
    return (len(all_splits(problem.graph)) + _A_MATRIX) * len(problem.hosts) ** 2 <= WHOLE_MAX
