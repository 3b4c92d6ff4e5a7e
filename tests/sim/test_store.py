"""The replicated store under every fault: what was acknowledged is found by everybody while the network is whole."""

from __future__ import annotations

import random

import pytest

from overlay.sim.faults import Faults, draw_rules
from tests.sim.shelf import KEYS, ShelfWorld


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_was_acknowledged_is_found_again(seed: int):
    rng = random.Random(f"{seed}/scenario")
    world = ShelfWorld(seed, rng.randint(5, 25))
    faults = Faults(world, draw_rules(rng), span_ms=15_000)
    world.run_for(1_500)
    faults.plan()
    for _ in range(150):
        world.agenda.after(rng.randrange(15_000), world.put_some)
        world.agenda.after(rng.randrange(15_000), world.get_some)
    world.run_for(15_000)
    faults.heal()
    world.run_for(15_000)
    assert world.put > 100
    before = world.got
    for peer in world.peers:
        for key in KEYS:
            world.get_some(peer, key)
    world.run_for(16_000)
    assert world.got - before >= len(world.peers) * len(KEYS), f"seed {seed}: somebody got no answer"
