"""Which windows can be put together from which: StreamGlobe's divisibility, panes and slices.

A window is what lies between E - size and E for the multiples E of its slide. Panes are cut at every multiple of the
greatest common divisor of size and slide; slices only where some window begins or ends (Cutty, Scotty).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from math import gcd, lcm
from typing import Final

import msgspec

from queries.plan import Window

EDGES_MAX: Final = 4096  # Windows whose edges repeat only after more of them are not cut together.


def extent(window: Window) -> tuple[Fraction, Fraction]:
    """Size and slide."""
    size = Fraction(window.size)
    return size, size if window.slide is None else Fraction(window.slide)


def is_alike(one: Window, other: Window) -> bool:
    """Whether two windows go by the same: the reference element, as the paper says."""
    return one.kind == other.kind and one.by == other.by


def divides(old: Window, new: Window) -> bool:
    """The paper's rule (section 3.3): Δ' mod Δ = 0, Δ mod μ = 0, μ' mod μ = 0.

    >>> second = 1_000_000
    >>> q3, q4 = Window("time", 20 * second, 10 * second), Window("time", 60 * second, 40 * second)
    >>> divides(q3, q4), divides(q4, q3)
    (True, False)
    """
    (size, slide), (wanted, every) = extent(old), extent(new)
    return is_alike(old, new) and not (wanted % size or size % slide or every % slide)


def panes(windows: Sequence[Window]) -> Window:
    """The longest tumbling window that all can be put together from."""
    step = reduce(_gcd, (number for each in windows for number in extent(each)))
    return msgspec.structs.replace(windows[0], size=_plain(step, windows[0]), slide=_plain(step, windows[0]))


def edges(windows: Sequence[Window]) -> tuple[Fraction, list[Fraction]] | None:
    """After how long the edges of windows repeat, and where they are in it; None if there are too many.

    >>> edges([Window("time", 60, 40), Window("time", 20, 20)])
    (Fraction(40, 1), [Fraction(0, 1), Fraction(20, 1)])
    """
    period = reduce(_lcm, (extent(each)[1] for each in windows))
    if sum(period // extent(each)[1] for each in windows) > EDGES_MAX:
        return None
    found: dict[Fraction, None] = {}
    for size, slide in map(extent, windows):
        for number in range(int(period / slide)):
            end = slide * number
            found |= {end: None, (end - size) % period: None}
    return period, sorted(found)


def is_cut_by(new: Window, windows: Sequence[Window]) -> bool:
    """Whether slices of some windows already end wherever the new one begins or ends."""
    before, after = edges(windows), edges([*windows, new])
    if before is None or after is None or not is_alike(new, windows[0]):
        return False
    repeats = int(after[0] / before[0])
    return len(after[1]) == repeats * len(before[1])


def _gcd(one: Fraction, other: Fraction) -> Fraction:
    below = lcm(one.denominator, other.denominator)
    return Fraction(gcd(int(one * below), int(other * below)), below)


def _lcm(one: Fraction, other: Fraction) -> Fraction:
    return one * other / _gcd(one, other)


def _plain(number: Fraction, like: Window) -> int | Decimal:
    """As windows have it: whole microseconds, or units of a column."""
    return int(number) if number.denominator == 1 else Decimal(number.numerator) / Decimal(number.denominator)
