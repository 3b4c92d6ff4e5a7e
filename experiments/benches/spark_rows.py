"""The rows and queries of spark_bench.py, and what is counted of them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from queries.catalogue import Stream
from queries.expressions import EPOCH, MICROSECOND
from queries.schema import Row, Schema

SMALL_ROWS: Final = 10
BATCH_ROWS: Final = 2000  # As the daemon feeds them.
SEED: Final = 17
DELAY: Final = 6  # Above it a flight passes the selection.
START: Final = datetime.fromisoformat("2026-01-01T00:00:00Z")
STEP: Final = timedelta(seconds=1)  # From one batch of a stream to the next.
AIRPORTS: Final = ("FRA", "JFK", "MUC", "CDG", "LHR", "ATL", "ORD", "MAD")

FLIGHTS: Final = Schema.parse("num int, departing string, delay float, seats int null, at timestamp")
BAGS: Final = Schema.parse("flight int, weight float, at timestamp")
STREAMS: Final = {"flights": Stream("flights", FLIGHTS, "at", 0), "bags": Stream("bags", BAGS, "at", 0)}
TEXTS: Final = {
    "select-project": "SELECT num, departing, delay * 2 AS twice, seats FROM flights WHERE delay > 6",
    "aggregate": "SELECT departing, count(*) AS n, avg(delay) AS delay FROM flights [RANGE 1 SECOND]"
    " GROUP BY departing",
    "join": "SELECT f.num, f.delay, b.weight FROM flights [RANGE 5 SECONDS] f, bags [RANGE 5 SECONDS] b"
    " WHERE f.num = b.flight",
}


class Figures(NamedTuple):
    """What was measured of one query."""

    ms_p50: float
    ms_p95: float
    rows_per_s: float


def percentile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=100)[round(share * 100) - 1]


async def measured(
    latency_ms: Callable[[], Awaitable[float]],
    rows_per_s: Callable[[int], Awaitable[float]],
    runs: tuple[int, int, int],
) -> Figures:
    """Warm up with small batches, measure the rate with large ones, if any, then the latency of small ones."""
    warm, counted, batches = runs
    for _ in range(warm):
        await latency_ms()
    rate = max([await rows_per_s(batches) for _ in range(3)]) if batches else 0.0
    took_ms = [await latency_ms() for _ in range(counted)]
    return Figures(percentile(took_ms, 0.5), percentile(took_ms, 0.95), rate)


def runs_of(name: str) -> tuple[int, int, int]:
    """How many small batches to warm up with and to count, and how many large ones to measure the rate with."""
    return (100, 100, 0) if name == "join" else (200, 200, 150)


class Feed:
    """Rows of streams, a second later with every batch; the values of one batch are those of the one before."""

    def __init__(self, streams: Sequence[str]) -> None:
        self._streams, self._random, self._time = streams, random.Random(SEED), START
        self._values: dict[tuple[str, int], list[Row]] = {}
        self.number = 0

    def next(self, count: int) -> list[tuple[str, list[Row], int]]:
        """A batch of each stream, and the watermark behind it."""
        self._time += STEP
        watermark_us = (self._time - EPOCH) // MICROSECOND
        return [(stream, self._rows(stream, count), watermark_us) for stream in self._streams]

    def _rows(self, stream: str, count: int) -> list[Row]:
        """Rows with the hidden column of a source: their time."""
        if (stream, count) not in self._values:
            self._values[stream, count] = [self._row(stream, place, count) for place in range(count)]
        times = [self._time + STEP * place / count for place in range(count)]
        return [(*row, at, at) for row, at in zip(self._values[stream, count], times, strict=True)]

    def _row(self, stream: str, place: int, count: int) -> Row:
        luck = self._random
        num = luck.randrange(1, count * 2) if place else 0  # The first row always finds one of its time.
        if stream == "flights":
            return num, luck.choice(AIRPORTS), luck.random() * 60, luck.choice((None, 100, 180, 300))
        return num, luck.random() * 30
