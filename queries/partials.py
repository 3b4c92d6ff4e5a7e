"""Partial aggregates: what some rows of a group give to an aggregate, kept so that parts can be put together later.

However the rows are divided into parts, and in whichever order the parts are put together, the value is that of
`aggregates.value_of` over all of them. So what is kept is exact: integers for ints, decimals and intervals, and for
floats an expansion, a few floats whose exact sum is the sum of all (Shewchuk, "Adaptive precision floating-point
arithmetic", 1997). `math.fsum` of an expansion rounds once, like that of the values themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Protocol

import msgspec

from queries import decimals
from queries.aggregates import float_sum, greatest, interval, least, microseconds, same, value_of
from queries.expressions import Expression
from queries.plan import Aggregate
from queries.values import INT_MAX, INT_MIN

PARTS_MAX: Final = 64  # Floats of one sum before they are made into an expansion.
_ULPS_BITS: Final = 1074  # Every finite float is a multiple of 2 ** -1074.


class Partial(Protocol):
    """What is kept of some rows for one aggregate, or for several of one argument."""

    def add(self, values: Sequence[Any]) -> None:
        """Take in the argument's values of some rows, none of them null."""

    def merge(self, other: Any) -> None:
        """Take in all that another one of the same part has."""

    def value(self, aggregate: Aggregate) -> Any:
        """The value of an aggregate over all rows taken in."""

    @property
    def rows(self) -> int:
        """How many values it keeps one by one."""


class Part(msgspec.Struct, frozen=True):
    """What an aggregate needs of each row. Aggregates of one argument may share it: sum and avg do."""

    kind: str  # count | total | squares | min | max | distinct
    argument: Expression | None = None

    @classmethod
    def of(cls, aggregate: Aggregate) -> Part:
        function, argument = aggregate.function, aggregate.argument
        if aggregate.distinct and function not in ("min", "max"):
            return cls("distinct", argument)
        kind = {"sum": "total", "avg": "total", "stddev": "squares"}.get(function, function)
        return cls(kind, argument)

    @property
    def maker(self) -> Callable[[], Partial]:
        """Makes the partial aggregate of no rows."""
        if self.kind == "total":
            assert self.argument is not None
            return _TOTALS[self.argument.type]
        return _MAKERS[self.kind]


def is_partial(aggregate: Aggregate) -> bool:
    """Whether an aggregate can be put together from parts; a list of rows cannot, its order would be lost."""
    return aggregate.function != "collect"


class _Count:
    __slots__ = ("count",)
    rows = 0

    def __init__(self) -> None:
        self.count = 0

    def add(self, values: Sequence[Any]) -> None:
        self.count += len(values)

    def merge(self, other: _Count) -> None:
        self.count += other.count

    def value(self, aggregate: Aggregate) -> Any:
        return self.count


class _Least:
    __slots__ = ("best",)
    rows = 0

    def __init__(self) -> None:
        self.best: Any = None

    def add(self, values: Sequence[Any]) -> None:
        if values:
            best = least(values)
            self.best = best if self.best is None else least((self.best, best))

    def merge(self, other: _Least) -> None:
        if other.best is not None:
            self.add((other.best,))

    def value(self, aggregate: Aggregate) -> Any:
        return self.best


class _Greatest:
    __slots__ = ("best",)
    rows = 0

    def __init__(self) -> None:
        self.best: Any = None

    def add(self, values: Sequence[Any]) -> None:
        if values:
            best = greatest(values)
            self.best = best if self.best is None else greatest((self.best, best))

    def merge(self, other: _Greatest) -> None:
        if other.best is not None:
            self.add((other.best,))

    def value(self, aggregate: Aggregate) -> Any:
        return self.best


