"""Every function by example: its value, its null, its type, and what it says of arguments that do not fit."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from queries.casts import CASTS, read_interval, read_timestamp, unit_us
from queries.errors import TypeMismatch
from queries.expressions import Call, Column, Constant, Expression
from queries.functions import FUNCTIONS, call, cast, common_type, value
from queries.values import INT_MAX, INT_MIN, TEXT_MAX, matcher


def D(text: str) -> Decimal:  # noqa: N802 - as short as the numbers it makes
    return Decimal(text)


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


def s(**units: float) -> timedelta:
    return timedelta(**units)


NOON = at(2026, 1, 31, 12, 34, 56, 789_012)
# The same moment, written in India.
NOON_THERE = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))

CASES: list[tuple[str, tuple[Any, ...], Any]] = [
    # Arithmetic: the common type is the wider one; beyond it there is no result.
    ("+", (1, 2), 3),
    ("+", (INT_MAX, 1), None),
    ("+", (1, D("2.50")), D("3.50")),
    ("+", (1, 2.5), 3.5),
    ("+", (D("0.5"), 2.5), 3.0),
    ("+", (None, 2), None),
    ("+", (NOON, s(hours=12)), at(2026, 2, 1, 0, 34, 56, 789_012)),
    ("+", (s(hours=12), NOON), at(2026, 2, 1, 0, 34, 56, 789_012)),
    ("+", (datetime.max.replace(tzinfo=UTC), s(days=1)), None),
    ("+", (timedelta.max, timedelta.max), None),
    ("-", (INT_MIN, 1), None),
    ("-", (D("1"), D("0.1")), D("0.9")),
    ("-", (NOON, NOON_THERE), s()),
    ("-", (NOON, s(days=31)), at(2025, 12, 31, 12, 34, 56, 789_012)),
    ("-", (s(hours=1), s(minutes=1)), s(minutes=59)),
    ("*", (1 << 40, 1 << 40), None),
    ("*", (3, D("0.10")), D("0.30")),
    ("*", (1e308, 10.0), float("inf")),
    ("*", (s(minutes=1), 3), s(minutes=3)),
    ("*", (3, s(minutes=1)), s(minutes=3)),
    ("*", (s(seconds=1), D("0.5")), s(milliseconds=500)),
    ("*", (s(seconds=1), float("nan")), None),
    ("*", (timedelta.max, D("1E+30")), None),
    ("/", (7, 2), 3.5),
    ("/", (7, 0), None),
    ("/", (7.0, 0.0), None),
    ("/", (1, D("8")), D("0.125")),
    ("/", (D("1"), 0), None),
    ("/", (D("1"), 8.0), 0.125),
    ("/", (s(hours=1), 4), s(minutes=15)),
    ("/", (s(hours=1), D("0")), None),
    ("%", (-7, 3), -1),
    ("%", (7, -3), 1),
    ("%", (7, 0), None),
    ("%", (-7.5, 2.0), -1.5),
    ("%", (D("-7.5"), 2), D("-1.5")),
    ("%", (D("1E+9000"), 3), None),
    ("mod", (7, 4), 3),
    ("negate", (5,), -5),
    ("negate", (INT_MIN,), None),
    ("negate", (D("1.5"),), D("-1.5")),
    ("negate", (s(hours=1),), s(hours=-1)),
    ("negate", (timedelta.max,), None),
    ("abs", (-5,), 5),
    ("abs", (INT_MIN,), None),
    ("abs", (-2.5,), 2.5),
    ("abs", (s(hours=-1),), s(hours=1)),
    ("abs", (timedelta.min,), s(days=999_999_999)),
    ("ceil", (1.2,), 2.0),
    ("ceil", (D("-1.2"),), D("-1")),
    ("ceil", (3,), 3),
    ("floor", (-1.2,), -2.0),
    ("floor", (float("inf"),), float("inf")),
    ("round", (2.5,), 3.0),
    ("round", (-2.5,), -3.0),
    ("round", (2.675, 2), 2.68),
    ("round", (D("2.345"), 2), D("2.35")),
    ("round", (D("2.3"), 2), D("2.3")),
    ("round", (1250, -2), 1300),
    ("round", (-1250, -2), -1300),
    ("round", (INT_MAX, -1), None),
    ("sqrt", (9,), 3.0),
    ("sqrt", (-1,), None),
    ("power", (2, 10), 1024.0),
    ("power", (0, -1), None),
    ("power", (-8, D("0.5")), None),
    ("power", (10, 400), None),
    ("exp", (0,), 1.0),
    ("exp", (1000,), None),
    ("ln", (1,), 0.0),
    ("ln", (0,), None),
    ("sign", (D("-0.5"),), -1),
    ("sign", (0.0,), 0),
    # Comparison is exact, and unknown beside null.
    ("=", (7, 7.0), True),
    ("=", (7, D("7.00")), True),
    ("=", ((1 << 53) + 1, float(1 << 53)), False),
    ("=", (None, 7), None),
    ("=", (float("nan"), float("nan")), False),
    ("=", (NOON, NOON_THERE), True),
    ("<>", ("a", "b"), True),
    ("<", (1, D("1.5")), True),
    ("<", ("Z", "a"), True),
    ("<=", (s(hours=1), s(minutes=60)), True),
    (">", (float("nan"), 1.0), False),
    (">=", (NOON, at(2026, 1, 31)), True),
    # Logic of three values.
    ("and", (True, True), True),
    ("and", (True, None), None),
    ("and", (None, False), False),
    ("and", (True, True, None, False), False),
    ("or", (None, True), True),
    ("or", (False, None), None),
    ("or", (False, False, False), False),
    ("not", (True,), False),
    ("not", (None,), None),
    ("is_null", (None,), True),
    ("is_null", (0,), False),
    ("in", (1, 2, 1), True),
    ("in", (1, 2, None), None),
    ("in", (2, 2, None), True),
    ("in", (None, 2), None),
    ("in", (7, 7.0, D("8")), True),
    ("in", ("a", "b"), False),
    # Choice.
    ("case", (False, 1, True, 2, 3), 2),
    ("case", (None, 1, 2), 2),
    ("case", (True, None, 2), None),
    ("coalesce", (None, None, 3), 3),
    ("coalesce", (None, None), None),
    ("nullif", (3, 3), None),
    ("nullif", (3, None), 3),
    ("nullif", (None, 3), None),
    ("greatest", (1, None, 3), 3),
    ("greatest", (1, 2.5), 2.5),
    ("greatest", (NOON, at(2025, 1, 1)), NOON),
    ("greatest", (float("inf"), float("nan"), -0.5), float("nan")),
    ("least", (float("nan"), 2.5), 2.5),
    ("least", ("b", "a"), "a"),
    ("least", (None, None), None),
    # Text.
    ("||", ("a", "b"), "ab"),
    ("||", ("a", None), None),
    ("||", ("x" * TEXT_MAX, "y"), None),
    ("concat", ("a", None, "b"), "ab"),
    ("concat", (None,), ""),
    ("lower", ("LÄRM",), "lärm"),
    ("upper", ("lärm",), "LÄRM"),
    ("length", ("dë",), 2),
    ("length", (b"\xc3\xab",), 2),
    ("trim", ("  a\t ",), "a\t"),
    ("trim", ("xyaxy", "yx"), "a"),
    ("ltrim", ("  a ",), "a "),
    ("rtrim", ("  a ",), "  a"),
    ("substring", ("flight", 3), "ight"),
    ("substring", ("flight", 3, 2), "ig"),
    ("substring", ("flight", 0, 2), "f"),
    ("substring", ("flight", -1, 2), ""),
    ("substring", ("flight", 2, -1), ""),
    ("substring", ("flight", 40), ""),
    ("substring", ("flight", None, 2), None),
    ("position", ("gh", "flight"), 4),
    ("position", ("z", "flight"), 0),
    ("replace", ("a-b-c", "-", "+"), "a+b+c"),
    ("replace", ("abc", "", "+"), "abc"),
    ("replace", ("x" * 1000, "x", "y" * 2000), None),
    ("left", ("flight", 2), "fl"),
    ("left", ("flight", -2), "flig"),
    ("right", ("flight", 2), "ht"),
    ("right", ("flight", 20), "flight"),
    ("right", ("flight", 0), ""),
    ("right", ("flight", -2), "ight"),
    ("starts_with", ("flight", "fl"), True),
    ("ends_with", ("flight", "fl"), False),
    ("contains", ("flight", "ligh"), True),
    ("like", ("flight", "fl%"), True),
    ("like", ("flight", "%ght"), True),
    ("like", ("flight", "%lig%"), True),
    ("like", ("flight", "flight"), True),
    ("like", ("flight", "f_ig%t"), True),
    ("like", ("flight", "Fl%"), False),
    ("like", ("50%", "50!%", "!"), True),
    ("like", ("500", "50!%", "!"), False),
    ("like", ("a\nb", "a%b"), True),
    ("like", (None, "a"), None),
    # Time; parts are those of UTC whatever the zone.
    ("extract", ("year", NOON), 2026),
    ("extract", ("quarter", NOON), 1),
    ("extract", ("month", NOON), 1),
    ("extract", ("week", NOON), 5),
    ("extract", ("day", NOON), 31),
    ("extract", ("dow", at(2026, 2, 1)), 0),
    ("extract", ("isodow", at(2026, 2, 1)), 7),
    ("extract", ("doy", NOON), 31),
    ("extract", ("hour", NOON_THERE), 12),
    ("extract", ("minute", NOON_THERE), 34),
    ("extract", ("second", NOON), 56),
    ("extract", ("millisecond", NOON), 56_789),
    ("extract", ("microsecond", NOON), 56_789_012),
    ("extract", ("epoch", at(1970, 1, 1, 0, 1)), 60.0),
    ("extract", ("hour", s(hours=-36)), -12),
    ("extract", ("day", s(hours=36)), 1),
    ("extract", ("minute", s(minutes=95)), 35),
    ("extract", ("second", s(seconds=95)), 35),
    ("extract", ("epoch", s(milliseconds=1500)), 1.5),
    ("date_trunc", ("year", NOON), at(2026, 1, 1)),
    ("date_trunc", ("quarter", at(2026, 8, 9)), at(2026, 7, 1)),
    ("date_trunc", ("month", NOON), at(2026, 1, 1)),
    ("date_trunc", ("week", NOON), at(2026, 1, 26)),
    ("date_trunc", ("week", at(1, 1, 1)), at(1, 1, 1)),
    ("date_trunc", ("day", NOON_THERE), at(2026, 1, 31)),
    ("date_trunc", ("hour", NOON), at(2026, 1, 31, 12)),
    ("date_trunc", ("minute", NOON), at(2026, 1, 31, 12, 34)),
    ("date_trunc", ("second", NOON), at(2026, 1, 31, 12, 34, 56)),
    ("date_trunc", ("millisecond", NOON), at(2026, 1, 31, 12, 34, 56, 789_000)),
]


def computed(expression: Expression) -> Any:
    if isinstance(expression, Constant):
        return expression.python
    assert isinstance(expression, Call)
    return value(expression, [computed(argument) for argument in expression.arguments])


@pytest.mark.parametrize(("name", "arguments", "expected"), CASES, ids=lambda each: str(each)[:40])
def test_a_function_gives(name, arguments, expected):
    made = call(name, *(Constant.of(argument) for argument in arguments))
    result = computed(made)
    assert (repr(result), type(result)) == (repr(expected), type(expected))  # NaN does not equal itself.
    assert made.nullable or result is not None
    if result is not None:
        assert Constant.of(result).type == made.type


def test_every_function_has_an_example():
    assert {name for name, _, _ in CASES} == set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_null_among_the_arguments_never_raises(name):
    """Every example once more with each argument in turn replaced by null, where the types still fit."""
    for _, arguments, _ in (case for case in CASES if case[0] == name):
        for number in range(len(arguments)):
            given = [Constant.of(None if n == number else each) for n, each in enumerate(arguments)]
            try:
                made = call(name, *given)
            except TypeMismatch:
                continue  # A constant that must be there, like the pattern of LIKE.
            assert made.nullable or computed(made) is not None


COLUMN = {
    kind: Column("r", (kind,), kind)
    for kind in ("int", "float", "decimal", "string", "bool", "timestamp", "interval", "bytes", "record", "list")
}


@pytest.mark.parametrize(
    ("name", "arguments", "problem", "hint"),
    [
        ("lenght", ("string",), 'unknown function "lenght"', 'did you mean "length"?'),
        ("=", ("int", "string"), "= does not compare int with string", "say which is meant: CAST(... AS INT)"),
        ("=", ("record", "record"), "= does not compare a record", "compare its fields"),
        ("<", ("timestamp", "int"), "< does not compare timestamp with int", ""),
        ("+", ("string", "string"), "+ does not take string and string", "|| puts strings together"),
        ("+", ("timestamp", "timestamp"), "+ does not take timestamp and timestamp", ""),
        ("*", ("int", "string"), "* does not take int and string", "say which is meant: CAST(... AS INT)"),
        ("-", ("int",), "- takes 2 arguments, not 1", ""),
        ("substring", ("string",), "substring takes 2 to 3 arguments, not 1", ""),
        ("and", ("int", "bool"), "and takes conditions, not an int", "compare it, for example: r.int <> 0"),
        ("lower", ("int",), "lower takes string, not int", "CAST(... AS STRING) makes a string"),
        ("like", ("int", "string"), "like does not take int", "CAST(... AS STRING) makes a string"),
        ("like", ("string", "string"), "like takes its pattern as a constant", "contains(text, part) takes any string"),
        ("round", ("float", "int"), "round takes its number of digits as a constant", "for example: round(price, 2)"),
        ("coalesce", ("int", "string"), "coalesce cannot bring int and string together", ...),
        ("greatest", ("list", "list"), "greatest does not compare a list", ""),
        ("sqrt", ("string",), "sqrt does not take string", ""),
        ("extract", ("string", "timestamp"), "extract takes the name of a part first", ...),
        ("in", ("int", "int", "string"), "in does not compare int with string", ...),
        ("sign", ("interval",), "sign does not take interval", ""),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, arguments, problem, hint):
    with pytest.raises(TypeMismatch) as error:
        call(name, *(COLUMN[kind] for kind in arguments))
    assert error.value.problem == problem
    assert hint is ... or error.value.hint == hint


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        (">", (COLUMN["timestamp"], "soon"), "'soon' cannot be read as a timestamp"),
        ("=", (COLUMN["decimal"], "ten"), "'ten' cannot be read as a decimal"),
        ("<", (COLUMN["interval"], "1 month"), "'1 month' cannot be read as an interval"),
        ("extract", ("hours", COLUMN["timestamp"]), 'extract knows no "hours"'),
        ("extract", ("year", COLUMN["interval"]), 'extract knows no "year"'),
        ("like", (COLUMN["string"], "a!", "!"), "the pattern of like ends with its escape"),
        ("like", (COLUMN["string"], "a", "!!"), "the escape of like is one character, not '!!'"),
    ],
)
def test_constants_that_do_not_fit_are_refused(name, arguments, problem):
    with pytest.raises(TypeMismatch) as error:
        call(name, *(each if isinstance(each, Column) else Constant.of(each) for each in arguments))
    assert error.value.problem == problem


def test_constants_become_what_they_meet():
    stamp = call(">", COLUMN["timestamp"], Constant.of("2026-01-31"))
    assert stamp.arguments[1] == Constant.of(at(2026, 1, 31))
    assert call("-", COLUMN["timestamp"], Constant.of("12:00:00")).type == "timestamp"
    assert call("-", COLUMN["timestamp"], Constant.of("2026-01-31")).type == "interval"
    assert call("=", COLUMN["float"], Constant.of(D("0.1"))).arguments[1] == Constant.of(0.1)
    assert call("=", COLUMN["decimal"], Constant.of("0.10")).arguments[1].python == D("0.10")
    assert call("=", COLUMN["int"], Constant.of(D("0.1"))).arguments[1] == Constant.of(D("0.1"))


def test_what_chooses_casts_to_the_common_type():
    chosen = call("coalesce", COLUMN["int"], COLUMN["float"], Constant.of(1))
    assert str(chosen) == "coalesce(CAST(r.int AS FLOAT), r.float, 1.0)"
    assert common_type(["int", "null", "decimal"], "union") == "decimal"
    with pytest.raises(TypeMismatch, match="union cannot bring bool and int together"):
        common_type(["bool", "int"], "union")


CASTED: list[tuple[Any, str, Any]] = [
    (1, "float", 1.0),
    (1, "decimal", D("1")),
    (-1, "string", "-1"),
    (2, "bool", True),
    (True, "int", 1),
    (False, "string", "false"),
    (-1.9, "int", -1),
    (1e30, "int", None),
    (float("nan"), "int", None),
    (0.1, "decimal", D("0.1")),
    (float("inf"), "decimal", None),
    (0.1, "string", "0.1"),
    (D("-1.9"), "int", -1),
    (D("1E+9000"), "int", None),
    (D("0.1"), "float", 0.1),
    (D("1E+3"), "string", "1000"),
    (NOON_THERE, "string", "2026-01-31T12:34:56.789012Z"),
    (b"ab", "string", "ab"),
    (b"\xff", "string", None),
    (" 7 ", "int", 7),
    ("7.0", "int", None),
    ("9223372036854775808", "int", None),
    ("٧", "int", None),
    ("1e3", "float", 1000.0),
    ("nan", "float", None),
    ("1_0", "float", None),
    ("-.5", "decimal", D("-0.5")),
    ("NaN", "decimal", None),
    ("TRUE", "bool", True),
    ("yes", "bool", None),
    ("2026-01-31 12:34:56.789012Z", "timestamp", NOON),
    ("2026-02-31", "timestamp", None),
    ("5 minutes", "interval", s(minutes=5)),
    ("ab", "bytes", b"ab"),
    (None, "int", None),
]


@pytest.mark.parametrize(("given", "kind", "expected"), CASTED, ids=lambda each: str(each)[:40])
def test_a_cast_gives(given, kind, expected):
    made = cast(Constant.of(given), kind)
    result = computed(made)
    assert (result, type(result)) == (expected, type(expected))
    assert made.type == kind
    assert made.nullable or result is not None


def test_every_cast_has_an_example():
    shown = {(Constant.of(given).type, kind) for given, kind, _ in CASTED}
    assert set(CASTS) <= shown


def test_a_cast_that_is_none_is_refused():
    assert cast(COLUMN["int"], "int") is COLUMN["int"]
    with pytest.raises(TypeMismatch, match="a timestamp cannot be cast to int") as error:
        cast(COLUMN["timestamp"], "int")
    assert error.value.hint == "a timestamp can become string"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31", at(2026, 1, 31)),
        ("2026-01-31T12:30", at(2026, 1, 31, 12, 30)),
        ("2026-01-31 12:30:15.5+01:00", at(2026, 1, 31, 11, 30, 15, 500_000)),
        ("2026-01-31 12:30:15-0130", at(2026, 1, 31, 14, 0, 15)),
        ("2026-01-31 12:30:15.123456789Z", at(2026, 1, 31, 12, 30, 15, 123_456)),
        ("0001-01-01 00:00+01", None),
        ("2026-01-31Z", None),
        ("2026-01-31 25:00", None),
        ("2026-01-31 12:00+99", None),
        ("2026-1-31", None),
        ("yesterday", None),
    ],
)
def test_timestamps_are_read(text, expected):
    assert read_timestamp(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12:00:00", s(hours=12)),
        ("-00:30", s(minutes=-30)),
        ("100:00:00.5", s(hours=100, milliseconds=500)),
        ("1 day 12:00:00", s(days=1, hours=12)),
        ("90 s", s(seconds=90)),
        ("1.5 hours", s(minutes=90)),
        ("1 hour, 30 minutes and 5 sec", s(hours=1, minutes=30, seconds=5)),
        ("-2 days", s(days=-2)),
        ("3 WEEKS", s(weeks=3)),
        ("250ms", s(milliseconds=250)),
        ("1 month", None),
        ("5", None),
        ("12:60:00", None),
        ("", None),
        ("999999999999999 weeks", None),
    ],
)
def test_intervals_are_read(text, expected):
    assert read_interval(text) == expected


def test_units_have_a_fixed_length():
    assert [unit_us(unit) for unit in ("SECOND", "minutes", "Hours", "ms", "year", "s")] == [
        1_000_000,
        60_000_000,
        3_600_000_000,
        1_000,
        None,
        1_000_000,
    ]


def test_a_moment_outside_the_calendar_of_utc_counts_as_its_edge():
    """Text from elsewhere may say 0001-01-01T00:00:00+01:00, a moment of the year 0 in UTC."""
    year = call("extract", Constant.of("year"), COLUMN["timestamp"])
    east, west = (timezone(timedelta(hours=hours)) for hours in (1, -1))
    assert value(year, ["year", datetime.min.replace(tzinfo=east)]) == 1
    assert value(year, ["year", datetime.max.replace(tzinfo=west)]) == 9999


def test_no_pattern_takes_long():
    """A pattern is tried from left to right without going back: a hostile one costs milliseconds, not years."""
    match = matcher("%a" * 2_000 + "%b")
    begin = time.process_time()
    assert not match("a" * 50_000)
    assert not matcher("%a_a" * 50 + "b%")("a" * 20_000)
    assert time.process_time() - begin < 5


def test_calls_travel_between_peers():
    made = call("case", call("like", COLUMN["string"], Constant.of("a%")), COLUMN["int"], Constant.of(D("1.50")))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Expression) == made
