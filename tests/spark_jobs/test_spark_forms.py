"""Spark computes what we compute: the examples of every function and cast, on a real session."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from queries.casts import read_timestamp
from queries.expressions import Column, Constant, Expression
from queries.functions import FUNCTIONS, call, cast, rendered
from queries.spark_forms import TYPES, NoForm
from tests.queries.function_cases import CASES, CASTED


class Example(NamedTuple):
    """A function or cast of constants, and what it gives."""

    name: str
    arguments: tuple[Any, ...]
    expected: Any
    is_cast: bool = False

    def __str__(self) -> str:
        return f"{'cast ' if self.is_cast else ''}{self.name}{self.arguments}"

    def of(self, arguments: list[Expression]) -> Expression:
        return cast(arguments[0], self.name) if self.is_cast else call(self.name, *arguments)


EXAMPLES = [Example(*case) for case in CASES] + [
    Example(kind, (given,), expected, is_cast=True) for given, kind, expected in CASTED
]
# Spark compares ints with floats as floats.
KNOWN_DEPARTURES = {"=(9007199254740993, 9007199254740992.0)"}
# What has to stay a constant when arguments become columns.
CONSTANT = {"like": (1, 2), "round": (1,), "extract": (0,), "date_trunc": (0,)}


def in_spark(value: Any) -> bool:
    """Whether Spark can hold a value at all: its intervals have 64 bits of microseconds."""
    return not isinstance(value, timedelta) or abs(value) < timedelta(days=100_000_000)


def test_every_function_has_a_form():
    assert all(callable(function.form) for function in FUNCTIONS.values())


@pytest.mark.system
@pytest.mark.parametrize("as_columns", [False, True], ids=["constants", "columns"])
def test_spark_gives_the_same(spark, as_columns):
    import pyspark.sql.functions as sf

    values: dict[str, tuple[Any, str]] = {"only": (0, "bigint")}  # Of the one row that all is computed on.
    columns, kept = [], []
    for number, example in enumerate(EXAMPLES):
        if str(example) in KNOWN_DEPARTURES or not all(map(in_spark, (*example.arguments, example.expected))):
            continue
        arguments: list[Expression] = []
        for place, value in enumerate(example.arguments):
            constant = Constant.of(value)
            if not as_columns or place in CONSTANT.get(example.name, ()) or value is None:
                arguments.append(constant)
                continue
            name = f"c{number}_{place}"
            values[name] = (value, TYPES[constant.type])
            arguments.append(Column("r", (name,), constant.type))
        try:
            columns.append(rendered(example.of(arguments), sf, lambda column: sf.col(column.path[0])))
            kept.append(example)
        except NoForm:
            continue
    row = spark.createDataFrame(
        [tuple(value for value, _ in values.values())],
        ", ".join(f"{name} {kind}" for name, (_, kind) in values.items()),
    )
    wrong = [
        f"{example}: {example.expected!r}, Spark {theirs!r}"
        for example, theirs in zip(kept, computed(row, sf, columns), strict=True)
        if not same(example.expected, theirs)
    ]
    assert wrong == []
    assert len(kept) > 0.9 * len(EXAMPLES)


def computed(row: Any, sf: Any, columns: list[Any]) -> list[Any]:
    """The values of columns on one row; timestamps as text, so that Python's local zone stays out of it."""
    named = [column.alias(f"x{number}") for number, column in enumerate(columns)]
    kinds = [field.dataType.simpleString() for field in row.select(*named).schema.fields]
    shown = [
        sf.date_format(column, "yyyy-MM-dd HH:mm:ss.SSSSSS") if kind == "timestamp" else column
        for column, kind in zip(columns, kinds, strict=True)
    ]
    results = row.select(*shown).first()
    return [
        read_timestamp(value) if kind == "timestamp" and value is not None else value
        for value, kind in zip(results, kinds, strict=True)
    ]


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-12) or (math.isnan(ours) and math.isnan(theirs))
    if isinstance(ours, bytes):
        return theirs is not None and bytes(theirs) == ours
    return ours == theirs and type(ours) is type(theirs)
