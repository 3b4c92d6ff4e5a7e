"""`peer bench --join`: how fast this network joins two streams through the join index.

Orders are published at one peer, payments at another, which has the query. First as fast as the network takes them:
tuples in until every result is out. Then a steady rate: from the call that publishes the later tuple of a pair to the
result in the subscriber's hands. Every result is checked to have come, once.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from peerd.cli.output import Column
from peerd.words import milliseconds

if TYPE_CHECKING:
    from peerd.client import Client, QueryEngine, RunningQuery

WARM_BATCHES: Final = 20
IN_FLIGHT_MAX: Final = 40
STEADY_PER_S: Final = 1000
PATIENCE_S: Final = 120.0
SCHEMAS: Final = ("id int, customer string, amount float", "order_id int, paid float")

COLUMNS: Final = (
    Column("join", lambda row: str(row["join"])),
    Column("batch", lambda row: str(row["batch"]), right=True),
    Column("tuples in/s", lambda row: f"{row['tuples_per_s']:,.0f}", right=True),
    Column(f"at {STEADY_PER_S:,}/s p50", lambda row: milliseconds(row["ms_p50"]), right=True),
    Column("p99", lambda row: milliseconds(row["ms_p99"]), right=True),
)


async def measure(writer: Client, reader: Client, algorithm: QueryEngine, batch: int, for_s: float) -> dict[str, Any]:
    """Each part takes about half of the time."""
    orders, payments = (f"{name}_{time.time_ns():x}" for name in ("orders", "payments"))
    text = f"SELECT o.id, o.customer, p.paid FROM {orders} o, {payments} p WHERE o.id = p.order_id"  # noqa: S608 - ours
    publishers = {orders: writer, payments: reader}
    for (stream, client), schema in zip(publishers.items(), SCHEMAS, strict=True):
        await client.create_stream(stream, schema)
    try:
        async with reader.query(text, engine=algorithm) as found:
            join = _Join(publishers, found, batch)
            warm = await join.flood(WARM_BATCHES)
            rate = await join.flood(max(WARM_BATCHES, int(warm * for_s / 4 / batch)))
            times = await join.steady(for_s / 2)
    finally:
        for stream, client in publishers.items():
            await client.drop_stream(stream, force=True)
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return {"join": algorithm, "batch": batch, "tuples_per_s": rate, "ms_p50": p50, "ms_p99": p99}


class _Join:
    """One join, what is published for it, and what comes of it."""

    def __init__(self, publishers: Mapping[str, Client], found: RunningQuery, batch: int) -> None:
        self._publishers = publishers
        self._batches = found.batches()
        self._batch = batch
        self._ids = itertools.count()
        self._turns = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def flood(self, batches: int) -> float:
        """Tuples a second, of both streams, until all their results are here."""
        pairs = [self._pair() for _ in range(batches)]
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive({each for ids in pairs for each in ids}))
            for ids in pairs:
                for stream in self._publishers:
                    await self._turns.acquire()
                    tasks.create_task(self._publish(stream, ids))
        return 2 * batches * self._batch / (time.perf_counter() - began)

    async def steady(self, for_s: float) -> list[float]:
        """How long each result took, in ms, from the call that published its later tuple; the shortest first."""
        pairs = [self._pair() for _ in range(max(1, int(for_s * STEADY_PER_S / self._batch / 2)))]
        sent: dict[int, float] = {}
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(self._receive({each for ids in pairs for each in ids}))
            due_at = time.perf_counter()
            for ids in pairs:
                for stream in self._publishers:
                    await asyncio.sleep(due_at - time.perf_counter())
                    due_at += self._batch / STEADY_PER_S
                    sent.update(dict.fromkeys(ids, time.perf_counter()))
                    await self._turns.acquire()
                    tasks.create_task(self._publish(stream, ids))
        return sorted((at - sent[each]) * 1000 for each, at in receiving.result().items())

    def _pair(self) -> list[int]:
        return list(itertools.islice(self._ids, self._batch))

    async def _publish(self, stream: str, ids: list[int]) -> None:
        is_order = stream == next(iter(self._publishers))
        rows = [(each, f"c{each % 997}", 1.0) if is_order else (each, 2.0) for each in ids]
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
                assert got.keys() <= due, "a result that is not due"
                assert got.total() == len(got.keys() - arrived.keys()), "a result came twice"
                arrived.update(dict.fromkeys(got, now))
        return arrived
