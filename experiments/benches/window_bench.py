"""Windows in the daemon, beside the same on Spark (spark_bench.py): rows per second, and how long events take.

    python -m experiments.benches.window_bench

Rows are tuples of Python in, and results tuples of Python out, as in spark_bench.py. Its rows and aggregate are these.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from typing import Final

from experiments.benches.figures import GOAL_MISSED, note
from experiments.benches.spark_rows import BATCH_ROWS, SMALL_ROWS, STREAMS, TEXTS, Feed, measured, runs_of
from protocols.execution.aggregation import Aggregations
from queries import sql
from queries.expressions import EPOCH
from queries.plan import sources
from queries.schema import Row

GOAL_ROWS_PER_S: Final = 500_000.0
GOAL_MS: Final = 50.0  # Of one event.
GROUPS: Final = 100_000
SLIDES: Final = {
    "1 minute by 1 second": "[RANGE 1 MINUTE SLIDE 1 SECOND]",
    "1 hour by 1 second": "[RANGE 1 HOUR SLIDE 1 SECOND]",
}


class Inline:
    """A run of the daemon, fed as the daemon feeds it."""

    def __init__(self, text: str) -> None:
        plan = sql.plan(text, STREAMS).plan
        (source,) = sources(plan)
        self.run, self.feed = Aggregations().enter("bench", plan, None), Feed([source.stream])
        self._alias = source.alias
        self.results, self.longest_s = 0, 0.0

    def take(self, rows: Sequence[Row], watermark_us: int) -> None:
        """One input, worked on to its end."""
        self.feed.number += 1
        self.run.feed(self.feed.number, self._alias, rows, True, watermark_us)
        while self.run.aggregation.has_work:
            begin = time.thread_time()
            self.run.aggregation.work()
            self.longest_s = max(self.longest_s, time.thread_time() - begin)
            self.results += sum(len(each.rows) for each in self.run.taken())

    async def latency_ms(self) -> float:
        ((_, rows, watermark_us),) = self.feed.next(SMALL_ROWS)
        begin = time.perf_counter()
        self.take(rows, watermark_us)
        return (time.perf_counter() - begin) * 1000

    async def rows_per_s(self, batches: int) -> float:
        prepared = [each for _ in range(batches) for each in self.feed.next(BATCH_ROWS)]
        begin = time.perf_counter()
        for _, rows, watermark_us in prepared:
            self.take(rows, watermark_us)
        return sum(len(rows) for _, rows, _ in prepared) / (time.perf_counter() - begin)


def measure_many_groups() -> tuple[float, float]:
    """Close a window of many groups: how long that takes, and the longest event."""
    text = "SELECT num, count(*) AS n, avg(delay) AS delay FROM flights [RANGE 1 HOUR SLIDE 1 HOUR] GROUP BY num"
    inline = Inline(text)
    inline.take([(number, "FRA", 1.5, None, EPOCH, EPOCH) for number in range(GROUPS)], 0)
    inline.longest_s = 0.0
    begin = time.perf_counter()
    inline.take([], 3600 * 1_000_000)
    assert inline.results == GROUPS
    return time.perf_counter() - begin, inline.longest_s


def main() -> int:
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)  # As a daemon does.
    print(f"Windows in the daemon: {SMALL_ROWS} rows at a time, then batches of {BATCH_ROWS}", flush=True)
    tumbling = Inline(TEXTS["aggregate"])
    figures = asyncio.run(measured(tumbling.latency_ms, tumbling.rows_per_s, runs_of("aggregate")))
    note("Window in the daemon, aggregate", figures.rows_per_s, "rows/s")
    note("Window in the daemon, aggregate", figures.ms_p50, "ms")
    line = f"p50 {figures.ms_p50:.2f} ms   p95 {figures.ms_p95:.2f} ms   {figures.rows_per_s:,.0f} rows/s"
    print(f"  {'1 second, 8 groups':22} {line} (goal {GOAL_ROWS_PER_S:,.0f})", flush=True)
    for name, window in SLIDES.items():
        sliding = Inline(TEXTS["aggregate"].replace("[RANGE 1 SECOND]", window))
        rate = asyncio.run(sliding.rows_per_s(100))
        print(f"  {name:22} {rate:,.0f} rows/s, {sliding.results} results", flush=True)
    whole_s, longest_s = measure_many_groups()
    print(
        f"  {GROUPS:,} groups closed in {whole_s:.2f} s, longest event {longest_s * 1000:.1f} ms (goal {GOAL_MS:.0f})"
    )
    is_good = figures.rows_per_s >= GOAL_ROWS_PER_S and longest_s * 1000 <= GOAL_MS
    return 0 if is_good else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
