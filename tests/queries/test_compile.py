"""Compiled expressions: one row, a batch and the plain definition say the same, whatever the expression."""

from __future__ import annotations

import operator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queries.compile import on_batch, on_row, predicate_on_batch, project_on_batch
from queries.expressions import Call, Column, Constant, Expression
from queries.functions import call, value
from queries.schema import Row
from tests.queries.random_expressions import COLUMNS, COMPARED, TYPES, expressions, rows, same

IN_PYTHON = {
    "int": int,
    "float": float,
    "decimal": Decimal,
    "string": str,
    "bool": bool,
    "timestamp": datetime,
    "interval": timedelta,
    "bytes": bytes,
}


def plain(expression: Expression, row: Row) -> Any:
    """The value by definition: no closures, no columns, no short cuts."""
    match expression:
        case Constant():
            return expression.python
        case Call():
            return value(expression, [plain(argument, row) for argument in expression.arguments])
        case Column(path=(name,)):
            return row[[column.path[0] for column in COLUMNS].index(name)]
    record, field = expression.path
    inside = row[[column.path[0] for column in COLUMNS].index(record)]
    return None if inside is None else inside[["lat", "name"].index(field)]


any_expression = st.sampled_from(TYPES).flatmap(expressions)


@settings(max_examples=100, deadline=None)
@given(any_expression, st.lists(rows, max_size=4))
def test_row_batch_and_definition_agree(expression, batch):
    expected = [plain(expression, row) for row in batch]
    by_row = on_row(expression, COLUMNS)
    assert all(map(same, map(by_row, batch), expected))
    computed = on_batch(expression, COLUMNS)(batch)
    assert len(computed) == len(batch)
    assert all(map(same, computed, expected))


@settings(max_examples=100, deadline=None)
@given(any_expression, rows)
def test_a_value_has_the_type_its_expression_promises(expression, row):
    result = plain(expression, row)
    if result is None:
        assert expression.nullable
    else:
        assert type(result) is IN_PYTHON[expression.type]


@settings(max_examples=100, deadline=None)
@given(st.lists(expressions("bool", 2), max_size=4), st.lists(rows, max_size=6))
def test_a_predicate_keeps_the_rows_for_which_it_is_true(parts, batch):
    predicate = call("and", *parts) if parts else None
    expected = [row for row in batch if predicate is None or plain(predicate, row) is True]
    assert list(predicate_on_batch(predicate, COLUMNS)(batch)) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(any_expression, max_size=4), st.lists(rows, max_size=4))
def test_a_projection_gives_the_values_in_order(outputs, batch):
    projected = project_on_batch(outputs, COLUMNS)(batch)
    assert len(projected) == len(batch)
    for row, result in zip(batch, projected, strict=True):
        assert all(map(same, result, [plain(output, row) for output in outputs]))


A, B = Column("r", ("a",), "int"), Column("r", ("b",), "int", nullable=True)
ROWS = [(1, 5), (2, None), (3, 7), (4, 2)]


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        (call(">", A, Constant.of(2)), [3, 4]),
        (call("<", Constant.of(2), A), [3, 4]),
        (call(">=", B, Constant.of(5)), [1, 3]),
        (call("<>", B, Constant.of(5)), [3, 4]),
        (call("<>", B, Constant.of(None)), []),
        (call("not", call(">", B, Constant.of(5))), [1, 4]),
        (call("in", B, Constant.of(5), Constant.of(None)), [1]),
        (call("not", call("in", B, Constant.of(5), Constant.of(None))), []),
        (call("or", call("is_null", B), call("<", B, A)), [2, 4]),
        (call("and", call("<", B, Constant.of(6)), call("<", A, B)), [1]),
    ],
    ids=str,
)
def test_unknown_is_not_true(predicate, kept):
    assert [row[0] for row in predicate_on_batch(predicate, (A, B))(ROWS)] == kept


@pytest.mark.parametrize("sign", COMPARED)
@pytest.mark.parametrize("column", [A, B], ids=str)
def test_a_comparison_with_a_constant_has_its_edge_where_it_should(sign, column):
    batch = [(a, b) for a in (1, 2, 3) for b in (None, 1, 2, 3)]
    for predicate in (call(sign, column, Constant.of(2)), call(sign, Constant.of(2), column)):
        holds = on_row(predicate, (A, B))
        assert predicate_on_batch(predicate, (A, B))(batch) == [row for row in batch if holds(row)]
    compare = getattr(operator, {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}[sign])
    assert [on_row(call(sign, A, Constant.of(2)), (A, B))(row) for row in batch] == [compare(a, 2) for a, _ in batch]


def test_columns_are_found_by_input_and_path():
    other = Column("s", ("a",), "string")
    assert on_row(other, (A, B, other))((1, 2, "x")) == "x"
    with pytest.raises(AssertionError, match=r"s\.a is not among r\.a, r\.b"):
        on_row(other, (A, B))
