"""A stream as the operators above see it: its rows, and the stretch of time for which each is in its window."""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as sf

from queries.plan import Source, Window
from spark_jobs.flow import (
    AFTER_ROWS,
    ARRIVAL,
    AT_ROW,
    BEFORE_ROWS,
    ENTER,
    FOREVER_US,
    LEAVE,
    TIME,
    Flow,
    instant,
    never,
)
from spark_jobs.types import CLOSED, DUE, FORGET, IS_NEW, KEEP, MARK, NUMBER, place_name


def source(plan: Source, frame: DataFrame, *, is_marked: bool, by_rows: bool) -> Flow:
    """The rows of a stream. `by_rows` says whether a window anywhere in the plan counts rows."""
    time = sf.col(place_name(len(plan.schema.fields)))
    if frame.isStreaming:
        frame = frame.withWatermark(FORGET, "0 seconds")
    is_ranked = plan.window is not None and plan.window.kind == "rows"
    enter, leave = _stretch(plan, by_rows)
    hidden = [
        sf.col(NUMBER),
        sf.col(NUMBER).alias(ARRIVAL),
        sf.col(IS_NEW),
        sf.col(CLOSED),
        sf.col(MARK),
        time.alias(TIME),
        enter.alias(ENTER),
        leave.alias(LEAVE),
        (time if is_ranked else sf.lit(None).cast("timestamp")).alias(DUE),
        sf.lit(True).alias(KEEP),
    ]
    own = [place_name(place) for place in range(len(plan.columns))]
    flow = Flow(
        frame.select(*own, *hidden),
        plan.columns,
        is_marked,
        is_ranked,
        by_rows=by_rows,
        reach_us=_reach_us(plan.window),
    )
    if plan.window is not None and plan.window.kind == "time" and plan.window.slide is not None:
        flow = flow.changed(flow.frame.filter(sf.col(ENTER) < sf.col(LEAVE))) if not is_marked else flow
    return flow


def floored(us: SparkColumn, unit: int) -> SparkColumn:
    """The greatest multiple of a unit that is not larger."""
    return us - sf.pmod(us, sf.lit(unit).cast("bigint"))


def _stretch(plan: Source, by_rows: bool) -> tuple[SparkColumn, SparkColumn]:
    """When a row enters its window, and when it has left it."""
    time_at = len(plan.schema.fields)
    us, number = sf.unix_micros(sf.col(place_name(time_at))), sf.col(NUMBER)
    match plan.window:
        case Window(kind="time", size=size, slide=None):
            beyond = us + sf.lit(min(int(size), FOREVER_US)).cast("bigint")
            return instant(us, AT_ROW, number, by_rows), instant(beyond, AFTER_ROWS, number, by_rows)
        case Window(kind="time", size=size, slide=slide) if slide is not None:
            length, step = min(int(size), FOREVER_US), min(int(slide), FOREVER_US)
            first = floored(us, step) + sf.lit(step)
            beyond = floored(us + sf.lit(length), step) + sf.lit(step)
            return instant(first, BEFORE_ROWS, number, by_rows), instant(beyond, BEFORE_ROWS, number, by_rows)
        case Window(kind="rows", size=size, slide=None):
            in_order = SparkWindow.orderBy(place_name(time_at + 1))
            pushed_out = sf.lead(instant(us, AT_ROW, number, by_rows), int(size)).over(in_order)
            return instant(us, AT_ROW, number, by_rows), sf.coalesce(pushed_out, never(by_rows))
    return instant(us, AT_ROW, number, by_rows), never(by_rows)


def _reach_us(window: Window | None) -> int | None:
    if window is None or window.kind != "time":
        return None
    return min(int(window.size) + int(window.slide or 0), FOREVER_US)
