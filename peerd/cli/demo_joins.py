"""The scenes of `peer demo` that the join index plays: papers and their authors, orders and their payments.

Two streams are published at two peers and meet, tuple by tuple, at whichever peer their common value leads to. The peer
that is killed is one that rewrites the query, so the index has to be built again, and nothing may be lost by that.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from peerd.cli.play import Display, Published, Row, Stage, say

if TYPE_CHECKING:
    from peerd.client import QueryEngine
    from peerd.cluster import Cluster
    from protocols.execution.messages import QueryShown

READER: Final = 5
BATCH_S: Final = 0.1
SHORT_ID: Final = 8
CONFERENCES: Final = ("ICDE", "VLDB", "SIGMOD", "EDBT", "TPDS")
NAMES: Final = ("Ada", "Ben", "Cleo", "Dan", "Eva")
SURNAMES: Final = ("Smith", "Jones", "Ng", "Weber")


class Scene(NamedTuple):
    """Two streams, each with its peer, and the query that joins them."""

    name: str
    about: str
    streams: tuple[tuple[str, str, int], tuple[str, str, int]]  # Name, schema and peer; the second completes results.
    text: str
    join: QueryEngine
    batches: Callable[[random.Random], Iterator[tuple[list[Row], list[Row]]]]
    key: Callable[[Row], Any]  # Of a tuple of the second stream: what names it in a result,
    key_of: Callable[[Any], Any]  # and how the result says it.
    say: Callable[[Any], str]


def _library(rng: random.Random) -> Iterator[tuple[list[Row], list[Row]]]:
    """A new author now and then, and papers of all of them."""
    authors = papers = 0
    while True:
        first = [(authors, rng.choice(NAMES), rng.choice(SURNAMES))] if rng.random() < 0.4 or not authors else []
        authors += len(first)
        second = []
        for _ in range(rng.randint(1, 4)):
            papers += 1
            second.append((papers, f"Paper {papers}", rng.choice(CONFERENCES), rng.randrange(authors)))
        yield first, second


def _shop(rng: random.Random) -> Iterator[tuple[list[Row], list[Row]]]:
    """Orders, and some while later what was paid for them, sometimes in two parts."""
    number = payment = 0
    open_orders: list[tuple[int, float]] = []
    while True:
        first = [(number + each, rng.choice(NAMES), rng.randint(10, 500)) for each in range(rng.randint(1, 5))]
        number += len(first)
        rng.shuffle(open_orders)
        paid, open_orders = open_orders[:3], open_orders[3:]
        second = []
        for order, amount in paid:
            parts = (amount,) if rng.random() < 0.8 else (amount / 2, amount / 2)
            for part in parts:
                payment += 1
                second.append((payment, order, part))
        open_orders += [(row[0], float(row[2])) for row in first]
        yield first, second


PAPERS: Final = Scene(
    "papers",
    "whoever asks is told of each new paper by an author called Smith",
    (
        ("Authors", "Id int, Name string, Surname string", 1),
        ("Document", "Id int, Title string, Conference string, AuthorId int", 2),
    ),
    # The example of the CQ-DHT paper (section 2), with the author's name in the result.
    "SELECT D.Title, D.Conference, A.Name FROM Document AS D, Authors AS A "
    "WHERE D.AuthorId = A.Id AND A.Surname = 'Smith'",
    "sai",
    _library,
    lambda row: row[1],
    lambda row: row.Title,
    lambda row: f"{row.Title:<10} at {row.Conference:<6} by {row.Name:<4} Smith",
)
ORDERS: Final = Scene(
    "orders",
    "whoever asks is told of each payment together with its order",
    (
        ("Orders", "Id int, Customer string, Amount float", 3),
        ("Payments", "Id int, OrderId int, Paid float", 4),
    ),
    "SELECT O.Id, O.Customer, P.Id AS Payment, P.Paid FROM Orders O, Payments P WHERE O.Id = P.OrderId",
    "dai-q",
    _shop,
    lambda row: row[0],
    lambda row: row.Payment,
    lambda row: f"order {row.Id:<4} of {row.Customer:<4} paid {row.Paid:>6.2f}",
)


async def play_join(cluster: Cluster, scene: Scene, for_s: float) -> None:
    """One scene, from its streams to the count of what came."""
    from peerd.client import Client
    from peerd.rows import parse_schema
    from queries.catalogue import Stream

    names = [name for name, _, _ in scene.streams]
    say(f"\n{' and '.join(names)}: {scene.about}\n")
    stage = Stage(cluster, for_s, {name: Published() for name in names})
    streams = {name: Stream(name, parse_schema(schema)) for name, schema, _ in scene.streams}
    display = Display(scene.name, scene.text, streams, scene.say)
    sent_at: dict[Any, float] = {}
    async with Client(cluster.base.embedded(READER).path) as reader:
        for name, schema, _ in scene.streams:
            await reader.create_stream(name, schema)
        async with reader.query(scene.text, name=scene.name, engine=scene.join) as found:
            shown = await reader.show_query(scene.name)
            display.inserted_at = shown.inserted_at
            reading = [asyncio.create_task(display.read(found, lambda row: sent_at[scene.key_of(row)]))]
            publishing = [asyncio.create_task(_publish(stage, scene, sent_at))]
            try:
                victim = await asyncio.to_thread(_victim, cluster, shown)
                await stage.to_the_end([display], reading, publishing, victim)
            finally:
                stage.stop.set()
                await asyncio.gather(*publishing)
    stage.summarise([display])


async def _publish(stage: Stage, scene: Scene, sent_at: dict[Any, float]) -> None:
    from peerd.client import Client

    (first, _, first_peer), (second, _, second_peer) = scene.streams
    base = stage.cluster.base
    async with Client(base.embedded(first_peer).path) as one, Client(base.embedded(second_peer).path) as two:
        for earlier, later in scene.batches(random.Random(scene.name)):
            if stage.stop.is_set():
                return
            if earlier:
                await stage.publish(one, first, earlier)
            sent_at.update((scene.key(row), time.monotonic()) for row in later)
            if later:
                await stage.publish(two, second, later)
            await asyncio.sleep(BATCH_S)


def _victim(cluster: Cluster, shown: QueryShown) -> int:
    """A peer that rewrites the query, or reads for it, other than the one that asks."""
    numbers = {cluster.client(n).get("/status")["peer_id"]: n for n in range(1, READER)}
    for subgraph in shown.subgraphs:
        if subgraph.status is not None and subgraph.status.index is not None:
            places = [(each.attribute, each.peer.hex()) for each in subgraph.status.index.rewriters]
            say(
                f"  by {subgraph.subgraph.engine.name}: "
                + ", ".join(f"{at} at {peer[:SHORT_ID]}" for at, peer in places)
            )
            for _, peer in places:
                if peer in numbers:
                    return numbers[peer]
    return 1
