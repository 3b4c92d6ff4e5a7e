"""The experiment on SAND's figures 6 and 7, in small: what must hold in every cell does."""

from __future__ import annotations

import pytest

from experiments.sand_6 import BOUNDS_MS, SCENARIOS, Cell, claims, mean, measure
from protocols.placement.place import ALGORITHMS


@pytest.mark.slow
def test_every_cell_is_there_and_nothing_is_below_the_optimum():
    results = measure(seed=1, topologies=1, trees=3, peers=250)
    for scenario in SCENARIOS:
        for bound in BOUNDS_MS:
            ratios = {name: mean(results, "ratio", Cell(scenario, bound, name)) for name in ALGORITHMS}
            assert ratios["exact"] == min(ratios.values())
            assert ratios["edge+"] <= ratios["baseline"] == 1.0
            assert ratios["in-network"] <= 1.0
    held = {claim: holds for claim, holds in claims(results) if claim.startswith("ours")}
    assert held
    assert all(held.values())
