"""Times, durations and counts in words."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def span(seconds: float) -> str:
    """A duration in its largest unit.

    >>> span(0.4), span(59), span(200), span(7300), span(200_000)
    ('0s', '59s', '3m', '2h', '2d')
    """
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def ago(seconds: float) -> str:
    """
    >>> ago(0.2), ago(200)
    ('just now', '3m ago')
    """
    return f"{span(seconds)} ago" if seconds >= 1 else "just now"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "peer"), count(5, "peer")
    ('1 peer', '5 peers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def milliseconds(value: float | None) -> str:
    """
    >>> milliseconds(0.4211), milliseconds(12.345), milliseconds(None)
    ('0.42 ms', '12.3 ms', '-')
    """
    if value is None:
        return "-"
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms"


def megabytes(size: float) -> str:
    """
    >>> megabytes(0), megabytes(2_340_000), megabytes(1_681_000_000)
    ('0.0 MB', '2.3 MB', '1,681.0 MB')
    """
    return f"{size / 1e6:,.1f} MB"


def clock_offset(offset_ms: int, peers: int) -> str:
    """
    >>> clock_offset(-12, 4), clock_offset(1990, 1), clock_offset(0, 0)
    ('12 ms behind 4 peers', '1990 ms ahead of 1 peer', 'nobody to compare it with')
    """
    if not peers:
        return "nobody to compare it with"
    return f"{abs(offset_ms)} ms {'behind' if offset_ms < 0 else 'ahead of'} {count(peers, 'peer')}"


def parse_span(text: str) -> float:
    """Seconds from "10", "10s", "500ms", "2m" or "1h".

    >>> parse_span("10"), parse_span("500ms"), parse_span("2m")
    (10.0, 0.5, 120.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)", text.strip())
    if match is None:
        raise ValueError(f'"{text}" is not a duration; write 10s, 500ms or 2m')
    return float(match[1]) * _UNITS[match[2]]
