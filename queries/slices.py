"""Window aggregates from partial aggregates of slices, for one window or for many over the same rows.

A slice is a stretch of time between two neighbouring edges, an edge being where some window begins or ends ("Cutty",
Carbone et al., CIKM 2016). A row is added once, to its slice and group; a window is put together from the slices in it.
Since partial aggregates are exact (partials.py), the result is that of the reference evaluator, however rows are cut.

Windows over the same rows and groups share the slices: each is a reader. Rows are added for some of the readers, and a
reader has nothing of rows that were added for others. So there is a layer of slices for each set of readers that rows
were added for, with the edges of their windows; a reader puts together all layers that it is in.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, repeat
from typing import Any, Final

from queries.aggregates import same
from queries.compile import on_batch
from queries.expressions import EPOCH, MICROSECOND, TIME, Column, Expression
from queries.partials import Part, Partial, is_partial
from queries.plan import Aggregate, Operator, Project, Restructure, Select, Source, Union, Window, WindowAggregate, walk
from queries.schema import Row

BLOCKS_FROM: Final = 9  # Of so many slices in a window on, some are put together only once.
STEP: Final = 500  # Groups taken up, or put together, between two pauses.

Key = tuple[Any, ...]
Group = list[Partial]
_NAN: Final = same(math.nan)
_CALENDAR: Final = (datetime.min.replace(tzinfo=EPOCH.tzinfo), datetime.max.replace(tzinfo=EPOCH.tzinfo))


@dataclass(frozen=True, slots=True)
class _Span:
    """Windows of one size and slide, in microseconds; they end at the multiples of the slide."""

    size: int
    slide: int

    @property
    def block_us(self) -> int:
        """How long a block of slices is; 0: a window has few slices."""
        slices = self.size // self.slide
        return math.isqrt(slices) * self.slide if slices >= BLOCKS_FROM else 0

    def slice_of(self, time_us: int) -> tuple[int, int]:
        """The edges around a time."""
        begins = (self.size % self.slide, 0) if self.size % self.slide else (0,)
        starts = [time_us - (time_us + phase) % self.slide for phase in begins]
        ends = [start + self.slide for start in starts]
        return max(starts), min(ends)

    def first_end(self, time_us: int) -> int:
        """The end of the first window that may hold a time."""
        return (time_us // self.slide + 1) * self.slide

    def last_end(self, time_us: int) -> int:
        """The end of the last window that holds a time; if none does, of one that ends before it, or at it."""
        return (time_us + self.size) // self.slide * self.slide


@dataclass(slots=True)
class _Reader:
    """One window over the rows, and its aggregates."""

    span: _Span
    aggregates: tuple[Aggregate, ...]
    closed_us: int | None  # Windows that end by then are closed.

    def wants(self, start_us: int) -> bool:
        """Whether a slice is in a window that is still open."""
        last = self.span.last_end(start_us)
        return last > start_us and (self.closed_us is None or last > self.closed_us)


class _Layer:
    """Rows of some readers: slices with the edges of their windows, and partial aggregates for all of them."""

    def __init__(self, readers: dict[int, _Reader], arguments: _Arguments) -> None:
        self.readers = readers  # Those that are still there.
        self.slices: dict[int, dict[Key, Group]] = {}  # By their start.
        self.starts: list[int] = []  # The same, in order.
        # Slices put together for several windows, by the length of a block and its number. All are between two edges.
        self.blocks: dict[tuple[int, int], dict[Key, Group]] = {}
        self.rows = 0  # Groups of slices and blocks, and values that are kept one by one.
        parts = dict.fromkeys(Part.of(each) for reader in readers.values() for each in reader.aggregates)
        self.places = {part: place for place, part in enumerate(parts)}  # Where each is in a group.
        self.arguments = [arguments.of(part) for part in parts]
        self._spans = tuple(dict.fromkeys(reader.span for reader in readers.values()))
        self._blocks_us = tuple(dict.fromkeys(span.block_us for span in self._spans if span.block_us))
        self._makers = [part.maker for part in parts]
        self._nullable = [part.argument is not None and part.argument.nullable for part in parts]
        self._distinct = [place for part, place in self.places.items() if part.kind == "distinct"]

    def slice_of(self, time_us: int) -> tuple[int, int]:
        """The edges around a time."""
        around = [span.slice_of(time_us) for span in self._spans]
        return max(start for start, _ in around), min(end for _, end in around)

    def take(self, start_us: int, given_by_key: dict[Key, list[tuple[Any, ...]]]) -> None:
        """Add what rows of one slice give to the parts."""
        if not any(reader.wants(start_us) for reader in self.readers.values()):
            return
        groups = self.slices.get(start_us)
        if groups is None:
            groups = self.slices[start_us] = {}
            insort(self.starts, start_us)
        for block_us in self._blocks_us:
            self._drop(self.blocks.pop((block_us, start_us // block_us), {}))
        for key, given in given_by_key.items():
            group = groups.get(key)
            if group is None:
                group = groups[key] = [make() for make in self._makers]
                self.rows += 1
            self.rows -= self._values_in(group)
            for partial, values, nullable in zip(group, zip(*given, strict=True), self._nullable, strict=True):
                partial.add([value for value in values if value is not None] if nullable else values)
            self.rows += self._values_in(group)

    def _values_in(self, group: Group) -> int:
        return sum(group[place].rows for place in self._distinct)

    def next_end(self, reader: _Reader) -> int | None:
        """The end of the first window of a reader that is open and holds a slice."""
        span, closed_us = reader.span, reader.closed_us
        first = span.first_end(closed_us) if closed_us is not None else None
        begin = 0 if first is None else bisect_left(self.starts, first - span.size)
        for start in islice(self.starts, begin, None):
            end = span.first_end(start) if first is None else max(first, span.first_end(start))
            if end - span.size <= start:
                return end
        return None

    def held_by(self, span: _Span, end_us: int) -> Iterator[dict[Key, Group]]:
        """The groups of the slices and blocks in a window; no groups are a pause."""
        begin_us, block_us = end_us - span.size, span.block_us
        place = bisect_left(self.starts, begin_us)
        while place < len(self.starts) and (start_us := self.starts[place]) < end_us:
            first_us = start_us // block_us * block_us if block_us else begin_us - 1
            if begin_us <= first_us and first_us + block_us <= end_us:
                after = bisect_left(self.starts, first_us + block_us)
                yield from self._block((block_us, first_us // block_us), self.starts[place:after])
                place = after
            else:
                yield self.slices[start_us]
                place += 1

    def _block(self, name: tuple[int, int], starts: Sequence[int]) -> Iterator[dict[Key, Group]]:
        """The slices of a block put together, if that has not been done since rows came to them."""
        if name not in self.blocks:
            block: dict[Key, Group] = {}
            for start_us in starts:
                for steps, (key, group) in enumerate(self.slices[start_us].items(), 1):
                    if key not in block:
                        block[key] = [make() for make in self._makers]
                    for whole, partial in zip(block[key], group, strict=True):
                        whole.merge(partial)
                    if steps % STEP == 0:
                        yield {}
                yield {}
            self.blocks[name] = block
            self.rows += sum(1 + self._values_in(group) for group in block.values())
        yield self.blocks[name]

    def forget(self) -> Iterator[None]:
        """Let go of the slices that nobody wants any more, a few groups at a time."""
        while self.starts and not any(reader.wants(self.starts[0]) for reader in self.readers.values()):
            start_us = self.starts.pop(0)
            blocks = (self.blocks.pop((block_us, start_us // block_us), {}) for block_us in self._blocks_us)
            for groups in (self.slices.pop(start_us), *blocks):
                while groups:
                    self._drop(groups, STEP)
                    yield

    def _drop(self, groups: dict[Key, Group], count: int | None = None) -> None:
        """Let go of so many groups, or of all."""
        for _ in range(len(groups) if count is None else min(count, len(groups))):
            _, group = groups.popitem()
            self.rows -= 1 + self._values_in(group)


class _Arguments:
    """What rows give to each part. Layers come and go; this is compiled once."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._compiled: dict[Part, Callable[[Sequence[Row]], Iterable[Any]]] = {}

    def of(self, part: Part) -> Callable[[Sequence[Row]], Iterable[Any]]:
        if part not in self._compiled:
            self._compiled[part] = _argument(part, self._columns)
        return self._compiled[part]


