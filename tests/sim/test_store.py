"""The replicated store under every fault: what was acknowledged is found by everybody while the network is whole."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.sim.shelf import play, play_leaving

pytestmark = pytest.mark.slow

ONCE_FAILED: dict[str, list[int]] = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())["store"]


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_was_acknowledged_is_found_again(seed: int):
    world = play(seed)
    assert world.put > 100
    assert world.unanswered <= 0, f"seed {seed}: somebody got no answer"


@pytest.mark.parametrize("seed", [*range(1, 9), *ONCE_FAILED["hard"]])
def test_what_was_acknowledged_is_found_again_though_peers_crash_all_the_time(seed: int):
    assert play(seed, is_hard=True).unanswered <= 0, f"seed {seed}: somebody got no answer"


@pytest.mark.parametrize("seed", [*range(1, 5), *ONCE_FAILED["disk_loss"]])
def test_what_was_acknowledged_is_found_again_though_one_disk_is_lost_meanwhile(seed: int):
    world = play(seed, is_hard=True, with_disk_loss=True)
    assert world.unanswered <= 0, f"seed {seed}: somebody got no answer"


@pytest.mark.parametrize("seed", range(1, 5))
def test_what_was_acknowledged_is_found_again_though_all_its_owners_have_left_together(seed: int):
    assert play_leaving(seed).unanswered <= 0, f"seed {seed}: somebody got no answer"
