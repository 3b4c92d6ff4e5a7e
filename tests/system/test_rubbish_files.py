"""Daemons whose files are rubbish: they say in one line which file it is, or do without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.system.ports import PORTS

RUBBISH = {"bytes": bytes(range(128, 256)), "nothing": b"", "brackets": b"[" * 200_000}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a daemon that has run."""
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("sound")))
    cluster.start(1, first_port=next(PORTS), settings={"spark": "off"})
    cluster.wait_until_up()
    cluster.stop()
    return cluster.base.embedded(1).path


def started(folder: Path) -> subprocess.CompletedProcess[str]:
    """Start a daemon that can only fail."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PEER_")}
    return subprocess.run(
        [sys.executable, "-m", "peerd.daemon"],
        env=environ | {"PEER_DATA_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", ["peer.key", "network", "peerd.toml"])
def test_a_daemon_that_cannot_read_a_file_names_it_and_ends(sound: Path, tmp_path: Path, name: str):
    folder = tmp_path / "peer"
    shutil.copytree(sound, folder, ignore=shutil.ignore_patterns("*.sock"))
    (folder / name).write_bytes(RUBBISH["bytes"])
    done = started(folder)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    (first,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert name in first or str(folder) in done.stderr


@pytest.mark.parametrize("kind", RUBBISH)
def test_a_daemon_does_without_files_that_only_save_it_time(tmp_path: Path, kind: str):
    """And while it runs it reads none of the others."""
    cluster = Cluster(DataDir(tmp_path))
    folder = cluster.base.embedded(1)
    folder.prepare()
    for name in ("contacts", "left", "peer.pid"):
        (folder.path / name).write_bytes(RUBBISH[kind])
    cluster.start(1, first_port=next(PORTS), settings={"spark": "off"})
    try:
        cluster.wait_until_up()
        for name in ("peer.key", "network", "peerd.toml", "contacts"):
            (folder.path / name).write_bytes(RUBBISH[kind])
        assert cluster.client(1).get("/status")["state"] == "running"
        assert cluster.peers[0].daemon.process.poll() is None
    finally:
        cluster.stop()
    assert "Traceback" not in folder.log_file.read_text()
