"""How much memory real daemons take that have nothing to do, or nothing to do any more."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from peerd.client import Client
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.soaking import many
from tests.system.clients import client
from tests.system.ports import PORTS
from tests.system.processes import processor_s, resident_bytes

IDLE_BYTES_MAX = 82_000_000
IN_FLIGHT = 20
ROUNDS, PER_ROUND = many(2, 5), many(40, 250)
REMEMBERED_S = many(0, 100)  # After that the catalogue has forgotten subscriptions.
NOISE_BYTES = 1_500_000  # What a heap grows without keeping anything.
IDLE_SHARE = 0.1  # Of one processor, over two seconds: loading the languages takes all of one for half a second.


def wait_until_idle(pids: list[int], deadline_s: float = 120) -> None:
    began_at = time.monotonic()
    while True:
        before, looked_at = [processor_s(pid) for pid in pids], time.monotonic()
        time.sleep(2)
        passed_s = time.monotonic() - looked_at
        if all(processor_s(pid) - then < IDLE_SHARE * passed_s for pid, then in zip(pids, before, strict=True)):
            return
        assert time.monotonic() < began_at + deadline_s, "the daemons are never idle"


@pytest.mark.alone
@pytest.mark.parametrize("peers", [1, 5])
def test_an_idle_daemon_takes_at_most_82_mb(tmp_path: Path, peers: int):
    cluster = Cluster(DataDir(tmp_path))
    try:
        cluster.start(peers, first_port=next(PORTS))
        cluster.wait_until_up(timeout_s=120)
        pids = [peer.daemon.process.pid for peer in cluster.peers]
        wait_until_idle(pids)
        resident = [resident_bytes(pid) for pid in pids]
    finally:
        cluster.stop()
    print(f"idle daemons of a network of {peers}: {', '.join(f'{each / 1e6:.1f} MB' for each in resident)}")
    assert max(resident) <= IDLE_BYTES_MAX


async def ended(one: Client, kind: str, first: int, count: int) -> None:
    """Start queries, or subscriptions, and stop each as soon as it runs."""
    work = asyncio.Semaphore(IN_FLIGHT)

    async def one_of_them(number: int) -> None:
        async with work:
            if kind == "query":
                accepted = await one.submit(f"SELECT id FROM s WHERE weight > {number}", name=f"q{number}")
                await one.stop_query(accepted.query)
            else:
                async with one.subscribe("s", since="start") as rows:
                    await anext(aiter(rows))

    await asyncio.gather(*(one_of_them(number) for number in range(first, first + count)))
    async with asyncio.timeout(120):
        while await one.queries() or (await one.stream("s")).subscriptions:
            await asyncio.sleep(0.1)


@pytest.mark.alone
@pytest.mark.parametrize(("kind", "kept_bytes_max"), [("query", 8_000), ("subscription", 500)])
async def test_what_has_ended_leaves_no_more_than_the_catalogue_remembers(
    tmp_path: Path, kind: str, kept_bytes_max: int
):
    """Of a query the catalogue remembers for a week that its stream and its own entries are gone, and for a day who
    published to it: five entries, 4 kB in all. Of a subscription it remembers that for a minute.
    """
    cluster = Cluster(DataDir(tmp_path))
    try:
        cluster.start(1, first_port=next(PORTS), settings={"spark": "off"})
        cluster.wait_until_up()
        pid, sizes = cluster.peers[0].daemon.process.pid, []
        async with client(cluster, 1) as one:
            await one.create_stream("s", "id int, weight float")
            await one.publish("s", [(1, 2.0)])
            for number in range(ROUNDS + 1):  # In the first one it loads what it needs.
                await ended(one, kind, number * PER_ROUND, PER_ROUND)
                await asyncio.sleep(REMEMBERED_S)
                sizes.append(resident_bytes(pid))
    finally:
        cluster.stop()
    each = (sizes[-1] - sizes[0]) / (ROUNDS * PER_ROUND)
    print(f"{kind}: {' '.join(f'{size / 1e6:.1f}' for size in sizes)} MB, {each:,.0f} bytes for each that ended")
    assert sizes[-1] - sizes[0] <= NOISE_BYTES + kept_bytes_max * ROUNDS * PER_ROUND
