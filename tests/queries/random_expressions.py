"""Random expressions of every type over one row of columns, and rows for them: Hypothesis strategies for the tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from typing import Any

from hypothesis import strategies as st

from queries.expressions import Column, Constant, Expression, ValueType
from queries.functions import call, cast
from queries.schema import Field
from queries.values import INT_MAX, INT_MIN, PARTS, TRUNCATIONS
from tests.queries.edges import edges

TYPES: tuple[ValueType, ...] = ("int", "float", "decimal", "string", "bool", "timestamp", "interval", "bytes")
NUMBERS: tuple[ValueType, ...] = ("int", "float", "decimal")
Expressions = st.SearchStrategy[Expression]
CAST_FROM: dict[ValueType, tuple[ValueType, ...]] = {
    "int": ("float", "decimal", "string", "bool"),
    "float": ("int", "decimal", "string"),
    "decimal": ("int", "float", "string"),
    "string": ("int", "float", "decimal", "bool", "timestamp", "bytes"),
    "bool": ("int", "string"),
    "timestamp": ("string",),
    "interval": ("string",),
    "bytes": ("string",),
}
COMPARED = ("=", "<>", "<", "<=", ">", ">=")

OUTSIDE = datetime.min.replace(tzinfo=timezone(timedelta(hours=5, minutes=30)))  # In year 0 for UTC.
texts = st.text("aAbB é%_-1.5", max_size=6)
zones = st.sampled_from((UTC, timezone(timedelta(hours=5, minutes=30))))
plain_values = {
    "int": st.integers(-5, 5) | st.sampled_from((INT_MIN, INT_MAX, 1 << 53)),
    "float": st.sampled_from((0.0, -0.0, 0.1, 2.675, -1.5, 1e300, float("inf"), float("nan"))) | st.floats(width=32),
    "decimal": st.decimals(-100, 100, places=2) | edges(),
    "string": texts | st.sampled_from(("7", " 1.5 ", "true", "2026-01-31T12:00:00Z", "5 minutes")),
    "bool": st.booleans(),
    "timestamp": st.datetimes(datetime(1999, 12, 30), datetime(2030, 1, 2), timezones=zones)  # noqa: DTZ001
    | st.sampled_from((datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))),
    "interval": st.timedeltas(timedelta(days=-2), timedelta(days=2)) | st.sampled_from((timedelta.min, timedelta.max)),
    "bytes": st.sampled_from((b"", b"ab", b"\xff")),
}

PLACE = (Field("lat", "float"), Field("name", "string", nullable=True))
# A column of each type that is never null, one that may be, and two records.
COLUMNS = (
    *(Column("r", (kind,), kind) for kind in TYPES),
    *(Column("r", (f"maybe_{kind}",), kind, nullable=True) for kind in TYPES),
    Column("r", ("place",), "record", fields=PLACE),
    Column("r", ("maybe_place",), "record", nullable=True, fields=PLACE),
)
READ = (
    *COLUMNS[:-2],
    Column("r", ("place", "lat"), "float"),
    Column("r", ("place", "name"), "string", nullable=True),
    Column("r", ("maybe_place", "lat"), "float", nullable=True),
)

_places = st.tuples(plain_values["float"], st.none() | texts)
_values = plain_values | {"timestamp": plain_values["timestamp"] | st.just(OUTSIDE)}
rows = st.tuples(
    *(_values[kind] for kind in TYPES),
    *(st.none() | _values[kind] for kind in TYPES),
    _places,
    st.none() | _places,
)


@cache
def leaves(kind: ValueType) -> st.SearchStrategy[Expression]:
    columns = st.sampled_from([column for column in READ if column.type == kind])
    constants = st.builds(Constant.of, plain_values[kind])
    return columns | constants | st.just(Constant.of(None))


@cache  # One strategy for each type and depth, or there would be a million.
def expressions(kind: ValueType, depth: int = 3) -> st.SearchStrategy[Expression]:
    """Expressions that have a type, or a null constant."""
    if depth == 0:
        return leaves(kind)
    return leaves(kind) | st.deferred(lambda: st.one_of(_calls(kind, depth - 1)))


def _of(name: str, *arguments: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.builds(lambda *given: call(name, *given), *arguments)


def _named(names: tuple[str, ...], *arguments: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.builds(call, st.sampled_from(names), *arguments)


def _constant(*values: object) -> st.SearchStrategy[Expression]:
    return st.sampled_from([Constant.of(value) for value in values])


def _calls(kind: ValueType, depth: int) -> list[st.SearchStrategy[Expression]]:
    def some(wanted: ValueType) -> Expressions:
        return expressions(wanted, depth)

    own, truth = some(kind), some("bool")
    every: list[Expressions] = [
        _of("case", truth, own, own),
        _of("case", truth, own, truth, own, own),
        _named(("coalesce", "greatest", "least"), own, own),
        _of("coalesce", own, own, own),
        _of("nullif", own, own),
        *(_calls_of_numbers if kind in NUMBERS else _calls_of_others)(kind, some),
        *(some(source).map(lambda given: cast(given, kind)) for source in CAST_FROM[kind]),
    ]
    # Where arguments are the constant null, the result may have another type, or none.
    return [each.map(lambda made: made if made.type == kind else Constant.of(None)) for each in every]


def _calls_of_numbers(kind: ValueType, some: Callable[[ValueType], Expressions]) -> list[Expressions]:
    own, number = some(kind), st.one_of([some(each) for each in NUMBERS])
    match kind:
        case "int":
            return [
                _named(("+", "-", "*", "%"), own, own),
                _named(("negate", "abs", "ceil", "floor"), own),
                _of("round", own, _constant(-1, 0, 2)),
                _of("sign", number),
                _named(("length",), some("string") | some("bytes")),
                _of("position", some("string"), some("string")),
                _of("extract", _constant(*(part for part in PARTS if part != "epoch")), some("timestamp")),
                _of("extract", _constant("day", "hour", "minute", "second"), some("interval")),
            ]
        case "float":
            return [
                _named(("+", "-", "*", "/", "%"), own, number),
                _named(("negate", "abs", "ceil", "floor"), own),
                _of("round", own, _constant(-1, 0, 2)),
                _named(("sqrt", "exp", "ln"), number),
                _of("power", number, number),
                _of("extract", _constant("epoch"), some("timestamp") | some("interval")),
            ]
        case "decimal":
            return [
                _named(("+", "-", "*", "/", "%"), own, own | some("int")),
                _named(("negate", "abs", "ceil", "floor"), own),
                _of("round", own, _constant(-1, 0, 2)),
            ]
    raise AssertionError(kind)


def _calls_of_others(kind: ValueType, some: Callable[[ValueType], Expressions]) -> list[Expressions]:
    own, number = some(kind), st.one_of([some(each) for each in NUMBERS])
    match kind:
        case "string":
            return [
                _of("||", own, own),
                _of("concat", own, own, own),
                _named(("lower", "upper", "trim", "ltrim", "rtrim"), own),
                _of("trim", own, own),
                _of("substring", own, some("int")),
                _of("substring", own, some("int"), some("int")),
                _named(("left", "right"), own, some("int")),
                _of("replace", own, own, own),
            ]
        case "bool":
            compared = [_named(COMPARED, some(each), some(each)) for each in TYPES]
            return [
                *compared,
                _named(COMPARED, number, number),
                _named(("and", "or"), own, own),
                _named(("and", "or"), own, own, own),
                _of("not", own),
                st.one_of([_of("is_null", some(each)) for each in TYPES]),
                _of("in", number, _constant(1, 0.1, Decimal("0.1")), _constant(2, None)),
                _of("in", some("string"), some("string"), some("string")),
                _of("like", some("string"), _constant("a%", "%a", "%a%", "a", "a_%b", "%a%b%a", "%")),
                _named(("starts_with", "ends_with", "contains"), some("string"), some("string")),
            ]
        case "timestamp":
            return [
                _of("+", some("interval"), own),
                _named(("+", "-"), own, some("interval")),
                _of("date_trunc", _constant(*TRUNCATIONS), own),
            ]
        case "interval":
            return [
                _named(("+", "-"), own, own),
                _of("-", some("timestamp"), some("timestamp")),
                _named(("*", "/"), own, number),
                _of("negate", own),
                _of("abs", own),
            ]
    return []


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal and of one type; nan equals nan."""
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))
