"""How much memory real daemons take that have nothing to do."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.system.ports import PORTS

IDLE_BYTES_MAX = 80_000_000
IDLE_SHARE = 0.1  # Of one processor, over two seconds: loading the languages takes all of one for half a second.


def processor_s(pid: int) -> float:
    """What a process has used of the processors since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(pids: list[int], deadline_s: float = 120) -> None:
    began_at = time.monotonic()
    while True:
        before, looked_at = [processor_s(pid) for pid in pids], time.monotonic()
        time.sleep(2)
        passed_s = time.monotonic() - looked_at
        if all(processor_s(pid) - then < IDLE_SHARE * passed_s for pid, then in zip(pids, before, strict=True)):
            return
        assert time.monotonic() < began_at + deadline_s, "the daemons are never idle"


def resident_bytes(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.alone
@pytest.mark.parametrize("peers", [1, 5])
def test_an_idle_daemon_takes_at_most_80_mb(tmp_path: Path, peers: int):
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
