"""What the daemon makes of rows at once: selections, projections, unions and the XML shape of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queries import restructure
from queries.compile import predicate_on_batch, project_on_batch
from queries.plan import Operator, Project, Restructure, Select, Source, Union, sources
from queries.reads import is_chain
from queries.schema import Row

Step = Callable[[Sequence[Row]], Sequence[Row]]


def pipelines(plan: Operator, base: Operator | None = None, *, is_selected: bool = False) -> dict[str, Step]:
    """For each source of a plan without state, a function from its rows to results.

    With `base`, an operator of the plan: the function begins with the rows of this operator. `is_selected`: the rows
    meet the first selections already.
    """

    def below_it(below: Operator) -> dict[str, Step]:
        return pipelines(below, base, is_selected=is_selected)

    if plan is base:
        return {sources(plan)[0].alias: lambda rows: rows}
    match plan:
        case Source(alias=alias):
            return {alias: lambda rows: rows}
        case Select(input=below) if is_selected and is_chain(plan):
            return below_it(below)
        case Select(input=below, predicate=predicate):
            return _then(below_it(below), predicate_on_batch(predicate, below.columns))
        case Project(input=below, outputs=outputs):
            expressions = tuple(each.expression for each in outputs)
            return _then(below_it(below), project_on_batch(expressions, below.columns))
        case Union(branches=branches):
            return {alias: step for branch in branches for alias, step in below_it(branch).items()}
        case Restructure(input=below):
            return _then(below_it(below), restructure.on_batch(plan))
    raise AssertionError(f"{plan} has state")


def _then(before: dict[str, Step], step: Step) -> dict[str, Step]:
    def chain(first: Step) -> Step:
        return lambda rows: step(first(rows))

    return {alias: chain(first) for alias, first in before.items()}
