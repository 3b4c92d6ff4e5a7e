"""The windows of an aggregate: each row once for every window that it counts in and that was open as it came."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from msgspec import structs
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as sf

from queries.expressions import RANK
from queries.plan import WindowAggregate
from spark_jobs.expressions import field_of
from spark_jobs.flow import EVENT_TIME, FOREVER_US, SHIFT_US, TIME, Flow
from spark_jobs.operators.source import floored
from spark_jobs.types import CLOSED, DECIMAL, MARK, NUMBER, place_name

END: Final = "end"  # Of a window: microseconds, a rank or a value.
FORGOTTEN: Final = "forgotten"  # The end of a window of time, once more, as Spark's watermark is compared with it.
COMPLETE: Final = "complete"  # Of a window of values: whether the stream has come beyond it.
_RANK: Final = "place"


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
    """By the stream's own numbers if it has them, as rows that a selection dropped count too; else by those of rows."""
    size, slide = int(plan.window.size), int(plan.window.slide or plan.window.size)
    if rank_at is not None:
        rank = next(place for place, column in enumerate(rows.columns) if column.path == (RANK,))
        ranked = rows.frame.withColumn(_RANK, sf.col(place_name(rank)))
        assert stream is not None
        count = stream.agg((sf.max(place_name(rank_at)) + sf.lit(1)).alias("count"))
    else:
        in_time = rows.frame.filter(sf.col(CLOSED).isNull() | (sf.col(TIME) >= sf.col(CLOSED)))
        in_order = SparkWindow.orderBy(TIME, NUMBER)
        ranked = in_time.withColumn(_RANK, sf.row_number().over(in_order).cast("bigint") - sf.lit(1))
        count = ranked.agg(sf.count(sf.lit(1)).alias("count"))
    place = sf.col(_RANK)
    first = sf.greatest(floored(place - sf.lit(size), slide) + sf.lit(slide), sf.lit(0).cast("bigint"))
    starts = _multiples(first, floored(place, slide), slide)
    each = ranked.withColumn(END, sf.explode(sf.transform(starts, lambda start: start + sf.lit(size))))
    return each.crossJoin(count).filter(sf.col(END) <= sf.col("count"))


def in_value_windows(plan: WindowAggregate, rows: Flow) -> DataFrame:
    """The stream comes in the order of the values: the highest so far says which windows are closed."""
    by = next(column for column in rows.columns if column.path == plan.window.by[:1])
    value = field_of(structs.replace(by, path=plan.window.by), rows.columns).try_cast(DECIMAL)
    size, slide = Decimal(plan.window.size), Decimal(plan.window.slide or plan.window.size)
    before = SparkWindow.orderBy(NUMBER).rangeBetween(SparkWindow.unboundedPreceding, -1)
    everything = SparkWindow.orderBy(NUMBER).rangeBetween(
        SparkWindow.unboundedPreceding, SparkWindow.unboundedFollowing
    )
    valued = rows.frame.withColumn("value", value).filter(sf.col("value").isNotNull())
    valued = valued.withColumn("before", sf.max("value").over(before)).withColumn(
        "highest", sf.max("value").over(everything)
    )
    first = _whole_steps(sf.col("value"), slide) + sf.lit(1)
    last = _whole_steps(sf.col("value") + sf.lit(size), slide)
    each = valued.withColumn("step", sf.explode(_multiples(first, last, 1)))
    each = each.withColumn(END, (sf.col("step").cast("decimal(18,0)") * sf.lit(slide)).cast(DECIMAL))
    each = each.withColumn(COMPLETE, sf.col(END) <= sf.col("highest"))
    return each.filter(sf.col("before").isNull() | (sf.col(END) > sf.col("before")))


def _multiples(first: SparkColumn, last: SparkColumn, step: int) -> SparkColumn:
    """Numbers from first to last; there may be none, which sequence would call an error."""
    return sf.when(first <= last, sf.sequence(first, last, sf.lit(step).cast("bigint")))


def _whole_steps(value: SparkColumn, step: Decimal) -> SparkColumn:
    """How many whole steps are in a value."""
    rest = sf.pmod(value, sf.lit(step))
    return sf.try_divide(value - rest, sf.lit(step)).try_cast("bigint")
