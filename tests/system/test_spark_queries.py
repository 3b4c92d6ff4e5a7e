"""Queries with state over real daemons, most of them run by Spark.

They are exact, whoever is killed in mid-stream, and leave nothing behind.
"""

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

from peerd.client import Client, ConnectionLost, QueryEngine, RunningQuery
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.seeds import draw_seed
from tests.soaking import many
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


@pytest.mark.parametrize(("engine", "victim"), [("spark", "java"), ("spark", "proxy"), ("inline", "proxy")])
async def test_windows_are_exact_whoever_is_killed(fragile: Cluster, engine: QueryEngine, victim: str):
    """Ten ticks a second of event time; every window of every key is told once, with all its ticks."""
    seed = draw_seed()
    rng = random.Random(seed)
    ticks = f"ticks_{engine}_{victim}"
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
        query = five.query(WINDOWS.format(ticks), name="windows", engine=engine)
        async with query as windows, reading(windows) as got:
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


async def test_no_row_of_three_publishers_is_late_while_the_peer_that_reads_them_is_away(fragile: Cluster):
    """They go on meanwhile, each at its own rate. Back again, the reader reads what has piled up."""
    certain: dict[datetime, int] = {}  # Rows that were acknowledged, by the start of their window.
    back = asyncio.Event()

    async def publish_at(number: int, every_s: float) -> None:
        async with client(fragile, number) as one:
            while not back.is_set():
                at = datetime.now(UTC)
                await one.publish("ticks", [(number, at)])
                window = at.replace(microsecond=0)
                certain[window] = certain.get(window, 0) + 1
                await asyncio.sleep(every_s)
            await one.finish("ticks")

    async with client(fragile, 1) as one, client(fragile, READER, SPARK_S) as five:
        await one.create_stream("ticks", "n int, at timestamp", event_time="at", lateness_ms=1000)
        for number in (1, 2, 3):
            async with client(fragile, number) as each:
                await each.publish("ticks", [])  # The catalogue lists it, so it is waited for.
        text = "SELECT count(*) AS times, window_start() AS since FROM ticks [RANGE 1 SECOND SLIDE 1 SECOND]"
        async with five.query(text, name="ticking") as query, reading(query) as got:
            publishing = [asyncio.create_task(publish_at(n, every_s)) for n, every_s in ((1, 0.05), (2, 0.4), (3, 1.3))]
            await until(lambda: len(got) >= 3, "some windows", SPARK_S)
            fragile.kill(READER)
            await asyncio.sleep(many(8, soaked=20))
            await asyncio.to_thread(fragile.restart, READER)
            back.set()
            await asyncio.gather(*publishing)
            due = {(times, since) for since, times in certain.items()}
            await until(lambda: due <= got.keys(), "every window with all its rows", SPARK_S)
            assert set(got) == due
            assert max(got.values()) == 1
            shown = await five.show_query("ticking")
            statuses = [each.status for each in shown.subgraphs if each.status is not None]
            assert sum(item.late for status in statuses for item in status.inputs) == 0


async def test_no_row_is_late_of_three_files_that_are_published_at_once(fragile: Cluster):
    """The times of a file are hours apart, and it is published in a moment. All three publishers are listed before the
    first tuple: one that the reader has not heard of cannot be waited for.
    """
    rows = 300
    listed = asyncio.Barrier(3)

    async def publish_file(number: int) -> None:
        async with client(fragile, number) as one:
            await one.publish("files", [])
            await listed.wait()
            times = [BASE + timedelta(minutes=minute) for minute in range(rows)]
            for place in range(0, rows, 100):
                await one.publish("files", [(number, at) for at in times[place : place + 100]])
            await one.finish("files")

    async with client(fragile, 1) as one, client(fragile, READER, SPARK_S) as five:
        await one.create_stream("files", "n int, at timestamp", event_time="at")
        text = "SELECT count(*) AS times FROM files [RANGE 1 HOUR SLIDE 1 HOUR] WITH (engine = spark)"
        async with five.query(text, name="filed") as query, reading(query) as got:
            await asyncio.gather(*(publish_file(number) for number in (1, 2, 3)))
            await until(lambda: got == {(180,): rows // 60}, f"each hour of all files; got {got}", SPARK_S)
