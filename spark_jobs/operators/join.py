"""Join: pairs of rows that share an instant in their windows and satisfy the predicate."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from queries.expressions import conjuncts
from queries.plan import Join
from spark_jobs.bridge import SHIFT_US
from spark_jobs.expressions import column_of
from spark_jobs.flow import ARRIVAL, BEFORE_ROWS, ENTER, EVENT_TIME, HIDDEN, LEAVE, TIME, Flow, code_of
from spark_jobs.types import CLOSED, DUE, IS_NEW, KEEP, MARK, NUMBER, place_name


def join(plan: Join, left: Flow, right: Flow) -> Flow:
    columns, by_rows = plan.columns, left.by_rows
    conditions = [column_of(part, columns) for part in conjuncts(plan.predicate)]
    conditions += [sf.col(ENTER) < sf.col(right_name(LEAVE)), sf.col(right_name(ENTER)) < sf.col(LEAVE)]
    one, other = left.frame.filter(sf.col(KEEP)), right.frame.filter(sf.col(KEEP))
    if one.isStreaming:
        one, other = _with_event_time(one), _with_event_time(other)
        conditions += _bounds(left, right)
        # Spark wants an equality, and there may be no other.
        conditions.append(sf.col(MARK) == sf.col(right_name(MARK)))
    both = one.join(beside(other, right, len(left.columns)), reduce(SparkColumn.__and__, conditions), "inner")
    enter = sf.greatest(sf.col(ENTER), sf.col(right_name(ENTER)))
    code = code_of(enter, by_rows)
    time = sf.timestamp_micros(sf.shiftright(code, 2))
    is_ranked, is_windowed = left.is_ranked or right.is_ranked, left.is_windowed or right.is_windowed
    due = time if is_ranked else sf.when(sf.pmod(code, sf.lit(4)) == BEFORE_ROWS, time)
    if is_windowed:
        due = sf.greatest(due, sf.col(DUE), sf.col(right_name(DUE)))
    hidden = [
        sf.greatest(NUMBER, right_name(NUMBER)).alias(NUMBER),
        sf.greatest(ARRIVAL, right_name(ARRIVAL)).alias(ARRIVAL),
        (sf.col(IS_NEW) | sf.col(right_name(IS_NEW))).alias(IS_NEW),
        sf.greatest(CLOSED, right_name(CLOSED)).alias(CLOSED),
        sf.col(MARK),
        time.alias(TIME),
        enter.alias(ENTER),
        sf.least(sf.col(LEAVE), sf.col(right_name(LEAVE))).alias(LEAVE),
        due.alias(DUE),
        sf.lit(True).alias(KEEP),
    ]
    own = [place_name(place) for place in range(len(columns))]
    reaches = [each.reach_us for each in (left, right) if each.reach_us is not None]
    return Flow(
        both.select(*own, *hidden),
        columns,
        is_ranked=is_ranked,
        is_windowed=is_windowed,
        by_rows=by_rows,
        reach_us=min(reaches, default=None),
    )


def right_name(name: str) -> str:
    """The name of a hidden column of the right side."""
    return f"right_{name}"


def beside(frame: DataFrame, flow: Flow, first: int) -> DataFrame:
    """The rows with shifted column names, so that they can be joined with rows of that many columns."""
    own = [sf.col(place_name(place)).alias(place_name(first + place)) for place in range(len(flow.columns))]
    return frame.select(*own, *(sf.col(name).alias(right_name(name)) for name in HIDDEN))


# What lets Spark forget rows: a row that left its window before FORGET meets no row still to come.


def _with_event_time(frame: DataFrame) -> DataFrame:
    """The rows with their time as what Spark compares with its watermark; a row at the watermark is not late."""
    shifted = sf.timestamp_micros(sf.unix_micros(TIME) + sf.lit(SHIFT_US + 1))
    return frame.withColumn(TIME, shifted.alias(TIME, metadata=EVENT_TIME))


def _bounds(left: Flow, right: Flow) -> list[SparkColumn]:
    """The largest distance between the times of a pair. The stretches are exact, but Spark does not understand them."""
    bounds = []
    if left.reach_us is not None:
        bounds.append(sf.col(right_name(TIME)) <= sf.col(TIME) + sf.lit(timedelta(microseconds=left.reach_us)))
    if right.reach_us is not None:
        bounds.append(sf.col(TIME) <= sf.col(right_name(TIME)) + sf.lit(timedelta(microseconds=right.reach_us)))
    return bounds
