"""The plan of a query: an immutable tree of operators, the same for every language, planner and engine.

A row of an operator is a flat tuple in the order of `columns`. A source has its fields and TIME (and RANK under a ROWS
window), a join has the columns of both sides, a projection has just what it names. Windows belong to the sources;
docs/queries.md says when a row is in its window and when a result is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Final, Literal, cast

import msgspec

from queries.expressions import END, RANK, START, TIME, Column, Expression, Named, ValueType
from queries.schema import Field, FieldType, Schema

AggregateFunction = Literal["count", "sum", "avg", "min", "max", "stddev", "collect"]
AGGREGATES: Final = ("count", "sum", "avg", "min", "max", "stddev")


class Window(msgspec.Struct, frozen=True, array_like=True):
    """Which rows of a stream count together.

    time:  `size` and `slide` in microseconds of the tuples' time rows:  `size` and `slide` in rows value: `size` and
    `slide` in units of the numeric column `by`, in whose order the stream comes

    An aggregate's windows end at the multiples E of `slide` (`size` if there is none) and hold the rows from E - size
    up to, not including, E. In a join without `slide` a row is in its window from its own time on for `size`, end
    included.
    """

    kind: Literal["time", "rows", "value"]
    size: int | Decimal
    slide: int | Decimal | None = None
    by: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case "time":
                step = f" SLIDE {timedelta(microseconds=int(self.slide))}" if self.slide is not None else ""
                return f"[RANGE {timedelta(microseconds=int(self.size))}{step}]"
            case "rows":
                return f"[ROWS {self.size}{'' if self.slide is None else f' SLIDE {self.slide}'}]"
            case _:
                step = "" if self.slide is None else f" step {self.slide}"
                return f"|{'/'.join(self.by)} diff {self.size}{step}|"


class Source(msgspec.Struct, frozen=True, array_like=True, tag="source", tag_field="node"):
    """A stream under an alias, with the window a join or an aggregate sees it through."""

    stream: str
    alias: str
    schema: Schema
    window: Window | None = None
    event_time: str | None = None  # The field that TIME comes from; None: the publication time.
    lateness_ms: int = 0

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        own = tuple(Column(self.alias, (f.name,), f.type, f.nullable, f.fields) for f in self.schema.fields)
        hidden: tuple[Column, ...] = (Column(self.alias, (TIME,), "timestamp"),)
        if self.window is not None and self.window.kind == "rows":
            hidden = (*hidden, Column(self.alias, (RANK,), "int"))
        return own + hidden

    def __str__(self) -> str:
        alias = f" AS {self.alias}" if self.alias != self.stream else ""
        return f"Source {self.stream}{alias}{f' {self.window}' if self.window else ''}"


class Select(msgspec.Struct, frozen=True, array_like=True, tag="select", tag_field="node"):
    """The rows for which the predicate is true, not false or unknown."""

    input: Operator
    predicate: Expression

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.input.columns

    def __str__(self) -> str:
        return f"Select {self.predicate}"


class Project(msgspec.Struct, frozen=True, array_like=True, tag="project", tag_field="node"):
    """Each row turned into these expressions. The output has this alias, which is empty at the top of a query."""

    input: Operator
    outputs: tuple[Named, ...]
    alias: str = ""

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(_column(self.alias, each) for each in self.outputs)

    def __str__(self) -> str:
        return f"Project {', '.join(map(str, self.outputs))}"


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join", tag_field="node"):
    """Pairs of rows that share an instant in their windows and satisfy the predicate (None: all such pairs)."""

    left: Operator
    right: Operator
    predicate: Expression | None = None

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.left.columns + self.right.columns

    def __str__(self) -> str:
        return f"Join {self.predicate}" if self.predicate is not None else "Join of every pair"


class Nest(msgspec.Struct, frozen=True, array_like=True, tag="nest", tag_field="node"):
    """Each row of `input` once, with a list of the rows of `nested` that are there and satisfy the predicate.

    The list has the rows that are in their windows at the instant at which the input row enters its own.
    """

    input: Operator
    nested: Operator
    predicate: Expression | None
    name: str

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input, self.nested)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, list_of(self.name, self.nested))

    def __str__(self) -> str:
        return f"Nest {self.name}{f' where {self.predicate}' if self.predicate is not None else ''}"


class Aggregate(msgspec.Struct, frozen=True, array_like=True):
    """One aggregate of a window; without an argument, count counts rows."""

    name: str
    function: AggregateFunction
    argument: Expression | None
    type: ValueType
    nullable: bool = False
    distinct: bool = False
    fields: tuple[Field, ...] = ()  # Fields of the records that collect gathers.

    def __str__(self) -> str:
        inner = "*" if self.argument is None else str(self.argument)
        return f"{self.function}({'DISTINCT ' if self.distinct else ''}{inner}) AS {self.name}"


class WindowAggregate(msgspec.Struct, frozen=True, array_like=True, tag="aggregate", tag_field="node"):
    """One row for each window and group that holds a row: the keys, the aggregates, the window's bounds and TIME.

    `window` repeats the source's window, or is that of TUMBLE or HOP. An empty window has no row. Without aggregates
    the rows are the distinct keys.
    """

    input: Operator
    window: Window
    keys: tuple[Named, ...]
    aggregates: tuple[Aggregate, ...]
    alias: str = ""

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        keys = tuple(_column(self.alias, key) for key in self.keys)
        results = tuple(Column(self.alias, (a.name,), a.type, a.nullable, a.fields) for a in self.aggregates)
        bound: ValueType = {"time": "timestamp", "rows": "int", "value": "decimal"}[self.window.kind]  # type: ignore[assignment]
        bounds = (Column(self.alias, (START,), bound), Column(self.alias, (END,), bound))
        return (*keys, *results, *bounds, Column(self.alias, (TIME,), "timestamp"))

    def __str__(self) -> str:
        by = f" by {', '.join(map(str, self.keys))}" if self.keys else ""
        return f"WindowAggregate {self.window} {', '.join(map(str, self.aggregates))}{by}".replace("  ", " ")


class Union(msgspec.Struct, frozen=True, array_like=True, tag="union", tag_field="node"):
    """The rows of all branches. Their columns have equal types, or are null; the first branch names them."""

    branches: tuple[Operator, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return self.branches

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(map(_common, zip(*(branch.columns for branch in self.branches), strict=True)))

    def __str__(self) -> str:
        return f"Union of {len(self.branches)}"


class Element(msgspec.Struct, frozen=True, array_like=True, tag="element", tag_field="node"):
    """An XML element of a result, with its content in order."""

    tag: str
    content: tuple[Template, ...] = ()


class Output(msgspec.Struct, frozen=True, array_like=True, tag="output", tag_field="node"):
    """The value of an expression inside an element, a record with all below it; without a tag, its bare text.

    Null gives nothing, not even an empty element. Lists do not occur here; Each iterates over their records.
    """

    expression: Expression
    tag: str = ""


class Choice(msgspec.Struct, frozen=True, array_like=True, tag="choice", tag_field="node"):
    """One of two contents, by a condition."""

    condition: Expression
    then: tuple[Template, ...]
    otherwise: tuple[Template, ...] = ()


class Each(msgspec.Struct, frozen=True, array_like=True, tag="each", tag_field="node"):
    """The content for each record of a list (a window's items) that meets the condition, bound to a variable."""

    variable: str
    over: Expression
    where: Expression | None
    content: tuple[Template, ...]


Template = Element | Output | Choice | Each


class Restructure(msgspec.Struct, frozen=True, array_like=True, tag="restructure", tag_field="node"):
    """Rows turned into XML at the subscriber's peer: one document fragment for a row, inside `envelope` elements."""

    input: Operator
    content: tuple[Template, ...]
    envelope: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column("", ("xml",), "string"),)

    def __str__(self) -> str:
        return f"Restructure into {'/'.join((*self.envelope, '…'))}"


