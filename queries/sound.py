"""Whether a plan that another peer sent can run: its shape, its columns, the types of its expressions, its windows.

The front ends build only such plans. A plan from the network may be anything that decodes. What runs it (compile.py,
the engines) relies on what is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

from queries.aggregates import aggregate
from queries.casts import cast
from queries.expressions import Call, Column, Constant, Expression
from queries.functions import call
from queries.plan import (
    Aggregate,
    Choice,
    Each,
    Element,
    Join,
    Nest,
    Operator,
    Output,
    Project,
    Restructure,
    Select,
    Source,
    Template,
    Union,
    Window,
    WindowAggregate,
    output_schema,
)
from queries.schema import Field

NODES_MAX: Final = 200_000  # Operators, expressions and templates of one plan.
DEPTH_MAX: Final = 300  # A text is nested less deeply; planning adds a few levels.
WINDOW_US_MAX: Final = 10_000 * 366 * 24 * 3600 * 1_000_000  # All years there are.
ROWS_MAX: Final = 1 << 53
_PYTHON: Final = {"bool": bool, "int": int, "float": float, "string": str, "bytes": str, "decimal": str}
_NUMBERS: Final = ("int", "decimal", "float")


class UnsoundPlan(ValueError):
    """No front end makes such a plan; says why."""


def check_plan(plan: Operator) -> None:
    """Check all that running a plan relies on; raises UnsoundPlan.

    >>> from queries.schema import Schema
    >>> source = Source("flights", "f", Schema.parse("gate string"))
    >>> check_plan(Select(source, Column("f", ("gate",), "bool")))
    Traceback (most recent call last):
    ...
    queries.sound.UnsoundPlan: column f.gate is a string, not a bool
    """
    try:
        found = _Check()
        found.plan(plan)
        aliases = [each.alias for each in found.sources]
        _expect(len(aliases) == len(dict.fromkeys(aliases)), "two sources have one alias")
        output_schema(plan)
    except UnsoundPlan:
        raise
    except (ValueError, KeyError, ArithmeticError) as error:  # From the rules of types, of schemas, of constants.
        raise UnsoundPlan(str(error)) from error
    except RecursionError as error:
        raise UnsoundPlan("the plan is nested too deeply") from error


def _expect(is_so: bool, problem: str) -> None:
    if not is_so:
        raise UnsoundPlan(problem)


class _Check:
    """One walk over a plan."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._nodes = 0

    def _count(self, depth: int) -> None:
        self._nodes += 1
        _expect(self._nodes <= NODES_MAX, f"the plan has more than {NODES_MAX} parts")
        _expect(depth <= DEPTH_MAX, f"the plan is nested more than {DEPTH_MAX} deep")

    def plan(self, plan: Operator, depth: int = 0, *, may_shape: bool = True) -> None:
        self._count(depth)
        _expect(may_shape or not isinstance(plan, Restructure), "rows are made of XML")
        for below in plan.inputs:
            self.plan(below, depth + 1, may_shape=may_shape and isinstance(plan, Union))
        columns = tuple(column for below in plan.inputs for column in below.columns)
        match plan:
            case Source():
                self._source(plan)
            case Select(predicate=predicate):
                self._condition(predicate, columns, depth)
            case Project(outputs=outputs):
                _expect(bool(outputs), "a projection without columns")
                self._named(outputs, columns, depth)
            case Join(predicate=predicate) | Nest(predicate=predicate):
                if predicate is not None:
                    self._condition(predicate, columns, depth)
            case WindowAggregate():
                self._aggregate(plan, columns, depth)
            case Union(branches=branches):
                _union(branches)
            case Restructure(content=content):
                self._templates(content, columns, depth)

    def _source(self, source: Source) -> None:
        self.sources.append(source)
        fields = {each.name: each for each in source.schema.fields}
        if source.event_time is not None:
            _expect(
                source.event_time in fields and fields[source.event_time].type == "timestamp",
                f'the event time "{source.event_time}" is no timestamp of {source.alias}',
            )
        _expect(0 <= source.lateness_ms <= WINDOW_US_MAX // 1000, f"a lateness of {source.lateness_ms} ms")
        if source.window is not None:
            _window(source.window, source.columns)

    def _aggregate(self, plan: WindowAggregate, columns: tuple[Column, ...], depth: int) -> None:
        _window(plan.window, columns)
        self._named(plan.keys, columns, depth)
        fields = {each.path[-1]: each for each in columns}
        for each in plan.aggregates:
            if each.argument is not None:
                self.expression(each.argument, columns, depth + 1)
            made = aggregate(each.name, each.function, each.argument, each.distinct, each.fields)
            is_same = made.type == each.type and (each.nullable or not made.nullable)
            _expect(is_same, f"{each} has another type than it says")
            _collected(each, fields)

    def _named(self, outputs: Iterable[object], columns: Sequence[Column], depth: int) -> None:
        names: dict[str, None] = {}
        for each in outputs:
            name, expression = each.name, each.expression  # type: ignore[attr-defined]
            _expect(name not in names, f'two columns are called "{name}"')
            names[name] = None
            self.expression(expression, columns, depth + 1)

    def _condition(self, predicate: Expression, columns: Sequence[Column], depth: int) -> None:
        self.expression(predicate, columns, depth + 1)
        _expect(predicate.type in ("bool", "null"), f"{_shown(predicate)} is a {predicate.type}, not a bool")

    def expression(self, expression: Expression, columns: Sequence[Column], depth: int) -> None:
        """Check that an expression has the type that it says, for rows with these columns."""
        self._count(depth)
        match expression:
            case Column():
                _column(expression, columns)
            case Constant():
                _constant(expression)
            case Call(function=name, arguments=arguments):
                for each in arguments:
                    self.expression(each, columns, depth + 1)
                if name == "cast":
                    _expect(len(arguments) == 1, "a cast of several values")
                    made: Expression = cast(arguments[0], expression.type)
                else:
                    made = call(name, *arguments)
                is_same = made.type == expression.type and (expression.nullable or not made.nullable)
                _expect(is_same, f"a call of {name} has another type than it says")

    def _templates(self, content: Iterable[Template], columns: tuple[Column, ...], depth: int) -> None:
        self._count(depth)
        for each in content:
            match each:
                case Element(content=inner):
                    self._templates(inner, columns, depth + 1)
                case Output(expression=expression):
                    self.expression(expression, columns, depth + 1)
                    _expect(expression.type != "list", "a list cannot be written as it is")
                case Choice(condition=condition, then=then, otherwise=otherwise):
                    self._condition(condition, columns, depth)
                    self._templates((*then, *otherwise), columns, depth + 1)
                case Each(variable=variable, over=over, where=where, content=inner):
                    self.expression(over, columns, depth + 1)
                    _expect(isinstance(over, Column) and over.type == "list", "a loop over something else than a list")
                    fields = over.fields if isinstance(over, Column) else ()
                    own = tuple(Column(variable, (f.name,), f.type, f.nullable, f.fields) for f in fields)
                    if where is not None:
                        self._condition(where, columns + own, depth)
                    self._templates(inner, columns + own, depth + 1)


def _column(column: Column, columns: Sequence[Column]) -> None:
    for base in columns:
        size = len(base.path)
        if base.input == column.input and base.path == column.path[:size]:
            kind, nullable, fields = base.type, base.nullable, base.fields
            for name in column.path[size:]:
                _expect(kind == "record", f"{_shown(column)} looks into a {kind}")
                inner = next((each for each in fields if each.name == name), None)
                if inner is None:
                    break
                kind, nullable, fields = inner.type, nullable or inner.nullable, inner.fields
            else:
                _expect(column.type == kind, f"column {_shown(column)} is a {kind}, not a {column.type}")
                _expect(column.nullable or not nullable, f"column {_shown(column)} may be null, unlike it says")
                _expect(column.fields == fields, f"column {_shown(column)} has other fields than it says")
                return
            break
    raise UnsoundPlan(f"there is no column {_shown(column)}")


def _constant(constant: Constant) -> None:
    value = constant.value
    if value is None:
        return
    if constant.type in ("timestamp", "interval"):
        is_sound = isinstance(value, int) and not isinstance(value, bool) and constant.python is not None
    else:
        kind = _PYTHON.get(constant.type)
        is_sound = kind is not None and type(value) is kind
        if is_sound and constant.type in ("decimal", "bytes"):
            python = constant.python
            is_sound = not isinstance(python, Decimal) or python.is_finite()
        if constant.type == "int" and isinstance(value, int):
            is_sound = is_sound and -(1 << 63) <= value < 1 << 63
    _expect(is_sound, f"a constant that is no {constant.type}")


def _window(window: Window, columns: Sequence[Column]) -> None:
    size, slide = window.size, window.slide
    if window.kind == "value":
        by = [each for each in columns if each.path == window.by[:1] and window.by] or [
            each for each in columns if window.by and each.path == window.by
        ]
        _expect(bool(by), "a window over a column that is not there")
        kind, fields = by[0].type, by[0].fields
        for name in window.by[len(by[0].path) :]:
            inner: Field | None = next((each for each in fields if each.name == name), None)
            _expect(inner is not None, "a window over a column that is not there")
            assert inner is not None
            kind, fields = inner.type, inner.fields
        _expect(kind in _NUMBERS, f"a window over a {kind}")
        for each in (size, slide):
            _expect(each is None or (Decimal(each).is_finite() and each > 0), f"a window of {each}")
            _expect(each is None or abs(Decimal(each).adjusted()) < 1000, "a window beyond all numbers")
        return
    most = WINDOW_US_MAX if window.kind == "time" else ROWS_MAX
    for each in (size, slide):
        _expect(each is None or (isinstance(each, int) and 0 < each <= most), f"a window of {each}")


def _collected(each: Aggregate, columns: dict[str, Column]) -> None:
    if each.function != "collect":
        _expect(not each.fields, f"{each.function} gathers no records")
        return
    _expect(each.argument is None, "collect gathers rows, not values")
    for field in each.fields:
        column = columns.get(field.name)
        is_same = column is not None and (column.type, column.fields) == (field.type, field.fields)
        _expect(is_same, f'collect gathers "{field.name}", which is not there')


def _union(branches: tuple[Operator, ...]) -> None:
    _expect(bool(branches), "a union without branches")
    every = [branch.columns for branch in branches]
    _expect(len({len(columns) for columns in every}) == 1, "a union whose branches differ in the number of columns")
    for same in zip(*every, strict=True):
        kinds = dict.fromkeys((column.type, column.fields) for column in same if column.type != "null")
        _expect(len(kinds) <= 1, f"a union whose branches differ in column {same[0].path[-1][:40]}")


def _shown(expression: Expression) -> str:
    """A column as it is written; anything else by its kind, for it may not be fit to be written."""
    if isinstance(expression, Column):
        return str(expression)[:100]
    return "a constant" if isinstance(expression, Constant) else f"a call of {expression.function[:40]}"
