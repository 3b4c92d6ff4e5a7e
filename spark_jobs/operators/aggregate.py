"""Aggregation: one row for each window and each group in it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from queries.expressions import Call, Column
from queries.plan import WindowAggregate
from spark_jobs.aggregates import argument_of, value_of
from spark_jobs.expressions import column_of
from spark_jobs.flow import ARRIVAL, AT_ROW, ENTER, LEAVE, TIME, Flow, instant, never
from spark_jobs.operators.windows import END, FORGOTTEN, LAST, UNTIL, in_row_windows, in_time_windows, in_value_windows
from spark_jobs.types import CLOSED, DECIMAL, DUE, IS_NEW, KEEP, KEY, MARK, NUMBER, data_type, place_name

_NEVER_US: Final = 253_402_300_799_999_999  # The last moment of the calendar.


def aggregate(
    plan: WindowAggregate, rows: Flow, stream: DataFrame | None, rank_at: int | None, closed_until_us: int | None
) -> Flow:
    """The results of all windows. ROWS windows count `stream` before selection, by the number at `rank_at`."""
    if rows.is_aggregate:
        rows = rows.changed(rows.frame.filter(sf.col(KEEP)))
    match plan.window.kind:
        case "time":
            windowed = in_time_windows(plan, rows)
        case "rows":
            windowed = in_row_windows(plan, rows, stream, rank_at)
        case _:
            windowed = in_value_windows(plan, rows)
    keys = [
        column_of(key.expression, rows.columns).cast(data_type(column.type, column.fields)).alias(_key(place))
        for place, (key, column) in enumerate(zip(plan.keys, plan.columns, strict=False))
    ]
    grouped_by = [sf.col(END), *keys]
    if rows.frame.isStreaming:
        grouped_by.append(sf.col(FORGOTTEN))
    if rows.is_marked:
        grouped_by.append(sf.col(MARK))
    order = (sf.col(TIME), sf.col(NUMBER))
    windowed, arguments = _with_arguments(plan, windowed, rows.columns)
    values = [
        value_of(each, argument, rows.columns, order).alias(f"a{place}")
        for place, (each, argument) in enumerate(zip(plan.aggregates, arguments, strict=True))
    ]
    last = [sf.max(NUMBER).alias(NUMBER), sf.max(CLOSED).alias(CLOSED), sf.max(TIME).alias(TIME)]
    if not rows.frame.isStreaming:  # Whatever reads windows runs in batches.
        last.append(sf.max_by(ARRIVAL, sf.struct(TIME, ARRIVAL)).alias(ARRIVAL))
    if plan.window.kind != "time":
        last += [sf.max(LAST).alias(LAST), sf.max(IS_NEW).alias(IS_NEW)]
    if plan.window.kind == "rows":
        last.append(sf.max(UNTIL).alias(UNTIL))
    groups = windowed.groupBy(*grouped_by).agg(*values, *last)
    return _results(plan, rows, groups, closed_until_us)


def _with_arguments(
    plan: WindowAggregate, windowed: DataFrame, columns: Sequence[Column]
) -> tuple[DataFrame, list[SparkColumn | None]]:
    """What each row gives to the aggregates.

    A computed decimal is a column of its own: a sum takes decimals apart, and would compute each several times.
    """
    arguments = [argument_of(each, columns) for each in plan.aggregates]
    computed = {}
    for place, (each, argument) in enumerate(zip(plan.aggregates, arguments, strict=True)):
        if argument is not None and isinstance(each.argument, Call) and each.argument.type == "decimal":
            name = f"v{place}"
            computed[name], arguments[place] = argument, sf.col(name)
    return windowed.withColumns(computed) if computed else windowed, arguments


def _results(plan: WindowAggregate, rows: Flow, groups: DataFrame, closed_until_us: int | None) -> Flow:
    start, end, time, due = _bounds(plan)
    if rows.is_marked:  # A mark carries the watermark.
        due = sf.when(sf.col(MARK) >= 0, sf.col(CLOSED)).otherwise(due)
    keys = [_key(place) for place in range(len(plan.keys))]
    own = [*keys, *(f"a{place}" for place in range(len(plan.aggregates)))]
    columns = [*(sf.col(name) for name in own), start, end, time]
    us, arrival = sf.unix_micros(time), sf.col(NUMBER if rows.frame.isStreaming else ARRIVAL)
    hidden = [
        (sf.col(NUMBER) if plan.window.kind == "time" else sf.greatest(NUMBER, LAST)).alias(NUMBER),
        arrival.alias(ARRIVAL),
        _is_new(plan, due, None if rows.frame.isStreaming else closed_until_us).alias(IS_NEW),
        sf.col(CLOSED),
        sf.col(MARK) if rows.is_marked else sf.lit(-1).alias(MARK),
        time.alias(TIME),
        instant(us, AT_ROW, arrival, rows.by_rows).alias(ENTER),
        never(rows.by_rows).alias(LEAVE),
        due.alias(DUE),
        sf.lit(True).alias(KEEP),
    ]
    if rows.frame.isStreaming:
        hidden.append(sf.struct(end.alias(END), *keys).alias(KEY))
    named = [column.alias(place_name(place)) for place, column in enumerate(columns)]
    return Flow(
        groups.select(*named, *hidden),
        plan.columns,
        rows.is_marked,
        is_aggregate=True,
        is_windowed=True,
        by_rows=rows.by_rows,
    )


def _is_new(plan: WindowAggregate, due: SparkColumn, closed_until_us: int | None) -> SparkColumn:
    """Whether a window has not been told. It was told once it was complete, whatever it holds.

    In a stream the windows that were told take no more rows. A batch job makes them again.
    """
    if closed_until_us is None:
        return sf.lit(True)
    was_open = sf.coalesce(sf.unix_micros(due) > sf.lit(closed_until_us), sf.lit(False))
    return was_open if plan.window.kind == "time" else was_open | sf.col(IS_NEW)


def _bounds(plan: WindowAggregate) -> tuple[SparkColumn, SparkColumn, SparkColumn, SparkColumn]:
    """Start and end of a window, the time of its result, and when it is due."""
    end, time = sf.col(END), sf.col(TIME)
    match plan.window.kind:
        case "time":
            start, end = sf.timestamp_micros(end - sf.lit(int(plan.window.size))), sf.timestamp_micros(end)
            return start, end, end, end
        case "rows":
            return end - sf.lit(int(plan.window.size)), end, time, sf.col(UNTIL)
    # The window is complete when a higher value has come; without one it waits for ever.
    due = sf.when(sf.col(LAST).isNull(), sf.timestamp_micros(sf.lit(_NEVER_US)))
    return (end - sf.lit(Decimal(plan.window.size))).cast(DECIMAL), end, time, due


def _key(place: int) -> str:
    return f"k{place}"
