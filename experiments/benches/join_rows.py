"""The join of join_bench.py for systems that are one process: the same rows, the same two questions.

How many tuples a second go in until every result is out; and, at a steady rate, how long it takes from handing over the
later tuple of a pair to its result. Nothing but the standard library: other systems have environments of their own.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

StreamName = Literal["orders", "payments"]
STREAMS: Final[tuple[StreamName, ...]] = ("orders", "payments")
PATIENCE_S: Final = 120.0

Put = Callable[[StreamName, list[tuple[Any, ...]]], None]
"""Hands some rows of a stream to the system."""


class Shape(NamedTuple):
    """How much is measured."""

    batch_rows: int
    warm_batches: int
    fast_batches: int  # Of each stream.
    steady_s: float
    steady_per_s: int

    @classmethod
    def from_arguments(cls) -> Shape:
        """As the comparison hands it over."""
        return cls(**json.loads(sys.argv[1]))


def rows_of(stream: StreamName, ids: Iterable[int]) -> list[tuple[Any, ...]]:
    return [(each, f"c{each % 997}", 1.0) if stream == "orders" else (each, 2.0) for each in ids]


class Arrivals:
    """Results, by the number of their order, and when they came; one that comes twice is an error."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._at: dict[int, float] = {}

    def note(self, ids: Iterable[int]) -> None:
        now = time.perf_counter()
        with self._news:
            for each in ids:
                assert each not in self._at, f"result {each} came twice"
                self._at[each] = now
            self._news.notify_all()

    def wait_for(self, ids: range) -> dict[int, float]:
        """When all of these came."""
        with self._news:
            if not self._news.wait_for(lambda: all(each in self._at for each in ids), PATIENCE_S):
                raise TimeoutError(f"{sum(each not in self._at for each in ids)} results have not come")
            return {each: self._at[each] for each in ids}


def measure(shape: Shape, put: Put, arrivals: Arrivals) -> dict[str, float]:
    """Warm up, then ask both questions."""
    size = shape.batch_rows

    def fast(first: int, batches: int) -> float:
        began = time.perf_counter()
        for batch in range(batches):
            ids = range(first + batch * size, first + (batch + 1) * size)
            for stream in STREAMS:
                put(stream, rows_of(stream, ids))
        arrivals.wait_for(range(first, first + batches * size))
        return 2 * batches * size / (time.perf_counter() - began)

    fast(0, shape.warm_batches)
    done = shape.warm_batches * size
    rate = fast(done, shape.fast_batches)
    done += shape.fast_batches * size
    pairs = int(shape.steady_s * shape.steady_per_s / size / 2)
    sent: dict[int, float] = {}
    began = time.perf_counter()
    for turn in range(2 * pairs):
        time.sleep(max(0.0, began + turn * size / shape.steady_per_s - time.perf_counter()))
        stream, first = STREAMS[turn % 2], done + turn // 2 * size
        ids = range(first, first + size)
        sent.update(dict.fromkeys(ids, time.perf_counter()))
        put(stream, rows_of(stream, ids))
    arrived = arrivals.wait_for(range(done, done + pairs * size))
    times = sorted((at - sent[each]) * 1000 for each, at in arrived.items())
    return {"tuples_per_s": rate, "ms_p50": times[len(times) // 2], "ms_p99": times[len(times) * 99 // 100]}
