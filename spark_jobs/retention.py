"""Which rows a run of batch jobs still needs: each reads all that is kept, so what no result can need is removed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from queries.expressions import EPOCH, MICROSECOND
from queries.plan import Operator, Source, WindowAggregate, sources, walk
from queries.schema import Row


class _File(NamedTuple):
    number: int
    first_rank: int
    last_rank: int
    last_us: int


class Retention:
    """The files of one source, oldest first.

    A row under a window of rows matters until so many have come after it, and no stream is behind them any more; one
    under windows of time until all of them have passed. Where rows are counted that are made of several streams, or
    values, any row may matter for ever.
    """

    def __init__(self, plan: Operator, source: Source) -> None:
        self._files: deque[_File] = deque()
        self._time_at = len(source.schema.fields)
        self._rows = int(source.window.size) if source.window is not None and source.window.kind == "rows" else None
        self._span_us = _span_us(plan)

    def add(self, number: int, rows: Sequence[Row]) -> None:
        ranks = [row[-1] for row in rows] if self._rows is not None else [0]
        last_us = max((row[self._time_at] - EPOCH) // MICROSECOND for row in rows)
        self._files.append(_File(number, min(ranks), max(ranks), last_us))

    def removable(self, floor_us: int | None) -> int:
        """Files up to this number are needed no more; 0 for none."""
        number = 0
        while floor_us is not None and self._files and self._is_past(self._files[0], floor_us):
            number = self._files.popleft().number
        return number

    def _is_past(self, file: _File, floor_us: int) -> bool:
        if self._span_us is None or file.last_us + self._span_us >= floor_us:
            return False
        rows = self._rows
        return rows is None or any(
            later.first_rank >= file.last_rank + rows and later.last_us < floor_us for later in self._files
        )


def _span_us(plan: Operator) -> int | None:
    """How long a row can matter as far as windows of time go, one above the other; None: for ever."""
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
