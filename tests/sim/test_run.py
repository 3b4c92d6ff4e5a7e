"""Whole runs of scenarios on the real peer: verdicts, repeatability, traces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlay.sim.faults import FaultRule
from overlay.sim.run import Verdict, run, run_many
from overlay.sim.scenario import Scenario, ScenarioError, parse_scenario, scenario_names, scenario_text
from overlay.sim.tracefile import TraceError, TraceHead, record, replay

ROOT = Path(__file__).parents[2]
CHURN = scenario_text("churn")
QUIET = """
peers = 5
for_s = 5
faults = []
small_limits_share = 0.0
workload = { name = "streams", streams = 3, publishers = 1, subscribers = 2 }
"""


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_of_ours_can_be_read(name: str):
    assert isinstance(parse_scenario(scenario_text(name)), Scenario)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("peers = 'many'", r"\$\.peers"),
        ("peers = 5\nfaults = [{ name = 'earthquake' }]", r"\$\.faults\[0\]\.name"),
        ("peers = 5\ncolour = 1", "colour"),
        ("peers = 5\nfor_s = x", "line 2"),
    ],
)
def test_a_bad_scenario_is_refused_and_says_where(text: str, where: str):
    with pytest.raises(ScenarioError, match=where):
        parse_scenario(text)


def test_without_faults_everything_is_delivered():
    outcome = run(parse_scenario(QUIET), seed=1)
    assert outcome.verdict is Verdict.OK, outcome.problem
    assert outcome.accepted > 5
    assert outcome.delivered > 10


@pytest.mark.slow
def test_a_run_repeats_itself_in_another_process_with_another_hash_seed():
    program = f"from overlay.sim.run import run_many; print(next(run_many({CHURN!r}, [3], 1)).trace_hash)"

    def trace_hash(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout

    assert trace_hash("1") == trace_hash("2")


@pytest.mark.slow
def test_many_seeds_come_in_order_whatever_the_number_of_processes():
    def hashes(jobs: int) -> list[tuple[int, str]]:
        return [(outcome.seed, outcome.trace_hash) for outcome in run_many(QUIET, range(4, 7), jobs)]

    assert hashes(1) == hashes(2)
    assert [seed for seed, _ in hashes(1)] == [4, 5, 6]


def test_a_network_that_never_heals_is_reported_as_such():
    scenario = Scenario(peers=4, for_s=5, heal_s=0, faults=(FaultRule(name="crash", share=1.0, at_s=1, for_s=60),))
    outcome = run(scenario, seed=1)
    assert outcome.verdict is Verdict.LIVENESS
    assert "due have not happened" in outcome.problem
    assert outcome.last_lines


def test_a_trace_can_be_replayed_and_a_changed_one_is_found_out(tmp_path: Path):
    path = tmp_path / "quiet.trace"
    recorded = record(path, TraceHead(scenario=QUIET, seed=7, commit="test"))
    outcome, difference = replay(path)
    assert difference is None
    assert outcome.trace_hash == recorded.trace_hash

    lines = path.read_text().splitlines(keepends=True)
    lines[100] = lines[100].replace("p", "q", 1)
    path.write_text("".join(lines))
    _, difference = replay(path)
    assert difference is not None
    assert difference.number == 100

    path.write_text("not a trace\n")
    with pytest.raises(TraceError):
        replay(path)
