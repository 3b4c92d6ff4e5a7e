"""`peer demo`: five peers on this machine, an airline's flights published at two of them and read at a third.

In the middle one publishing peer is killed, as by a power cut, and started again. What the reader got is then compared
with what was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from peerd.cli.common import read_span
from peerd.cli.look import MEMBER_COLUMNS
from peerd.cli.output import show_rows
from peerd.cli.up import interruptible
from peerd.datadir import DataDir
from peerd.errors import PeerError
from peerd.words import count as counted
from peerd.words import milliseconds

if TYPE_CHECKING:
    from peerd.client import Subscription
    from peerd.cluster import Cluster

SCHEMA: Final = "id int, flight string, status string, delay_min int null, at timestamp"
PUBLISHERS: Final = (2, 4)
READER: Final = 5
FLIGHTS_PER_S: Final = 40.0
SHOWN_PER_S: Final = 4.0
CATCH_UP_S: Final = 20.0
AIRLINES: Final = ("LH", "OS", "BA", "AF", "KL", "SK")
STATUSES: Final = ("boarding", "departed", "delayed", "landed")


@dataclass(slots=True)
class _Tally:
    """Which flights were acknowledged and which arrived."""

    accepted: dict[int, None] = field(default_factory=dict)
    arrived: Counter[int] = field(default_factory=Counter)
    delays_ms: list[float] = field(default_factory=list)
    uncertain: int = 0

    @property
    def lost(self) -> int:
        return sum(number not in self.arrived for number in self.accepted)

    @property
    def repeated(self) -> int:
        return sum(times - 1 for times in self.arrived.values())


@click.command()
@click.option(
    "--for", "for_s", callback=read_span, default="10s", show_default=True, metavar="TIME", help="How long to play."
)
@click.option("--peers", type=click.IntRange(max(READER, *PUBLISHERS), 64), default=5, show_default=True, metavar="N")
def demo(for_s: float, peers: int) -> None:
    """Play a scenario: flights published at two peers, read at a third, and a peer killed in the middle.

    \b
        $ peer demo --for 30s
    """
    from peerd.cluster import Cluster

    folder = Path(tempfile.mkdtemp(prefix="peer-demo-"))
    cluster = Cluster(DataDir(folder))
    with interruptible():
        try:
            started_at = time.monotonic()
            cluster.start(peers, name="demo")
            cluster.wait_until_up()
            _say(f"{counted(peers, 'peer')} found each other in {time.monotonic() - started_at:.1f} s")
            show_rows(cluster.client(1).get("/members"), MEMBER_COLUMNS, "table")
            sys.stdout.flush()
            tally = asyncio.run(_play(cluster, for_s))
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)
    _summarise(tally)
    _say(f"stopped {counted(peers, 'peer')}")


async def _play(cluster: Cluster, for_s: float) -> _Tally:
    from peerd.client import Client

    tally = _Tally()
    async with Client(cluster.base.embedded(1).path) as client:
        done = await client.create_stream("flights", SCHEMA)
    _say(f'peer 1 made the stream "flights": {SCHEMA} (known to {counted(done.replicas, "peer")})')
    _say(f"peers {' and '.join(map(str, PUBLISHERS))} publish, peer {READER} reads:\n")
    numbers = {cluster.client(peer.number).get("/status")["peer_id"]: peer.number for peer in cluster.peers}
    async with Client(cluster.base.embedded(READER).path) as reader, reader.subscribe("flights") as flights:
        reading = asyncio.create_task(_read(flights, numbers, tally))
        stop_at = time.monotonic() + for_s
        publishing = [_publish(cluster, number, stop_at, tally) for number in PUBLISHERS]
        await asyncio.gather(*publishing, _kill_and_restart(cluster, PUBLISHERS[0], for_s))
        deadline_at = time.monotonic() + CATCH_UP_S
        while tally.lost and time.monotonic() < deadline_at and not reading.done():
            await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return tally


async def _publish(cluster: Cluster, number: int, stop_at: float, tally: _Tally) -> None:
    from peerd.client import Client, ConnectionLost

    rng = random.Random(number)
    async with Client(cluster.base.embedded(number).path) as client:
        flight = number * 1_000_000
        while time.monotonic() < stop_at:
            flight += 1
            status = rng.choice(STATUSES)
            delay = rng.randrange(5, 120) if status == "delayed" else None
            name = f"{rng.choice(AIRLINES)}{rng.randrange(10, 999)}"
            try:
                await client.publish("flights", [(flight, name, status, delay, datetime.now(UTC))])
                tally.accepted[flight] = None
            except ConnectionLost:  # Nobody can tell whether this one made it; it is not among the promised.
                tally.uncertain += 1
            await asyncio.sleep(rng.expovariate(FLIGHTS_PER_S / len(PUBLISHERS)))


async def _read(flights: Subscription, numbers: dict[str, int], tally: _Tally) -> None:
    shown_at = 0.0
    async for batch in flights.batches():
        now = datetime.now(UTC)
        for row in batch.rows:
            tally.arrived[row.id] += 1
            tally.delays_ms.append((now - row.at).total_seconds() * 1000)
            if time.monotonic() - shown_at >= 1 / SHOWN_PER_S:
                shown_at = time.monotonic()
                late = f"{row.delay_min} min late" if row.delay_min else ""
                origin = f"from peer {numbers[batch.origin.publisher.hex()]}"
                took = milliseconds(tally.delays_ms[-1])
                click.echo(f"  {row.flight:<6} {row.status:<9} {late:<13} {origin}, {took} after publication")
                sys.stdout.flush()


async def _kill_and_restart(cluster: Cluster, number: int, for_s: float) -> None:
    await asyncio.sleep(for_s * 0.4)
    _say(f"\n  ⚡ kill -9 peer {number}\n")
    cluster.kill(number)
    await asyncio.sleep(min(2.0, for_s * 0.2))
    _say(f"\n  peer {number} is started again\n")
    await asyncio.to_thread(cluster.restart, number)


def _summarise(tally: _Tally) -> None:
    _say("")
    uncertain = f"; {tally.uncertain} cut off by the kill, unacknowledged" if tally.uncertain else ""
    _say(f"acknowledged  {len(tally.accepted):,}{uncertain}")
    _say(f"arrived       {len(tally.arrived):,}, lost {tally.lost}, twice {tally.repeated}")
    if tally.delays_ms:
        _say(f"took          {milliseconds(statistics.median(tally.delays_ms))} in the median, publication to reader")
    if tally.lost or tally.repeated:
        raise PeerError("the network broke its promise", hint="This is a bug: please report it with this output.")


def _say(text: str) -> None:
    click.echo(text, err=True)
