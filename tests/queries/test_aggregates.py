"""Aggregates: the type of each, and its value over what a window may hold."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from queries.aggregates import aggregate, value_of
from queries.errors import TypeMismatch
from queries.expressions import Column, ValueType
from queries.reference import same_rows
from queries.values import INT_MAX

DAY = datetime(2026, 1, 31, tzinfo=UTC)


def of(function: str, kind: ValueType, *values: object, distinct: bool = False) -> object:
    return value_of(aggregate("a", function, Column("s", ("x",), kind, nullable=True), distinct), values)


@pytest.mark.parametrize(
    ("function", "kind", "values", "expected"),
    [
        ("count", "string", ("a", None, "a"), 2),
        ("count", "string", (None, None), 0),
        ("sum", "int", (1, None, 2), 3),
        ("sum", "int", (None,), None),
        ("sum", "int", (INT_MAX, 1), None),
        ("sum", "int", (INT_MAX, 1, -1), INT_MAX),
        ("sum", "decimal", (Decimal("0.1"), Decimal("0.20")), Decimal("0.3")),
        ("sum", "float", (0.1, 0.2, -0.3, 1e16, -1e16), math.fsum((0.1, 0.2, -0.3))),
        ("sum", "float", (math.inf, 1.0), math.inf),
        ("sum", "float", (math.inf, -math.inf), math.nan),
        ("sum", "float", (1e308, 1e308), math.inf),
        ("sum", "interval", (timedelta(seconds=1), timedelta(minutes=1)), timedelta(seconds=61)),
        ("sum", "interval", (timedelta.max, timedelta.max), None),
        ("avg", "int", (1, 2, None), 1.5),
        ("avg", "int", (INT_MAX, INT_MAX), float(INT_MAX)),
        ("avg", "decimal", (Decimal(1), Decimal(2)), Decimal("1.5")),
        ("avg", "decimal", (Decimal(1), Decimal(1), Decimal(0)), Decimal("0." + "6" * 17 + "7")),
        ("avg", "float", (0.5, 1.0), 0.75),
        ("avg", "interval", (timedelta(seconds=1), timedelta(seconds=2)), timedelta(seconds=1.5)),
        ("stddev", "int", (2, 4, 4, 4, 5, 5, 7, 9), math.sqrt(32 / 7)),
        ("stddev", "decimal", (Decimal(1), Decimal(2)), math.sqrt(0.5)),
        ("stddev", "float", (1.5,), None),
        ("stddev", "float", (1e9 + 1, 1e9 + 2, 1e9 + 3), 1.0),
        ("stddev", "float", (1.0, math.nan), math.nan),
        ("min", "string", ("b", None, "a"), "a"),
        ("max", "timestamp", (DAY, DAY - timedelta(1)), DAY),
        ("min", "float", (math.nan, 2.0), 2.0),
        ("max", "float", (1.0, math.nan), math.nan),
        ("max", "bool", (False, True, None), True),
        ("max", "decimal", (None,), None),
    ],
)
def test_a_value(function, kind, values, expected):
    assert same_rows([(of(function, kind, *values),)], [(expected,)])


def test_distinct_values_count_once():
    assert of("count", "float", 1.0, 1.0, math.nan, math.nan, None, distinct=True) == 2
    assert of("sum", "decimal", Decimal("1.0"), Decimal("1.00"), Decimal(2), distinct=True) == 3


def test_the_order_of_floats_does_not_change_their_sum():
    values = (1e100, 1.0, -1e100, 3e-5)
    assert of("sum", "float", *values) == of("sum", "float", *reversed(values)) == 1.00003


@pytest.mark.parametrize(
    ("function", "kind", "expected", "nullable"),
    [
        ("count", "string", "int", False),
        ("sum", "int", "int", True),  # Beyond 64 bits there is none.
        ("sum", "decimal", "decimal", True),
        ("avg", "int", "float", False),
        ("avg", "decimal", "decimal", False),
        ("stddev", "decimal", "float", True),  # One value deviates from nothing.
        ("min", "timestamp", "timestamp", False),
        ("max", "string", "string", False),
    ],
)
def test_a_type(function, kind, expected, nullable):
    made = aggregate("a", function, Column("s", ("x",), kind))
    assert (made.type, made.nullable) == (expected, nullable)
    assert aggregate("a", function, Column("s", ("x",), kind, nullable=True)).nullable or function == "count"


@pytest.mark.parametrize(
    ("function", "kind", "problem"),
    [
        ("sum", "string", "sum has no value for a string"),
        ("avg", "timestamp", "avg has no value for a timestamp"),
        ("stddev", "interval", "stddev has no value for an interval"),
        ("max", "record", "max has no value for a record"),
        ("median", "int", 'unknown aggregate "median"'),
    ],
)
def test_an_argument_that_does_not_fit(function, kind, problem):
    with pytest.raises(TypeMismatch) as caught:
        aggregate("a", function, Column("s", ("x",), kind))
    assert caught.value.problem == problem


def test_only_count_goes_without_an_argument():
    assert value_of(aggregate("n", "count", None), [True, True]) == 2
    with pytest.raises(TypeMismatch, match="sum needs what to compute it of"):
        aggregate("n", "sum", None)
