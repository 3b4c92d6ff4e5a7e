"""The replicated store under every fault: what was acknowledged is found by everybody while the network is whole."""

from __future__ import annotations

import pytest

from tests.sim.shelf import play


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_was_acknowledged_is_found_again(seed: int):
    world = play(seed)
    assert world.put > 100
    assert world.unanswered <= 0, f"seed {seed}: somebody got no answer"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_what_was_acknowledged_is_found_again_though_peers_crash_all_the_time(seed: int):
    assert play(seed, is_hard=True).unanswered <= 0, f"seed {seed}: somebody got no answer"
