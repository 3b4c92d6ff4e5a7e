"""The optimal plan of one query: order, places and reuse at once, in milliseconds (see `programme.py`).

The time grows with the square of the hosts. Beyond some hundred of them, only those that are likely to be good are
looked at (`candidates.py`); `cells.py` then proves how far from the optimum that can be, or closes the gap.
"""

from __future__ import annotations

from typing import Final

from protocols.planning.candidates import narrowed
from protocols.planning.problem import Decision, Problem, lemma_1
from protocols.planning.programme import all_splits, best_plan

HOSTS_MAX: Final = 256


def plan_exactly(problem: Problem) -> Decision:
    """The cheapest plan over all hosts, proved."""
    plan = best_plan(problem, all_splits(problem.graph))
    cost = problem.cost(plan)
    return Decision("exact", plan, cost, _examined(problem), bound=cost)


def plan_among_candidates(problem: Problem) -> Decision:
    """The cheapest plan over the candidates; beyond 256 hosts nothing is proved."""
    if len(problem.hosts) <= HOSTS_MAX:
        return plan_exactly(problem)
    few = narrowed(problem)
    found = plan_exactly(few)
    return found._replace(bound=0.0)


def _examined(problem: Problem) -> float:
    return lemma_1(len(problem.streams), len(problem.hosts))
