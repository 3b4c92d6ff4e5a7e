"""Joins of three and more streams taken apart: each join below another can run at a peer of its own.

What an inner join makes flows to the next as the rows of one source. An engine tells only what new rows bring about;
the next join needs what old rows have made as well, for its state. So below the last join every row has a field that
says whether it is new, engines there are fed all rows as new ones, and a pair is new where one of its rows is.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from queries.expressions import TIME, Column, Expression, Named, columns_of, rewritten
from queries.functions import call
from queries.plan import Join, Operator, Project, Select, Source, sources, walk
from queries.schema import FIELDS_MAX, Field, FieldType, Schema

NEW: Final = "is_new"  # The field, unless a stream has one of that name.

Aliases = tuple[str, ...]
"""A join, by the sources below it in the order of the plan."""

Place = tuple[str, str]
"""An alias and the name of one of its fields."""


def aliases_of(plan: Operator) -> Aliases:
    return tuple(each.alias for each in sources(plan))


def inner_joins(plan: Operator) -> dict[Aliases, Join]:
    """The joins below other joins that can run apart; those that are read before those that read them.

    Every pair of rows of such a join stays for as long as its rows do: there are no windows. A join without a condition
    makes more than it reads, and stays with the next.
    """
    operators = list(walk(plan))
    body = operators[:-1] if isinstance(plan, Project) else operators
    if not all(isinstance(each, Source | Select | Join) for each in body):
        return {}
    inputs = sources(plan)
    if any(each.window is not None or len(each.schema.fields) == FIELDS_MAX for each in inputs):
        return {}
    joins = [each for each in body if isinstance(each, Join)][:-1]
    return {
        aliases_of(each): each
        for each in joins
        if each.predicate is not None and len(needed_above(plan, each)) < FIELDS_MAX
    }


def needed_above(plan: Operator, join: Join) -> list[Column]:
    """What operators above a join read of the rows of its sources, each once."""
    below = aliases_of(join)
    inside = list(walk(join))
    needed: dict[Place, Column] = {}
    for operator in walk(plan):
        if operator in inside:
            continue
        for expression in _expressions(operator):
            for column in columns_of(expression):
                if column.input in below:
                    needed[column.input, column.path[0]] = column
    every = {(column.input, column.path[0]): column for column in join.columns}
    return [column for place, column in every.items() if place in needed]


def made_by(plan: Operator, join: Join) -> Project:
    """What a join hands on: the columns that are needed above it, and when a pair came about."""
    columns = needed_above(plan, join)
    names: dict[str, None] = {}
    for column in columns:
        name = f"{column.input}-{column.path[0].lstrip('$')}"[:100]
        while name in names:
            name += "_"
        names[name] = None
    outputs = tuple(Named(name, column) for name, column in zip(names, columns, strict=True))
    return Project(join, (*outputs, Named(TIME, time_of(join))), "+".join(aliases_of(join)))


def time_of(plan: Operator) -> Expression:
    """When a row of a plan came about."""
    times = tuple(column for column in plan.columns if column.path == (TIME,))
    return times[0] if len(times) == 1 else call("greatest", *times)


class Renaming:
    """Where the columns of sources are to who reads joins that run elsewhere."""

    def __init__(self) -> None:
        self._columns: dict[Place, tuple[str, str]] = {}

    def add(self, made: Project) -> None:
        """From now on what a join hands on is read under its own names."""
        for each in made.outputs:
            if isinstance(each.expression, Column):
                self._columns[each.expression.input, each.expression.path[0]] = (made.alias, each.name)

    def renamed(self, expression: Expression) -> Expression:
        def change(node: Expression) -> Expression:
            if isinstance(node, Column) and (node.input, node.path[0]) in self._columns:
                alias, name = self._columns[node.input, node.path[0]]
                return msgspec.structs.replace(node, input=alias, path=(name, *node.path[1:]))
            return node

        return rewritten(expression, change)


def marked(source: Source) -> Source:
    """A source whose rows also say whether they are new."""
    return msgspec.structs.replace(source, schema=Schema((*source.schema.fields, _mark(source.schema.fields))))


def handing_on_marks(made: Project) -> Project:
    """A projection of marked sources whose rows say whether they are new: if what one of them is made of is."""
    marks = {each.alias: each.columns[len(each.schema.fields) - 1] for each in sources(made)}
    is_new: Expression = call("or", *marks.values()) if len(marks) > 1 else next(iter(marks.values()))
    *outputs, time = made.outputs
    names = [each.name for each in outputs]
    return msgspec.structs.replace(made, outputs=(*outputs, Named(_unlike(names), is_new), time))


def source_of(made: Project, stream: str) -> Source:
    """What a join hands on, as the next one reads it."""
    fields = tuple(
        Field(column.path[0], cast("FieldType", column.type), column.nullable, column.fields)
        for column in made.columns[:-1]
    )
    return Source(stream, made.alias, Schema(fields))


def _mark(fields: tuple[Field, ...]) -> Field:
    return Field(_unlike([each.name for each in fields]), "bool")


def _unlike(names: list[str]) -> str:
    name = NEW
    while name in names:
        name += "_"
    return name


def _expressions(operator: Operator) -> list[Expression]:
    match operator:
        case Select(predicate=predicate):
            return [predicate]
        case Join(predicate=predicate):
            return [predicate] if predicate is not None else []
        case Project(outputs=outputs):
            return [each.expression for each in outputs]
    return []
