"""The aggregates of a window, defined once: their types, and their values over what a window holds.

Nulls do not count. The order of the values does not matter, not even for sums of floats, so engines that add in another
order agree. A group of a window is never empty, but all its values may be null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from queries import decimals
from queries.errors import TypeMismatch, nearest
from queries.expressions import Expression, ValueType
from queries.functions import NUMBERS
from queries.plan import AGGREGATES, Aggregate, AggregateFunction
from queries.schema import Field
from queries.values import INT_MAX, INT_MIN

_ORDERED: Final = (*NUMBERS, "string", "bool", "timestamp", "interval", "bytes")


def aggregate(
    name: str,
    function: str,
    argument: Expression | None,
    distinct: bool = False,
    fields: tuple[Field, ...] = (),
) -> Aggregate:
    """An aggregate with the type of its result; raises TypeMismatch if the argument does not fit.

    >>> from queries.expressions import Column
    >>> print(aggregate("mean", "avg", Column("p", ("en",), "decimal")).type)
    decimal
    """
    match function:
        case "count":
            kind: ValueType = "int"
            nullable = False
        case "collect":
            kind, nullable = "list", False
        case "sum" | "avg" | "stddev" | "min" | "max" if argument is None:
            raise TypeMismatch(f"{function} needs what to compute it of", f"write {function}(a column)")
        case "sum" | "avg":
            kind, nullable = _needs(function, argument, (*NUMBERS, "interval")), _nullable(argument)
            if function == "avg" and kind == "int":
                kind = "float"
            nullable = nullable or (function == "sum" and kind != "float")  # It may be too large.
        case "stddev":
            _needs(function, argument, NUMBERS)
            kind, nullable = "float", True  # The deviation of a single value is null.
        case "min" | "max":
            kind, nullable = _needs(function, argument, _ORDERED), _nullable(argument)
        case _:
            raise TypeMismatch(f'unknown aggregate "{function}"', nearest(function, AGGREGATES))
    return Aggregate(name, function, argument, kind, nullable, distinct, fields)


def value_of(aggregate: Aggregate, values: Iterable[Any]) -> Any:
    """The aggregate of the argument's values, one for each row; for count(*) any value that is not null."""
    if aggregate.function == "collect":
        return tuple(values)
    counted = [value for value in values if value is not None]
    if aggregate.distinct:
        counted = list({same(value): value for value in counted}.values())
    if aggregate.function == "count":
        return len(counted)
    return _VALUES[aggregate.function](counted) if counted else None


def same(value: Any) -> Any:
    """A key that is equal for values in one SQL group: nulls are equal, and so are NaNs."""
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    return value


def order(value: Any) -> Any:
    """A key that sorts values of one type; NaN comes last."""
    return (math.isnan(value), value) if isinstance(value, float) else (False, value)


def _nullable(argument: Expression | None) -> bool:
    assert argument is not None
    return argument.nullable


def _needs(function: AggregateFunction, argument: Expression | None, types: Sequence[str]) -> ValueType:
    assert argument is not None
    if argument.type not in types:
        hint = "CAST it to a number first" if "string" not in types and argument.type == "string" else ""
        article = "an" if argument.type[0] in "aeiou" else "a"
        raise TypeMismatch(f"{function} has no value for {article} {argument.type}", hint)
    return argument.type


def _sum(values: list[Any]) -> Any:
    match values[0]:
        case float():
            return float_sum(values)
        case Decimal():
            return decimals.fraction(sum(map(Fraction, values), Fraction(0)))
        case timedelta():
            return interval(sum(map(microseconds, values)))
    total = sum(values)
    return total if INT_MIN <= total <= INT_MAX else None


def _avg(values: list[Any]) -> Any:
    match values[0]:
        case float():
            return float_sum(values) / len(values)
        case Decimal():
            return decimals.fraction(sum(map(Fraction, values), Fraction(0)) / len(values))
        case timedelta():
            return interval(round(Fraction(sum(map(microseconds, values)), len(values))))
    return float(Fraction(sum(values), len(values)))


def _stddev(values: list[Any]) -> float | None:
    """The standard deviation of a sample: the sum of squares is divided by the number of values less one.

    Decimals count as floats, as no engine has digits enough for the squares of all.
    """
    if len(values) < 2:
        return None
    if isinstance(values[0], Decimal):
        values = list(map(float, values))
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return math.nan
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction(0)) / len(exact)
    try:
        return math.sqrt(sum(((value - mean) ** 2 for value in exact), Fraction(0)) / (len(exact) - 1))
    except OverflowError:
        return math.inf


def float_sum(values: Sequence[float]) -> float:
    """The exact sum of floats, rounded once: beyond the largest float it is infinite.

    >>> float_sum([1e308, 1e308, -1e308]), float_sum([1e308, 1e308]), float_sum([math.inf, -math.inf])
    (1e+308, inf, nan)
    """
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # Too large on the way, or infinities of both signs.
        strange = [value for value in values if not math.isfinite(value)]
        if strange:
            return sum(strange)
        exact = sum(map(Fraction, values), Fraction(0))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def least(values: Sequence[Any]) -> Any:
    """The lowest value, NaN only if there is no other."""
    return min(values, key=order) if _has_nan(values) else min(values)


def greatest(values: Sequence[Any]) -> Any:
    """The highest value; NaN is above all others."""
    return max(values, key=order) if _has_nan(values) else max(values)


def _has_nan(values: Sequence[Any]) -> bool:
    return isinstance(values[0], float) and any(map(math.isnan, values))


def microseconds(value: timedelta) -> int:
    return value // timedelta(microseconds=1)


def interval(micros: int) -> timedelta | None:
    """The interval of so many microseconds; None if it is too long."""
    try:
        return timedelta(microseconds=micros)
    except OverflowError:
        return None


_VALUES: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "sum": _sum,
    "avg": _avg,
    "stddev": _stddev,
    "min": least,
    "max": greatest,
}
