"""Decimals at the edges of what a decimal holds, for every test that draws values."""

from __future__ import annotations

from decimal import ROUND_DOWN, Context, Decimal
from random import Random

from hypothesis import strategies as st

LARGEST = Decimal("99999999999999999999.999999999999999999")
SMALLEST = Decimal("1E-18")
# The ends, both sides of what 64 bits hold, halves of the last place, and numbers that have no short quotient.
EDGES = (
    *(Decimal(0), Decimal(1), Decimal("7.00"), Decimal("0.5"), Decimal(3), Decimal("1E+19"), Decimal("1E-9")),
    *(SMALLEST, 2 * SMALLEST, Decimal("5E-10"), LARGEST, Decimal("9999999999.999999999"), Decimal("1E+10")),
    *(Decimal((1 << 63) + each) + part for each in (-1, 0) for part in (Decimal(0), Decimal("0.5"))),
    Decimal("0.333333333333333333"),
    Decimal("12345678901234567890.123456789012345678"),
    Decimal(95000000000000000000),
)
_UNITS = Context(38, ROUND_DOWN)


def edge(source: Random) -> Decimal:
    """One of the edges, or a number with as many digits as it may have, or with few."""
    pick = source.random()
    if pick < 0.5:
        value = source.choice(EDGES)
    else:
        digits = source.randrange(10 ** source.randint(1, 38))
        value = Decimal(digits).scaleb(-18, _UNITS)
    return value if source.random() < 0.6 else value.copy_negate()


def edges() -> st.SearchStrategy[Decimal]:
    units = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda each: Decimal(each).scaleb(-18, _UNITS))
    return st.sampled_from(EDGES) | st.sampled_from(EDGES).map(Decimal.copy_negate) | units
