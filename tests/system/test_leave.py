"""Leaving, with real daemons: peers that go one right after another take nothing with them that others need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peerd.client import Client
from peerd.cluster import Cluster, free_ports
from peerd.datadir import DataDir
from tests.system.clients import until
from tests.system.ports import PORTS

STREAMS = 40

pytestmark = pytest.mark.system


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(6, first_port=next(PORTS))
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def client(cluster: Cluster, number: int) -> Client:
    return Client(cluster.base.embedded(number).path, patience_s=60)


def leave(cluster: Cluster, number: int) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PEER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "peerd.cli", "leave", "-p", str(number), "--timeout", "120s"],
        env={**environ, "PEER_DATA_DIR": str(cluster.base.path)},
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_three_peers_that_leave_together_take_no_stream_definition_with_them(network: Cluster):
    names = [f"stream{number:02}" for number in range(STREAMS)]
    async with client(network, 1) as at_first:
        for name in names:
            await at_first.create_stream(name, "n int")
        await at_first.publish(names[0], [{"n": 1}])
    leaving = [leave(network, number) for number in (1, 2, 3)]
    told = [process.communicate(timeout=300)[1] for process in leaving]
    assert [process.returncode for process in leaving] == [0, 0, 0], told
    assert all("handed over" in each and "warning" not in each for each in told), told
    async with client(network, 4) as at_fourth, client(network, 6) as at_sixth:
        assert [listed.name for listed in await at_fourth.streams()] == names
        for name in names:
            assert (await at_sixth.stream(name)).definition.name == name


async def test_a_peer_that_stands_by_stays_away_across_restarts_until_it_is_called_back(tmp_path: Path):
    port = free_ports(1, next(PORTS))[0]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PEER_")}
    environ |= {"PEER_DATA_DIR": str(tmp_path), "PEER_FOUND": "1", "PEER_PORT": str(port), "PEER_SPARK": "off"}
    data = DataDir(tmp_path)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "peerd.daemon", "--stand-by"], env=environ)

    def typed(*words: str) -> str:
        command = [sys.executable, "-m", "peerd.cli", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    daemon = start()
    try:
        await until(lambda: '"running"' in typed("status", "-o", "json"), "the peer is up")
        assert 'left "local"' in typed("leave")
        await until(data.is_stood_by, "its daemon stands by")
        assert not data.is_held()
        assert 'this peer left the network "local"' in typed("status")
        daemon.terminate()
        assert daemon.wait(60) == 0
        daemon = start()
        await until(data.is_stood_by, "the next daemon stands by, too")
        assert f"up at 127.0.0.1:{port}" in typed("up")
        assert data.left() is None
        assert data.pid() == daemon.pid
        daemon.terminate()
        assert daemon.wait(60) == 0
    finally:
        daemon.kill()
        daemon.wait()
