"""Intervals as people write them: `5 minutes`, `1 hour 30 minutes`, `12:00:00`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

UNITS: Final[dict[str, timedelta]] = {
    name: size
    for names, size in (
        ("microsecond microseconds us", timedelta(microseconds=1)),
        ("millisecond milliseconds ms", timedelta(milliseconds=1)),
        ("second seconds sec secs s", timedelta(seconds=1)),
        ("minute minutes min mins m", timedelta(minutes=1)),
        ("hour hours h", timedelta(hours=1)),
        ("day days d", timedelta(days=1)),
        ("week weeks w", timedelta(weeks=1)),
    )
    for name in names.split()
}
VAGUE: Final = ("month", "months", "year", "years")  # Not always of one length.

_CLOCK = re.compile(r"([+-]?)(?:(\d{1,9}) days?,? )?(\d{1,9}):([0-5]\d)(?::([0-5]\d(?:\.\d{1,6})?))?")
_PART = re.compile(r"([+-]?\d{1,15}(?:\.\d{1,6})?) ?([A-Za-z]+)")


def read(text: str) -> timedelta | None:
    """The interval of a text; none where it is not one.

    >>> str(read("12:00:00")), str(read("1 hour 30 minutes")), str(read("-0:30")), read("5 parsecs")
    ('12:00:00', '1:30:00', '-1 day, 23:30:00', None)
    """
    text = text.strip()
    try:
        if clock := _CLOCK.fullmatch(text):
            sign, days, hours, minutes, seconds = clock.groups()
            span = timedelta(days=int(days or 0), hours=int(hours), minutes=int(minutes)) + _times(seconds or "0", "s")
            return -span if sign == "-" else span
        total, place = timedelta(), 0
        while part := _PART.match(text, place):
            if part[2].lower() not in UNITS:
                return None
            total += _times(part[1], part[2].lower())
            place = part.end()
            while place < len(text) and text[place] == " ":
                place += 1
        return total if text and place == len(text) else None
    except OverflowError:
        return None


def _times(number: str, unit: str) -> timedelta:
    """Exact: a decimal number of microseconds, not a float of seconds."""
    whole, _, fraction = number.partition(".")
    size = UNITS[unit]
    part = size * int(fraction.ljust(6, "0")) // 1_000_000 if fraction else timedelta()
    return size * int(whole) + (-part if whole.startswith("-") else part)
