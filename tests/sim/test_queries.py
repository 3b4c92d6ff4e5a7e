"""Continuous queries deployed over a network that breaks: their results are what the reference says, once each."""

from __future__ import annotations

import os
import time

import pytest

from overlay.sim.run import Verdict, run, run_many
from overlay.sim.scenario import parse_scenario, scenario_text

SCENARIO = scenario_text("queries")
COUNT = int(os.environ.get("PEER_SIM_QUERY_SEEDS", "150"))


def test_queries_in_a_network_where_nothing_breaks():
    quiet = parse_scenario(SCENARIO.partition("faults = [")[0] + "faults = []\n")
    outcome = run(quiet, 1)
    assert outcome.verdict is Verdict.OK, outcome.problem
    assert outcome.delivered > 0


@pytest.mark.alone
def test_results_are_exact_where_peers_crash_again_and_again():
    for outcome in run_many(scenario_text("query-restarts"), range(1, 41), jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate query-restarts --seed {outcome.seed}: {outcome.problem}"


@pytest.mark.alone
def test_results_are_exact_in_many_seeds(capsys: pytest.CaptureFixture[str]):
    """Hosts and proxies crash, messages get lost, links break: nothing is missing, twice or invented in the end."""
    started = time.monotonic()
    accepted = 0
    for outcome in run_many(SCENARIO, range(1, COUNT + 1), jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate queries --seed {outcome.seed}: {outcome.problem}"
        accepted += outcome.accepted
    with capsys.disabled():
        took_s = time.monotonic() - started
        print(f"\n{COUNT} seeds of queries: {accepted} rows accepted, every result exact; {took_s:.0f} s", end="")
