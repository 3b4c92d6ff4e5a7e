"""The aggregates of queries/aggregates.py as columns of Spark: exact, or nearly for floats, and never an error.

Distinct values are first collected into a set, the only way in a streaming query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as sf

from queries.expressions import Column
from queries.plan import Aggregate
from queries.spark_forms import DECIMAL as _DECIMAL
from queries.spark_forms import before_point, behind_point
from spark_jobs.expressions import column_of
from spark_jobs.types import data_type, place_name

_WHOLE: Final = "decimal(38,0)"  # A sum of ints may exceed 64 bits on the way.
_SECONDS: Final = "decimal(24,6)"


def argument_of(aggregate: Aggregate, columns: Sequence[Column]) -> SparkColumn | None:
    """What a row gives to an aggregate; None if that is the row itself."""
    if aggregate.argument is None:
        return None
    return column_of(aggregate.argument, columns).cast(data_type(aggregate.argument.type))


def value_of(
    aggregate: Aggregate, argument: SparkColumn | None, columns: Sequence[Column], order: Sequence[SparkColumn]
) -> SparkColumn:
    """The value of an aggregate over a group; `order` is the order of the rows in collect."""
    if aggregate.function == "collect":
        return _collected(aggregate, columns, order)
    if aggregate.argument is None or argument is None:
        return sf.count(sf.lit(1))
    kind = aggregate.argument.type
    if kind == "null":
        nothing = sf.lit(0) if aggregate.function == "count" else sf.lit(None)
        return sf.max(nothing).cast(data_type(aggregate.type))
    over = _Distinct(argument, kind) if aggregate.distinct else _Plain(argument, kind)
    match aggregate.function:
        case "count":
            value = over.count
        case "min":
            value = sf.min(argument)
        case "max":
            value = sf.max(argument)
        case "sum":
            value = _sum(over, kind)
        case "avg":
            value = _average(over, kind)
        case "stddev":
            value = over.deviation()
    return value.cast(data_type(aggregate.type))


class _Plain:
    """All values of a group that are not null."""

    def __init__(self, argument: SparkColumn, kind: str) -> None:
        self._argument = argument
        self.count = sf.count(argument)

    def total(self, kind: str) -> SparkColumn:
        """The sum, each value as this type."""
        return sf.try_sum(self._argument.cast(kind))

    def parts(self) -> tuple[SparkColumn, SparkColumn]:
        """The sums of decimals before and behind the point, as the whole sum may be too large on the way."""
        part = behind_point(sf, self._argument)
        return sf.try_sum(before_point(self._argument, part)), sf.try_sum(part)

    def seconds(self) -> SparkColumn:
        return sf.try_sum(_seconds(self._argument))

    def deviation(self) -> SparkColumn:
        return sf.stddev_samp(self._argument.cast("double"))


class _Distinct:
    """Each value of a group once."""

    def __init__(self, argument: SparkColumn, kind: str) -> None:
        # Minus zero counts as zero.
        self._set = sf.collect_set(argument + sf.lit(0.0) if kind == "float" else argument)
        self._kind = kind
        self.count = sf.size(self._set).cast("bigint")

    def total(self, kind: str) -> SparkColumn:
        return self._folded(lambda each: each.cast(kind), kind)

    def parts(self) -> tuple[SparkColumn, SparkColumn]:
        before = self._folded(lambda each: before_point(each, behind_point(sf, each)), _WHOLE)
        return before, self._folded(lambda each: behind_point(sf, each), _DECIMAL)

    def seconds(self) -> SparkColumn:
        return self._folded(_seconds, "decimal(37,6)")

    def deviation(self) -> SparkColumn:
        mean = self.total("double") / self.count
        squares = self._folded(lambda each: (each.cast("double") - mean) * (each.cast("double") - mean), "double")
        return sf.when(self.count > 1, sf.sqrt(squares / (self.count - 1)))

    def _folded(self, value: Callable[[SparkColumn], SparkColumn], kind: str) -> SparkColumn:
        """The sum of a function of each value; null if there is none."""
        zero = sf.lit(0).cast(kind)
        total = sf.aggregate(self._set, zero, lambda so_far, each: sf.try_add(so_far, value(each)).cast(kind))
        return sf.when(sf.size(self._set) > 0, total)


def _sum(over: _Plain | _Distinct, kind: str) -> SparkColumn:
    match kind:
        case "int":
            return over.total(_WHOLE).try_cast("bigint")
        case "interval":
            return _interval(over.seconds())
        case "decimal":
            whole, part = _normal(*over.parts())
            return sf.try_add(whole.try_cast(_DECIMAL), part)
    return over.total("double")


def _average(over: _Plain | _Distinct, kind: str) -> SparkColumn:
    match kind:
        case "int":
            return sf.try_divide(over.total(_WHOLE).cast("double"), over.count)
        case "interval":
            return _interval(sf.bround(sf.try_divide(over.seconds(), over.count), 6))
        case "decimal":  # The whole sum may have more digits than Spark, so what remains of it is divided apart.
            (whole, part), count = _normal(*over.parts()), over.count.cast(_WHOLE)
            rest = sf.try_mod(whole, count)
            each = sf.try_divide(whole - rest, count).try_cast(_DECIMAL)
            return sf.try_add(each, sf.try_divide(rest.cast(_DECIMAL) + part, count.cast(_DECIMAL)))
    return sf.try_divide(over.total("double"), over.count)


def _normal(before: SparkColumn, behind: SparkColumn) -> tuple[SparkColumn, SparkColumn]:
    """Sums before and behind the point as one number: the second is below 1 and has the sign of the first."""
    part = behind_point(sf, behind)
    whole = before + (behind - part).cast(_WHOLE)
    zero, one = sf.lit(0), sf.lit(1)
    borrowed = sf.when((whole > zero) & (part < zero), one).when((whole < zero) & (part > zero), -one).otherwise(zero)
    return (whole - borrowed).cast(_WHOLE), (part + borrowed).cast(_DECIMAL)


def _seconds(interval: SparkColumn) -> SparkColumn:
    return interval.cast("interval second").cast(_SECONDS)


def _interval(seconds: SparkColumn) -> SparkColumn:
    return seconds.try_cast(_SECONDS).try_cast("interval second")


def _collected(aggregate: Aggregate, columns: Sequence[Column], order: Sequence[SparkColumn]) -> SparkColumn:
    """The rows of a group as a list of records, in order."""
    places = {column.path[0]: place for place, column in enumerate(columns)}
    record = sf.struct(
        *(sf.col(place_name(places[each.name])).alias(place_name(n)) for n, each in enumerate(aggregate.fields))
    )
    placed = sf.struct(*order, record.alias("record"))
    return sf.transform(sf.array_sort(sf.collect_list(placed)), lambda each: each.getField("record"))
