"""The windows of an aggregate: each row once for every window that it counts in and that was open when it came."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from msgspec import structs
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as sf

from queries import decimals
from queries.expressions import RANK
from queries.plan import WindowAggregate
from spark_jobs.bridge import SHIFT_US
from spark_jobs.expressions import field_of
from spark_jobs.flow import EVENT_TIME, FOREVER_US, TIME, Flow
from spark_jobs.operators.source import floored
from spark_jobs.types import CLOSED, DECIMAL, IS_NEW, MARK, NUMBER, place_name

END: Final = "end"  # Of a window: microseconds, a rank or a value.
# The end of a window of time again, as the column that Spark compares with its watermark.
FORGOTTEN: Final = "forgotten"
LAST: Final = "last"  # For a window of rows or values: the input of the row that completes it; null if none has.
UNTIL: Final = "until"  # For a window of rows: the time of that row.
_RANK: Final = "place"
_VALUE: Final = "value"


def in_time_windows(plan: WindowAggregate, rows: Flow) -> DataFrame:
    """Marks have a window of their own that never ends."""
    marked = rows.is_marked
    size, slide = int(plan.window.size), int(plan.window.slide or plan.window.size)
    us = sf.unix_micros(TIME)
    first, last = floored(us, slide) + sf.lit(slide), floored(us + sf.lit(size), slide)
    is_open = sf.col(END) > sf.coalesce(sf.unix_micros(CLOSED), sf.lit(-FOREVER_US))
    if slide >= size:  # In one window, or in none.
        end = sf.when(first <= last, first)
        each = rows.frame.withColumn(END, sf.when(_is_mark(), sf.lit(FOREVER_US)).otherwise(end) if marked else end)
    else:
        ends = sf.sequence(first, last, sf.lit(slide).cast("bigint"))
        ends = sf.when(_is_mark(), sf.array(sf.lit(FOREVER_US))).otherwise(ends) if marked else ends
        each = rows.frame.withColumn(END, sf.explode(ends))
    each = each.filter(is_open | _is_mark() if marked else is_open)
    if rows.frame.isStreaming:
        shifted = sf.timestamp_micros(sf.col(END) + sf.lit(SHIFT_US))
        each = each.withColumn(FORGOTTEN, shifted.alias(FORGOTTEN, metadata=EVENT_TIME))
    return each


def _is_mark() -> SparkColumn:
    return sf.col(MARK) >= 0


def in_row_windows(plan: WindowAggregate, rows: Flow, stream: DataFrame | None, rank_at: int | None) -> DataFrame:
    """By the stream's own numbers if it has them, so that rows dropped by a selection count too; otherwise by row."""
    size, slide = int(plan.window.size), int(plan.window.slide or plan.window.size)
    if stream is not None and rank_at is not None:
        rank = next(place for place, column in enumerate(rows.columns) if column.path == (RANK,))
        ranked = rows.frame.withColumn(_RANK, sf.col(place_name(rank)))
        counted = stream.select(
            sf.col(place_name(rank_at)).alias(_RANK), sf.col(place_name(rank_at - 1)).alias(TIME), NUMBER, IS_NEW
        )
    else:
        in_time = rows.frame.filter(sf.col(CLOSED).isNull() | (sf.col(TIME) >= sf.col(CLOSED)))
        in_order = SparkWindow.orderBy(TIME, NUMBER)
        ranked = in_time.withColumn(_RANK, sf.row_number().over(in_order).cast("bigint") - sf.lit(1))
        counted = ranked.select(_RANK, TIME, NUMBER, IS_NEW)
    place = sf.col(_RANK)
    first = sf.greatest(floored(place - sf.lit(size), slide) + sf.lit(slide), sf.lit(0).cast("bigint"))
    starts = _multiples(first, floored(place, slide), slide)
    each = ranked.withColumn(END, sf.explode(sf.transform(starts, lambda start: start + sf.lit(size))))
    # A window is complete with its last row, even if a selection dropped that row.
    held = SparkWindow.orderBy(_RANK).rowsBetween(1 - size, 0)
    lasts = counted.select(
        (place + sf.lit(1)).alias(END),
        sf.max(NUMBER).over(held).alias(LAST),
        sf.max(IS_NEW).over(held).alias(IS_NEW),
        sf.col(TIME).alias(UNTIL),
    )
    return each.drop(IS_NEW).join(lasts, END, "inner")


def in_value_windows(plan: WindowAggregate, rows: Flow) -> DataFrame:
    """The stream is ordered by this value, so the highest one so far says which windows are closed."""
    by = next(column for column in rows.columns if column.path == plan.window.by[:1])
    value = field_of(structs.replace(by, path=plan.window.by), rows.columns).try_cast(DECIMAL)
    size, slide = (
        sf.lit(decimals.with_all_places(Decimal(each))).cast(DECIMAL)
        for each in (plan.window.size, plan.window.slide or plan.window.size)
    )
    valued = rows.frame.withColumn(_VALUE, value).filter(sf.col(_VALUE).isNotNull())
    before = SparkWindow.orderBy(NUMBER).rangeBetween(SparkWindow.unboundedPreceding, -1)
    # The first window that holds a value ends after the rest of its step; the others each a step later.
    rest = slide - sf.pmod(sf.col(_VALUE), slide)
    later = _multiples(sf.lit(0).cast("bigint"), _whole_steps(size - rest, slide), 1)
    next_end = sf.try_add(sf.col(_VALUE), rest)
    ends = sf.transform(
        later, lambda step: sf.try_add(next_end, (step.cast("decimal(19,0)") * slide).try_cast(DECIMAL))
    )
    each = valued.withColumn("before", sf.max(_VALUE).over(before)).withColumn(END, sf.explode(ends))
    # Windows lie within what a decimal holds.
    each = each.filter(sf.col(END).isNotNull() & sf.try_subtract(sf.col(END), size).isNotNull())
    each = each.filter(sf.col("before").isNull() | (sf.col(END) > sf.col("before")))
    # A window is complete with the first row beyond it.
    beyond = valued.select(sf.col(_VALUE).alias("beyond"), sf.col(NUMBER).alias(LAST), IS_NEW)
    reached = each.select(END).distinct().join(beyond, sf.col("beyond") >= sf.col(END), "left")
    first = reached.groupBy(END).agg(sf.min(LAST).alias(LAST), sf.min_by(IS_NEW, LAST).alias(IS_NEW))
    return each.drop(IS_NEW).join(first, END, "inner")


def _multiples(first: SparkColumn, last: SparkColumn, step: int) -> SparkColumn:
    """The multiples from first to last, perhaps none; Spark's sequence would raise an error for none."""
    return sf.when(first <= last, sf.sequence(first, last, sf.lit(step).cast("bigint")))


def _whole_steps(value: SparkColumn, step: SparkColumn) -> SparkColumn:
    """How many whole steps are in a value."""
    return sf.floor(sf.try_divide(value - sf.pmod(value, step), step)).try_cast("bigint")
