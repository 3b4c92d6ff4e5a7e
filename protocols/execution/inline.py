"""The engine inside the daemon: selections, projections, unions and the shape of results, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queries import restructure
from queries.compile import predicate_on_batch, project_on_batch
from queries.plan import Operator, Project, Restructure, Select, Source, Union
from queries.schema import Row

Step = Callable[[Sequence[Row]], Sequence[Row]]


def pipelines(plan: Operator) -> dict[str, Step]:
    """For each source of a stateless plan, what its rows become."""
    match plan:
        case Source(alias=alias):
            return {alias: lambda rows: rows}
        case Select(input=below, predicate=predicate):
            return _then(pipelines(below), predicate_on_batch(predicate, below.columns))
        case Project(input=below, outputs=outputs):
            expressions = tuple(each.expression for each in outputs)
            return _then(pipelines(below), project_on_batch(expressions, below.columns))
        case Union(branches=branches):
            return {alias: step for branch in branches for alias, step in pipelines(branch).items()}
        case Restructure(input=below):
            return _then(pipelines(below), restructure.on_batch(plan))
    raise AssertionError(f"{plan} has state")


def _then(before: dict[str, Step], step: Step) -> dict[str, Step]:
    def chain(first: Step) -> Step:
        return lambda rows: step(first(rows))

    return {alias: chain(first) for alias, first in before.items()}
