"""Repair, with real daemons: how long it takes until every entry has its three copies again after a kill -9."""

from __future__ import annotations

import asyncio
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from peerd.client import Client
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.system.ports import PORTS

ENTRIES = int(os.environ.get("PEER_REPAIR_ENTRIES", "10000"))
AT_ONCE = 64
OWNERS = 3
GOAL_S = 30.0
PATIENCE_S = 180.0

pytestmark = pytest.mark.alone


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(5, first_port=next(PORTS))
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def copies(cluster: Cluster, *numbers: int) -> int:
    """How many entries these peers hold together."""
    total = 0
    for number in numbers:
        http = cluster.client(number).get("/status")["http"]
        with urllib.request.urlopen(f"http://{http}/metrics", timeout=PATIENCE_S) as answer:
            found = re.search(r"^peerd_store_entries (\S+)$", answer.read().decode(), flags=re.MULTILINE)
        assert found
        total += int(float(found[1]))
    return total


async def until_copied(cluster: Cluster, *numbers: int, within_s: float) -> float:
    """Wait until these peers hold every entry as often as it should be."""
    started_at = time.monotonic()
    while (held := await asyncio.to_thread(copies, cluster, *numbers)) < OWNERS * ENTRIES:
        assert time.monotonic() < started_at + within_s, f"{held} of {OWNERS * ENTRIES} copies after {within_s:.0f} s"
        await asyncio.sleep(0.1)
    return time.monotonic() - started_at


async def test_every_entry_has_three_copies_again_soon_after_a_kill(
    network: Cluster, capsys: pytest.CaptureFixture[str]
):
    """A stream is two entries: its definition, and its line in the directory."""
    names = iter(range(ENTRIES // 2))
    async with Client(network.base.embedded(1).path, patience_s=PATIENCE_S) as client:

        async def create() -> None:
            for number in names:
                await client.create_stream(f"stream{number}", "n int")

        await asyncio.gather(*(create() for _ in range(AT_ONCE)))
    await until_copied(network, 1, 2, 3, 4, 5, within_s=PATIENCE_S)
    network.kill(5)
    took_s = await until_copied(network, 1, 2, 3, 4, within_s=PATIENCE_S)
    with capsys.disabled():
        print(
            f"\n{ENTRIES} entries have three copies again {took_s:.1f} s after a kill -9 (goal: {GOAL_S:.0f} s)", end=""
        )
    assert took_s <= GOAL_S
