"""Continuous queries in a network where nothing breaks; test_seeds.py has those where everything does."""

from __future__ import annotations

from overlay.sim.run import Verdict, run
from overlay.sim.scenario import parse_scenario, scenario_text

SCENARIO = scenario_text("queries")


def test_queries_in_a_network_where_nothing_breaks():
    quiet = parse_scenario(SCENARIO.partition("faults = [")[0] + "faults = []\n")
    outcome = run(quiet, 1)
    assert outcome.verdict is Verdict.OK, outcome.problem
    assert outcome.delivered > 0
