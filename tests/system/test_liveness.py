"""Real daemons that are paused and killed: the paused are forgiven, the killed are noticed at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.system.ports import PORTS


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(5, first_port=next(PORTS))
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def statuses(cluster: Cluster, address: str, without: int) -> list[str]:
    """How the other peers see the one at an address."""
    return [
        member["status"]
        for peer in cluster.peers
        if peer.number != without
        for member in cluster.client(peer.number).get("/members", crawl=0)
        if member["address"] == address
    ]


@pytest.mark.slow
def test_a_peer_paused_for_5_s_is_declared_dead_by_nobody(cluster: Cluster):
    paused = cluster.peers[2]
    pid = paused.daemon.process.pid
    os.kill(pid, signal.SIGSTOP)
    resume_at = time.monotonic() + 5
    seen: set[str] = set()
    while time.monotonic() < resume_at:
        seen.update(statuses(cluster, paused.address, paused.number))
        time.sleep(0.1)
    os.kill(pid, signal.SIGCONT)
    assert seen == {"alive", "suspect"}
    deadline = time.monotonic() + 5
    while statuses(cluster, paused.address, paused.number) != ["alive"] * 4:
        assert time.monotonic() < deadline, "it is alive again for everybody"
        time.sleep(0.05)


def test_a_peer_killed_at_once_is_dead_for_everybody_within_3_s(cluster: Cluster):
    victim = cluster.peers[2]
    os.kill(victim.daemon.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 3
    while statuses(cluster, victim.address, victim.number) != ["dead"] * 4:
        assert time.monotonic() < deadline, "dead for everybody within 3 s"
        time.sleep(0.05)
