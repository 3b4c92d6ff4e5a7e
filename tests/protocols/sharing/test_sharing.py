"""Many readers of few streams at one host: each gets what it would get alone, whatever the others do."""

from __future__ import annotations

import os

import pytest

from tests.protocols.sharing.model import play
from tests.sim import planted_sharing
from tests.sim.bugs import BUGS

FIRST = int(os.environ.get("PEER_SEED") or 1)
AT_PUBLISHERS = ("positions_of_left_out_tuples_are_forgotten",)  # The model has publishers of its own.
PLANTED = [
    name
    for name, each in BUGS.items()
    if each.plant.__module__ == planted_sharing.__name__ and each.scenario == "sharing" and name not in AT_PUBLISHERS
]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 10))
@pytest.mark.parametrize("forgets", [False, True], ids=["on disk", "in memory"])
def test_every_reader_gets_its_tuples_once_and_in_order(seed: int, forgets: bool):
    play(seed, forgets=forgets)


@pytest.mark.parametrize("name", PLANTED)
def test_the_model_finds_a_planted_bug(name: str):
    for seed in range(1, 31):
        with BUGS[name].plant():
            try:
                play(seed)
            except (AssertionError, TypeError):  # A selection tests a column that was left out.
                return
    raise AssertionError(f"{name} is not found in 30 seeds")
