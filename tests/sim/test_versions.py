"""Peers of two releases in one simulated network that do not share execution: every query still has its results."""

from __future__ import annotations

import pytest

from overlay.sim.run import Run, Verdict
from overlay.sim.scenario import parse_scenario, scenario_text
from protocols.ids import PeerId
from protocols.versions import VERSIONS, Span, Versions

NEWER: Versions = {**VERSIONS, "execution": Span(7, 8), "placement": Span(7, 8)}
SCENARIO = scenario_text("queries")


def versions_of(peer: PeerId) -> Versions:
    return NEWER if peer.number % 3 == 0 else VERSIONS


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3))])
def test_queries_run_among_the_peers_that_share_execution(seed: int):
    """Every peer has an engine here, so that every query finds one; its streams are published anywhere."""
    scenario = parse_scenario(SCENARIO.replace('name = "queries"', 'name = "queries", without_spark = 0.0'))
    play = Run(scenario, seed)
    play.world.network.versions = versions_of
    outcome = play()
    assert outcome.verdict is Verdict.OK, f"seed {seed}: {outcome.problem}"
    releases = {versions_of(peer.peer_id)["execution"].newest for peer in play.world.peers}
    assert releases == {VERSIONS["execution"].newest, 8}, "both releases are there"
    assert outcome.delivered > 0
