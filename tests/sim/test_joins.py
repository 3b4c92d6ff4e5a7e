"""Joins through the join index over a network that breaks: their results are what the reference says, once each."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from overlay.sim.run import Verdict, run, run_many
from overlay.sim.scenario import parse_scenario

HERE = Path(__file__).parent / "scenarios"
ALGORITHMS = ("sai", "dai-q", "dai-t", "dai-v")
COUNT = int(os.environ.get("PEER_SIM_JOIN_SEEDS", "500"))  # Of each algorithm.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_joins_in_a_network_where_nothing_breaks(algorithm: str):
    text = (HERE / f"join-{algorithm}.toml").read_text()
    outcome = run(parse_scenario(text.partition("faults = [")[0] + "faults = []\n"), 1)
    assert outcome.verdict is Verdict.OK, outcome.problem
    assert outcome.delivered > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ALGORITHMS, "restarts"])
def test_joins_are_exact_in_many_seeds(name: str, capsys: pytest.CaptureFixture[str]):
    """Rewriters, evaluators and proxies crash, come and go: nothing is missing, twice or invented in the end."""
    started = time.monotonic()
    accepted = 0
    count = COUNT // 5 if name == "restarts" else COUNT
    for outcome in run_many((HERE / f"join-{name}.toml").read_text(), range(1, count + 1), jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate join-{name} --seed {outcome.seed}: {outcome.problem}"
        accepted += outcome.accepted
    with capsys.disabled():
        took_s = time.monotonic() - started
        print(f"\n{count} seeds of join-{name}: {accepted} rows accepted, every result exact; {took_s:.0f} s", end="")
