"""Simplified expressions have the values of the original, and least predicates keep the same rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queries.compile import on_row
from queries.expressions import Call, Constant, Expression
from queries.functions import call
from queries.predicates import implies, minimised
from queries.simplify import simplified
from tests.queries.random_expressions import COLUMNS, TYPES, expressions, rows, same

any_expression = st.sampled_from(TYPES).flatmap(expressions)
predicates = st.lists(expressions("bool", 2), min_size=1, max_size=4).map(lambda parts: call("and", *parts))


@settings(max_examples=100)
@given(any_expression, rows)
def test_a_simplified_expression_has_the_same_value(expression: Expression, row: tuple[Any, ...]) -> None:
    assume(not any(abs(each) > timedelta(days=100_000) for each in constants_of(expression) if type(each) is timedelta))
    simple = simplified(expression)
    assert same(on_row(simple, COLUMNS)(row), on_row(expression, COLUMNS)(row)), f"{expression} became {simple}"
    assert simple.type == expression.type
    assert simplified(simple) == simple or "nan" in str(simple)


def constants_of(expression: Expression) -> Iterator[Any]:
    if isinstance(expression, Constant):
        yield expression.python
    elif isinstance(expression, Call):
        for argument in expression.arguments:
            yield from constants_of(argument)


def is_far(value: Any) -> bool:
    """Whether sums with a value can leave 64 bits, 38 digits or the calendar: there predicates promise nothing."""
    match value:
        case tuple():
            return any(map(is_far, value))
        case int() | Decimal():
            return abs(value) > 1_000_000
        case datetime():
            return not 1900 < value.astimezone(UTC).year < 2100 if 1 < value.year < 9999 else True
        case timedelta():
            return abs(value) > timedelta(days=1000)
        case float():
            return math.isfinite(value) and abs(value) > 1e30
    return False


@pytest.mark.slow
@settings(max_examples=100)
@given(predicates, st.lists(rows, min_size=1, max_size=5))
def test_the_least_predicate_keeps_the_same_rows(predicate: Expression, batch: list[tuple[Any, ...]]) -> None:
    assume(not any(map(is_far, constants_of(predicate))))
    least = minimised(predicate)
    for row in batch:
        if not is_far(row):
            kept = least is None or on_row(least, COLUMNS)(row) is True
            assert kept == (on_row(predicate, COLUMNS)(row) is True), f"{predicate} became {least}"


@pytest.mark.slow
@settings(max_examples=100)
@given(predicates, predicates, st.lists(rows, min_size=1, max_size=5))
def test_what_follows_holds_on_every_row(p: Expression, q: Expression, batch: list[tuple[Any, ...]]) -> None:
    assume(not any(map(is_far, (*constants_of(p), *constants_of(q)))))
    for one, other in ((p, q), (q, p), (call("or", p, q), p), (p, call("or", p, q))):
        if implies(one, other):
            for row in batch:
                if not is_far(row) and on_row(one, COLUMNS)(row) is True:
                    assert on_row(other, COLUMNS)(row) is True, f"{one} does not imply {other}"
