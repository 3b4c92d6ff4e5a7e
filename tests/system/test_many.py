"""Many streams and many queries at one peer: they all run, also after a crash, and one costs no more in company.

Times are printed, and only `make soak` goes by them: other processes may want the processors as well.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest

from peerd.client import Client
from peerd.cluster import Cluster
from peerd.config import HTTP_PORT_OFFSET
from peerd.datadir import DataDir
from tests.soaking import IS_SOAK, many
from tests.system.clients import client
from tests.system.ports import PORTS
from tests.system.processes import resident_bytes

pytestmark = [pytest.mark.alone, pytest.mark.slow]

COUNTS = (many(50, 200), many(200, 2000))
IN_FLIGHT = 50  # So many are created or submitted at once.
SINGLES = 50
MEMORY_MAX_KB = 150.0  # Of one stream and its query.
GROWTH_MAX = 3.0  # Of the cost of one stream or query, from the smaller number to the larger.
WITHIN_S = 600.0


class Costs(NamedTuple):
    """Of one network in which one peer has so many streams, and a query over each."""

    count: int
    create_ms: float  # For each stream,
    submit_ms: float  # for each query,
    memory_kb: float  # for each stream and its query.
    restart_s: float
    publish_ms: float  # From the call that publishes a tuple to the result in the client's hands.
    longest_ms: float  # The longest that one event held the loop.

    def __str__(self) -> str:
        return (
            f"{self.count:>6,} streams and queries: {self.create_ms:.2f} ms to create a stream, {self.submit_ms:.2f} "
            f"ms to submit a query, {self.memory_kb:.1f} kB for both; restart {self.restart_s:.1f} s, publish to "
            f"result {self.publish_ms:.2f} ms, longest event {self.longest_ms:.0f} ms"
        )


async def in_turns(count: int, work: asyncio.Semaphore, one: Client, what: str) -> float:
    """Create all streams, or submit all queries; returns the milliseconds for each."""

    async def do(number: int) -> None:
        async with work:
            if what == "stream":
                await one.create_stream(f"s{number}", "id int, weight float")
            else:
                await one.submit(f"SELECT id FROM s{number} WHERE weight > 10", name=f"q{number}")

    began_at = time.monotonic()
    await asyncio.gather(*(do(number) for number in range(count)))
    return (time.monotonic() - began_at) * 1000 / count


async def publish_to_result_ms(one: Client, count: int) -> float:
    number = count // 2
    took: list[float] = []
    async with one.attach(f"q{number}") as results:
        rows = aiter(results)
        for n in range(SINGLES):
            began_at = time.perf_counter()
            await one.publish(f"s{number}", [(n, 20.0)])
            async with asyncio.timeout(WITHIN_S):
                while (await anext(rows))[0] != n:
                    pass
            took.append((time.perf_counter() - began_at) * 1000)
    return statistics.median(took)


async def all_run(cluster: Cluster, count: int) -> float:
    """How long until all queries run again."""
    began_at = time.monotonic()
    async with client(cluster, 1, patience_s=WITHIN_S) as one:
        while True:
            queries = await one.queries()
            if len(queries) == count and all(each.state == "running" for each in queries):
                return time.monotonic() - began_at
            assert time.monotonic() < began_at + WITHIN_S, [each.state for each in queries if each.state != "running"]
            await asyncio.sleep(0.2)


def longest_event_ms(port: int) -> float:
    connection = HTTPConnection("127.0.0.1", port + HTTP_PORT_OFFSET, timeout=60)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    found = re.search(r"^peerd_event_longest_seconds (\S+)", text, re.MULTILINE)
    assert found is not None
    return float(found[1]) * 1000


async def measure(folder: Path, count: int) -> Costs:
    cluster = Cluster(DataDir(folder))
    cluster.start(3, first_port=next(PORTS), settings={"spark": "off"})
    try:
        cluster.wait_until_up()
        before = resident_bytes(cluster.peers[0].daemon.process.pid)
        async with client(cluster, 1, patience_s=WITHIN_S) as one:
            work = asyncio.Semaphore(IN_FLIGHT)
            create_ms = await in_turns(count, work, one, "stream")
            submit_ms = await in_turns(count, work, one, "query")
        await all_run(cluster, count)
        longest_ms = longest_event_ms(cluster.peers[0].port)
        memory_kb = (resident_bytes(cluster.peers[0].daemon.process.pid) - before) / count / 1000
        cluster.kill(1)
        began_at = time.monotonic()
        await asyncio.to_thread(cluster.restart, 1)
        await all_run(cluster, count)
        restart_s = time.monotonic() - began_at
        async with client(cluster, 1, patience_s=WITHIN_S) as one:
            publish_ms = await publish_to_result_ms(one, count)
        longest_ms = max(longest_ms, longest_event_ms(cluster.peers[0].port))
    finally:
        cluster.stop()
    return Costs(count, create_ms, submit_ms, memory_kb, restart_s, publish_ms, longest_ms)


async def test_many_queries_run_again_after_a_crash_and_one_costs_no_more_than_among_few(tmp_path: Path):
    few, more = [await measure(tmp_path / str(count), count) for count in COUNTS]
    print(f"{few}\n{more}")
    assert more.memory_kb <= MEMORY_MAX_KB
    if IS_SOAK:
        for cost in ("create_ms", "submit_ms", "publish_ms"):
            grown = getattr(more, cost) / getattr(few, cost)
            assert grown <= GROWTH_MAX, f"{cost} is {grown:.1f} times as large"
        assert more.restart_s <= GROWTH_MAX * few.restart_s * more.count / few.count
