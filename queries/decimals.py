"""Decimals: the numbers that every engine holds exactly, and arithmetic that stays among them.

A decimal is a multiple of 10 ** -18 below 10 ** 20: Spark's decimal(38,18). Sums, differences and remainders of
decimals are exact. Products and quotients are rounded to 18 places, half away from zero. Beyond 10 ** 20 there is no
result, and the value is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import (
    ROUND_05UP,
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
)
from fractions import Fraction
from typing import Any, Final

WHOLE: Final = 20
PLACES: Final = 18
BOUNDS: Final = f"at most {WHOLE} digits before the point and {PLACES} behind it"

# Spark rounds a quotient twice, first to this many places. They differ from rounding once for a quotient that lies
# less than 10 ** -39 below the middle of two decimals.
_QUOTIENT_PLACES: Final = 39

# Our own contexts, because anybody can change the thread's.
_ONE: Final = Decimal(1)
_ULP: Final = Decimal(1).scaleb(-PLACES)
_QUOTIENT_ULP: Final = Decimal(1).scaleb(-_QUOTIENT_PLACES)
_HELD: Final = Context(WHOLE + PLACES, ROUND_HALF_UP, -9999, 9999, traps=[InvalidOperation, Inexact])
_FITTED: Final = Context(WHOLE + PLACES, ROUND_HALF_UP, -9999, 9999, traps=[InvalidOperation])
_TRAPS: Final = [InvalidOperation, DivisionByZero, Overflow]
_WIDE: Final = Context(160, ROUND_HALF_UP, -99999, 99999, traps=_TRAPS)
_QUOTIENTS: Final = Context(160, ROUND_05UP, -99999, 99999, traps=_TRAPS)  # Can be rounded again without harm.


def is_held(value: Decimal) -> bool:
    """Whether a number is a decimal of ours. What is not a number is none.

    >>> [is_held(Decimal(text)) for text in ("7.00", "1E+19", "1E-18", "1E+20", "1E-19", "0.1234567890123456789")]
    [True, True, True, False, False, False]
    """
    try:
        _HELD.quantize(value, _ULP)
    except DecimalException:
        return False
    return not value.is_nan()


def fitted(value: Decimal) -> Decimal | None:
    """The number rounded to the places of a decimal; None if it is too large.

    >>> fitted(Decimal("0.12345678901234567890")), fitted(Decimal("1.50")), fitted(Decimal("9" * 38))
    (Decimal('0.123456789012345679'), Decimal('1.50'), None)
    """
    try:
        _HELD.quantize(value, _ULP)
    except DecimalException:
        try:
            return _FITTED.quantize(value, _ULP)
        except DecimalException:
            return None
    return value


def fraction(value: Fraction) -> Decimal | None:
    """The decimal nearest to a fraction, half away from zero."""
    quotient = _QUOTIENTS.divide(Decimal(value.numerator), Decimal(value.denominator))
    return fitted(quotient)


def exact_sum(values: Iterable[Decimal], start: Decimal) -> Decimal:
    """The sum of decimals, which may need more digits than a decimal has."""
    for value in values:
        start = _WIDE.add(start, value)
    return start


def text(value: Decimal) -> str:
    """The number written out; equal numbers have one text.

    >>> [text(Decimal(each)) for each in ("7.00", "1E+3", "-0.0", "1E-18")]
    ['7', '1000', '0', '0.000000000000000001']
    """
    if not value:
        return "0"
    written = format(value, "f")
    return written.rstrip("0").rstrip(".") if "." in written else written


def plain(value: Decimal) -> Decimal:
    """The same number without zeros at its end, and without an exponent."""
    short = value.normalize(_WIDE)
    exponent = short.as_tuple().exponent
    return short.quantize(_ONE, context=_WIDE) if isinstance(exponent, int) and exponent > 0 else short


def with_all_places(value: Decimal) -> Decimal:
    """The same decimal with 18 places, as Spark and Arrow write it."""
    return _HELD.quantize(value, _ULP)


def _total(compute: Callable[..., Decimal | None]) -> Callable[..., Decimal | None]:
    def value(*arguments: Any) -> Decimal | None:
        try:
            return compute(*arguments)
        except DecimalException:
            return None

    return value


# Arithmetic. One of two operands may be an int.

add = _total(lambda a, b: fitted(_WIDE.add(a, b)))
subtract = _total(lambda a, b: fitted(_WIDE.subtract(a, b)))
multiply = _total(lambda a, b: fitted(_WIDE.multiply(a, b)))
remainder = _total(lambda a, b: fitted(_WIDE.remainder(a, b)))


def quotient(a: Decimal, b: Any) -> Decimal:
    """The quotient to 39 places; raises what Decimal raises for a division by zero."""
    found = _QUOTIENTS.divide(a, b)
    return found if is_held(found) else _WIDE.quantize(found, _QUOTIENT_ULP)


divide = _total(lambda a, b: fitted(quotient(a, b)))
ceil = _total(lambda a: fitted(a.to_integral_value(ROUND_CEILING)))
floor = _total(lambda a: fitted(a.to_integral_value(ROUND_FLOOR)))


rounded = _total(lambda a, digits: fitted(plain(at_digits(a, digits)) if digits < 0 else at_digits(a, digits)))


def at_digits(value: Decimal, digits: int) -> Decimal:
    """A number of any size rounded half away from zero; one with fewer digits stays as it is."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "a number is finite"
    return value if exponent >= -digits else _WIDE.quantize(value, Decimal((0, (1,), -digits)))


def product(a: Any, b: Decimal) -> Decimal:
    """The exact product, of any size."""
    return _WIDE.multiply(a, b)