class _Distinct:
    """Each value once; there is no way to keep less."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: dict[Any, Any] = {}

    def add(self, values: Sequence[Any]) -> None:
        for value in values:
            self.found[same(value)] = value

    def merge(self, other: _Distinct) -> None:
        self.found.update(other.found)

    def value(self, aggregate: Aggregate) -> Any:
        return value_of(aggregate, self.found.values())

    @property
    def rows(self) -> int:
        return len(self.found)


# Sums, and the means that follow from them.


class _Ints:
    __slots__ = ("count", "total")
    rows = 0

    def __init__(self) -> None:
        self.count = self.total = 0

    def add(self, values: Sequence[int]) -> None:
        self.count += len(values)
        self.total += sum(values)

    def merge(self, other: _Ints) -> None:
        self.count += other.count
        self.total += other.total

    def value(self, aggregate: Aggregate) -> Any:
        if not self.count:
            return None
        if aggregate.function == "avg":
            return self.total / self.count
        return self.total if INT_MIN <= self.total <= INT_MAX else None


class _Decimals:
    __slots__ = ("count", "total")
    rows = 0

    def __init__(self) -> None:
        self.count, self.total = 0, Decimal(0)

    def add(self, values: Sequence[Decimal]) -> None:
        self.count += len(values)
        self.total = decimals.exact_sum(values, self.total)

    def merge(self, other: _Decimals) -> None:
        self.count += other.count
        self.total = decimals.exact_sum((other.total,), self.total)

    def value(self, aggregate: Aggregate) -> Any:
        if not self.count:
            return None
        return decimals.fraction(Fraction(self.total) / (self.count if aggregate.function == "avg" else 1))


class _Intervals:
    __slots__ = ("count", "total")
    rows = 0

    def __init__(self) -> None:
        self.count = self.total = 0  # Microseconds.

    def add(self, values: Sequence[timedelta]) -> None:
        self.count += len(values)
        self.total += sum(map(microseconds, values))

    def merge(self, other: _Intervals) -> None:
        self.count += other.count
        self.total += other.total

    def value(self, aggregate: Aggregate) -> Any:
        if not self.count:
            return None
        return interval(round(Fraction(self.total, self.count)) if aggregate.function == "avg" else self.total)


class _Floats:
    """A sum of floats: `parts` and `beyond` add up to it exactly."""

    __slots__ = ("beyond", "count", "parts")
    rows = 0

    def __init__(self) -> None:
        self.count = 0
        self.parts: list[float] = []
        self.beyond = 0  # What no few floats can say, in units of 2 ** -1074; 0 for nearly every sum.

    def add(self, values: Sequence[float]) -> None:
        self.count += len(values)
        self.parts += values
        if len(self.parts) > PARTS_MAX:
            self._shorten()

    def merge(self, other: _Floats) -> None:
        self.add(other.parts)
        self.count += other.count - len(other.parts)
        self.beyond += other.beyond

    def _shorten(self) -> None:
        """Make an expansion of the parts: their sum rounded, then what rounding left over, and so on."""
        parts, expansion = list(self.parts), []
        try:
            while total := math.fsum(parts):
                expansion.append(total)
                if not math.isfinite(total):  # It absorbs every finite value.
                    expansion = [total]
                    break
                parts.append(-total)
            self.parts = expansion
        except (OverflowError, ValueError):  # Too large on the way, or infinities of both signs.
            if all(map(math.isfinite, self.parts)):
                self.beyond += _ulps(self.parts)
                self.parts = []
            else:
                self.parts = [float_sum(self.parts)]

    def value(self, aggregate: Aggregate) -> Any:
        if not self.count:
            return None
        total = self._sum()
        return total / self.count if aggregate.function == "avg" else total

    def _sum(self) -> float:
        strange = [part for part in self.parts if not math.isfinite(part)]
        if not self.beyond or strange:
            return float_sum(strange or self.parts)
        exact = self.beyond + _ulps(self.parts)
        try:
            return exact / (1 << _ULPS_BITS)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf


def _ulps(values: Iterable[float]) -> int:
    """The exact sum of finite floats, in units of 2 ** -1074."""
    total = 0
    for value in values:
        numerator, denominator = value.as_integer_ratio()
        total += numerator << (_ULPS_BITS + 1 - denominator.bit_length())
    return total


class _Squares:
    """The number of values, their sum and that of their squares, in units of 2 ** -shift and 2 ** -(2 * shift)."""

    __slots__ = ("count", "is_finite", "shift", "squares", "total")
    rows = 0

    def __init__(self) -> None:
        self.count = self.total = self.squares = self.shift = 0
        self.is_finite = True

    def add(self, values: Sequence[Any]) -> None:
        self.count += len(values)
        if not values or not self.is_finite:
            return
        if isinstance(values[0], Decimal):  # They count as floats.
            values = list(map(float, values))
        if not all(map(math.isfinite, values)):
            self.is_finite = False
            return
        ratios = [value.as_integer_ratio() for value in values]
        self._refine(max(denominator for _, denominator in ratios).bit_length() - 1)
        units = [numerator << (self.shift + 1 - denominator.bit_length()) for numerator, denominator in ratios]
        self.total += sum(units)
        self.squares += sum(unit * unit for unit in units)

    def _refine(self, shift: int) -> None:
        """Count in smaller units, if these are smaller."""
        if shift > self.shift:
            self.total <<= shift - self.shift
            self.squares <<= 2 * (shift - self.shift)
            self.shift = shift

    def merge(self, other: _Squares) -> None:
        self.count += other.count
        self.is_finite = self.is_finite and other.is_finite
        self._refine(other.shift)
        more = self.shift - other.shift
        self.total += other.total << more
        self.squares += other.squares << (2 * more)

    def value(self, aggregate: Aggregate) -> Any:
        if self.count < 2:
            return None
        if not self.is_finite:
            return math.nan
        # The sum of the squared distances from the mean is the sum of the squares less the squared sum / count.
        distances = self.count * self.squares - self.total * self.total
        try:
            return math.sqrt(distances / (self.count * (self.count - 1) << (2 * self.shift)))
        except OverflowError:
            return math.inf


_TOTALS: Final[dict[str, Callable[[], Partial]]] = {
    "int": _Ints,
    "float": _Floats,
    "decimal": _Decimals,
    "interval": _Intervals,
}
_MAKERS: Final[dict[str, Callable[[], Partial]]] = {
    "count": _Count,
    "squares": _Squares,
    "min": _Least,
    "max": _Greatest,
    "distinct": _Distinct,
}
