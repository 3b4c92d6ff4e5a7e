"""A real daemon whose file descriptors are used up by those who connect to it."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from peerd.client import Client
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.system.clients import client, peer, until
from tests.system.ports import PORTS

LIMIT = 64
ROW = "x" * 100_000
ROWS = 200  # More than a segment of the journal holds: it needs another file.
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("exhausted")))
    cluster.start(1, first_port=next(PORTS), settings={"spark": "off"})
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def busy_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def opened(path: Path, holding: ExitStack) -> bool:
    """Open one more connection to a daemon, if it takes one."""
    one = holding.enter_context(socket.socket(socket.AF_UNIX))
    one.setblocking(False)
    return one.connect_ex(str(path)) == 0


async def publish(one: Client) -> None:
    for first in range(1, ROWS, 9):
        await one.publish("s", [(number, ROW) for number in range(first, min(first + 9, ROWS))])


async def test_a_daemon_without_file_descriptors_goes_on_and_serves_again_once_there_are_some(cluster: Cluster):
    data, pid = cluster.base.embedded(1), cluster.peers[0].daemon.process.pid
    peer(cluster, "stream", "create", "s", "id int, text string")
    async with client(cluster, 1) as one:
        await one.publish("s", [(0, ROW)])
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        with ExitStack() as holding:

            def is_full() -> bool:
                opened(data.data_socket_path, holding)
                return len(list(Path(f"/proc/{pid}/fd").iterdir())) >= LIMIT

            await until(is_full, "all descriptors are used")
            await until(lambda: "no file descriptor is left" in data.log_file.read_text(), "the log says so")
            work = asyncio.ensure_future(publish(one))
            busy_before, began_at = busy_s(pid), time.monotonic()
            await asyncio.sleep(2)  # It is this long that it has to hold out.
            took_s = time.monotonic() - began_at
            assert cluster.peers[0].daemon.process.poll() is None, data.log_file.read_text()
            assert busy_s(pid) - busy_before < took_s / 2, "it does not try without a pause"
        await work
    await until(lambda: "there are file descriptors again" in data.log_file.read_text(), "the log says so")
    async with client(cluster, 1) as another:
        read: list[int] = []
        async for row in another.subscribe("s", since="start"):
            read.append(row.id)
            if len(read) == ROWS:
                break
    assert read == list(range(ROWS))
    log = data.log_file.read_text()
    assert log.count("no file descriptor is left") == 1, "said once"
    assert "Traceback" not in log
