"""How experiments say what they found: tables, and the papers' claims beside our figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

SAY_EVERY_S: Final = 10.0


class Claim(NamedTuple):
    """Something a paper, or we, say of a figure; and what was measured."""

    where: str  # "fig 6", "ours".
    says: str
    measured: str
    holds: bool


def print_claims(claims: Iterable[Claim]) -> None:
    for claim in claims:
        print(f"{'holds' if claim.holds else 'DOES NOT HOLD':<14}{claim.where}: {claim.says}\n{'':14}{claim.measured}")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Text to the left, numbers to the right with three digits."""
    lines = [[_shown(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *lines, strict=True)]
    is_text = [all(isinstance(value, str) for value in column) for column in zip(*rows, strict=True)]
    for line in (headers, *lines):
        cells = zip(line, widths, is_text, strict=True)
        print("  ".join(f"{text:<{width}}" if left else f"{text:>{width}}" for text, width, left in cells).rstrip())


def span(values: Sequence[float]) -> str:
    """From the least to the greatest."""
    return f"{min(values):.3f} to {max(values):.3f}"


def told(values: Mapping[Any, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


def with_progress(numbers: range, what: str) -> Iterator[int]:
    """The numbers one by one; says on stderr now and then how far it is."""
    began = said = time.monotonic()
    for number in numbers:
        yield number
        if number % 64 == 0 and time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            left_s = (said - began) / (number + 1) * (len(numbers) - number)
            print(f"{what}: {number} of {len(numbers)}, about {left_s:.0f} s left", file=sys.stderr, flush=True)


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
