"""The form of each function in Spark: columns of the arguments in, the column of the result out.

This file does not import Spark: the caller passes `sf`, the module pyspark.sql.functions. Text of a query gets there
only as a literal. Forms keep our meaning under Spark's ANSI mode: no result is null, and NaN equals nothing. If Spark
cannot express a function exactly, its form raises NoForm, and the operator runs in the daemon. Sessions run in UTC.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Context, Decimal
from typing import Any, Final

from queries.expressions import Call, Constant, ValueType
from queries.values import INT_MIN, TEXT_MAX, like_pieces

Form = Callable[[Any, Call, Sequence[Any]], Any]

# The Spark type of each of our types. A decimal has 38 digits, 18 of them behind the point.
TYPES: Final[dict[ValueType, str]] = {
    "int": "bigint",
    "float": "double",
    "decimal": "decimal(38,18)",
    "string": "string",
    "bool": "boolean",
    "timestamp": "timestamp",
    "interval": "interval day to second",
    "bytes": "binary",
}


_US: Final = timedelta(microseconds=1)
_PLACES: Final = Decimal(1).scaleb(-18)
_WIDE: Final = Context(80)
# The first and the last moment of the calendar, in microseconds.
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999


class NoForm(ValueError):
    """A call whose meaning Spark cannot keep."""


def literal(sf: Any, constant: Constant) -> Any:
    """A constant as a column of its type; an int has 64 bits."""
    value = constant.python
    if value is None:
        return sf.lit(None) if constant.type == "null" else sf.lit(None).cast(TYPES[constant.type])
    match constant.type:
        case "timestamp":  # Spark's own conversion uses the historic calendar.
            return sf.timestamp_micros(sf.lit(constant.value).cast("bigint"))
        case "interval" if not INT_MIN <= value // _US < -INT_MIN:
            raise NoForm("an interval of Spark has 64 bits of microseconds")
        case "decimal" if abs(value) >= 10**20 or value.quantize(_PLACES, context=_WIDE) != value:
            raise NoForm("a decimal of Spark has 20 digits before the point and 18 behind")
    return sf.lit(value).cast(TYPES[constant.type])


def bound(sf: Any, columns: Sequence[Any], form: Callable[[Sequence[Any]], Any]) -> Any:
    """Apply a form to columns that are computed once, however often the form uses them."""
    row = sf.struct(*(column.alias(f"x{place}") for place, column in enumerate(columns)))
    made = sf.transform(sf.array(row), lambda each: form([each.getField(f"x{n}") for n in range(len(columns))]))
    return made.getItem(0)


def of(name: str) -> Form:
    """The Spark function of this name, which means the same as ours."""
    return lambda sf, _, columns: getattr(sf, name)(*columns)


# Arithmetic.


def arithmetic(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    a, b = columns
    sign = "%" if call.function == "mod" else call.function
    if call.type == "float":
        a, b = a.cast("double"), b.cast("double")
    if call.type == "decimal" and sign != "%":
        return _of_decimals(sf, sign, a, b)
    if sign == "-" and call.type == "interval" and call.arguments[0].type == "timestamp":
        return a - b
    tried = {"+": sf.try_add, "-": sf.try_subtract, "*": sf.try_multiply, "/": sf.try_divide, "%": sf.try_mod}[sign]
    if call.type == "timestamp":  # Spark's calendar does not end at year 9999.
        return sf.timestamp_micros(_in_calendar(sf, sf.unix_micros(tried(a, b))))
    return tried(a, b)


def _in_calendar(sf: Any, us: Any) -> Any:
    return sf.when((us >= sf.lit(_FIRST_US)) & (us <= sf.lit(_LAST_US)), us)


# Operand types that leave the result 18 digits behind the point.
_PRODUCTS: Final[tuple[tuple[str, str], ...]] = (
    ("decimal(18,9)", "decimal(19,9)"),
    ("decimal(28,18)", "decimal(9,0)"),
    ("decimal(9,0)", "decimal(28,18)"),
    ("decimal(22,4)", "decimal(15,4)"),
    ("decimal(15,4)", "decimal(22,4)"),
)
_QUOTIENTS: Final[tuple[tuple[str, str], ...]] = (
    ("decimal(20,9)", "decimal(38,9)"),
    ("decimal(38,18)", "decimal(20,0)"),
)


def _of_decimals(sf: Any, sign: str, a: Any, b: Any) -> Any:
    """Operands with so few digits that the result keeps 18 behind the point; beyond that it is as near as floats come.

    Spark derives the digits of a result from those of its operands; if there are more than 38, it drops some behind the
    point. Products are exact, quotients are rounded.
    """
    if sign in "+-":
        tried = sf.try_add if sign == "+" else sf.try_subtract
        return tried(a.try_cast("decimal(37,18)"), b.try_cast("decimal(37,18)"))
    if sign == "*":
        tried, kinds = sf.try_multiply, _PRODUCTS
    else:
        tried, kinds = sf.try_divide, _QUOTIENTS
    result = sf
    for kind_of_a, kind_of_b in kinds:
        short_a, short_b = a.try_cast(kind_of_a), b.try_cast(kind_of_b)
        result = result.when((short_a == a) & (short_b == b), tried(short_a, short_b).cast(TYPES["decimal"]))
    return result.otherwise(tried(a.cast("double"), b.cast("double")).try_cast(TYPES["decimal"]))


def negate(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    if call.type == "int":
        return sf.try_subtract(sf.lit(0), columns[0])
    if call.type == "interval":
        return sf.try_subtract(sf.lit(timedelta(0)), columns[0])
    return -columns[0]


def absolute(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    (a,) = columns
    if call.type == "interval":
        return sf.when(a < sf.lit(timedelta(0)), sf.try_subtract(sf.lit(timedelta(0)), a)).otherwise(a)
    return sf.when(a != sf.lit(INT_MIN), sf.abs(a)) if call.type == "int" else sf.abs(a)


def to_whole(name: str) -> Form:
    """ceil and floor, which return 64-bit integers in Spark; a float beyond 2**53 is whole already."""

    def form(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
        (a,) = columns
        if call.type == "float":
            return sf.when(sf.abs(a) < sf.lit(2.0**53), getattr(sf, name)(a).cast("double")).otherwise(a)
        return getattr(sf, name)(a).cast(TYPES[call.type])

    return form


def rounded(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    digits = _constant(call, 1) if len(columns) > 1 else 0
    if call.type == "int" and digits < 0:
        raise NoForm("Spark raises where the rounded number has more than 64 bits")
    return sf.round(columns[0], digits).cast(TYPES[call.type])


def root(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
    a = columns[0].cast("double")
    return sf.when((a >= 0) & ~sf.isnan(a), sf.sqrt(a))


def logarithm(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
    a = columns[0].cast("double")
    return sf.when((a > 0) & ~sf.isnan(a), sf.ln(a))


def exponential(name: str) -> Form:
    """power and exp: the result is null if finite arguments give no finite number."""

    def form(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
        given = [column.cast("double") for column in columns]
        result = getattr(sf, name)(*given)
        unbounded = _not_finite(sf, given[0])
        for each in given[1:]:
            unbounded |= _not_finite(sf, each)
        return sf.when(unbounded | ~_not_finite(sf, result), result)

    return form


def _not_finite(sf: Any, a: Any) -> Any:
    return sf.isnan(a) | (sf.abs(a) == sf.lit(float("inf")))


def sign(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
    a = columns[0].cast("double")
    return sf.when(sf.isnan(a), sf.lit(0).cast("bigint")).otherwise(sf.signum(sf.nanvl(a, sf.lit(0.0))).cast("bigint"))


# Comparison and logic.

_COMPARED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def comparison(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    compared = _COMPARED[call.function](*columns)
    floats = [column for argument, column in zip(call.arguments, columns, strict=True) if argument.type == "float"]
    if not floats:
        return compared
    is_nan = sf.isnan(floats[0]) | sf.isnan(floats[-1])
    return sf.when(is_nan & compared.isNotNull(), sf.lit(call.function == "<>")).otherwise(compared)


def all_of(_: Any, __: Call, columns: Sequence[Any]) -> Any:
    return _in_pairs(operator.and_, columns)


def any_of(_: Any, __: Call, columns: Sequence[Any]) -> Any:
    return _in_pairs(operator.or_, columns)


def _in_pairs(together: Callable[[Any, Any], Any], columns: Sequence[Any]) -> Any:
    """Combine all columns pairwise, because a long chain would be a tree too deep for Spark."""
    if len(columns) == 1:
        return columns[0]
    middle = len(columns) // 2
    return together(_in_pairs(together, columns[:middle]), _in_pairs(together, columns[middle:]))


def inverted(_: Any, __: Call, columns: Sequence[Any]) -> Any:
    return ~columns[0]


def is_null(_: Any, __: Call, columns: Sequence[Any]) -> Any:
    return columns[0].isNull()


def is_in(_: Any, __: Call, columns: Sequence[Any]) -> Any:
    return columns[0].isin(list(columns[1:]))


def like(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    """The pattern rewritten with Spark's escape, in which every other character stands for itself."""
    escape = _constant(call, 2) if len(columns) > 2 else ""
    pieces = like_pieces(_constant(call, 1), escape)
    shown = ["".join("_" if kind else f"\\{c}" if c in "%_\\" else c for kind, c in piece) for piece in pieces]
    return sf.like(columns[0], sf.lit("%".join(shown)))


