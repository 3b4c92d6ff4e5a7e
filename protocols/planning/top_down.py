"""Top-Down (IFLOW, section 3.2): the top coordinator plans the whole query over its members, then they their views."""

from __future__ import annotations

from protocols.planning.hierarchy import Hierarchy
from protocols.planning.problem import Decision, Joined, Plan, Problem, lemma_1
from protocols.planning.within import Within


def plan_top_down(problem: Problem, hierarchy: Hierarchy) -> Decision:
    assert hierarchy.top is not None, "somebody is in the hierarchy"
    search = Within(problem, hierarchy)
    plan = search.place(hierarchy.top, search.base_parts(), problem.sink)
    return Decision("top-down", plan, problem.cost(plan), search.examined)


def most_examined(problem: Problem, hierarchy: Hierarchy) -> float:
    """Theorems 2 and 4: β times the exhaustive search, which is h times the search of one full cluster."""
    return hierarchy.height * lemma_1(len(problem.streams), hierarchy.max_cs)


def most_above_optimum(problem: Problem, hierarchy: Hierarchy, plan: Plan) -> float:
    """Theorem 3: how far the cost of Top-Down's plan is above the optimum at most.

    The sum over the edges of a tree of their rate times Σ over i < h of 2 d_i. The paper takes the chosen tree; its
    proof needs that of the optimal plan as well, whose cost may be overestimated by as much.
    """
    return hierarchy.slack(hierarchy.height) * _rates(problem, plan)


def _rates(problem: Problem, plan: Plan) -> float:
    own = sum(origin.beta for origin in problem.origins(plan))
    return own + sum(_rates(problem, side) for side in (plan.left, plan.right)) if isinstance(plan, Joined) else own
