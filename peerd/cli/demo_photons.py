"""The scene of `peer demo` in which streams are shared: a telescope's photons, and ten queries that want some of them.

The photons and two of the queries are those of the StreamGlobe paper. All ten are asked at one peer and overlap, so the
photons are read once for all of them. The peer that reads them is killed.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from peerd.cli.play import Display, Published, Row, Stage, say

if TYPE_CHECKING:
    from peerd.client import Client
    from peerd.cluster import Cluster

STREAM: Final = "photons"
SCHEMA: Final = (
    "coord record(cel record(ra decimal, dec decimal), det record(dx int, dy int)),"
    " phc int, en decimal, det_time decimal"
)
TELESCOPE: Final = 1
ASTRONOMER: Final = 3  # Asks the queries,
READER: Final = 5  # and reads their results here.
BATCH_S: Final = 0.1
PHOTONS_PER_S: Final = 90  # As in the paper's overload test, by our reckoning.
SHOWN_PER_S: Final = 0.3  # Of each query.
SETTLED_S: Final = 30.0

VELA: Final = (
    "$p/coord/cel/ra >= 120.0 and $p/coord/cel/ra <= 138.0 and $p/coord/cel/dec >= -49.0 and $p/coord/cel/dec <= -40.0"
)
INNER: Final = (
    "$p/en >= 1.3 and $p/coord/cel/ra >= 130.5 and $p/coord/cel/ra <= 135.5 "
    "and $p/coord/cel/dec >= -48.0 and $p/coord/cel/dec <= -45.0"
)
QUERIES: Final = {
    # The paper's Q1 and Q2 (section 1).
    "vela": f'<photons> {{ for $p in stream("photons")/photons/photon where {VELA} return <vela> {{ $p/coord/cel/ra }} '
    "{ $p/coord/cel/dec } { $p/phc } { $p/en } { $p/det_time } </vela> } </photons>",
    "rxj": f'<photons> {{ for $p in stream("photons")/photons/photon where {INNER} return <rxj> {{ $p/coord/cel/ra }} '
    "{ $p/coord/cel/dec } { $p/en } { $p/det_time } </rxj> } </photons>",
    "faint": "SELECT det_time, en FROM photons WHERE en >= 0.5 AND coord.cel.ra >= 120",
    "clear": "SELECT det_time, en FROM photons WHERE en >= 0.9 AND coord.cel.ra >= 120",
    "bright": "SELECT det_time, en FROM photons WHERE en >= 1.3 AND coord.cel.ra >= 120",
    "brightest": "SELECT det_time, en FROM photons WHERE en >= 2.0 AND coord.cel.ra >= 120",
    "south-1": "SELECT det_time, phc, en FROM photons WHERE coord.cel.ra >= 126 AND coord.cel.dec <= -42",
    "south-2": "SELECT det_time, phc, en FROM photons WHERE coord.cel.ra >= 130 AND coord.cel.dec <= -44",
    "south-3": "SELECT det_time, phc, en FROM photons WHERE coord.cel.ra >= 134 AND coord.cel.dec <= -46",
    "all": "SELECT coord.cel.ra AS ra, coord.cel.dec AS dec, det_time FROM photons",
}


async def play_photons(cluster: Cluster, for_s: float) -> None:
    """The scene, from its stream to the count of what came."""
    from peerd.client import Client
    from peerd.rows import parse_schema
    from queries.catalogue import Stream

    say(f"\n{STREAM}: {len(QUERIES)} queries want some of what a telescope sees\n")
    stage = Stage(cluster, for_s, {STREAM: Published()})
    streams = {STREAM: Stream(STREAM, parse_schema(SCHEMA))}
    displays = [Display(name, text, streams, _told, shown_per_s=SHOWN_PER_S) for name, text in QUERIES.items()]
    sent_at: dict[Decimal, float] = {}
    async with (
        Client(cluster.base.embedded(ASTRONOMER).path) as asker,
        Client(cluster.base.embedded(READER).path) as reader,
    ):
        await asker.create_stream(STREAM, SCHEMA)
        publishing = asyncio.create_task(_publish(stage, sent_at))
        reading: list[asyncio.Task[None]] = []
        try:
            for each in displays:
                await asker.submit(each.text, name=each.title)
                each.inserted_at = (await asker.show_query(each.title)).inserted_at
                reading.append(asyncio.create_task(_read(reader, each, sent_at)))
            victim = await _host(cluster)
            await stage.to_the_end(displays, reading, [publishing], victim)
        finally:
            stage.stop.set()
            await asyncio.gather(publishing)
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    stage.summarise(displays)


def _told(row: Any) -> str:
    return "  ".join(map(str, row))


async def _read(reader: Client, display: Display, sent_at: dict[Decimal, float]) -> None:
    from peerd.client import PeerRefused

    until = time.monotonic() + SETTLED_S
    while time.monotonic() < until:  # Other peers know of a query within a second.
        with suppress(PeerRefused):
            await reader.show_query(display.title)
            break
        await asyncio.sleep(0.1)
    async with reader.attach(display.title) as results:
        await display.read(results, lambda row: sent_at.get(row.det_time) if hasattr(row, "det_time") else None)


def _photons(rng: random.Random, first: int, number: int) -> list[Row]:
    """Photons in the order in which they were detected."""
    return [
        (
            (
                (_drawn(rng, 100, 150), _drawn(rng, -55, -35)),
                (rng.randrange(512), rng.randrange(512)),
            ),
            rng.randrange(200),
            _drawn(rng, 0, 3),
            Decimal(place),
        )
        for place in range(first, first + number)
    ]


def _drawn(rng: random.Random, low: int, high: int) -> Decimal:
    """A number with one digit behind the point."""
    return Decimal(rng.randint(10 * low, 10 * high)) / 10


async def _publish(stage: Stage, sent_at: dict[Decimal, float]) -> None:
    from peerd.client import Client

    rng, number = random.Random(STREAM), 0
    async with Client(stage.cluster.base.embedded(TELESCOPE).path) as telescope:
        while not stage.stop.is_set():
            rows = _photons(rng, number, round(PHOTONS_PER_S * BATCH_S))
            number += len(rows)
            sent_at.update((row[-1], time.monotonic()) for row in rows)
            await stage.publish(telescope, STREAM, rows)
            await asyncio.sleep(BATCH_S)


async def _host(cluster: Cluster) -> int:
    """The peer that reads the photons for most queries, once all queries read them."""
    until = time.monotonic() + SETTLED_S
    while True:
        taps = {number: await _taps(cluster, number) for number in range(1, READER + 1)}
        host = max(taps, key=lambda number: taps[number])
        if sum(taps.values()) >= len(QUERIES) or time.monotonic() > until:
            wx = sum(text.startswith("<") for text in QUERIES.values())
            say(f"  peer {host} reads {STREAM} once for {taps[host]} queries, {wx} of them WXQuery")
            return host
        await asyncio.sleep(0.1)


async def _taps(cluster: Cluster, number: int) -> int:
    from peerd.client import Client

    async with Client(cluster.base.embedded(number).path) as client:
        return sum(each.taps for each in await client.shared_streams() if each.stream == STREAM)
