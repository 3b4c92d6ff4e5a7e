"""The containers of docker-compose.yml form a network, survive a cut of a minute, and notice who stops and who dies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

COMPOSE_TEST = Path(__file__).resolve().parents[2] / "deploy" / "compose-test"
NO_ENGINE = 77


@pytest.mark.slow
def test_five_containers_find_each_other_and_notice_who_goes():
    run = subprocess.run([COMPOSE_TEST], check=False, capture_output=True, text=True, timeout=1800)
    if run.returncode == NO_ENGINE:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
