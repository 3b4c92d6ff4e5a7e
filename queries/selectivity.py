"""Which share of rows a predicate keeps, estimated from what is known of the columns.

Conditions count as independent, except that bounds on one column are one range. Without statistics the guesses of
System R apply: they rank plans and do not predict them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from queries.atoms import number_of
from queries.expressions import Call, Column, Constant, Expression
from queries.predicates import PredicateGraph, graph_of
from queries.simplify import TRUE

EQUAL: Final = 0.1  # A column equals a value, without statistics.
BOUNDED: Final = 1 / 3  # A comparison with one end.
RANGED: Final = 1 / 4  # Between two ends.
OTHER: Final = 1 / 3  # Anything else that may be true or not.
RARE: Final = 1 / 512  # Beyond sampled numbers there may be others, about so many.


class ColumnStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a column's values; numbers as in predicates, so timestamps in microseconds."""

    distinct: float | None = None
    low: float | None = None
    high: float | None = None
    row_bytes: float | None = None  # Mean bytes it adds to a row: occurrence times size.
    nulls: float = 0.0  # The share of rows in which it is null.
    increment: float | None = (
        None  # By how much it grows from one row to the next, where the stream comes in its order.
    )
    frequent: tuple[tuple[str, float], ...] = ()  # Values as JSON, with their share of the rows.
    quantiles: tuple[float, ...] = ()  # Of a sample: ends of shares of equal size, the least and the greatest included.

    def __post_init__(self) -> None:
        if not is_ascending(self.quantiles):
            raise ValueError("quantiles are finite numbers in ascending order")

    def share_of(self, value: Constant) -> float:
        """The share of rows that have this value."""
        number = number_of(value)
        if number is not None and (_is_above(self.low, number) or _is_above(number, self.high)):
            return 0.0
        shares = dict(self.frequent)
        text = msgspec.json.encode(value.python).decode()
        if text in shares:
            return shares[text]
        if self.distinct is None:
            return EQUAL
        return max(0.0, 1 - self.nulls - sum(shares.values())) / max(self.distinct - len(shares), 1.0)

    def share_between(self, low: float | None, high: float | None) -> float:
        """The share of rows from `low` to `high`, where either may be open; values spread evenly between quantiles."""
        if len(self.quantiles) > 1:
            above = 1.0 if high is None else _share_below(self.quantiles, high, included=True)
            below = 0.0 if low is None else _share_below(self.quantiles, low, included=False)
            guess = min(1.0, max(RARE, above - below))
        elif self.low is None or self.high is None or not math.isfinite(self.high - self.low):
            guess = RANGED if low is not None and high is not None else BOUNDED
        elif self.high == self.low:
            inside = (low is None or low <= self.low) and (high is None or self.high <= high)
            guess = float(inside)
        else:
            start, end = (
                max(self.low, -math.inf if low is None else low),
                min(self.high, math.inf if high is None else high),
            )
            guess = min(1.0, max(0.0, (end - start) / (self.high - self.low)))
        return guess * (1 - self.nulls)

    def narrowed(self, low: float | None, high: float | None, share: float) -> ColumnStatistics:
        """The column in the rows that are left by a range."""
        starts = [each for each in (self.low, low) if each is not None]
        ends = [each for each in (self.high, high) if each is not None]
        distinct = 1.0 if low is not None and low == high else self.distinct
        if distinct is not None and distinct > 1:
            distinct = max(1.0, distinct * share)
        return msgspec.structs.replace(
            self,
            distinct=distinct,
            low=max(starts, default=None),
            high=min(ends, default=None),
            nulls=0.0,
            frequent=(),
            quantiles=(),
        )


def is_ascending(numbers: Sequence[float]) -> bool:
    """Whether these can be the quantiles of something."""
    return all(map(math.isfinite, numbers)) and all(one <= other for one, other in pairwise(numbers))


def _share_below(quantiles: Sequence[float], value: float, *, included: bool) -> float:
    """The share of numbers below a value, or up to it. A number that is several quantiles is frequent.

    >>> _share_below((0, 4, 4, 8), 4, included=False), _share_below((0, 4, 4, 8), 6, included=True)
    (0.3333333333333333, 0.8333333333333334)
    """
    at = bisect_right(quantiles, value) if included else bisect_left(quantiles, value)
    if at in (0, len(quantiles)):
        return float(at > 0)
    start, end = quantiles[at - 1 : at + 1]
    return (at - 1 + (value - start) / (end - start)) / (len(quantiles) - 1)


def merged_quantiles(parts: Sequence[tuple[float, Sequence[float]]]) -> tuple[float, ...]:
    """The quantiles of several samples together, each with its weight.

    >>> merged_quantiles([(1.0, (0.0, 1.0, 2.0)), (1.0, (10.0, 11.0, 12.0))])
    (0.0, 2.0, 12.0)
    """
    if len(parts) == 1:
        return tuple(parts[0][1])
    points = sorted((number, weight / len(numbers)) for weight, numbers in parts for number in numbers)
    shares = max(len(numbers) for _, numbers in parts) - 1
    whole = math.fsum(weight for _, weight in points)
    found: list[float] = []
    passed = 0.0
    for number, weight in points:
        passed += weight
        while len(found) < shares and passed >= whole * len(found) / shares:
            found.append(number)
    return (*found, points[-1][0])


