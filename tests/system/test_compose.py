"""The containers of docker-compose.yml form a network, survive a cut of a minute, and notice who stops and who dies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.soaking import IS_SOAK

COMPOSE_TEST = Path(__file__).resolve().parents[2] / "deploy" / "compose-test"
NOT_RUN = 77


@pytest.mark.slow
def test_five_containers_find_each_other_and_notice_who_goes():
    """Only where something they depend on has changed; always in `make soak`."""
    command = [COMPOSE_TEST, *([] if IS_SOAK else ["--if-changed"])]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    if run.returncode == NOT_RUN:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
