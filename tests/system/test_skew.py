"""A join through the DHT over real daemons, of a stream in which one value is frequent: known soon, spread, exact."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from peerd.client import Client
from peerd.cluster import Cluster
from protocols.clock import Stamp, wall_ms
from protocols.ids import PeerId
from protocols.join_index.heavy import HEAVY_PER_S, evaluators_of
from protocols.join_index.keys import value_key
from protocols.join_index.messages import Attribute
from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.query import parse
from queries.reference import Tuple, evaluate
from queries.schema import Row, Schema
from tests.seeds import draw_seed
from tests.system.clients import client, peer, until

PATIENCE_S = 180.0
STREAMS = {
    "orders": Stream("orders", Schema.parse("id int, customer int")),
    "customers": Stream("customers", Schema.parse("id int, name string")),
}
TEXT = "SELECT o.id, c.id AS customer, c.name FROM orders o, customers c WHERE o.customer = c.id"
HOT, SHARE = 7, 0.6
OTHERS = range(100, 130)


class Shop:
    """Publishes orders, of which most are one customer's, and keeps what was accepted."""

    def __init__(self, orders: Client, customers: Client, rng: random.Random) -> None:
        self._clients = {"orders": orders, "customers": customers}
        self._rng = rng
        self.accepted: dict[str, list[tuple[Stamp, Row]]] = {name: [] for name in STREAMS}
        self.batch_rows = 500  # Fast enough for a frequent value to count, however slow the machine is.
        self.is_closed = False

    async def sell(self) -> None:
        while not self.is_closed:
            first = len(self.accepted["orders"])
            ids = range(first, first + self.batch_rows)
            rows = [(n, HOT if self._rng.random() < SHARE else self._rng.choice(OTHERS)) for n in ids]
            await self.publish("orders", rows)
            await asyncio.sleep(0.1)

    async def publish(self, stream: str, rows: list[Row]) -> None:
        published = await self._clients[stream].publish(stream, rows)
        self.accepted[stream] += [(published.stamp, row) for row in rows]

    def due(self, inserted_at: Stamp) -> Counter[Row]:
        """By the reference."""
        tuples = {
            name: [
                Tuple(EPOCH + timedelta(milliseconds=wall_ms(stamp)), row, place)
                for place, (stamp, row) in enumerate(rows)
                if stamp >= inserted_at
            ]
            for name, rows in self.accepted.items()
        }
        return Counter(result.row for result in evaluate(parse(TEXT, STREAMS).plan, tuples))


async def hot_per_s(one: Client) -> float:
    """How many orders of the frequent customer come in a second, as the catalogue has it."""
    told = [each.statistics for each in (await one.stream("orders")).publishers if each.statistics is not None]
    return sum(each.rate_per_s * dict(each.fields[1].frequent).get(str(HOT), 0.0) for each in told)


async def index_of(network: Cluster, name: str) -> dict[str, Any]:
    """Where the daemon says that the query is."""
    deadline_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_at:
        shown = json.loads((await asyncio.to_thread(peer, network, "query", "show", name, "-p", "5")).stdout)
        if shown["subgraphs"] and shown["subgraphs"][0]["index"] is not None:
            index: dict[str, Any] = shown["subgraphs"][0]["index"]
            return index
    raise AssertionError(f"query {name} does not say where it is")


async def hot_is_advertised(one: Client, selling: asyncio.Task[None]) -> None:
    """Wait until the network says that one value is frequent."""
    began_at = time.monotonic()
    while await hot_per_s(one) < 1.5 * HEAVY_PER_S:
        assert not selling.done(), selling
        assert time.monotonic() < began_at + PATIENCE_S, "nobody says which value is frequent"
        await asyncio.sleep(0.1)
    print(f"advertised after {time.monotonic() - began_at:.1f} s")


@pytest.mark.slow
async def test_a_frequent_value_is_known_soon_and_spread_and_its_evaluator_may_die(fragile: Cluster):
    seed = draw_seed()
    rng = random.Random(seed)
    peers: dict[str, int] = {fragile.client(n).get("/status")["peer_id"]: n for n in range(1, 6)}
    got = Counter[Row]()
    async with client(fragile, 2) as two, client(fragile, 3) as three, client(fragile, 5, PATIENCE_S) as five:
        for name, stream in STREAMS.items():
            await two.create_stream(name, str(stream.schema))
        shop = Shop(two, three, rng)
        selling = asyncio.create_task(shop.sell())
        await hot_is_advertised(five, selling)

        explained = await asyncio.to_thread(peer, fragile, "explain", TEXT, "--join", "auto", "-p", "5")
        (said,) = [line for line in explained.stdout.splitlines() if line.startswith("auto ")]
        assert "sai: it sends least: " in said
        assert "to the busiest evaluator" in said
        await five.submit(f"{TEXT} WITH (skew = whole)", name="whole")
        assert (await index_of(fragile, "whole"))["heavy_values"] == []
        await five.stop_query("whole")

        async with five.query(TEXT, name="served") as served:
            shop.batch_rows = 20

            async def read() -> None:
                async for row in served:
                    got[tuple(row)] += 1

            reading = asyncio.create_task(read())
            index = await index_of(fragile, "served")
            assert index["algorithm"] == "sai"
            assert index["why"].startswith("it sends least")
            assert index["heavy_values"] == [{"value": f"n{HOT}", "evaluators": 4}]
            assert (
                "1 values at several" in (await asyncio.to_thread(peer, fragile, "explain", "served", "-p", "5")).stdout
            )

            await shop.publish("customers", [(each, f"early {each}") for each in (HOT, *OTHERS)])
            enough = got.total() + 100
            await until(lambda: got.total() > enough, "results come", PATIENCE_S)
            everybody = [PeerId(bytes.fromhex(each)) for each in index["evaluators"]]
            there = evaluators_of(value_key(Attribute("orders", ("customer",)), f"n{HOT}"), everybody, 4)
            dies = rng.choice([n for each in there if (n := peers[each.hex()]) in (1, 4)])
            fragile.kill(dies)
            enough = len(shop.accepted["orders"]) + 100
            await until(lambda: len(shop.accepted["orders"]) > enough, "others go on publishing", PATIENCE_S)
            await shop.publish("customers", [(each, f"late {each}") for each in (HOT, *OTHERS)])
            await asyncio.to_thread(fragile.restart, dies)
            enough = len(shop.accepted["orders"]) + 100
            await until(lambda: len(shop.accepted["orders"]) > enough, "and after it is back", PATIENCE_S)
            shop.is_closed = True
            await selling

            due = shop.due((await five.show_query("served")).inserted_at)
            await until(lambda: got.total() >= due.total() or reading.done(), "everything due has come", PATIENCE_S)
            shown = await five.show_query("served")
            print(f"{due.total()} due, {got.total()} came; peer {dies} was killed: {shown.reason}")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert got == due
        assert {row[2].split()[0] for row in due if row[1] == HOT} == {"early", "late"}
