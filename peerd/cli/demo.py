"""`peer demo`: an airline, a library, a shop and a telescope on five peers that publish streams and ask queries.

In the middle of each scene a peer is killed, as by a power cut, and started again. What the queries brought is then
compared with what the reference evaluator makes of everything that was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from peerd.cli.background import in_background
from peerd.cli.common import read_span
from peerd.cli.look import MEMBER_COLUMNS
from peerd.cli.output import show_rows
from peerd.cli.play import Display, Published, Stage, say
from peerd.cli.up import interruptible
from peerd.datadir import DataDir
from peerd.words import count as counted

if TYPE_CHECKING:
    from peerd.cli.airline import Clock
    from peerd.client import Client
    from peerd.cluster import Cluster

KILLED: Final = 2
READER: Final = 5
BATCH_S: Final = 0.05
SCENES: Final = ("airline", "papers", "orders", "photons")


@click.command()
@click.option(
    "--for",
    "for_s",
    callback=read_span,
    default="10s",
    show_default=True,
    metavar="TIME",
    help="How long to play each scene.",
)
@click.option("--scene", "scenes", multiple=True, type=click.Choice(SCENES), help="Only this one; may be repeated.")
@click.option("--no-spark", is_flag=True, help="Only queries that need no Spark.")
def demo(for_s: float, scenes: tuple[str, ...], no_spark: bool) -> None:
    """Play four scenes on five peers of this machine; in each of them a peer is killed with kill -9.

    An airline: five streams at four peers, a display at the fifth. Papers and their authors, orders and their
    payments: joins of two streams through the DHT. A telescope: ten queries that share one stream. At the end of each
    what came is compared with what was due.

    \b
        $ peer demo --for 30s
        $ peer demo --scene papers --scene orders
    """
    from peerd.cli.demo_joins import ORDERS, PAPERS, play_join
    from peerd.cli.demo_photons import play_photons
    from peerd.cluster import Cluster

    folder = Path(tempfile.mkdtemp(prefix="peer-demo-"))
    cluster = Cluster(DataDir(folder))
    chosen = scenes or SCENES
    has_spark = "airline" in chosen and not no_spark
    with interruptible():
        try:
            started_at = time.monotonic()
            reader = {READER: {"spark": "warm"}} if has_spark else {}
            cluster.start(READER, name="demo", settings={"spark": "off"}, settings_of=reader)
            cluster.wait_until_up()
            say(f"{counted(READER, 'peer')} found each other in {time.monotonic() - started_at:.1f} s")
            show_rows(cluster.client(1).get("/members"), MEMBER_COLUMNS, "table")
            sys.stdout.flush()
            if "airline" in chosen:
                asyncio.run(_Airline(cluster, for_s, has_spark).play())
            for scene in (PAPERS, ORDERS):
                if scene.name in chosen:
                    asyncio.run(play_join(cluster, scene, for_s))
            if "photons" in chosen:
                asyncio.run(play_photons(cluster, for_s))
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)
    say(f"stopped {counted(READER, 'peer')}")


class _Airline:
    """The first scene, from the first stream to the last result."""

    def __init__(self, cluster: Cluster, for_s: float, has_spark: bool) -> None:
        from peerd.cli.airline import DELAYED, DISPLAY, SOURCES
        from peerd.rows import parse_schema
        from queries.catalogue import Stream

        self._cluster = cluster
        self._has_spark = has_spark
        self._stage = Stage(cluster, for_s, {name: Published() for name in SOURCES})
        self._sent_at: dict[datetime, float] = {}
        streams = {name: Stream(name, parse_schema(each.schema), "AT") for name, each in SOURCES.items()}
        self._delayed = Display(
            "delayed", DELAYED, streams, lambda row: f"flight {row.NUM:<5} to {row.DEST:<9} gate {row.GATE:<4}"
        )
        self._terminal = Display(
            "terminal N",
            DISPLAY,
            streams,
            lambda row: (
                f"flight {row.NUM:<5} gate {row.GATE:<4} bags {row.AREA}  check-in {row.STATUS:<8} {row.FORECAST}"
            ),
        )

    async def play(self) -> None:
        from peerd.cli.airline import COMPRESSION, SOURCES, Clock
        from peerd.client import Client

        async with Client(self._cluster.base.embedded(1).path) as client:
            for name, source in SOURCES.items():
                await client.create_stream(name, source.schema, event_time="AT")
        per_min = sum(source.per_min for source in SOURCES.values())
        say(f"peer 1 made the streams {', '.join(SOURCES)}: {per_min:.0f} tuples in a minute of the airline")
        say(f"peers 1 to 4 publish, {COMPRESSION} times as fast; peer {READER} asks:\n")
        clock = Clock(datetime.now(UTC), time.monotonic())
        async with Client(self._cluster.base.embedded(READER).path) as reader:
            publishing = [asyncio.create_task(self._publish(name, clock)) for name in SOURCES]
            try:
                displays = await self._watch(reader, publishing)
            finally:
                self._stage.stop.set()
                await asyncio.gather(*publishing)
        self._stage.summarise(displays)

    async def _watch(self, reader: Client, publishing: list[asyncio.Task[None]]) -> list[Display]:
        """Both queries: the first results come at once, those of the join when Spark has started."""
        async with reader.query(self._delayed.text, name="delayed") as delayed:
            tasks = [asyncio.create_task(self._delayed.read(delayed, lambda row: self._sent_at[row.AT]))]
            displays = [self._delayed]
            self._delayed.inserted_at = (await reader.show_query("delayed")).inserted_at
            if self._has_spark and await self._spark_is_ready():
                async with reader.query(self._terminal.text, name="terminal-N") as terminal:
                    self._terminal.inserted_at = (await reader.show_query("terminal-N")).inserted_at
                    tasks.append(asyncio.create_task(self._terminal.read(terminal, lambda row: None)))
                    displays.append(self._terminal)
                    await self._stage.to_the_end(displays, tasks, publishing, KILLED)
            else:
                await self._stage.to_the_end(displays, tasks, publishing, KILLED)
        return displays

    async def _spark_is_ready(self) -> bool:
        """Wait for Spark and say what it is about; False if it cannot be had."""
        began_at = time.monotonic()
        say("  the display of terminal N joins four streams: Spark starts …")
        while True:
            status = await in_background(lambda: self._cluster.client(READER).get("/status"))
            spark = status["spark"]
            if spark["state"] == "ready":
                took_s = time.monotonic() - began_at
                say(f"  Spark {spark['spark']} on Java {spark['java']} is there after {took_s:.1f} s")
                return True
            if spark["state"] == "off" and spark["last_failure"]:
                say(f"  there is no display of terminal N: {spark['last_failure']}")
                return False
            await asyncio.sleep(0.1)

    async def _publish(self, stream: str, clock: Clock) -> None:
        from peerd.cli.airline import SOURCES, tuples
        from peerd.client import Client

        coming = tuples(stream, clock, random.Random(stream))
        at_s, row = next(coming)
        async with Client(self._cluster.base.embedded(SOURCES[stream].peer).path) as client:
            while not self._stage.stop.is_set():
                rows = []
                while at_s <= time.monotonic():
                    rows.append(row)
                    at_s, row = next(coming)
                self._sent_at.update(dict.fromkeys((each[-1] for each in rows), time.monotonic()))
                if rows:
                    await self._stage.publish(client, stream, rows)
                await asyncio.sleep(BATCH_S)
