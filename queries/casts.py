"""Conversion between types: what CAST reads and writes, and how the languages read timestamps and intervals.

Like every function a cast is total: what cannot be read is null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Any, Final

from queries import decimals
from queries.errors import TypeMismatch
from queries.expressions import Call, Expression, ValueType
from queries.values import INT_MAX, INT_MIN, total, utc

_INT: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_STAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d)?(?:\.(\d{1,9}))?)?\s?([Zz]|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_CLOCK: Final = re.compile(r"(\d{1,6}):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
_AMOUNT: Final = re.compile(r"([+-]?\d{1,15}(?:\.\d{1,9})?)\s*([a-z]+)\s*(?:,|and\b)?\s*", re.ASCII | re.IGNORECASE)

_UNITS_US: Final[dict[str, int]] = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
    "w": 604_800_000_000,
}


def unit_us(unit: str) -> int | None:
    """The microseconds of a unit of time; None for months and years, which have no fixed length.

    >>> unit_us("MINUTES"), unit_us("month")
    (60000000, None)
    """
    name = unit.lower()
    return _UNITS_US.get(name) or _UNITS_US.get(name.removesuffix("s"))


@total
def read_timestamp(text: str) -> datetime | None:
    """A date, or a date and a time, as RFC 3339 has them; without a zone it is UTC.

    >>> read_timestamp("2026-01-31 12:30+01:00")
    datetime.datetime(2026, 1, 31, 11, 30, tzinfo=datetime.timezone.utc)
    """
    found = _STAMP.fullmatch(text.strip())
    if found is None:
        return None
    day, minute, second, fraction, zone = found.groups()
    if minute is None and zone is not None:
        return None
    at = datetime.fromisoformat(f"{day}T{minute or '00:00'}{second or ':00'}.{(fraction or '0')[:6]:0<6}")
    return at.replace(tzinfo=UTC) - _offset(zone)


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone in "Zz":
        return timedelta(0)
    digits = zone[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    if offset >= timedelta(days=1):
        raise ValueError(zone)
    return -offset if zone[0] == "-" else offset


@total
def read_interval(text: str) -> timedelta | None:
    """A length of time: amounts with units, or hours:minutes[:seconds], or both.

    >>> read_interval("12:00:00"), read_interval("1 day 30 minutes"), read_interval("1 month")
    (datetime.timedelta(seconds=43200), datetime.timedelta(days=1, seconds=1800), None)
    """
    rest = text.strip()
    sign = -1 if rest.startswith("-") else 1
    total_us = Decimal(0)
    if not rest:
        return None
    while found := _AMOUNT.match(rest):
        unit = unit_us(found[2])
        if unit is None:
            return None
        total_us += Decimal(found[1]) * unit
        rest = rest[found.end() :]
        sign = 1  # Each amount has its own sign; only a lone clock time is signed as a whole.
    if rest:
        clock = _CLOCK.fullmatch(rest.removeprefix("-") if sign < 0 else rest.removeprefix("+"))
        if clock is None:
            return None
        hours, minutes, seconds, fraction = clock.groups(default="0")
        if int(minutes) > 59 or int(seconds) > 59:
            return None
        whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
        total_us += sign * (whole * 1_000_000 + int(fraction.ljust(6, "0")))
    return timedelta(microseconds=int(total_us)) if abs(total_us) <= INT_MAX else None  # A constant has 64 bits.


def read_int(text: str) -> int | None:
    value = int(text) if _INT.fullmatch(text := text.strip()) else INT_MAX + 1
    return value if INT_MIN <= value <= INT_MAX else None


def read_decimal(text: str) -> Decimal | None:
    """Rounded if it has more places than a decimal."""
    return decimals.fitted(Decimal(text)) if _NUMBER.fullmatch(text := text.strip()) else None


def read_float(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text := text.strip()) else None


def read_bool(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.strip().lower())


def _decimal_to_int(value: Decimal) -> int | None:
    """Towards zero."""
    if value.adjusted() > 18:
        return None
    whole = int(value.to_integral_value(ROUND_DOWN))
    return whole if INT_MIN <= whole <= INT_MAX else None


def _float_to_int(value: float) -> int | None:
    """Towards zero."""
    return int(value) if -(2.0**63) <= value < 2.0**63 else None


def _float_to_decimal(value: float) -> Decimal | None:
    """The shortest decimal that reads back as the float: 0.1 becomes 0.1. Rounded if it has more places."""
    return decimals.fitted(Decimal(repr(value))) if math.isfinite(value) else None


@total
def _text_of_bytes(raw: bytes) -> str:
    return raw.decode()


def _text_of_timestamp(at: datetime) -> str:
    return utc(at).isoformat().replace("+00:00", "Z")


@total
def _bytes_of_text(text: str) -> bytes:
    return text.encode()


# (from, to): the function, and whether its result can be null.
CASTS: Final[dict[tuple[ValueType, ValueType], tuple[Callable[[Any], Any], bool]]] = {
    ("int", "float"): (float, False),
    ("int", "decimal"): (Decimal, False),
    ("int", "string"): (str, False),
    ("int", "bool"): (bool, False),
    ("bool", "int"): (int, False),
    ("bool", "string"): (lambda value: "true" if value else "false", False),
    ("float", "int"): (_float_to_int, True),
    ("float", "decimal"): (_float_to_decimal, True),
    ("float", "string"): (str, False),
    ("decimal", "int"): (_decimal_to_int, True),
    ("decimal", "float"): (float, False),
    ("decimal", "string"): (decimals.text, False),
    ("timestamp", "string"): (_text_of_timestamp, False),
    ("bytes", "string"): (_text_of_bytes, True),
    ("string", "int"): (read_int, True),
    ("string", "float"): (read_float, True),
    ("string", "decimal"): (read_decimal, True),
    ("string", "bool"): (read_bool, True),
    ("string", "timestamp"): (read_timestamp, True),
    ("string", "interval"): (read_interval, True),
    ("string", "bytes"): (_bytes_of_text, True),
}


def cast(expression: Expression, kind: ValueType) -> Expression:
    """The expression as another type; itself if it has that type already.

    >>> from queries.expressions import Constant
    >>> print(cast(Constant("7", "string"), "int"))
    CAST('7' AS INT)
    """
    source = expression.type
    if source == kind:
        return expression
    if source == "null":
        return Call("cast", (expression,), kind, nullable=True)
    if (source, kind) not in CASTS:
        known = [to for start, to in CASTS if start == source]
        hint = f"{article(source)} can become {', '.join(known)}" if known else ""
        raise TypeMismatch(f"{article(source)} cannot be cast to {kind}", hint)
    return Call("cast", (expression,), kind, expression.nullable or CASTS[source, kind][1])


def article(kind: str) -> str:
    """The name of a type in a sentence."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
