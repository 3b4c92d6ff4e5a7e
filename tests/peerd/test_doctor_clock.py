"""What `peer doctor` says of the clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from peerd.cli import doctor
from peerd.control_client import ControlClient
from peerd.datadir import DataDir


@pytest.mark.parametrize(
    ("offset_ms", "peers", "status", "said"),
    [
        (12, 4, "ok", "12 ms ahead of 4 peers"),
        (0, 0, "ok", "nobody to compare it with"),
        (-900, 1, "warn", "900 ms behind 1 peer: one of both is wrong"),
        (-900, 4, "fail", "900 ms behind 4 peers, more than 500 ms"),
    ],
)
def test_a_clock_is_judged_by_what_the_daemon_found(
    offset_ms: int, peers: int, status: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answer = {"clock_offset_ms": offset_ms, "clock_peers": peers}
    monkeypatch.setattr(ControlClient, "get", lambda *_, **__: answer)
    finding = doctor._clock(DataDir(tmp_path), running=True)
    assert finding.status == status
    assert finding.finding.endswith(said)
