"""How fast five daemons on this machine join two streams through the join index.

    python -m experiments.join_bench

Orders are published at one peer, payments at another, in batches of 100; a third peer has the query. First as fast as
the network takes them: tuples in until every result is out. Then 1,000 tuples a second: from the call that publishes the
later tuple of a pair to the result in the subscriber's hands. Every result is checked to have come, once.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from peerd.client import Client, QueryEngine, RunningQuery
from peerd.cluster import Cluster
from peerd.datadir import DataDir

PEERS: Final = 5
FIRST_PORT: Final = 48_600
BATCH_ROWS: Final = 100
WARM_BATCHES: Final = 20
FAST_BATCHES: Final = 400  # Of each stream.
IN_FLIGHT_MAX: Final = 20
STEADY_S: Final = 8.0
STEADY_PER_S: Final = 1000
PATIENCE_S: Final = 60.0
GOAL_PER_S: Final = 20_000
GOAL_MS_P50: Final = 20.0
GOAL_MS_P99: Final = 100.0
ALGORITHMS: Final[tuple[QueryEngine, ...]] = ("sai", "dai-v", "dai-t")
STREAMS: Final = {"orders": "id int, customer string, amount float", "payments": "of int, paid float"}
JOIN: Final = "SELECT o.id, o.customer, p.paid FROM orders o, payments p WHERE o.id = p.of"


class Figures(NamedTuple):
    """What was seen of one algorithm."""

    tuples_per_s: float
    ms_p50: float
    ms_p99: float


class Bench:
    """One join between two publishers and a subscriber."""

    def __init__(self, orders: Client, payments: Client, found: RunningQuery, ids: Iterator[int]) -> None:
        self._publishers = {"orders": orders, "payments": payments}
        self._found = found
        self._batches = found.batches()
        self._ids = ids
        self._turns = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def fast(self, batches: int) -> float:
        """Tuples a second, of both streams, until all their results are here."""
        pairs = [self._pair() for _ in range(batches)]
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            due = {each for ids in pairs for each in ids}
            tasks.create_task(self._receive(due))
            for ids in pairs:
                for stream in STREAMS:
                    await self._turns.acquire()
                    tasks.create_task(self._publish(stream, ids))
        return 2 * batches * BATCH_ROWS / (time.perf_counter() - began)

    async def steady(self) -> list[float]:
        """How long each result took, in ms, from the call that published its later tuple."""
        count = int(STEADY_S * STEADY_PER_S / BATCH_ROWS / 2)
        pairs = [self._pair() for _ in range(count)]
        due = {each for ids in pairs for each in ids}
        sent: dict[int, float] = {}
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(self._receive(due))
            began = time.perf_counter()
            turns = itertools.count()
            for ids in pairs:
                for stream in STREAMS:
                    await asyncio.sleep(began + next(turns) * BATCH_ROWS / STEADY_PER_S - time.perf_counter())
                    sent.update(dict.fromkeys(ids, time.perf_counter()))
                    await self._turns.acquire()
                    tasks.create_task(self._publish(stream, ids))
        arrived = receiving.result()
        return sorted((arrived[each] - sent[each]) * 1000 for each in due)

    def _pair(self) -> list[int]:
        return list(itertools.islice(self._ids, BATCH_ROWS))

    async def _publish(self, stream: str, ids: list[int]) -> None:
        rows = [(each, f"c{each % 997}", 1.0) if stream == "orders" else (each, 2.0) for each in ids]
        await self._publishers[stream].publish(stream, rows)
        self._turns.release()

    async def _receive(self, due: set[int]) -> dict[int, float]:
        """When each result came; complains of any that is not due, or comes twice."""
        arrived: dict[int, float] = {}
        async with asyncio.timeout(PATIENCE_S):
            while len(arrived) < len(due):
                batch = await anext(self._batches)
                now = time.perf_counter()
                got = Counter(row[0] for row in batch.rows)
                assert got.keys() <= due, "a result nobody is due"
                assert not got.keys() & arrived.keys(), "a result came twice"
                assert got.total() == len(got), "a result came twice"
                arrived.update(dict.fromkeys(got, now))
        return arrived


async def measure(cluster: Cluster, algorithm: QueryEngine, ids: Iterator[int]) -> Figures:
    async with AsyncExitStack() as stack:
        one, two, three = [
            await stack.enter_async_context(Client(cluster.base.embedded(number).path, patience_s=PATIENCE_S))
            for number in (1, 2, 3)
        ]
        for stream, schema in STREAMS.items():
            if stream not in {each.name for each in await one.streams()}:
                await one.create_stream(stream, schema)
        found = await stack.enter_async_context(three.query(JOIN, engine=algorithm))
        bench = Bench(one, two, found, ids)
        await bench.fast(WARM_BATCHES)
        rate = await bench.fast(FAST_BATCHES)
        times = await bench.steady()
        return Figures(rate, times[len(times) // 2], times[len(times) * 99 // 100])


async def main() -> int:
    print(f"{PEERS} daemons, one join, batches of {BATCH_ROWS}; goals: {GOAL_PER_S:,} tuples/s in,", end=" ")
    print(f"{GOAL_MS_P50:g} ms p50 and {GOAL_MS_P99:g} ms p99 at {STEADY_PER_S:,} tuples/s", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="join-bench-"))
    cluster = Cluster(DataDir(folder))
    is_good = True
    try:
        cluster.start(PEERS, first_port=FIRST_PORT)
        try:
            cluster.wait_until_up()
            ids = itertools.count()
            for algorithm in ALGORITHMS:
                seen = await measure(cluster, algorithm, ids)
                print(
                    f"{algorithm:<6} {seen.tuples_per_s:>8,.0f} tuples/s in   "
                    f"publication to result {seen.ms_p50:>6.1f} ms p50 {seen.ms_p99:>6.1f} ms p99",
                    flush=True,
                )
                is_good &= seen.tuples_per_s >= GOAL_PER_S and seen.ms_p50 <= GOAL_MS_P50 and seen.ms_p99 <= GOAL_MS_P99
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