def _is_above(one: object, other: object) -> bool:
    return one is not None and other is not None and one > other  # type: ignore[operator]


ColumnKey = tuple[str, tuple[str, ...]]  # Alias and path.
Columns = Mapping[ColumnKey, ColumnStatistics]
_UNKNOWN: Final = ColumnStatistics()


def known_of(expression: Expression, columns: Columns) -> ColumnStatistics:
    """What is known of an expression: the statistics of a column, nothing for anything else."""
    return columns.get((expression.input, expression.path), _UNKNOWN) if isinstance(expression, Column) else _UNKNOWN


def selected(predicate: Expression | None, columns: Columns) -> tuple[float, dict[ColumnKey, ColumnStatistics]]:
    """The share of rows that a predicate keeps, and the columns of those rows.

    >>> from queries.functions import call
    >>> ra = Column("p", ("ra",), "decimal")
    >>> between = call("and", call(">=", ra, Constant.of(120)), call("<=", ra, Constant.of(138)))
    >>> share, columns = selected(between, {("p", ("ra",)): ColumnStatistics(low=0, high=360, distinct=3600)})
    >>> share, columns["p", ("ra",)].distinct
    (0.05, 180.0)
    """
    graph, kept = graph_of(predicate), dict(columns)
    if not graph.satisfiable:
        return 0.0, kept
    share = 1.0
    ranged: dict[Column, None] = {}
    for part in graph.conjuncts:
        column = _ranged_column(part)
        if column is None:
            share *= share_of(part, columns)
        else:
            ranged[column] = None
    for column in ranged:
        known = known_of(column, columns)
        low, high = _ends(graph, column)
        own = share_of_value(known, column, low) if low is not None and low == high else known.share_between(low, high)
        share *= own
        kept[column.input, column.path] = known.narrowed(low, high, own)
    return share, kept


def _ranged_column(part: Expression) -> Column | None:
    """The column that a condition compares with a number or a time."""
    match part:
        case (
            Call(function="=" | "<" | "<=", arguments=(Column() as column, Constant() as constant))
            | Call(function="<" | "<=", arguments=(Constant() as constant, Column() as column))
        ):
            return column if number_of(constant) is not None and column.type != "bool" else None
    return None


def _ends(graph: PredicateGraph, column: Column) -> tuple[float | None, float | None]:
    low, high = graph.range_of(column)
    return (None if low is None else float(low), None if high is None else float(high))


def share_of_value(known: ColumnStatistics, column: Column, value: float) -> float:
    """The share of rows in which a column of numbers or times has one value."""
    if column.type in ("timestamp", "interval"):
        return known.share_of(Constant(int(value), column.type))
    return known.share_of(Constant.of(int(value) if value.is_integer() and column.type != "float" else value))


def share_of(part: Expression, columns: Columns) -> float:
    """The share of rows on which one condition is true."""
    match part:
        case Constant():
            return float(part == TRUE)
        case Column():
            known = known_of(part, columns)
            return known.share_of(TRUE) if known.distinct else 0.5
        case Call(function="and", arguments=parts):
            return math.prod(share_of(each, columns) for each in parts)
        case Call(function="or", arguments=parts):
            return 1 - math.prod(1 - share_of(each, columns) for each in parts)
        case Call(function="not", arguments=(inner,)):
            return 1 - share_of(inner, columns)
        case Call(function="is_null", arguments=(term,)):
            return known_of(term, columns).nulls
        case Call(function="=" | "<>" as name, arguments=(term, other)):
            equal = _share_equal(term, other, columns)
            return equal if name == "=" else 1 - equal
        case Call(function="in", arguments=(term, *among)):
            return min(1.0, sum(_share_equal(term, each, columns) for each in among))
        case Call(function="<" | "<=", arguments=(Column() as column, Constant() as end)):
            return known_of(column, columns).share_between(None, _number(end))
        case Call(function="<" | "<=", arguments=(Constant() as start, Column() as column)):
            return known_of(column, columns).share_between(_number(start), None)
        case Call(function="like" | "starts_with" | "ends_with" | "contains"):
            return EQUAL
    return OTHER


def _number(constant: Constant) -> float | None:
    number = number_of(constant)
    return None if number is None else float(number)


def _share_equal(term: Expression, other: Expression, columns: Columns) -> float:
    """Equal values of two columns: each value of the column with fewer distinct values meets its equal in the other."""
    if isinstance(other, Constant):
        return 0.0 if other.value is None else known_of(term, columns).share_of(other)
    counts = [each for each in (known_of(term, columns).distinct, known_of(other, columns).distinct) if each]
    return 1 / max(1.0, *counts) if counts else EQUAL
