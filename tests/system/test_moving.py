"""A join on Spark moves to a daemon whose Spark is off: results go on coming while it starts, and are exact.

Four daemons of the network that `peer up --topology transit-stub` draws. Two publishers are 58 ms apart, the subscriber
80 ms from both; the fourth, beside one of the publishers, is the place for a join once it is known how much flows.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from peerd.client import Client, RunningQuery
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from protocols.execution.messages import QueryShown
from tests.system.clients import DEADLINE_S, client, until
from tests.system.ports import PORTS

pytestmark = [pytest.mark.system, pytest.mark.slow]

READER, NEAR = 2, 4
PUBLISHERS = {"a": 1, "b": 3}
SPARK_S = 300.0  # To start, on a machine that does other things too.
BASE = datetime(2026, 5, 1, tzinfo=UTC)
# Windows so short that few results are to be expected, however fast rows come: else a join is best where they go.
JOIN = (
    "SELECT a.k FROM a [RANGE 10 MILLISECONDS], b [RANGE 10 MILLISECONDS] "
    "WHERE a.k = b.k AND length(a.text) <= length(b.text)"
)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path))
    settings, spark = {"spark": "off"}, {READER: {"spark": "warm"}, NEAR: {"spark": "auto"}}
    cluster.start(4, first_port=next(PORTS), settings=settings, settings_of=spark, topology="transit-stub")
    cluster.wait_until_up(timeout_s=3 * DEADLINE_S)
    yield cluster
    cluster.stop()


class Flow:
    """Rows that match one another, without end; and when their results came."""

    def __init__(self, publishers: dict[str, Client], query: RunningQuery) -> None:
        self._publishers, self._query = publishers, query
        self.published = 0
        self.is_over = False
        self.came: list[tuple[int, float]] = []

    async def publish(self) -> None:
        while not self.is_over:
            keys = range(self.published, self.published + 5)
            rows = [(key, "x" * 1000, BASE + timedelta(milliseconds=200 * key)) for key in keys]
            await asyncio.gather(*(each.publish(name, rows) for name, each in self._publishers.items()))
            self.published += len(rows)
            await asyncio.sleep(0.1)

    async def read(self) -> None:
        async for row in self._query:
            self.came.append((row.k, time.monotonic()))

    @property
    def longest_gap_s(self) -> float:
        return max(later - sooner for (_, sooner), (_, later) in itertools.pairwise(self.came))


async def test_results_come_while_spark_starts_where_a_join_is_to_move(network: Cluster):
    def spark_of(number: int) -> str:
        state: str = network.client(number).get("/status")["spark"]["state"]
        return state

    near = bytes.fromhex(network.client(NEAR).get("/status")["peer_id"])
    async with (
        client(network, PUBLISHERS["a"]) as one,
        client(network, PUBLISHERS["b"]) as other,
        client(network, READER, SPARK_S) as reader,
    ):
        for name, publisher in (("a", one), ("b", other)):
            await publisher.create_stream(name, "k int, text string, at timestamp", event_time="at")
        await until(lambda: spark_of(READER) == "ready", "the reader's Spark is ready", SPARK_S)
        assert spark_of(NEAR) == "off"
        async with reader.query(JOIN, name="q") as query:  # Nothing is known of its streams: it begins at the reader's.
            flow = Flow({"a": one, "b": other}, query)
            async with asyncio.TaskGroup() as tasks:
                publishing, reading = tasks.create_task(flow.publish()), tasks.create_task(flow.read())
                await until(lambda: flow.came, "results before", SPARK_S)
                shown, during = await until_moved(reader, flow)
                moved = len(flow.came)
                await until(lambda: len(flow.came) > moved + 50, "results after", SPARK_S)
                flow.is_over = True
                await publishing
                await until(lambda: len(flow.came) >= flow.published, "all results", SPARK_S)
                reading.cancel()
            assert shown.moves[-1].after == near
            assert sorted(key for key, _ in flow.came) == list(range(flow.published))
            print(f"{during} results while Spark started; none for {flow.longest_gap_s:.1f} s at most")
            assert during


async def until_moved(reader: Client, flow: Flow) -> tuple[QueryShown, int]:
    """What is to be seen of the query then, and how many results came while its new host prepared."""
    before: int | None = None
    during = 0
    async with asyncio.timeout(SPARK_S):
        while True:
            shown = await reader.show_query("q")
            if any(not each.is_given_up for each in shown.moves):
                return shown, during
            if not shown.preparing:
                before = None
            elif before is None:
                before = len(flow.came)
            else:
                during = len(flow.came) - before
            await asyncio.sleep(0.05)
