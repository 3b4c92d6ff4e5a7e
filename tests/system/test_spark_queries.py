"""Queries with state over real daemons, run by Spark: exact, whoever is killed in mid-stream, and silent at the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from peerd.client import Client, ConnectionLost, RunningQuery
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.seeds import draw_seed
from tests.system.clients import client, until
from tests.system.ports import PORTS
from tests.system.publishing import nothing_left

SPARK_S = 300.0  # To start, on a machine that does other things too.
READER = 5
BASE = datetime(2026, 5, 1, 12, tzinfo=UTC)
JOIN = "SELECT l.n AS l, r.n AS r FROM {} [RANGE 1 HOUR] l, {} [RANGE 1 HOUR] r WHERE l.k = r.k"
WINDOWS = """
    SELECT k, count(*) AS times, min(n) AS first, max(n) AS last
    FROM {} [RANGE 1 SECOND SLIDE 1 SECOND]
    GROUP BY k
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Five peers, of which the reader's starts Spark when the first query comes; a test starts again what it kills."""
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("fragile")))
    cluster.start(5, first_port=next(PORTS))
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def spark_of(cluster: Cluster, number: int) -> dict[str, Any]:
    status: dict[str, Any] = cluster.client(number).get("/status")["spark"]
    return status


async def kill(cluster: Cluster, victim: str, rng: random.Random) -> None:
    """End Java, the daemon that runs the query, or the one that publishes to it."""
    if victim == "java":
        pid = spark_of(cluster, READER)["java_pid"]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: spark_of(cluster, READER).get("java_pid") != pid, "the daemon knows that Java died")
        return
    number = {"proxy": READER, "publisher": 2}[victim]
    cluster.kill(number)
    await asyncio.sleep(rng.uniform(0.1, 1.0))
    await asyncio.to_thread(cluster.restart, number)


@contextlib.asynccontextmanager
async def reading(query: RunningQuery) -> Any:
    """Collects rows, with how often each came, while the block lasts."""
    got: Counter[tuple[Any, ...]] = Counter()

    async def read() -> None:
        async for row in query:
            got[tuple(row)] += 1

    task = asyncio.create_task(read())
    try:
        yield got
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def publish(one: Client, stream: str, rows: list[tuple[Any, ...]]) -> bool:
    """Whether all rows are acknowledged; if not, nobody knows whether they were published."""
    try:
        await one.publish(stream, rows)
    except ConnectionLost:
        return False
    return True


@pytest.mark.parametrize("victim", ["java", "proxy", "publisher"])
async def test_a_join_is_exact_whoever_is_killed(fragile: Cluster, victim: str):
    """Rows of both streams before, between and after two kills; each pair that is due comes once, and no other."""
    seed = draw_seed()
    rng = random.Random(seed)
    left, right = f"lefts_{victim}", f"rights_{victim}"
    certain: dict[str, dict[int, int]] = {left: {}, right: {}}  # Key by number, of what was acknowledged.
    numbers = itertools.count()

    async def some(publishers: dict[str, Client], count: int) -> None:
        for _ in range(count):
            for stream, one in publishers.items():
                rows = [(next(numbers), rng.randrange(20), "words") for _ in range(3)]
                if await publish(one, stream, rows):
                    certain[stream].update({n: k for n, k, _ in rows})

    def due() -> set[tuple[int, int]]:
        return {(a, b) for a, k in certain[left].items() for b, other in certain[right].items() if k == other}

    async with client(fragile, 1) as one, client(fragile, 2, 60) as two, client(fragile, READER, SPARK_S) as five:
        for stream in certain:
            await one.create_stream(stream, "n int, k int, words string")
        publishers = {left: two, right: one}
        async with five.query(JOIN.format(left, right), name="pairs") as pairs, reading(pairs) as got:
            await some(publishers, 5)
            for _ in range(2):
                await until(lambda: due() <= got.keys(), "all pairs so far", SPARK_S)
                await asyncio.gather(some(publishers, 10), kill(fragile, victim, rng))
            await some(publishers, 5)
            await until(lambda: due() <= got.keys(), "all pairs", SPARK_S)
            shown = await five.show_query("pairs")
            print(f"{victim} killed twice: {len(due())} pairs due, {len(got)} came; {shown.reason}")
            assert shown.reason or victim == "publisher"
        assert [pair for pair, times in got.items() if times > 1] == []
        if victim == "java":  # Every publish was acknowledged.
            assert got.keys() == due()
        await nothing_left(five, *certain)
        assert spark_of(fragile, READER)["runs"] == {}


@pytest.mark.parametrize("victim", ["java", "proxy"])
async def test_windows_are_exact_whoever_is_killed(fragile: Cluster, victim: str):
    """Ten ticks a second of event time; every window of every key is told once, with all its ticks."""
    seed = draw_seed()
    rng = random.Random(seed)
    ticks = f"ticks_{victim}"
    expected: dict[tuple[int, int], list[int]] = {}  # Ticks by window and key.
    numbers = itertools.count()

    async def some(two: Client, count: int) -> None:
        for _ in range(count):
            n = next(numbers)
            k = rng.randrange(3)
            await two.publish(ticks, [(n, k, BASE + timedelta(milliseconds=100 * n + 50))])
            expected.setdefault((n // 10, k), []).append(n)
            await asyncio.sleep(0.01)

    def due() -> set[tuple[int, int, int, int]]:
        last = max(window for window, _ in expected)
        return {(k, len(ns), ns[0], ns[-1]) for (window, k), ns in expected.items() if window < last}

    async with client(fragile, 1) as one, client(fragile, 2, 60) as two, client(fragile, READER, SPARK_S) as five:
        await one.create_stream(ticks, "n int, k int, at timestamp", event_time="at")
        async with five.query(WINDOWS.format(ticks), name="windows") as windows, reading(windows) as got:
            await some(two, 55)
            for _ in range(2):
                await until(lambda: due() <= got.keys(), "all windows so far", SPARK_S)
                await asyncio.gather(some(two, 80), kill(fragile, victim, rng))
            await some(two, 55)
            await until(lambda: due() <= got.keys(), "all windows", SPARK_S)
            shown = await five.show_query("windows")
            print(f"{victim} killed twice: {len(due())} windows due, {len(got)} came; {shown.reason}")
        assert [row for row, times in got.items() if times > 1] == []
        assert {row for row in got if row[2] < max(expected)[0] * 10} == due()
        await nothing_left(five, ticks)
