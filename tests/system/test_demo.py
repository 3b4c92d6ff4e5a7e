"""The demonstration shows what it claims: peers that find each other, tuples that arrive once, a crash in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("options", [["--no-spark"], pytest.param([], marks=pytest.mark.slow)])
def test_the_demonstration_loses_nothing_and_stops_what_it_started(tmp_path: Path, options: list[str]):
    done = subprocess.run(
        [sys.executable, "-m", "peerd.cli", "demo", "--for", "6s", *options],
        env={**os.environ, "PEER_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert said.count("alive") >= 5
    assert "kill -9 peer 2" in said
    assert said.count("kill -9 peer") == 4
    assert said.count("lost 0, twice 0") == (13 if options else 14)
    assert "stopped 5 peers" in said
