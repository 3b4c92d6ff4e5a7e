"""Placement over real daemons: coordinators at several peers decide where the parts of a query run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from peerd.client import PeerRefused
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from protocols.execution.messages import PlacementName
from tests.system.clients import DEADLINE_S, client, peer
from tests.system.ports import PORTS
from tests.system.publishing import nothing_left

pytestmark = pytest.mark.system

FLIGHTS = "id int, flight string, delay float"
PLACEMENTS: tuple[PlacementName, ...] = ("auto", "baseline", "edge", "edge+", "in-network", "exact")
# Who shares leaves selections to the publishers, and nothing of such a query is placed.
LATE = "SELECT flight FROM flights WHERE delay >= 60 WITH (sharing = off)"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(4, first_port=next(PORTS), settings={"spark": "off"})
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


async def test_coordinators_place_a_query_and_its_results_are_the_same_wherever_it_runs(network: Cluster):
    async with client(network, 1) as one, client(network, 3) as three:
        await one.create_stream("flights", FLIGHTS)
        await one.publish("flights", [(0, "before", 90.0)])
        ids = {number: network.client(number).get("/status")["peer_id"] for number in (1, 3)}
        coordinated = 0
        for turn, placement in enumerate(PLACEMENTS):
            async with three.query(LATE, placement=placement) as late:
                await one.publish("flights", [(n, f"F{turn}-{n}", float(n)) for n in range(100)])
                rows = aiter(late)
                async with asyncio.timeout(DEADLINE_S):
                    got = [(await anext(rows)).flight for _ in range(40)]
                assert got == [f"F{turn}-{n}" for n in range(60, 100)], placement
                shown = await three.show_query(late.query)
                assert shown.placement == placement
                hosts = {each.host.hex() for each in shown.subgraphs}
                # The selection runs where the flights are published, unless everything is to be shipped.
                assert hosts == ({ids[3]} if placement == "baseline" else {ids[1], ids[3]}), placement
                coordinated += shown.why == f"{placement}, by its coordinators"
        assert coordinated  # Three are; on a slow machine, where they take longer than 3 s, it is placed without them.
        await nothing_left(three, "flights")


async def test_a_bound_that_no_placement_can_keep_is_refused(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("flights", FLIGHTS)
        await one.publish("flights", [(0, "before", 90.0)])
        with pytest.raises(PeerRefused, match="cannot have its results within 1e-06 ms"):
            await two.submit(LATE, name="late", within_ms=1e-6)
        await nothing_left(two, "flights")


async def test_people_can_see_what_every_placement_would_cost(network: Cluster):
    async with client(network, 1) as one:
        await one.create_stream("flights", FLIGHTS)
        await one.publish("flights", [(0, "before", 90.0)])
    for form in ("text", "json"):
        shown = await asyncio.to_thread(peer, network, "explain", "--why", LATE, "-p", "2", "--format", form)
        assert all(placement in shown.stdout for placement in PLACEMENTS if placement != "auto"), shown.stdout


async def test_peers_of_a_drawn_network_are_apart_and_see_it_when_they_place(tmp_path: Path):
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(5, first_port=next(PORTS), settings={"spark": "off"}, topology="transit-stub")
    try:
        cluster.wait_until_up()
        async with client(cluster, 1) as one, client(cluster, 4) as four:
            await one.create_stream("flights", FLIGHTS)
            await one.publish("flights", [(n, f"F{n}", float(n)) for n in range(100)])
            weighed = await four.weigh(LATE)
            costs = {each.algorithm: each for each in weighed.options}
            assert min(each.cost for each in weighed.options) == costs["exact"].cost < costs["baseline"].cost
            assert costs["exact"].delay_ms > 5.0  # The way is not that of one machine.
    finally:
        cluster.stop()
