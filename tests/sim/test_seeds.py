"""Many seeds of the churn scenario, and in any case those that failed once."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path

import pytest

from overlay.sim.run import Verdict, run_many
from overlay.sim.scenario import scenario_text

HERE = Path(__file__).parent
SEEDS: dict[str, list[int]] = tomllib.loads((HERE / "seeds.toml").read_text())["scenarios"]
COUNT = int(os.environ.get("PEER_SIM_SEEDS", "1000"))

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("scenario", SEEDS)
def test_what_failed_once_does_not_fail_again(scenario: str):
    text = scenario_text(scenario)
    for outcome in run_many(text, SEEDS[scenario], jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate {scenario} --seed {outcome.seed}: {outcome.problem}"


@pytest.mark.parametrize("scenario", ["disk-loss", "restarts", "short-lived", "wrong-clocks"])
def test_a_few_seeds_of(scenario: str):
    text = scenario_text(scenario)
    for outcome in run_many(text, range(1, 41), jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate {scenario} --seed {outcome.seed}: {outcome.problem}"


def test_nothing_is_lost_repeated_or_invented_in_many_seeds_of_churn(capsys: pytest.CaptureFixture[str]):
    """Lost: accepted and due, and never delivered. Repeated and invented: the oracle refuses them as they arrive."""
    started = time.monotonic()
    text = scenario_text("churn")
    accepted = delivered = virtual_ms = 0
    for outcome in run_many(text, range(1, COUNT + 1), jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate churn --seed {outcome.seed}: {outcome.problem}"
        accepted, delivered = accepted + outcome.accepted, delivered + outcome.delivered
        virtual_ms += outcome.virtual_ms
    took_s = time.monotonic() - started
    with capsys.disabled():
        print(
            f"\n{COUNT} seeds: {accepted} publishes accepted, {delivered} rows delivered; lost 0, duplicate 0, ", end=""
        )
        print(f"spurious 0; counters balance; {virtual_ms / 1000:.0f} s simulated in {took_s:.0f} s", end="")
