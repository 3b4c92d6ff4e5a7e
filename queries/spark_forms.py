"""The form of each function in Spark: columns of the arguments in, the column of the result out.

This file does not import Spark: the caller passes `sf`, the module pyspark.sql.functions. Text of a query gets there
only as a literal. Forms keep our meaning under Spark's ANSI mode: no result is null, and NaN equals nothing. If Spark
cannot express a function exactly, its form raises NoForm, and the operator runs in the daemon. Sessions run in UTC.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from queries.decimals import PLACES, WHOLE, is_held
from queries.expressions import Call, Constant, Expression, ValueType
from queries.values import INT_MAX, INT_MIN, TEXT_MAX, like_pieces

Form = Callable[[Any, Call, Sequence[Any]], Any]

# The Spark type of each of our types.
DECIMAL: Final = f"decimal({WHOLE + PLACES},{PLACES})"
_WHOLE: Final = f"decimal({WHOLE},0)"
_PART: Final = f"decimal({PLACES},{PLACES})"
_DIGITS: Final = f"decimal({PLACES},0)"
TYPES: Final[dict[ValueType, str]] = {
    "int": "bigint",
    "float": "double",
    "decimal": DECIMAL,
    "string": "string",
    "bool": "boolean",
    "timestamp": "timestamp",
    "interval": "interval day to second",
    "bytes": "binary",
}


_US: Final = timedelta(microseconds=1)
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
        case "decimal" if not is_held(value):  # Another release wrote it, or a comparison was solved for its column.
            raise NoForm(f"a decimal of Spark has {WHOLE} digits before the point and {PLACES} behind")
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


def _of_decimals(sf: Any, sign: str, a: Any, b: Any) -> Any:
    """Arithmetic of decimals. Sessions keep 18 places in results; a number beyond them is null."""
    a, b = a.cast(DECIMAL), b.cast(DECIMAL)
    match sign:
        case "+":
            return sf.try_add(a, b)
        case "-":
            return sf.try_subtract(a, b)
        case "/":
            return sf.try_divide(a, b)
        case "%":
            return sf.try_mod(a, b)
    return _product(sf, a, b)


def _product(sf: Any, a: Any, b: Any) -> Any:
    """The four products of the parts before and behind the point. One product could have 76 digits; Spark has 38."""
    part_of_a, part_of_b = behind_point(sf, a), behind_point(sf, b)
    whole_a, whole_b = before_point(a, part_of_a), before_point(b, part_of_b)
    product = sf.try_multiply(whole_a, whole_b).try_cast(DECIMAL)
    for each in (
        sf.try_multiply(whole_a, part_of_b),
        sf.try_multiply(part_of_a, whole_b),
        sf.round(sf.try_multiply(part_of_a, part_of_b), PLACES),  # The only one with more places.
    ):
        product = sf.try_add(product, each.cast(DECIMAL))
    return product


def behind_point(sf: Any, a: Any) -> Any:
    """What a decimal has behind its point, with its sign."""
    return sf.try_mod(a, sf.lit(1)).cast(_PART)


def before_point(a: Any, part: Any) -> Any:
    """The rest of the decimal, a whole number."""
    return (a - part).cast(_WHOLE)


def _digits(sf: Any, part: Any) -> Any:
    """What stands behind the point, as a whole number."""
    return (part * sf.lit(10**PLACES)).cast(_DIGITS)


def negate(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    if call.type in ("int", "decimal"):  # Spark's own rounds a decimal to 34 digits.
        return sf.try_subtract(sf.lit(0), columns[0])
    if call.type == "interval":
        return sf.try_subtract(sf.lit(timedelta(0)), columns[0])
    return -columns[0]


def absolute(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    (a,) = columns
    if call.type == "interval":
        return sf.when(a < sf.lit(timedelta(0)), sf.try_subtract(sf.lit(timedelta(0)), a)).otherwise(a)
    if call.type == "decimal":  # Spark's own rounds to 34 digits.
        return sf.when(a < sf.lit(0), sf.try_subtract(sf.lit(0), a)).otherwise(a)
    return sf.when(a != sf.lit(INT_MIN), sf.abs(a)) if call.type == "int" else sf.abs(a)


def to_whole(name: str) -> Form:
    """ceil and floor, which return 64-bit integers in Spark; a float beyond 2**53 is whole already."""

    def form(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
        (a,) = columns
        if call.type == "float":
            return sf.when(sf.abs(a) < sf.lit(2.0**53), getattr(sf, name)(a).cast("double")).otherwise(a)
        return getattr(sf, name)(a).try_cast(TYPES[call.type])

    return form


def rounded(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    digits = _constant(call, 1) if len(columns) > 1 else 0
    if call.type == "int" and digits < 0:
        raise NoForm("Spark raises where the rounded number has more than 64 bits")
    if call.type == "decimal":  # Spark has no type for the result of more digits, and none is needed.
        digits = max(-WHOLE - 1, min(digits, PLACES))
    return sf.round(columns[0], digits).try_cast(TYPES[call.type])


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
    return _compared(sf, call.function, call.arguments, columns)


def _compared(sf: Any, sign: str, arguments: Sequence[Expression], columns: Sequence[Any]) -> Any:
    kinds = [argument.type for argument in arguments]
    if kinds == ["decimal", "float"]:
        compared = _COMPARED[sign](bound(sf, columns, lambda named: _order(sf, *named)), sf.lit(0))
    elif kinds == ["float", "decimal"]:
        compared = _COMPARED[sign](sf.lit(0), bound(sf, columns[::-1], lambda named: _order(sf, *named)))
    else:
        compared = _COMPARED[sign](*columns)
    floats = [column for kind, column in zip(kinds, columns, strict=True) if kind == "float"]
    if not floats:
        return compared
    is_nan = sf.isnan(floats[0]) | sf.isnan(floats[-1])
    return sf.when(is_nan & compared.isNotNull(), sf.lit(sign == "<>")).otherwise(compared)


def _order(sf: Any, a: Any, b: Any) -> Any:
    """A decimal against a float: below 0, 0 or above 0. Spark alone would round the decimal.

    Where the rounded decimal is the float, both are compared digit by digit: whole numbers first, then what is behind
    the point in units of 2 ** -60, then the rest of the float, which it has only below 1, in units of 2 ** -120.
    """
    part = behind_point(sf, a)
    high = (b / sf.lit(2.0**32)).cast("bigint")
    low = b - high.cast("double") * sf.lit(2.0**32)
    low_whole = low.cast("bigint")
    whole = sf.signum(before_point(a, part) - (high.cast(_WHOLE) * sf.lit(2**32) + low_whole.cast(_WHOLE)))
    behind = (low - low_whole.cast("double")) * sf.lit(2.0**60)
    units = behind.cast("bigint")
    rest = ((behind - units.cast("double")) * sf.lit(2.0**60)).cast("bigint")
    more = _digits(sf, part) * sf.lit(2**60) - units.cast(_WHOLE) * sf.lit(10**PLACES)
    last = sf.when(rest == sf.lit(0), sf.signum(more)).otherwise(
        sf.signum(more * sf.lit(2**60) - rest.cast(_WHOLE) * sf.lit(10**PLACES))
    )
    rounded = a.cast("double")
    exact = sf.when(whole != sf.lit(0.0), whole).otherwise(last)
    return sf.when(rounded < b, sf.lit(-1.0)).when(rounded > b, sf.lit(1.0)).otherwise(exact)


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


def nullif(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    if {argument.type for argument in call.arguments} == {"decimal", "float"}:
        is_equal = _compared(sf, "=", call.arguments, columns)
        return sf.when(is_equal, sf.lit(None).cast(TYPES[call.type])).otherwise(columns[0])
    return sf.nullif(*columns)


def is_in(sf: Any, call: Call, columns: Sequence[Any]) -> Any:
    kinds = {argument.type for argument in call.arguments}
    if {"decimal", "float"} <= kinds:
        pairs = [(call.arguments[0], item) for item in call.arguments[1:]]
        each = [_compared(sf, "=", pair, (columns[0], item)) for pair, item in zip(pairs, columns[1:], strict=True)]
        return _in_pairs(operator.or_, each)
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
    ("float", "decimal"): "Java writes some floats with other digits than we do",
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
        case "decimal", "string":
            return _written(sf, a)
        case "decimal", "int":  # Spark tests the bounds with floats.
            part = behind_point(sf, a)
            whole = before_point(a, part)
            return sf.when((whole >= sf.lit(INT_MIN)) & (whole <= sf.lit(INT_MAX)), whole.try_cast("bigint"))
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


def _written(sf: Any, a: Any) -> Any:
    """A decimal written out, without zeros at its end."""
    part = behind_point(sf, a)
    whole = sf.abs(before_point(a, part)).cast("string")
    digits = sf.abs(_digits(sf, part)).cast("string")
    behind = sf.regexp_replace(sf.lpad(digits, PLACES, "0"), "0+$", "")
    sign = sf.when(a < sf.lit(0), "-").otherwise("")
    return sf.when(behind == "", sf.concat(sign, whole)).otherwise(sf.concat(sign, whole, sf.lit("."), behind))


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
