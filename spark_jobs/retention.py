"""Which rows a run of batch jobs still needs. Each job reads everything kept, so what no result can need is removed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from queries.expressions import EPOCH, MICROSECOND
from queries.plan import Operator, Source, WindowAggregate, sources, walk
from queries.schema import Row


class _File(NamedTuple):
    file: int
    number: int  # The last input in it.
    first_rank: int
    last_rank: int
    last_us: int
    highest: Decimal | None
    rows: int


class Retention:
    """The files of one source, oldest first.

    Under a window of rows, a row is needed until the window's number of rows has come after it and every stream has
    passed them. Under windows of time it is needed until all of them have passed, under windows of values until a value
    beyond all of its windows has come. If a window counts joined or selected rows or values, any row may be needed for
    ever.
    """

    def __init__(self, plan: Operator, source: Source) -> None:
        self.kept_rows = 0
        self._files: deque[_File] = deque()
        self._time_at = len(source.schema.fields)
        self._rows = int(source.window.size) if source.window is not None and source.window.kind == "rows" else None
        self._span_us = _span_us(plan)
        self._values = _values(plan)
        self._highest: Decimal | None = None  # Among the finished inputs.

    def add(self, file: int, number: int, rows: Sequence[Row]) -> None:
        ranks = [row[-1] for row in rows] if self._rows is not None else [0]
        last_us = max((row[self._time_at] - EPOCH) // MICROSECOND for row in rows)
        highest = None
        if self._values is not None:
            known = (value for row in rows if (value := _value(row, self._values.places)) is not None)
            highest = max(known, default=None)
        self._files.append(_File(file, number, min(ranks), max(ranks), last_us, highest, len(rows)))
        self.kept_rows += len(rows)

    def removable(self, done: int, floor_us: int | None) -> int:
        """Files up to this one are no longer needed, with inputs up to `done` told; 0 for none."""
        file = 0
        if self._values is not None:
            for each in self._files:
                if each.number <= done and each.highest is not None:
                    self._highest = each.highest if self._highest is None else max(self._highest, each.highest)
        while self._files and self._is_past(self._files[0], done, floor_us):
            past = self._files.popleft()
            file = past.file
            self.kept_rows -= past.rows
        return file

    def _is_past(self, file: _File, done: int, floor_us: int | None) -> bool:
        if self._values is not None:
            is_passed = file.highest is None or (
                self._highest is not None and file.highest + self._values.size <= self._highest
            )
            return file.number <= done and is_passed
        if floor_us is None or self._span_us is None or file.last_us + self._span_us >= floor_us:
            return False
        rows = self._rows
        return rows is None or any(
            later.first_rank >= file.last_rank + rows and later.last_us < floor_us for later in self._files
        )


class _Values(NamedTuple):
    """Windows of values right above a source: the place of the value in a row, and how far a window reaches."""

    places: tuple[int, ...]
    size: Decimal


def _values(plan: Operator) -> _Values | None:
    """The value windows of a plan's only aggregate, if nothing lies between it and its source."""
    aggregates = [each for each in walk(plan) if isinstance(each, WindowAggregate)]
    if len(aggregates) != 1 or len(sources(plan)) != 1:
        return None
    (only,) = aggregates
    if only.window.kind != "value" or not isinstance(only.input, Source):
        return None
    places, fields = [], only.input.schema.fields
    for name in only.window.by:
        place = next(place for place, field in enumerate(fields) if field.name == name)
        places.append(place)
        fields = fields[place].fields
    return _Values(tuple(places), Decimal(only.window.size))


def _value(row: Row, places: Sequence[int]) -> Decimal | None:
    """The value that places a row in windows; None if it is in none."""
    found: Any = row
    for place in places:
        if found is None:
            return None
        found = found[place]
    if found is None or not math.isfinite(found):
        return None
    return Decimal(found)


def _span_us(plan: Operator) -> int | None:
    """How long windows of time, one above the other, can need a row; None: for ever."""
    span = 0
    for each in walk(plan):
        if not isinstance(each, Source | WindowAggregate):
            continue
        is_ranked = isinstance(each, Source) or all(source.window == each.window for source in sources(each))
        match each.window:
            case None:
                if isinstance(each, Source) and len(sources(plan)) > 1:
                    return None
            case window if window.kind == "time":
                span += int(window.size) + int(window.slide or 0)
            case window if window.kind == "value" or not is_ranked or len(sources(each)) > 1:
                return None
    return span
