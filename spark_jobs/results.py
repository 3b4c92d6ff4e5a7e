"""Puts in order what Spark reports of a run: a result is told once all inputs it may depend on are finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from queries.schema import Row


class Input(msgspec.Struct, frozen=True):
    """A numbered input on its way through Spark."""

    number: int
    source: int | None  # None: it has no rows that Spark must see.
    watermark_us: int | None
    floor_us: int | None


class Told(NamedTuple):
    """Results as the sink sends them, by column; None for a column that is the same for all rows."""

    rows: Sequence[Row]
    numbers: Sequence[int]
    dues: Sequence[int | None] | None  # None: at once.
    keys: Sequence[Any] | None  # None: all are final.
    keeps: Sequence[bool] | None  # None: all are results.


class Results:
    """The unfinished inputs of one run, and the results that wait for them or for the watermark.

    Invariant: exactly the results that became due by the inputs up to `done` have been told
    """

    def __init__(self, inputs: int, *, by_rounds: bool = False) -> None:
        self._by_rounds = by_rounds  # Each round repeats all results: it replaces the untold ones of the round before.
        self._round: list[tuple[int, int, int, Row]] = []  # The results of the present round: those due later,
        self._round_rows: dict[int, list[Row]] = {}  # and those due at once.
        self._waiting: deque[Input] = deque()
        self._reached = [0] * inputs  # For each source, the last input that is through.
        self._rows: dict[int, list[Row]] = {}  # Due at once, by the number of their newest input.
        self._due: list[tuple[int, int, int, Row]] = []  # A heap by the time they are due.
        self._groups: dict[int, dict[Any, Row | None]] = {}  # By the end of the window, by key.
        self._order = 0
        self.done = 0
        self.watermark_us: int | None = None  # After the last finished input.
        self.floor_us: int | None = None

    def expect(self, item: Input) -> None:
        self._waiting.append(item)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Results that have not been told."""
        return sum(map(len, self._rows.values())) + len(self._due) + self.open_groups

    @property
    def open_groups(self) -> int:
        """Groups of windows that have not ended: the state of an aggregate."""
        return sum(map(len, self._groups.values()))

    def take(self, told: Told) -> None:
        rows, numbers = told.rows, told.numbers
        if not rows:
            return
        is_plain = told.keys is told.dues is told.keeps is None and not self._by_rounds
        if is_plain and numbers.count(numbers[0]) == len(rows):
            self._rows.setdefault(numbers[0], []).extend(rows)
            return
        at_once, later = (self._round_rows, self._round) if self._by_rounds else (self._rows, self._due)
        dues: Iterable[Any] = told.dues or repeat(None)
        keys: Iterable[Any] = told.keys or repeat(None)
        keeps: Iterable[bool] = told.keeps or repeat(True)
        for row, number, due, keep, key in zip(rows, numbers, dues, keeps, keys, strict=False):
            if key is not None:
                self._groups.setdefault(due, {})[key] = row if keep else None
            elif not keep or self._was_told(number, due):
                continue
            elif due is None:
                at_once.setdefault(number, []).append(row)
            else:
                self._order += 1
                heappush(later, (due, self._order, number, row))

    def _was_told(self, number: int, due: int | None) -> bool:
        """Whether a round repeats what an earlier round said."""
        is_past = due is None or (self.watermark_us is not None and due <= self.watermark_us)
        return self._by_rounds and number <= self.done and is_past

    def mark(self, source: int, number: int) -> None:
        """Everything of a source up to this input is through."""
        self._reached[source] = max(self._reached[source], number)

    def end_round(self, source: int, number: int) -> None:
        """A micro-batch or job has read everything of a source up to this input."""
        if self._by_rounds and source == 0:  # The first report at the end of a round.
            self._due, self._round = self._round, []
            self._rows, self._round_rows = self._round_rows, {}
        self.mark(source, number)

    def advance(self) -> Sequence[Row] | None:
        """The results that became due with the inputs finished since; None if there are no such inputs."""
        last = None
        while self._waiting and self._is_through(self._waiting[0]):
            last = self._waiting.popleft()
        if last is None:
            return None
        self.done, self.watermark_us, self.floor_us = last.number, last.watermark_us, last.floor_us
        numbers = sorted(number for number in self._rows if number <= self.done)
        told = [row for number in numbers for row in self._rows.pop(number)]
        told += self._ended()
        return told

    def _is_through(self, item: Input) -> bool:
        return item.source is None or item.number <= self._reached[item.source]

    def _ended(self) -> list[Row]:
        """The results whose time has come."""
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
