"""Operators placed by the network, in one that breaks: each at one live host, tables agree, every result is exact."""

from __future__ import annotations

import os
import time

import pytest

from overlay.sim.run import Verdict, run_many
from overlay.sim.scenario import scenario_text

pytestmark = pytest.mark.alone

COUNT = int(os.environ.get("PEER_SIM_PLACEMENT_SEEDS", "500"))
MOVING_COUNT = 40
APART_COUNT = int(os.environ.get("PEER_SIM_APART_SEEDS", "100"))


def test_every_operator_ends_at_one_live_host_and_results_are_exact(capsys: pytest.CaptureFixture[str]):
    """Messages get lost, come twice and overtake each other; hosts, proxies and coordinators crash."""
    started, crashes = time.monotonic(), 0
    for outcome in run_many(scenario_text("placement"), range(1, COUNT + 1), jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate placement --seed {outcome.seed}: {outcome.problem}"
        crashes += outcome.faults["crash"]
    with capsys.disabled():
        took_s = time.monotonic() - started
        print(f"\n{COUNT} seeds of placement: {crashes} crashes, every result exact; {took_s:.0f} s", end="")


def test_operators_move_when_distances_and_rates_change_and_results_stay_exact(capsys: pytest.CaptureFixture[str]):
    moves = 0
    for outcome in run_many(scenario_text("moves"), range(1, MOVING_COUNT + 1), jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate moves --seed {outcome.seed}: {outcome.problem}"
        moves += outcome.moves
    assert moves >= MOVING_COUNT / 2
    with capsys.disabled():
        print(f"\n{MOVING_COUNT} seeds of moves: operators moved {moves} times, every result exact", end="")


def test_joins_of_one_query_run_at_peers_of_their_own_and_results_stay_exact(capsys: pytest.CaptureFixture[str]):
    apart = moves = crashes = 0
    for outcome in run_many(scenario_text("apart"), range(1, APART_COUNT + 1), jobs=2):
        assert outcome.verdict is Verdict.OK, f"peer simulate apart --seed {outcome.seed}: {outcome.problem}"
        apart, moves = apart + outcome.joins_apart, moves + outcome.moves
        crashes += outcome.faults["crash"]
    assert apart >= APART_COUNT / 3
    with capsys.disabled():
        said = f"{apart} joins apart, {moves} moves, {crashes} crashes, every result exact"
        print(f"\n{APART_COUNT} seeds of apart: {said}", end="")
