"""The containers of docker-compose.yml form a network, notice who goes, and run queries whose hosts are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soaking import IS_SOAK

COMPOSE_TEST = Path(__file__).resolve().parents[2] / "deploy" / "compose-test"
NOT_RUN = 77


@pytest.mark.slow
def test_containers_find_each_other_and_run_queries_exactly_whichever_is_killed():
    """Only where something they depend on has changed; always in `make soak`."""
    command = [sys.executable, COMPOSE_TEST, *([] if IS_SOAK else ["--if-changed"])]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    if run.returncode == NOT_RUN:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
