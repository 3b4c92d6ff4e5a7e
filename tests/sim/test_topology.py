"""Delays between peers: symmetric, repeatable, and near where they should be near."""

from __future__ import annotations

import random

import pytest

from overlay.sim.topology import TOPOLOGY_NAMES, TopologyName, TransitStubShape, TransitStubTopology, make_topology


@pytest.mark.parametrize("name", TOPOLOGY_NAMES)
def test_delays_are_symmetric_positive_and_follow_from_the_seed(name: TopologyName):
    first, second = (make_topology(name, random.Random(7), TransitStubShape()) for _ in range(2))
    for a in range(20):
        for b in range(a):
            assert first.delay_ms(a, b) == first.delay_ms(b, a) > 0
            assert first.delay_ms(a, b) == second.delay_ms(a, b)


def test_transit_stub_has_the_routers_its_shape_says():
    shape = TransitStubShape(transit_domains=4, transit_routers=4, stub_domains=3, stub_routers=8)
    assert TransitStubTopology(random.Random(1), shape).routers == 16 + 16 * 3 * 8


def test_transit_stub_delays_obey_the_triangle_inequality():
    """Paths are the shortest there are; rounding, and the way in and out of the middle peer, may cost a little."""
    topology = TransitStubTopology(random.Random(2), TransitStubShape())
    for a in range(12):
        for b in range(12):
            for c in range(12):
                if len({a, b, c}) == 3:
                    assert topology.delay_ms(a, c) <= topology.delay_ms(a, b) + topology.delay_ms(b, c) + 2


def test_transit_stub_has_near_and_far_peers():
    topology = TransitStubTopology(random.Random(3), TransitStubShape())
    delays = sorted(topology.delay_ms(0, other) for other in range(1, 100))
    assert delays[0] * 5 < delays[-1]