class Slices:
    """The slices of some rows, and those who read them.

    While something is closing, nothing may be added: whoever drives this does one thing after the other.
    """

    def __init__(self, keys: Sequence[Expression], columns: Sequence[Column]) -> None:
        self._keys = [_key(each, columns) for each in keys]
        self._arguments = _Arguments(columns)
        self._time_at = next(place for place, column in enumerate(columns) if column.path == (TIME,))
        self._readers: dict[int, _Reader] = {}
        self._layers: dict[tuple[int, ...], _Layer] = {}  # By the readers that their rows were added for.
        self._newest: _Layer | None = None
        self._joined = 0

    def join(self, window: Window, aggregates: Sequence[Aggregate], closed_until_us: int | None = None) -> int:
        """Read these slices from now on; the number of the reader. Windows that end by a time may be closed already."""
        self._joined += 1
        span = _Span(int(window.size), int(window.slide or window.size))
        self._readers[self._joined] = _Reader(span, tuple(aggregates), closed_until_us)
        return self._joined

    def leave(self, number: int) -> None:
        """Somebody reads no more. What only this one had goes, and its edges with the slices that are cut at them."""
        del self._readers[number]
        for layer in self._layers.values():
            layer.readers.pop(number, None)
        self._layers = {readers: layer for readers, layer in self._layers.items() if layer.readers}

    @property
    def rows(self) -> int:
        """How much is kept: groups of slices, and values that are kept one by one."""
        return sum(layer.rows for layer in self._layers.values())

    def rows_of(self, number: int) -> int:
        """How much is kept of what a reader reads, alone or with others."""
        return sum(layer.rows for layer in self._read_by(number))

    def add(self, rows: Sequence[Row], readers: tuple[int, ...]) -> None:
        """Take in rows, for these readers. They are named in order."""
        layer = self._layer_of(readers)
        times = [row[self._time_at] for row in rows]
        keys = zip(*(key(rows) for key in self._keys), strict=True) if self._keys else repeat(())
        given = zip(*(each(rows) for each in layer.arguments), strict=True) if layer.arguments else repeat(())
        found: dict[int, dict[Key, list[tuple[Any, ...]]]] = {}
        begin, end = _CALENDAR[1], _CALENDAR[0]  # Of the slice of the row before.
        by_key: dict[Key, list[tuple[Any, ...]]] = {}
        for time, key, values in zip(times, keys, given):  # noqa: B905 - keys or values may be endless
            if not begin <= time < end:
                start_us, end_us = layer.slice_of((time - EPOCH) // MICROSECOND)
                begin, end = time_at(start_us), time_at(end_us)
                by_key = found.setdefault(start_us, {})
            if key in by_key:
                by_key[key].append(values)
            else:
                by_key[key] = [values]
        for start_us, given_by_key in found.items():
            layer.take(start_us, given_by_key)

    def _layer_of(self, readers: tuple[int, ...]) -> _Layer:
        layer = self._layers.get(readers)
        if layer is None:
            layer = self._layers[readers] = _Layer({each: self._readers[each] for each in readers}, self._arguments)
        self._newest = layer
        return layer

    def _read_by(self, number: int) -> list[_Layer]:
        return [layer for layer in self._layers.values() if number in layer.readers]

    def close(self, number: int, watermark_us: int) -> Iterator[list[Row]]:
        """Close the windows of a reader that end by a time: their results, after pauses.

        A result is the keys, the aggregates, start and end of the window, and the time, which is its end.
        """
        reader = self._readers[number]
        if reader.closed_us is not None and reader.span.first_end(reader.closed_us) > watermark_us:
            reader.closed_us = max(reader.closed_us, watermark_us)
            return  # None ends since.
        layers = self._read_by(number)
        while True:
            ends = [end for layer in layers if (end := layer.next_end(reader)) is not None]
            if not ends or min(ends) > watermark_us:
                break
            yield from self._results(reader, layers, min(ends))
            reader.closed_us = min(ends)
        reader.closed_us = watermark_us if reader.closed_us is None else max(reader.closed_us, watermark_us)
        for layer in layers:
            for _ in layer.forget():
                yield []
        self._drop_empty()

    def _drop_empty(self) -> None:
        """Let go of layers without slices. The newest one may be about to get rows."""
        over = [key for key, layer in self._layers.items() if not layer.slices and layer is not self._newest]
        for key in over:
            del self._layers[key]

    def _results(self, reader: _Reader, layers: list[_Layer], end_us: int) -> Iterator[list[Row]]:
        """The results of one window."""
        found: dict[Key, list[Group]] = {}
        makers = [Part.of(each).maker for each in reader.aggregates]
        steps = 0
        for layer in layers:
            places = [layer.places[Part.of(each)] for each in reader.aggregates]
            for groups in layer.held_by(reader.span, end_us):
                if not groups:
                    yield []
                for key, group in groups.items():
                    found.setdefault(key, []).append([group[place] for place in places])
                    steps += 1
                    if steps % STEP == 0:
                        yield []
        bounds = (time_at(end_us - reader.span.size), time_at(end_us), time_at(end_us))
        rows: list[Row] = []
        for key, parts in found.items():
            shown = (math.nan if each == _NAN else each for each in key)
            rows.append((*shown, *map(_value, reader.aggregates, makers, zip(*parts, strict=True)), *bounds))
            steps += len(parts)
            if steps >= STEP:
                yield rows
                rows, steps = [], 0
        yield rows


def _value(aggregate: Aggregate, make: Callable[[], Partial], partials: Sequence[Partial]) -> Any:
    if len(partials) == 1:
        return partials[0].value(aggregate)
    whole = make()
    for each in partials:
        whole.merge(each)
    return whole.value(aggregate)


def _argument(part: Part, columns: Sequence[Column]) -> Callable[[Sequence[Row]], Iterable[Any]]:
    """What rows give to a part; count(*) takes their presence."""
    return on_batch(part.argument, columns) if part.argument is not None else lambda rows: repeat(True, len(rows))


def _key(key: Expression, columns: Sequence[Column]) -> Callable[[Sequence[Row]], Iterable[Any]]:
    computed = on_batch(key, columns)
    return (lambda rows: map(same, computed(rows))) if key.type == "float" else computed


def time_at(micros: int) -> datetime:
    """A time, clipped to the calendar: a window may reach beyond it."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _CALENDAR[micros > 0]


def is_sliceable(plan: Operator) -> bool:
    """Whether slices can give all results of a plan: of its branches each has one aggregate over windows of time at
    most, directly over a stream or selections of it, and nothing else with state.
    """
    match plan:
        case Union(branches=branches):
            return all(map(is_sliceable, branches))
        case Restructure():
            return is_sliceable(plan.input)
        case Select() | Project():
            parts = [type(each) for each in walk(plan)]
            return is_sliceable(plan.input) and not (Union in parts and WindowAggregate in parts)
        case WindowAggregate(window=window, aggregates=parts):
            return window.kind == "time" and all(map(is_partial, parts)) and _is_selection(plan.input)
    return isinstance(plan, Source)


def _is_selection(plan: Operator) -> bool:
    """Whether a plan is a source with selections; one that numbers its rows keeps count of all of them."""
    while isinstance(plan, Select):
        plan = plan.input
    return isinstance(plan, Source) and (plan.window is None or plan.window.kind == "time")
