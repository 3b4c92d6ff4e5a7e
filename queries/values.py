"""What the functions compute: plain Python that never raises; without a result the value is None.

A number is an int of 64 bits, a decimal as queries/decimals.py has it, or a float, which follows IEEE 754 except that a
division by zero has no result. Text never grows beyond 1,048,576 characters, so no query can fill the memory.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import wraps
from typing import Any, Final

from queries import decimals
from queries.expressions import EPOCH

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
TEXT_MAX: Final = 1 << 20


def total(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with None where Python raises."""

    @wraps(compute)
    def value(*arguments: Any) -> Any:
        try:
            return compute(*arguments)
        except (ArithmeticError, ValueError):
            return None

    return value


# Numbers.


def int_add(a: int, b: int) -> int | None:
    result = a + b
    return result if INT_MIN <= result <= INT_MAX else None


def int_subtract(a: int, b: int) -> int | None:
    result = a - b
    return result if INT_MIN <= result <= INT_MAX else None


def int_multiply(a: int, b: int) -> int | None:
    result = a * b
    return result if INT_MIN <= result <= INT_MAX else None


def int_negate(a: int) -> int | None:
    return -a if a > INT_MIN else None


def int_abs(a: int) -> int | None:
    return abs(a) if a > INT_MIN else None


def int_remainder(a: int, b: int) -> int | None:
    """With the sign of the dividend, as in SQL."""
    if b == 0:
        return None
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def float_divide(a: float, b: float) -> float | None:
    return a / b if b else None


float_remainder = total(math.fmod)


def sign(a: Any) -> int:
    return int(a > 0) - int(a < 0)


def float_ceil(a: float) -> float:
    return float(math.ceil(a)) if math.isfinite(a) else a


def float_floor(a: float) -> float:
    return float(math.floor(a)) if math.isfinite(a) else a


