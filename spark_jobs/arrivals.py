"""In which order recorded tuples arrived, and what a query would have known when each of them came.

It follows queries/reference.py exactly, for streams too long to hold as rows: only times and numbers are kept here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import NamedTuple

import pyarrow as pa

from queries.plan import Source, Window
from spark_jobs.flow import FOREVER_US
from spark_jobs.recordings import ORIGIN, PUBLISHED, SEQUENCE, Recording


class Numbers(NamedTuple):
    """What an engine is told of the rows of one source, in the order of their file."""

    in_time: list[bool]
    time_us: list[int]
    rank: list[int]
    arrival: list[int]
    closed_us: list[int | None]  # The watermark of all sources, once the row has arrived.


@dataclass(frozen=True, slots=True)
class _Stream:
    """The tuples of one recording in the order of their publication."""

    published_us: list[int]  # In the order of the file.
    order: list[int]  # Places in the file, by publication.
    arrivals: list[int]  # In that order, counted over all streams.


@dataclass(frozen=True, slots=True)
class _Arriving:
    """The tuples of a source by arrival: their times, and the highest so far."""

    arrivals: list[int]
    time_us: list[int]
    highest_us: list[int]


class Arrivals:
    """All tuples of some recordings, in one order: by publication, ties by stream, then by publisher and number."""

    def __init__(self, recordings: Mapping[str, Recording]) -> None:
        self._recordings = recordings
        self._streams: dict[str, _Stream] = {}
        for name, each in recordings.items():
            keys = list(
                zip(
                    _microseconds(each.column(PUBLISHED)),
                    each.column(ORIGIN).to_pylist(),
                    each.column(SEQUENCE).to_pylist(),
                    strict=True,
                )
            )
            order = sorted(range(len(keys)), key=keys.__getitem__)
            self._streams[name] = _Stream([key[0] for key in keys], order, [])
        lists = (self._places(name) for name in sorted(recordings))
        for arrival, (_, name, _) in enumerate(merge(*lists)):
            self._streams[name].arrivals.append(arrival)

    def _places(self, name: str) -> Iterable[tuple[int, str, int]]:
        stream = self._streams[name]
        return ((stream.published_us[at], name, place) for place, at in enumerate(stream.order))

    def numbers(self, source: Source, together: Sequence[Source]) -> Numbers:
        """What is known of the rows of a source, in a query that reads these sources."""
        stream, own = self._streams[source.stream], self._arriving(source)
        count = len(stream.order)
        closed = _lowest([self._marks(each, own.arrivals) for each in together], count)
        lateness_us = source.lateness_ms * 1000
        in_time = [
            last is None or last >= highest - lateness_us
            for last, highest in zip(_last_times(source.window, own.time_us), own.highest_us, strict=True)
        ]
        by_time = sorted((place for place in range(count) if in_time[place]), key=own.time_us.__getitem__)
        rank = [0] * count
        for number, place in enumerate(by_time):
            rank[place] = number
        numbers = Numbers([False] * count, [0] * count, [0] * count, [0] * count, [None] * count)
        for place, at in enumerate(stream.order):
            numbers.in_time[at], numbers.time_us[at] = in_time[place], own.time_us[place]
            numbers.rank[at], numbers.arrival[at] = rank[place], own.arrivals[place]
            numbers.closed_us[at] = closed[place]
        return numbers

    def _arriving(self, source: Source) -> _Arriving:
        stream = self._streams[source.stream]
        times = list(stream.published_us)
        if source.event_time is not None:
            events = _microseconds(self._recordings[source.stream].column(source.event_time))
            times = [time if event is None else event for time, event in zip(times, events, strict=True)]
        arriving = _Arriving(stream.arrivals, [times[at] for at in stream.order], [])
        highest = -(1 << 80)
        for time in arriving.time_us:
            highest = max(highest, time)
            arriving.highest_us.append(highest)
        return arriving

    def _marks(self, source: Source, arrivals: list[int]) -> list[int | None]:
        """The watermark of a source after each of these tuples has arrived; None before its first tuple."""
        other, place, mark = self._arriving(source), 0, None
        marks: list[int | None] = []
        for arrival in arrivals:
            while place < len(other.arrivals) and other.arrivals[place] <= arrival:
                mark = other.highest_us[place] - source.lateness_ms * 1000
                place += 1
            marks.append(mark)
        return marks


def _lowest(marks: list[list[int | None]], count: int) -> list[int | None]:
    lowest: list[int | None] = []
    for place in range(count):
        known = [each[place] for each in marks]
        lowest.append(None if None in known else min(mark for mark in known if mark is not None))
    return lowest


def _last_times(window: Window | None, times: list[int]) -> list[int | None]:
    """The last time at which each row is in its window; None: it has no end."""
    match window:
        case Window(kind="time", size=size, slide=None):
            return [time + min(int(size), FOREVER_US) for time in times]
        case Window(kind="time", size=size, slide=slide) if slide is not None:
            length, step = int(size), int(slide)
            return [((time + length) // step + 1) * step - 1 for time in times]
        case Window(kind="rows"):
            return list(times)
    return [None] * len(times)


def _microseconds(column: pa.ChunkedArray) -> list[int]:
    return [each for chunk in column.chunks for each in chunk.view(pa.int64()).to_pylist()]
