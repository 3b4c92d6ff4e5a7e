"""Ten clients that publish as fast as one that the network cannot follow: it takes as much as before, and recovers."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from peerd.client import Client, Subscription
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from peerd.rows import encode_rows
from queries.schema import Schema
from tests.soaking import many
from tests.system.clients import client, until
from tests.system.ports import PORTS
from tests.system.processes import peak_bytes

pytestmark = [pytest.mark.alone, pytest.mark.slow]

SCHEMA = "client int, n int, note string"
BATCH_ROWS = 500
IN_FLIGHT = 20  # Batches of one client: enough to keep the network busy.
CLIENTS = 10  # Each with as many under way as the one that measured what the network can take.
FOR_S = many(4.0, 30.0)
SINGLES = 20
GOODPUT_LEAST = 0.8
MEMORY_MOST = 1.5
RECOVERY_S = 30.0
LATENCY_MOST = 3.0  # Of a single tuple after the overload, to that before it.


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(3, first_port=next(PORTS), settings={"spark": "off"})
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


class Arrivals:
    """What a reader gets."""

    def __init__(self) -> None:
        self.count = 0
        self.batches: set[tuple[int, int]] = set()  # Client and number of each batch that has begun to arrive.
        self.singles: dict[int, float] = {}

    async def read(self, subscription: Subscription) -> None:
        async for batch in subscription.batches():
            for sender, n, _ in batch.rows:
                if sender < 0:
                    self.singles[n] = time.perf_counter()
                    continue
                self.count += 1
                if n % BATCH_ROWS == 0:
                    assert (sender, n) not in self.batches, "a batch came twice"
                    self.batches.add((sender, n))


async def flood(one: Client, sender: int, first: int, for_s: float) -> int:
    """Publish as fast as the peer takes it; returns how many rows it has acknowledged, all of them in the end."""
    schema = Schema.parse(SCHEMA)
    ends_at = time.monotonic() + for_s
    under_way: set[asyncio.Task[object]] = set()
    sent = 0
    for batch in itertools.count():
        if time.monotonic() > ends_at:
            break
        begin = first + batch * BATCH_ROWS
        rows = encode_rows(schema, [(sender, begin + n, "x" * 40) for n in range(BATCH_ROWS)])
        under_way.add(asyncio.create_task(one.publish_encoded("flood", rows, BATCH_ROWS)))
        sent += BATCH_ROWS
        if len(under_way) >= IN_FLIGHT:
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*under_way)
    return sent


async def single_ms(one: Client, arrivals: Arrivals, numbers: Iterator[int]) -> float:
    took: list[float] = []
    for n in itertools.islice(numbers, SINGLES):
        began_at = time.perf_counter()
        await one.publish("flood", [(-1, n, "")])
        await until(lambda n=n: n in arrivals.singles, "a single tuple arrives")
        took.append((arrivals.singles[n] - began_at) * 1000)
    return statistics.median(took)


async def test_ten_times_the_load_costs_neither_goodput_nor_memory_nor_what_was_acknowledged(network: Cluster):
    pids = [peer.daemon.process.pid for peer in network.peers]
    numbers = itertools.count()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(network, 1)) for _ in range(CLIENTS)]
        reader = await stack.enter_async_context(client(network, 2))
        await clients[0].create_stream("flood", SCHEMA)
        await clients[0].schema("flood")
        subscription = await stack.enter_async_context(reader.subscribe("flood", since="start"))
        arrivals = Arrivals()
        reading = asyncio.create_task(arrivals.read(subscription))
        before_ms = await single_ms(clients[0], arrivals, numbers)

        began_at = time.monotonic()
        alone = await flood(clients[0], 0, 0, FOR_S)
        await until(lambda: arrivals.count == alone, "all rows of one client")
        takes_per_s = alone / (time.monotonic() - began_at)
        memory = [peak_bytes(pid) for pid in pids]

        began_at = time.monotonic()
        floods = [flood(one, n, alone if n == 0 else 0, FOR_S) for n, one in enumerate(clients)]
        published = alone + sum(await asyncio.gather(*floods))
        await until(lambda: arrivals.count >= published, "all rows of ten clients")
        most = [peak_bytes(pid) for pid in pids]
        took_per_s = (published - alone) / (time.monotonic() - began_at)
        over_at = time.monotonic()
        while (after_ms := await single_ms(clients[0], arrivals, numbers)) > LATENCY_MOST * before_ms:
            assert time.monotonic() < over_at + RECOVERY_S, f"a tuple takes {after_ms:.1f} ms, before {before_ms:.1f}"
        recovered_s = time.monotonic() - over_at
        assert not reading.done()
        reading.cancel()
    grown = max(each / before for each, before in zip(most, memory, strict=True))
    print(
        f"one client {takes_per_s:,.0f} rows/s, {CLIENTS} clients {took_per_s:,.0f}; memory x {grown:.2f}; "
        f"one tuple {before_ms:.1f} ms before, {after_ms:.1f} ms {recovered_s:.1f} s after"
    )
    assert arrivals.count == published == len(arrivals.batches) * BATCH_ROWS, "each row came once"
    assert took_per_s >= GOODPUT_LEAST * takes_per_s
    assert grown <= MEMORY_MOST
