"""Every function by example: its value, its null, its type, and what it says of arguments that do not fit."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from queries.casts import CASTS, read_interval, read_timestamp, unit_us
from queries.errors import TypeMismatch
from queries.expressions import Call, Column, Constant, Expression
from queries.functions import FUNCTIONS, call, cast, common_type, value
from queries.values import matcher
from tests.queries.function_cases import CASES, CASTED, D, at, s


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
