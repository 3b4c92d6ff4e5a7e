"""What one operator hands to the next: a DataFrame of the plan's columns, c0, c1, …, and of hidden ones.

A row is in its window from ENTER until just before LEAVE; queries/reference.py defines these instants. An instant is
one number: four times the microseconds since the epoch, plus a rest that orders instants of one time. Only ROWS windows
tell two rows of one time apart; then an instant is that number together with the row's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from queries.expressions import Column
from spark_jobs.types import CLOSED, DUE, IS_NEW, KEEP, KEY, MARK, NUMBER, place_name

TIME: Final = "time"  # When a row happened; for a combination, when it came about.
ARRIVAL: Final = "arrival"  # The input with which the last of its rows came.
ENTER: Final = "enter"
LEAVE: Final = "leave"
HIDDEN: Final = (NUMBER, ARRIVAL, IS_NEW, CLOSED, MARK, TIME, ENTER, LEAVE, DUE, KEEP)

BEFORE_ROWS: Final = 0  # A sliding window is evaluated before rows of that time arrive,
AT_ROW: Final = 1
AFTER_ROWS: Final = 2  # and a closed range ends after all of them.
FOREVER_US: Final = 1 << 59  # Longer than the calendar.
_NEVER: Final = (1 << 63) - 1

# Marks the column that Spark compares with its watermark. The watermark itself is made of FORGET alone.
EVENT_TIME: Final = {"spark.watermarkDelayMs": 0}


@dataclass(frozen=True, slots=True)
class Flow:
    """The rows of an operator."""

    frame: DataFrame
    columns: tuple[Column, ...]
    is_marked: bool = False  # Rows that mark the end of an input are among them.
    is_ranked: bool = False  # Rows depend on their number in a stream, so an earlier row may change them.
    is_aggregate: bool = False
    is_windowed: bool = False  # Rows are made of windows, which must be complete first.
    by_rows: bool = False  # Instants tell rows of one time apart.
    reach_us: int | None = None  # How long after its TIME a row may be in its window; None: for ever.

    @property
    def hidden(self) -> tuple[str, ...]:
        return (*HIDDEN, KEY) if self.is_aggregate and self.frame.isStreaming else HIDDEN

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, the plan's first."""
        return (*(place_name(place) for place in range(len(self.columns))), *self.hidden)

    def changed(self, frame: DataFrame, **changes: Any) -> Flow:
        return replace(self, frame=frame, **changes)

    def selected(self, outputs: list[SparkColumn], columns: tuple[Column, ...]) -> Flow:
        """The rows with these columns instead; hidden columns stay."""
        named = [output.alias(place_name(place)) for place, output in enumerate(outputs)]
        return self.changed(self.frame.select(*named, *self.hidden), columns=columns)


def instant(us: SparkColumn, rest: int, number: SparkColumn, by_rows: bool) -> SparkColumn:
    """The instant at a time: before, at or after its rows."""
    code = us * sf.lit(4) + sf.lit(rest)
    if not by_rows:
        return code
    own = number if rest == AT_ROW else sf.lit(-1 if rest == BEFORE_ROWS else _NEVER).cast("bigint")
    return sf.struct(code.alias("code"), own.alias("number"))


def never(by_rows: bool) -> SparkColumn:
    code = sf.lit(_NEVER)
    return sf.struct(code.alias("code"), code.alias("number")) if by_rows else code


def code_of(moment: SparkColumn, by_rows: bool) -> SparkColumn:
    return moment.getField("code") if by_rows else moment
