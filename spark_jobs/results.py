"""What Spark says of a run, put in order: results are told once all inputs they may depend on are done with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec
import pyarrow as pa

from queries.plan import Operator
from queries.schema import Row
from spark_jobs.bridge import from_arrow, keys, values


class Input(msgspec.Struct, frozen=True):
    """A numbered input on its way through Spark."""

    number: int
    source: int | None  # None: it holds nothing that Spark has to see.
    file: int
    watermark_us: int | None
    floor_us: int | None


class Results:
    """The inputs under way of one run, and the results that wait for them or for time.

    Invariant: what has been told is all that became due by the inputs up to `done`, and nothing else
    """

    def __init__(self, plan: Operator, inputs: int, *, by_rounds: bool = False) -> None:
        self._columns = plan.columns
        self._by_rounds = by_rounds  # Each round says all again: it replaces what the one before said and is not told.
        self._round: list[tuple[int, int, int, Row]] = []
        self._waiting: deque[Input] = deque()
        self._reached = [0] * inputs  # By source: its inputs up to this number are through.
        self._rows: list[tuple[int, Row]] = []  # Due at once, with the number of their newest input.
        self._due: list[tuple[int, int, int, Row]] = []  # A heap by the time they are due.
        self._groups: dict[int, dict[Any, Row | None]] = {}  # By the end of the window, by key.
        self._order = 0
        self.done = 0
        self.watermark_us: int | None = None  # As of the last input that is done with.
        self.floor_us: int | None = None

    def expect(self, item: Input) -> None:
        self._waiting.append(item)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Results that are not told yet."""
        return len(self._rows) + len(self._due) + sum(map(len, self._groups.values()))

    def take(self, batch: pa.RecordBatch) -> None:
        """Results as the sink sends them."""
        rows = from_arrow(self._columns, batch.columns[: len(self._columns)])
        numbers = values("int", (), batch.column("number"))
        dues = values("int", (), batch.column("due").view(pa.int64()))
        kept = batch.column("keep").to_pylist()
        groups = keys(batch.column("key"))
        for row, number, due, keep, key in zip(rows, numbers, dues, kept, groups, strict=True):
            if key is not None:
                self._groups.setdefault(due, {})[key] = row if keep else None
            elif not keep or self._was_told(number, due):
                continue
            elif due is None:
                self._rows.append((number, row))
            else:
                self._order += 1
                heappush(self._round if self._by_rounds else self._due, (due, self._order, number, row))

    def _was_told(self, number: int, due: int | None) -> bool:
        """Whether a round says again what one before it said."""
        is_past = due is None or (self.watermark_us is not None and due <= self.watermark_us)
        return self._by_rounds and number <= self.done and is_past

    def mark(self, source: int, number: int) -> None:
        """Everything of a source up to a number is through."""
        self._reached[source] = max(self._reached[source], number)

    def files(self, source: int, file: int) -> None:
        """All files of a source up to one are through."""
        if self._by_rounds and source == 0:  # The first word at the end of a round.
            self._due, self._round = self._round, []
        through = [each.number for each in self._waiting if each.source == source and each.file <= file]
        if through:
            self.mark(source, through[-1])

    def advance(self) -> tuple[list[Input], Sequence[Row]] | None:
        """The inputs that are done with by now, and what became due by them; None while nothing has changed."""
        finished = []
        while self._waiting and self._is_through(self._waiting[0]):
            finished.append(self._waiting.popleft())
        if not finished:
            return None
        self.done, self.watermark_us, self.floor_us = (
            finished[-1].number,
            finished[-1].watermark_us,
            finished[-1].floor_us,
        )
        told = [row for number, row in sorted(self._rows, key=lambda each: each[0]) if number <= self.done]
        if len(told) < len(self._rows):
            self._rows = [each for each in self._rows if each[0] > self.done]
        else:
            self._rows = []
        return finished, [*told, *self._ended()]

    def _is_through(self, item: Input) -> bool:
        return item.source is None or item.number <= self._reached[item.source]

    def _ended(self) -> list[Row]:
        """What waited for its time to come."""
        if self.watermark_us is None:
            return []
        told: list[Row] = []
        later = []
        while self._due and self._due[0][0] <= self.watermark_us:
            each = heappop(self._due)
            if each[2] <= self.done:
                told.append(each[3])
            else:
                later.append(each)
        for each in later:
            heappush(self._due, each)
        for end in sorted(each for each in self._groups if each <= self.watermark_us):
            told += [row for row in self._groups.pop(end).values() if row is not None]
        return told
