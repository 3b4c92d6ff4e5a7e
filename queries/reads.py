"""Which columns of its streams a plan reads."""

from __future__ import annotations

from queries.expressions import Expression, columns_of
from queries.plan import Join, Nest, Operator, Project, Restructure, Select, Source, WindowAggregate, sources, walk

Needed = dict[str, dict[str, None]]
"""Names of fields by the alias of their source."""


def columns_read(plan: Operator) -> dict[str, tuple[str, ...]]:
    """For each alias, the fields that the plan reads at all, in the order of the stream.

    What is not known in detail counts as read: XML content and lists of records may name any field.
    """
    needed = needed_above(plan)
    for each in sources(plan):
        needed[each.alias].update(dict.fromkeys([each.event_time] if each.event_time else []))
    for operator in walk(plan):
        if isinstance(operator, Select):
            _note(needed, [operator.predicate])
    _note(needed, list(plan.columns))
    reads_any = any(isinstance(each, Nest | Restructure) for each in walk(plan))
    return {
        each.alias: tuple(f.name for f in each.schema.fields if reads_any or f.name in needed[each.alias])
        for each in sources(plan)
    }


def needed_above(plan: Operator) -> Needed:
    """For each alias, the fields that operators above the selections of its source read."""
    needed: Needed = {each.alias: {} for each in sources(plan)}
    for operator in walk(plan):
        expressions, names = _reads(operator)
        _note(needed, expressions)
        for fields in needed.values():
            fields.update(dict.fromkeys(names))
    return needed


def is_chain(operator: Operator) -> bool:
    """Whether an operator is a source, or selections on one."""
    while isinstance(operator, Select):
        operator = operator.input
    return isinstance(operator, Source)


def _note(needed: Needed, expressions: list[Expression]) -> None:
    for expression in expressions:
        for column in columns_of(expression):
            if column.input in needed:
                needed[column.input][column.path[0]] = None


def _reads(operator: Operator) -> tuple[list[Expression], list[str]]:
    """What an operator reads of its rows: expressions, and fields by name alone."""
    match operator:
        case Select(predicate=predicate) if not is_chain(operator):
            return [predicate], []
        case Project(outputs=outputs):
            return [each.expression for each in outputs], []
        case Join(predicate=predicate) | Nest(predicate=predicate) if predicate is not None:
            return [predicate], []
        case WindowAggregate(keys=keys, aggregates=aggregates, window=window):
            arguments = [each.argument for each in aggregates if each.argument is not None]
            gathered = [item.name for each in aggregates for item in each.fields]
            return [key.expression for key in keys] + arguments, gathered + list(window.by[:1])
    return [], []