Operator = Source | Select | Project | Join | Nest | WindowAggregate | Union | Restructure


def walk(plan: Operator) -> Iterator[Operator]:
    """Every operator of a plan, inputs before what reads them."""
    for each in plan.inputs:
        yield from walk(each)
    yield plan


def sources(plan: Operator) -> tuple[Source, ...]:
    """The sources of a plan, left to right."""
    return tuple(each for each in walk(plan) if isinstance(each, Source))


def horizon_us(plan: Operator) -> int | None:
    """How long after its time a row can still matter; None: for as long as it is kept."""
    is_join = any(isinstance(each, Join | Nest) for each in walk(plan))
    if is_join and any(each.window is None for each in sources(plan)):
        return None
    windows = [each.window for each in walk(plan) if isinstance(each, Source | WindowAggregate)]
    spans = [window for window in windows if window is not None]
    if not spans or any(window.kind != "time" for window in spans):
        return None
    return max(int(window.size) + int(window.slide or 0) for window in spans)


def last_result_us(plan: Operator, alias: str, time_us: int) -> int | None:
    """The latest time that a result made of a row can have: a row of this source and time; None: there is no bound.

    An aggregate's result has the time of its window's end. So once the watermark has come to this time, every window
    that the row could be in is closed.
    """
    match plan:
        case Source():
            return time_us if plan.alias == alias else None
        case Select() | Project() | Restructure():
            return last_result_us(plan.input, alias, time_us)
        case WindowAggregate(window=window):
            latest = last_result_us(plan.input, alias, time_us)
            if latest is None or window.kind != "time":
                return None
            size, slide = int(window.size), int(window.slide or window.size)
            return (latest + size) // slide * slide
        case Join():
            return _last_in_window(plan, alias, time_us)
        case Nest():
            is_listed = any(each.alias == alias for each in sources(plan.nested))
            return _last_in_window(plan, alias, time_us) if is_listed else last_result_us(plan.input, alias, time_us)
        case Union():
            branches = (each for each in plan.branches if any(source.alias == alias for source in sources(each)))
            return next((last_result_us(each, alias, time_us) for each in branches), None)
    raise AssertionError(f"no rule for {plan}")


