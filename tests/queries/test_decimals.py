"""Decimals against fractions: which numbers they are, and that arithmetic on them is exact or rounded by one rule."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocols.join_index.keys import value_text
from queries import decimals, sql
from queries.aggregates import aggregate, value_of
from queries.catalogue import Stream
from queries.errors import QueryError
from queries.expressions import EPOCH, Column
from queries.reference import Tuple, evaluate
from queries.schema import RowError, Schema
from queries.wxquery import plan as wx_plan
from tests.queries.edges import LARGEST, SMALLEST, edges

PRICES = Schema.parse("price decimal, in_it record(price decimal null) null")
R = {"r": Stream("r", Schema.parse("d decimal, e decimal"))}
# What was rounded, dropped or accepted and then had no result.
OTHERS = ("0.12345678901234567890", "1E-50", "9" * 38, "1" * 41, "1E+20", "1E-19", "1E+9000", "-0.1E-18")
ALIKE = ("7", "7.0", "7.00", "+07.", "70E-1", "0.7E+1", "7." + "0" * 30, "0" * 30 + "7")


def nearest(value: Fraction, places: int = 18) -> Fraction:
    """Half away from zero."""
    scale = Fraction(10) ** places
    units = math.floor(abs(value) * scale + Fraction(1, 2))
    return (units if value > 0 else -units) / scale


def expected(value: Fraction) -> Fraction | None:
    rounded = nearest(value)
    return rounded if abs(rounded) < 10**20 else None


def exact(value: Decimal | None) -> Fraction | None:
    assert value is None or decimals.is_held(value)
    return None if value is None else Fraction(value)


@given(edges(), edges())
@example(Decimal("9999999999.999999999"), Decimal("9999999999.999999999"))
@example(LARGEST, LARGEST)
@example(SMALLEST, Decimal("0.5"))
@example(LARGEST, SMALLEST)
def test_arithmetic_is_that_of_fractions(a: Decimal, b: Decimal):
    x, y = Fraction(a), Fraction(b)
    assert exact(decimals.add(a, b)) == expected(x + y)
    assert exact(decimals.subtract(a, b)) == expected(x - y)
    assert exact(decimals.multiply(a, b)) == expected(x * y)
    assert exact(decimals.divide(a, b)) == (expected(nearest(x / y, 39)) if y else None)
    assert exact(decimals.remainder(a, b)) == (x - y * math.trunc(x / y) if y else None)
    assert exact(decimals.ceil(a)) == expected(Fraction(math.ceil(x)))
    assert exact(decimals.floor(a)) == expected(Fraction(math.floor(x)))
    for digits in (-30, -20, -1, 0, 2, 17, 18, 30):
        assert exact(decimals.rounded(a, digits)) == (expected(nearest(x, digits)) if digits < 18 else x)


@given(st.lists(edges(), min_size=1))
def test_sums_and_averages_are_those_of_fractions(values: list[Decimal]):
    column = Column("r", ("d",), "decimal")
    total = sum(map(Fraction, values), Fraction(0))
    assert exact(value_of(aggregate("s", "sum", column), values)) == expected(total)
    assert exact(value_of(aggregate("s", "avg", column), values)) == expected(total / len(values))


@given(st.decimals(allow_nan=False, allow_infinity=False) | edges())
def test_a_decimal_is_one_or_is_refused(value: Decimal):
    is_one = abs(Fraction(value)) < 10**20 and (Fraction(value) * 10**18).denominator == 1
    assert decimals.is_held(value) == is_one
    fitted = decimals.fitted(value)
    assert fitted == value if is_one else fitted is None or decimals.is_held(fitted)
    if is_one:
        assert Decimal(decimals.text(value)) == value
        assert "E" not in decimals.text(value)


@pytest.mark.parametrize("text", OTHERS)
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_row_with_another_decimal_is_refused(text: str, is_inside: bool):
    bad = ["1", [text]] if is_inside else [text, None]
    field = "in_it.price" if is_inside else "price"
    problem = f'row 2, field "{field}": expected a decimal of at most 20 digits before the point and 18 behind it, got '
    with pytest.raises(RowError) as caught:
        PRICES.check(msgspec.msgpack.encode([["1.5", None], ["1E+19", ["1E-18"]], bad]))
    assert str(caught.value) == problem + text
    with pytest.raises(RowError) as caught:
        PRICES.row(bad, number=2)
    assert str(caught.value) == problem + text


@pytest.mark.parametrize("text", [str(LARGEST), str(LARGEST.copy_negate()), "1E-18", "1E+19", "0E+9000", *ALIKE])
def test_a_row_with_a_decimal_is_accepted(text: str):
    batch = msgspec.msgpack.encode([[text, [text]]])
    assert PRICES.check(batch) == 1
    assert PRICES.decode(batch) == [PRICES.row([text, [text]])]


def test_rows_that_earlier_releases_accepted_are_left_out():
    rows = [
        (Decimal("1.50"), None),
        (Decimal("1E-50"), None),
        (Decimal(1), (Decimal("9" * 38),)),
        (Decimal(2), (None,)),
    ]
    assert PRICES.held(rows) == [rows[0], rows[3]]
    assert PRICES.held(rows[:1]) is not None


def test_equal_decimals_meet_in_joins_and_groups_and_have_one_text():
    assert len({value_text(Decimal(text)) for text in ALIKE} | {value_text(7), value_text(7.0)}) == 1
    assert {decimals.text(Decimal(text)) for text in ALIKE} == {"7"}
    rows = [Tuple(EPOCH, (Decimal(text), Decimal(1)), number) for number, text in enumerate(ALIKE)]
    plan = sql.plan(
        "SELECT d, CAST(d AS string) AS s, count(*) AS n FROM r [RANGE 1 SECOND] GROUP BY d, CAST(d AS string)", R
    )
    assert [each.row for each in evaluate(plan.plan, {"r": rows})] == [(7, "7", len(ALIKE))]


@pytest.mark.parametrize(
    "condition", ["d > 0.1234567890123456789", "d < 100000000000000000000", "d = '1E-50'", "d = '9e37'"]
)
def test_a_constant_with_other_digits_is_refused(condition: str):
    with pytest.raises(QueryError, match=r"at most 20 digits before the point and 18 behind it"):
        sql.plan(f"SELECT d FROM r WHERE {condition}", R)


def test_wxquery_refuses_such_constants_too():
    with pytest.raises(QueryError, match=r"at most 20 digits before the point and 18 behind it"):
        wx_plan('for $x in stream("r")/r/r where $x/d > 0.1234567890123456789 return <a> { $x/d } </a>', R)


def test_a_sum_that_is_too_large_is_null_whatever_it_was_on_the_way():
    column = Column("r", ("d",), "decimal")
    total = aggregate("s", "sum", column)
    assert value_of(total, [LARGEST, LARGEST, LARGEST.copy_negate()]) == LARGEST
    assert value_of(total, [LARGEST, SMALLEST]) is None
    assert value_of(aggregate("s", "avg", column), [LARGEST, LARGEST]) == LARGEST


def test_windows_of_values_end_where_decimals_do():
    text = 'for $w in stream("r")/r/r |d diff 10 step 4| let $n := count($w/e) return <n> { $n } </n>'
    values = (LARGEST.copy_negate(), Decimal(5 - 10**20), Decimal(10**20 - 5), LARGEST)
    rows = [Tuple(EPOCH, (value, Decimal(1)), number) for number, value in enumerate(values)]
    windows = [each.window for each in evaluate(wx_plan(text, R).plan, {"r": rows})]
    assert windows == [(2 - 10**20, 12 - 10**20), (10**20 - 14, 10**20 - 4)]