def case(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
    chosen = sf
    for number in range(0, len(columns) - 1, 2):
        chosen = chosen.when(columns[number].cast("boolean"), columns[number + 1])
    return chosen.otherwise(columns[-1])


def of_several(name: str) -> Form:
    """greatest and least, for which Spark needs two arguments."""
    return lambda sf, _, columns: getattr(sf, name)(*columns) if len(columns) > 1 else columns[0]


# Text.


def concatenated(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    parts = [sf.coalesce(column, sf.lit("")) for column in columns] if call.function == "concat" else columns
    length = sf.length(parts[0])
    for part in parts[1:]:
        length += sf.length(part)
    return sf.when(length <= TEXT_MAX, sf.concat(*parts))


def replaced(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
    text, old, new = columns
    # Spark's positions have 32 bits, so the length is computed before anything is replaced.
    shorter = sf.length(sf.replace(text, old, sf.lit("")))
    count = sf.try_divide(sf.length(text) - shorter, sf.length(old))
    longer = sf.coalesce(count, sf.lit(0.0)) * (sf.length(new) - sf.length(old)) + sf.length(text)
    return sf.when(longer <= TEXT_MAX, sf.replace(text, old, new))


def _place(sf: Any, column: Any) -> Any:
    """A position in a text with the 32 bits that Spark wants; beyond the longest text all positions are alike."""
    return sf.greatest(sf.least(column, sf.lit(2 * TEXT_MAX)), sf.lit(-2 * TEXT_MAX)).cast("int")


def _where_there(sf: Any, columns: Sequence[Any], result: Any) -> Any:
    """The result if no argument is null; greatest and least ignore nulls."""
    there = columns[0].isNotNull()
    for column in columns[1:]:
        there &= column.isNotNull()
    return sf.when(there, result)


def substring(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
    text, start = columns[0], _place(sf, columns[1])
    first = sf.greatest(start, sf.lit(1))
    count = sf.lit(2 * TEXT_MAX) if len(columns) < 3 else start + _place(sf, columns[2]) - first
    return _where_there(sf, columns, sf.substring(text, first, sf.greatest(count, sf.lit(0))))


def left(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
    text, count = columns[0], _place(sf, columns[1])
    kept = sf.when(count < 0, sf.greatest(sf.length(text) + count, sf.lit(0))).otherwise(count)
    return _where_there(sf, columns, sf.left(text, kept))


def right(sf: Any, _: Call, columns: Sequence[Any]) -> Any:
    text, count = columns[0], _place(sf, columns[1])
    kept = sf.when(count < 0, sf.greatest(sf.length(text) + count, sf.lit(0))).otherwise(count)
    return _where_there(sf, columns, sf.right(text, kept))


def counted(name: str) -> Form:
    """A function that returns a 32-bit number in Spark."""
    return lambda sf, _, columns: getattr(sf, name)(*columns).cast("bigint")


# Time.

_PARTS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "year": lambda sf, at: sf.year(at),
    "quarter": lambda sf, at: sf.quarter(at),
    "month": lambda sf, at: sf.month(at),
    "week": lambda sf, at: sf.weekofyear(at),
    "day": lambda sf, at: sf.dayofmonth(at),
    "dow": lambda sf, at: sf.dayofweek(at) - 1,
    "isodow": lambda sf, at: sf.weekday(at) + 1,
    "doy": lambda sf, at: sf.dayofyear(at),
    "hour": lambda sf, at: sf.hour(at),
    "minute": lambda sf, at: sf.minute(at),
    "second": lambda sf, at: sf.second(at),
    "millisecond": lambda sf, at: sf.floor(sf.pmod(sf.unix_micros(at), sf.lit(60_000_000)) / 1000),
    "microsecond": lambda sf, at: sf.pmod(sf.unix_micros(at), sf.lit(60_000_000)),
    "epoch": lambda sf, at: sf.unix_micros(at) / 1_000_000,
}


def extract(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    part, kind = _constant(call, 0), call.arguments[1].type
    if kind == "null":
        return sf.lit(None).cast(TYPES[call.type])
    if kind == "timestamp":
        found = _PARTS[part](sf, columns[1])
    elif part == "epoch":
        found = columns[1].cast("interval second").cast("decimal(24,6)")
    else:
        found = sf.extract(sf.lit(part), columns[1])
    return found.cast(TYPES[call.type])


def date_trunc(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    return sf.date_trunc(_constant(call, 0), columns[1])


# Casts.

_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?$"
_INT: Final = r"^[+-]?[0-9]{1,19}$"
_UNLIKE: Final[dict[tuple[ValueType, ValueType], str]] = {
    ("float", "string"): "Spark writes floats in another way",
    ("decimal", "string"): "Spark writes decimals with all their places",
    ("string", "interval"): "Spark reads other intervals",
}


def cast(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    (a,) = columns
    source, kind = call.arguments[0].type, call.type
    if (source, kind) in _UNLIKE:
        raise NoForm(_UNLIKE[source, kind])
    match source, kind:
        case "string", "int" | "float" | "decimal":
            trimmed = sf.trim(a)
            pattern = _INT if kind == "int" else _NUMBER
            return sf.when(trimmed.rlike(pattern), trimmed.try_cast(TYPES[kind]))
        case "string", "bool":
            word = sf.lower(sf.trim(a))
            return sf.when(word.isin("true", "false"), word == "true")
        case "string", "timestamp":
            return _read_timestamp(sf, a)
        case "bytes", "string":
            return sf.try_validate_utf8(a.cast("string"))
        case "timestamp", "string":
            seconds = sf.date_format(a, "yyyy-MM-dd'T'HH:mm:ss'Z'")
            exact = sf.date_format(a, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
            return sf.when(sf.date_trunc("second", a) == a, seconds).otherwise(exact)
    return a.try_cast(TYPES[kind])


_STAMP: Final = r"^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d)?(?:\.(\d{1,9}))?)?\s?(Z|[+-]\d\d(?::?\d\d)?)?\z"


def _read_timestamp(sf: Any, text: Any) -> Any:
    """Reads what queries/casts.py reads; Spark alone would accept more, and other forms."""
    said = sf.upper(sf.trim(text))
    day, minute, second, fraction, zone = (sf.regexp_extract(said, _STAMP, group) for group in range(1, 6))
    there = said.rlike(_STAMP) & ((minute != "") | (zone == ""))
    clock = sf.concat(
        sf.when(minute == "", "00:00").otherwise(minute),
        sf.when(second == "", ":00").otherwise(second),
        sf.lit("."),
        sf.rpad(fraction, 6, "0"),
        sf.lit("Z"),
    )
    at = _in_calendar(sf, sf.unix_micros(sf.concat(day, sf.lit(" "), clock).try_cast("timestamp")))
    digits = sf.rpad(sf.regexp_replace(zone, "[^0-9]", ""), 4, "0")
    minutes = sf.left(digits, sf.lit(2)).try_cast("bigint") * 60 + sf.right(digits, sf.lit(2)).try_cast("bigint")
    shift = sf.when(sf.startswith(zone, sf.lit("-")), -minutes).otherwise(minutes)
    shifted = sf.when(there & (minutes < 24 * 60), at - shift * sf.lit(60_000_000))
    return sf.timestamp_micros(_in_calendar(sf, shifted))


def _constant(call: Call, number: int) -> Any:
    argument = call.arguments[number]
    assert isinstance(argument, Constant)
    return argument.python
