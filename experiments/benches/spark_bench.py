"""Spark as a peer uses it, beside the same queries written by hand in plain Structured Streaming, in one run.

    python -m experiments.benches.spark_bench

Rows are tuples of Python in, and results tuples of Python out, on both sides. Ours: spark_jobs/engine.py, as the daemon
calls it. Plain (spark_plain.py): its fastest natural way, Parquet files in memory in, foreachBatch and
Arrow out, in a session with one shuffle partition.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from experiments.benches.figures import GOAL_MISSED, note
from experiments.benches.spark_rows import (
    BATCH_ROWS,
    SMALL_ROWS,
    STREAMS,
    TEXTS,
    Feed,
    Figures,
    measured,
    percentile,
    runs_of,
)
from queries import sql
from queries.plan import Operator, sources
from queries.schema import Row
from spark_jobs.engine import SparkEngine
from spark_jobs.room import resident_bytes

RUNS_TOGETHER: Final = 16
TOGETHER_ROUNDS: Final = 12
IN_FLIGHT: Final = 32  # Inputs on their way while rows per second are measured.
GOALS: Final = {
    "select-project": (15.0, 500_000.0),
    "aggregate": (40.0, 200_000.0),
    "join": (150.0, None),
}
GOAL_TOGETHER_MS: Final = 1000.0
GOAL_BYTES: Final = 900 << 20
GOAL_RATIO: Final = 1.3
PLAIN_S: Final = 300  # Several times what it takes on two quiet cores.


@dataclass
class CountingListener:
    """What the engine tells: how many inputs of each run are done with, and how many rows came."""

    done: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    started: dict[str, None] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def on_started(self, run: str) -> None:
        self.started[run] = None
        self.news.set()

    def on_results(self, run: str, number: int, rows: Sequence[Row]) -> None:
        self.done[run] = number
        self.rows[run] = self.rows.get(run, 0) + len(rows)
        self.news.set()

    def on_state(self, run: str, rows: int) -> None:
        """Not measured here."""

    def on_failed(self, run: str, reason: str) -> None:
        raise RuntimeError(f"{run} failed: {reason}")

    def on_waiting(self, what: str) -> None:
        say(f"Spark: {what}")

    def on_tried(self, reason: str) -> None:
        if reason:
            raise RuntimeError(f"there is no Spark: {reason}")


class Memory(NamedTuple):
    """What the processes of a peer hold, in bytes."""

    own: int
    worker: int
    java: int

    def __str__(self) -> str:
        parts = f"{self.own >> 20} here, {self.worker >> 20} in the worker, {self.java >> 20} in Java"
        return f"{sum(self) >> 20} MB ({parts})"


class Ours:
    """The engine, and the runs in it."""

    def __init__(self) -> None:
        self.told = CountingListener()
        self.engine = SparkEngine(self.told)
        self._feeds: dict[str, tuple[Operator, Feed]] = {}

    async def start(self, run: str, name: str) -> None:
        plan = sql.plan(TEXTS[name], STREAMS).plan
        self._feeds[run] = plan, Feed([each.stream for each in sources(plan)])
        self.engine.start(run, plan, None)
        await self._until(lambda: run in self.told.started)

    def feed(self, run: str, count: int) -> int:
        """Hand on so many rows of each stream; the number of the last input."""
        plan, feed = self._feeds[run]
        aliases = {each.stream: each.alias for each in sources(plan)}
        number = 0
        for stream, rows, watermark_us in feed.next(count):
            feed.number += 1
            number = feed.number
            self.engine.feed(run, number, aliases[stream], rows, True, watermark_us, watermark_us)
        return number

    async def through(self, run: str, number: int) -> None:
        await self._until(lambda: self.told.done.get(run, 0) >= number)

    async def latency_ms(self, run: str) -> float:
        begin = time.perf_counter()
        await self.through(run, self.feed(run, SMALL_ROWS))
        return (time.perf_counter() - begin) * 1000

    async def rows_per_s(self, run: str, batches: int) -> float:
        """How many rows go through while some are always on their way."""
        _, feed = self._feeds[run]
        prepared = [feed.next(BATCH_ROWS) for _ in range(batches)]
        plan, _ = self._feeds[run]
        aliases = {each.stream: each.alias for each in sources(plan)}
        begin, count = time.perf_counter(), 0
        for each in prepared:
            for stream, rows, watermark_us in each:
                feed.number += 1
                count += len(rows)
                self.engine.feed(run, feed.number, aliases[stream], rows, True, watermark_us, watermark_us)
                await self.through(run, feed.number - IN_FLIGHT)
        await self.through(run, feed.number)
        return count / (time.perf_counter() - begin)

    async def stop(self, run: str) -> None:
        self.engine.stop(run)

    def memory(self) -> Memory:
        status = self.engine.status()
        return Memory(*map(resident_bytes, (os.getpid(), status.worker_pid, status.java_pid)))

    async def _until(self, holds: Any) -> None:
        while not holds():
            self.told.news.clear()
            await self.told.news.wait()


async def measure() -> tuple[dict[str, Figures], list[float], Memory, Memory]:
    ours = Ours()
    figures: dict[str, Figures] = {}
    try:
        for name in TEXTS:
            begin = time.perf_counter()
            await ours.start(name, name)
            say(f"{name}: started in {time.perf_counter() - begin:.1f} s")
            latency_ms, rows_per_s = partial(ours.latency_ms, name), partial(ours.rows_per_s, name)
            figures[name] = await measured(latency_ms, rows_per_s, runs_of(name))
            show(name, figures[name])
            await ours.stop(name)
        memory = ours.memory()
        together = await measure_together(ours)
        memory_together = ours.memory()
    finally:
        await ours.engine.close()
    return figures, together, memory, memory_together


async def measure_together(ours: Ours) -> list[float]:
    """Runs of all kinds at once, each with rows on their way all the time."""
    names = [name for name in (*TEXTS, "select-project") for _ in range(RUNS_TOGETHER // 4)]
    runs = [f"{name} {place}" for place, name in enumerate(names)]
    begin = time.perf_counter()
    await asyncio.gather(*(ours.start(run, name) for run, name in zip(runs, names, strict=True)))
    say(f"{len(runs)} runs started in {time.perf_counter() - begin:.1f} s")

    async def busy(run: str) -> list[float]:
        return [await ours.latency_ms(run) for _ in range(TOGETHER_ROUNDS)]

    took = await asyncio.gather(*map(busy, runs))
    for run in runs:
        await ours.stop(run)
    return [each for run in took for each in run[TOGETHER_ROUNDS // 3 :]]


def measure_plain() -> dict[str, Figures]:
    command = [sys.executable, "-m", "experiments.benches.spark_plain"]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=PLAIN_S).stdout
    return {name: Figures(**each) for name, each in json.loads(told).items()}


def say(text: str) -> None:
    print(f"  … {text}", file=sys.stderr, flush=True)


def show(name: str, figures: Figures) -> None:
    rate = f"   {figures.rows_per_s:9,.0f} rows/s" if figures.rows_per_s else ""
    print(f"  {name:15} p50 {figures.ms_p50:7.1f} ms   p95 {figures.ms_p95:7.1f} ms{rate}", flush=True)


def compare(name: str, ours: Figures, plain: Figures) -> bool:
    """Print what a query costs here beside what it costs by hand; whether the goals are met."""
    note(f"Spark, {name}", ours.ms_p50, "ms", "plain", plain.ms_p50)
    if ours.rows_per_s:
        note(f"Spark, {name}", ours.rows_per_s, "rows/s", "plain", plain.rows_per_s)
    goal_ms, goal_rate = GOALS[name]
    ratio = ours.ms_p50 / plain.ms_p50
    line = f"  {name:15} p50 {ours.ms_p50:.1f} ms (goal {goal_ms:.0f}), plain {plain.ms_p50:.0f} ms: ratio {ratio:.2f}"
    is_met = ours.ms_p50 <= goal_ms and ratio <= GOAL_RATIO
    if goal_rate is not None:
        cost = plain.rows_per_s / ours.rows_per_s
        line += (
            f"; {ours.rows_per_s:,.0f} rows/s (goal {goal_rate:,.0f}), plain {plain.rows_per_s:,.0f}: ratio {cost:.2f}"
        )
        is_met = is_met and ours.rows_per_s >= goal_rate and cost <= GOAL_RATIO
    print(line if is_met else f"{line}  MISSED", flush=True)
    return is_met


def main() -> int:
    print(f"Spark, through the engine: {SMALL_ROWS} rows at a time, then batches of {BATCH_ROWS}", flush=True)
    ours, together, memory, memory_together = asyncio.run(measure())
    print("The same in plain Structured Streaming", flush=True)
    try:
        plain = measure_plain()
    except subprocess.SubprocessError as error:
        print(f"  not measured: {error}", flush=True)
        plain = {}
    for name, figures in plain.items():
        show(name, figures)
    print("Beside each other", flush=True)
    met = [compare(name, ours[name], plain[name]) for name in plain]
    p50_ms, p95_ms = percentile(together, 0.5), percentile(together, 0.95)
    print(f"  {RUNS_TOGETHER} runs at once    p50 {p50_ms:.0f} ms (goal {GOAL_TOGETHER_MS:.0f}), p95 {p95_ms:.0f} ms")
    print(f"  resident        {memory}, goal {GOAL_BYTES >> 20}; after {RUNS_TOGETHER} at once {memory_together}")
    if not plain:
        return 1
    is_good = all(met) and p50_ms <= GOAL_TOGETHER_MS and sum(memory_together) <= GOAL_BYTES
    return 0 if is_good else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
