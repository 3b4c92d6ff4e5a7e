"""Joins of three and more streams taken apart: each join below another can run at a peer of its own.

What an inner join makes flows to the next as the rows of one source. In a replay some rows are old: an earlier attempt
has handed on their results. An engine leaves out results of old rows alone, but the next join needs them for its state.
So below the last join every row has a field that says whether it is new. Engines there take all rows as new ones, and a
pair is new if one of its rows is.

A window keeps each row for an interval of time, and rows join if all their intervals share an instant. Intervals do if
every two of them do. So a pair also carries the times of its rows that have windows. The next join checks for each of
these rows whether the other row came while it was in its window.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, cast

import msgspec

from queries.expressions import TIME, Column, Constant, Expression, Named, columns_of, conjunction, rewritten
from queries.functions import call
from queries.plan import Join, Operator, Project, Select, Source, Window, sources, walk
from queries.schema import FIELDS_MAX, Field, FieldType, Schema

NEW: Final = "is_new"  # The field, unless a stream has one of that name.

CALENDAR_US: Final = 1 << 59  # More than lies between any two times.

Aliases = tuple[str, ...]
"""A join, by the sources below it in the order of the plan."""

Place = tuple[str, str]
"""An alias and the name of one of its fields."""


def aliases_of(plan: Operator) -> Aliases:
    return tuple(each.alias for each in sources(plan))


def inner_joins(plan: Operator) -> dict[Aliases, Join]:
    """The joins below other joins that can run apart, makers before consumers.

    All windows must be of time, without SLIDE. A join without a condition makes more than it reads, so it stays with
    the next one.
    """
    operators = list(walk(plan))
    body = operators[:-1] if isinstance(plan, Project) else operators
    if not all(isinstance(each, Source | Select | Join) for each in body):
        return {}
    inputs = sources(plan)
    if not all(_has_intervals(each.window) and len(each.schema.fields) < FIELDS_MAX for each in inputs):
        return {}
    joins = [each for each in body if isinstance(each, Join)][:-1]
    return {
        aliases_of(each): each
        for each in joins
        if each.predicate is not None and len(needed_above(plan, each)) < FIELDS_MAX
    }


def _has_intervals(window: Window | None) -> bool:
    """Whether a row is in the window for one interval that begins at its own time; without a window, for ever."""
    return window is None or (window.kind == "time" and window.slide is None)


def needed_above(plan: Operator, join: Join) -> list[Column]:
    """What operators above a join read of the rows of its sources, each once."""
    below = aliases_of(join)
    inside = list(walk(join))
    needed = {(each.alias, TIME): each.columns[len(each.schema.fields)] for each in sources(join) if _ends(each)}
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
    """What a join hands on: the columns that are needed above it, and the time of each pair."""
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
    """The time of a row of a plan: that of its latest source row."""
    times = tuple(column for column in plan.columns if column.path == (TIME,))
    return times[0] if len(times) == 1 else call("greatest", *times)


class Renaming:
    """How a consumer finds the columns of sources in the rows of joins that run elsewhere."""

    def __init__(self) -> None:
        self._columns: dict[Place, tuple[str, str]] = {}
        self._windows: dict[str, list[tuple[Column, Window]]] = {}  # Of what a join hands on: times of rows.

    def add(self, made: Project) -> None:
        """From now on what a join hands on is read under its own names."""
        for each in made.outputs:
            if isinstance(each.expression, Column):
                self._columns[each.expression.input, each.expression.path[0]] = (made.alias, each.name)
        times = ((Column(each.alias, (TIME,), "timestamp"), each.window) for each in sources(made) if _ends(each))
        self._windows[made.alias] = [(time, window) for time, window in times if window is not None]

    def joined(self, left: Operator, right: Operator, predicate: Expression | None) -> Join:
        """A join of rows that meet a predicate while both are in their windows."""
        parts = [] if predicate is None else [self.renamed(predicate)]
        for one, other in ((left, right), (right, left)):
            for source in sources(one):
                for time, window in self._windows.get(source.alias, []):
                    since = call("-", time_of(other), self.renamed(time))
                    within = Constant.of(timedelta(microseconds=int(window.size)))
                    parts.append(call("<=", since, within))
        return Join(left, right, conjunction(tuple(parts)))

    def renamed(self, expression: Expression) -> Expression:
        def change(node: Expression) -> Expression:
            if isinstance(node, Column) and (node.input, node.path[0]) in self._columns:
                alias, name = self._columns[node.input, node.path[0]]
                return msgspec.structs.replace(node, input=alias, path=(name, *node.path[1:]))
            return node

        return rewritten(expression, change)


def marked(source: Source) -> Source:
    """A source whose rows also say whether they are new."""
    return msgspec.structs.replace(source, schema=source.schema.with_last(_mark(source.schema.fields)))


def handing_on_marks(made: Project) -> Project:
    """A projection whose rows say whether they are new: they are if one of their source rows is."""
    marks = {each.alias: each.columns[len(each.schema.fields) - 1] for each in sources(made)}
    is_new: Expression = call("or", *marks.values()) if len(marks) > 1 else next(iter(marks.values()))
    *outputs, time = made.outputs
    names = [each.name for each in outputs]
    return msgspec.structs.replace(made, outputs=(*outputs, Named(_unlike(names), is_new), time))


def source_of(made: Project, stream: str, join: Join) -> Source:
    """What a join hands on, as the next one reads it. Its window is the shortest of those below: none lasts longer."""
    windows = [each.window for each in sources(join) if each.window is not None]
    fields = tuple(
        Field(column.path[0], cast("FieldType", column.type), column.nullable, column.fields)
        for column in made.columns[:-1]
    )
    return Source(stream, made.alias, Schema(fields), min(windows, key=lambda each: each.size, default=None))


def _ends(source: Source) -> bool:
    """Whether its rows ever leave its window."""
    return source.window is not None and source.window.size < CALENDAR_US


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