def int_round(a: int, digits: int) -> int | None:
    if digits >= 0:
        return a
    unit: int = 10 ** min(-digits, 20)
    result = (abs(a) + unit // 2) // unit * unit
    return int_subtract(0, result) if a < 0 else int_add(0, result)


def float_round(a: float, digits: int) -> float:
    """Half away from zero, by the decimal notation of the number: 2.675 gives 2.68."""
    if not math.isfinite(a):
        return a
    return float(decimals.at_digits(Decimal(repr(a)), digits))


def sqrt(a: float) -> float | None:
    return math.sqrt(a) if a >= 0 else None


def ln(a: float) -> float | None:
    return math.log(a) if a > 0 else None


power = total(math.pow)
exp = total(math.exp)


# Time. A timestamp has a zone; its parts are those of UTC.


time_add = total(lambda a, b: a + b)
time_subtract = total(lambda a, b: a - b)
interval_negate = total(lambda a: -a)


@total
def interval_multiply(a: timedelta, b: Any) -> timedelta:
    return a * b if not isinstance(b, Decimal) else _microseconds(decimals.product(a // _US, b))


@total
def interval_divide(a: timedelta, b: Any) -> timedelta:
    return a / b if not isinstance(b, Decimal) else _microseconds(decimals.quotient(Decimal(a // _US), b))


def _microseconds(count: Decimal) -> timedelta:
    if count.adjusted() > 18:
        raise OverflowError(count)
    return timedelta(microseconds=int(count.to_integral_value(ROUND_HALF_UP)))


_US: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)


def utc(at: datetime) -> datetime:
    """The moment in UTC, clipped to the years 1 to 9999."""
    if at.tzinfo is UTC:
        return at
    try:
        return at.astimezone(UTC)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC) if at.year == 1 else datetime.max.replace(tzinfo=UTC)


PARTS: Final[dict[str, Callable[[datetime], int | float]]] = {
    "year": lambda at: utc(at).year,
    "quarter": lambda at: (utc(at).month + 2) // 3,
    "month": lambda at: utc(at).month,
    "week": lambda at: utc(at).isocalendar().week,
    "day": lambda at: utc(at).day,
    "dow": lambda at: utc(at).isoweekday() % 7,
    "isodow": lambda at: utc(at).isoweekday(),
    "doy": lambda at: utc(at).timetuple().tm_yday,
    "hour": lambda at: utc(at).hour,
    "minute": lambda at: at.minute if at.tzinfo is UTC else utc(at).minute,
    "second": lambda at: utc(at).second,
    "millisecond": lambda at: utc(at).second * 1000 + at.microsecond // 1000,
    "microsecond": lambda at: utc(at).second * 1_000_000 + at.microsecond,
    "epoch": lambda at: (at - EPOCH) / timedelta(seconds=1),
}

INTERVAL_PARTS: Final[dict[str, Callable[[timedelta], int | float]]] = {
    "day": lambda each: _sign(each) * (abs(each) // _DAY),
    "hour": lambda each: _sign(each) * (abs(each) % _DAY // timedelta(hours=1)),
    "minute": lambda each: _sign(each) * (abs(each) % timedelta(hours=1) // timedelta(minutes=1)),
    "second": lambda each: _sign(each) * (abs(each) % timedelta(minutes=1) // timedelta(seconds=1)),
    "epoch": lambda each: each / timedelta(seconds=1),
}


def _sign(each: timedelta) -> int:
    return -1 if each < timedelta(0) else 1


_FIELDS: Final = ("year", "month", "day", "hour", "minute", "second", "microsecond")
_LOWEST: Final = {"month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0, "microsecond": 0}
TRUNCATIONS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")


def truncation(part: str) -> Callable[[datetime], datetime | None]:
    """The start of the year, quarter, ... that a timestamp lies in; weeks start on Monday."""
    if part == "millisecond":
        return lambda at: utc(at) - timedelta(microseconds=at.microsecond % 1000)
    field = {"quarter": "month", "week": "day"}.get(part, part)
    lower = {name: _LOWEST[name] for name in _FIELDS[_FIELDS.index(field) + 1 :]}

    def start(at: datetime) -> datetime:
        return utc(at).replace(**lower)  # type: ignore[arg-type]  # Only tzinfo would be no int.

    if part == "quarter":
        return lambda at: start(at).replace(month=(utc(at).month - 1) // 3 * 3 + 1)
    if part == "week":
        return total(lambda at: start(at) - timedelta(days=utc(at).weekday()))
    return start


# Text.


def concatenate(a: str, b: str) -> str | None:
    return a + b if len(a) + len(b) <= TEXT_MAX else None


def concat(*parts: str | None) -> str | None:
    """All parts in a row; null counts as empty."""
    there = [part for part in parts if part]
    return "".join(there) if sum(map(len, there)) <= TEXT_MAX else None


def substring(text: str, start: int, length: int | None = None) -> str:
    """From character `start`, the first being 1. As in the standard, places before the text count for the length."""
    first = max(start, 1) - 1
    return text[first:] if length is None else text[first : max(start + length - 1, first)]


def left(text: str, count: int) -> str:
    """The first characters; for a negative count all but the last ones."""
    return text[:count]


def right(text: str, count: int) -> str:
    return text[max(len(text) - count, 0) :] if count >= 0 else text[-count:]


def position(part: str, text: str) -> int:
    return text.find(part) + 1


def replace(text: str, old: str, new: str) -> str | None:
    if not old:
        return text
    if len(new) > len(old) and len(text) + text.count(old) * (len(new) - len(old)) > TEXT_MAX:
        return None
    return text.replace(old, new)


def trim(text: str, characters: str = " ") -> str:
    return text.strip(characters) if characters else text


def ltrim(text: str, characters: str = " ") -> str:
    return text.lstrip(characters) if characters else text


def rtrim(text: str, characters: str = " ") -> str:
    return text.rstrip(characters) if characters else text


def matcher(pattern: str, escape: str = "") -> Callable[[str], bool]:
    """LIKE: % stands for any text, _ for any one character; a character behind the escape stands for itself.

    >>> [matcher("%-1_%")(text) for text in ("LH-17", "LH-1")]
    [True, False]
    """
    pieces = like_pieces(pattern, escape)
    plain = all("_" not in {kind for kind, _ in piece} for piece in pieces)
    texts = ["".join(character for _, character in piece) for piece in pieces]
    match texts:
        case [only] if plain:
            return operator.methodcaller("__eq__", only)
        case [start, ""] if plain:
            return operator.methodcaller("startswith", start)
        case ["", end] if plain:
            return operator.methodcaller("endswith", end)
        case ["", part, ""] if plain:
            return operator.methodcaller("__contains__", part)
    first, *rest = ["".join("." if kind == "_" else re.escape(c) for kind, c in piece) for piece in pieces]
    # Atomic groups: each piece matches at its first place and never backtracks, so the time is quadratic at most.
    middle = "".join(f"(?>.*?{piece})" for piece in rest[:-1])
    last = f".*{rest[-1]}" if rest else ""
    fullmatch = re.compile(f"{first}{middle}{last}", re.DOTALL).fullmatch
    return lambda text: fullmatch(text) is not None


def like_pieces(pattern: str, escape: str) -> list[list[tuple[str, str]]]:
    """The pieces between the % of a pattern: characters, with "_" if any character will do."""
    pieces: list[list[tuple[str, str]]] = [[]]
    escaped = False
    for character in pattern:
        if escaped or character not in ("%", "_", escape):
            pieces[-1].append(("", character))
            escaped = False
        elif character == escape:
            escaped = True
        elif character == "_":
            pieces[-1].append(("_", ""))
        elif pieces[-1] or len(pieces) == 1:
            pieces.append([])
    return pieces


# Three-valued logic.


def conjunction(*parts: bool | None) -> bool | None:
    if False in parts:
        return False
    return None if None in parts else True


def disjunction(*parts: bool | None) -> bool | None:
    if True in parts:
        return True
    return None if None in parts else False


def is_in(value: Any, *items: Any) -> bool | None:
    if value is None:
        return None
    if any(item is not None and item == value for item in items):
        return True
    return None if None in items else False


def choose(*arguments: Any) -> Any:
    """CASE: the value after the first condition that is true, or the last."""
    for number in range(0, len(arguments) - 1, 2):
        if arguments[number]:
            return arguments[number + 1]
    return arguments[-1]


def coalesce(*arguments: Any) -> Any:
    return next((each for each in arguments if each is not None), None)


def nullif(a: Any, b: Any) -> Any:
    return None if a is not None and b is not None and a == b else a


def greatest(*arguments: Any) -> Any:
    """The greatest argument that is not null. NaN counts as the greatest, or the order of arguments would matter."""
    return max((each for each in arguments if each is not None), key=_nan_last, default=None)


def least(*arguments: Any) -> Any:
    return min((each for each in arguments if each is not None), key=_nan_last, default=None)


def _nan_last(value: Any) -> tuple[bool, Any]:
    return value != value, value  # Only NaN differs from itself.


# Comparison of a Decimal with a float that may be no number at all.


def unordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """The comparison, but false instead of an error if a float is NaN."""

    def value(a: Any, b: Any) -> bool:
        return a == a and b == b and compare(a, b)  # Only NaN differs from itself.

    return value