def _last_in_window(plan: Operator, alias: str, time_us: int) -> int | None:
    """The last time at which a row of a source is in its window, so that it can meet others."""
    source = next(each for each in sources(plan) if each.alias == alias)
    match source.window:
        case Window(kind="time", size=size, slide=None):
            return time_us + int(size)
        case Window(kind="time", size=size, slide=slide) if slide is not None:
            return ((time_us + int(size)) // int(slide) + 1) * int(slide)
    return None


def list_of(name: str, nested: Operator) -> Column:
    """The column that holds a list of the rows of a plan."""
    kinds = ((each.path[-1], cast("FieldType", each.type), each.nullable, each.fields) for each in nested.columns)
    return Column("", (name,), "list", fields=tuple(Field(*kind) for kind in kinds))


def output_schema(plan: Operator) -> Schema:
    """The schema of a plan's result as a stream: its named columns, without TIME and the like."""
    fields = []
    for column in plan.columns:
        name = column.path[-1]
        if name.startswith("$"):
            continue
        fields.append(Field(name, cast("FieldType", column.type), column.nullable, column.fields))
    return Schema(tuple(fields))


def _common(same: tuple[Column, ...]) -> Column:
    typed = next((column for column in same if column.type != "null"), same[0])
    nullable = any(column.nullable for column in same)
    return Column(same[0].input, same[0].path, typed.type, nullable, typed.fields)


def _column(alias: str, named: Named) -> Column:
    expression = named.expression
    fields = expression.fields if isinstance(expression, Column) else ()
    return Column(alias, (named.name,), expression.type, expression.nullable, fields)
