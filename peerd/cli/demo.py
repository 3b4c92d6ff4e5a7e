"""`peer demo`: an airline on five peers. Its streams are published at four of them, its queries are asked at the fifth.

In the middle one publishing peer is killed, as by a power cut, and started again. What the queries brought is then
compared with what the reference evaluator makes of everything that was acknowledged.
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
from typing import TYPE_CHECKING, Any, Final

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
    from peerd.cli.airline import Clock
    from peerd.client import Client, RunningQuery
    from peerd.cluster import Cluster

KILLED: Final = 2
READER: Final = 5
SHOWN_PER_S: Final = 3.0
BATCH_S: Final = 0.05
CATCH_UP_S: Final = 180.0


@dataclass(slots=True)
class _Published:
    """What was published to one stream: rows with their stamps; what a crash left uncertain has none."""

    rows: list[tuple[int | None, tuple[Any, ...]]] = field(default_factory=list)

    def since(self, stamp: int, *, with_uncertain: bool) -> list[tuple[Any, ...]]:
        return [row for stamped, row in self.rows if (with_uncertain if stamped is None else stamped >= stamp)]


@dataclass(slots=True)
class _Display:
    """What one query brings to the fifth peer."""

    title: str
    text: str
    inserted_at: int = 0
    arrived: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    delays_ms: list[float] = field(default_factory=list)
    shown_at: float = 0.0

    def due(self, published: dict[str, _Published], *, with_uncertain: bool) -> Counter[tuple[Any, ...]]:
        """What the reference evaluator makes of what was published."""
        from peerd.cli.airline import SOURCES
        from peerd.rows import parse_schema
        from queries.catalogue import Stream
        from queries.plan import sources
        from queries.query import parse
        from queries.reference import Tuple, evaluate

        streams = {name: Stream(name, parse_schema(each.schema), "AT") for name, each in SOURCES.items()}
        plan = parse(self.text, streams).plan
        tuples = {}
        for name in dict.fromkeys(each.stream for each in sources(plan)):
            rows = published[name].since(self.inserted_at, with_uncertain=with_uncertain)
            tuples[name] = [Tuple(row[-1], row, place) for place, row in enumerate(rows)]
        return Counter(tuple(result.row) for result in evaluate(plan, tuples))


@click.command()
@click.option(
    "--for", "for_s", callback=read_span, default="10s", show_default=True, metavar="TIME", help="How long to play."
)
@click.option("--no-spark", is_flag=True, help="Only the query that needs no Spark.")
def demo(for_s: float, no_spark: bool) -> None:
    """Play an airline: five streams at four peers, a display at a fifth, and a peer killed in the middle.

    \b
        $ peer demo --for 30s
    """
    from peerd.cluster import Cluster

    folder = Path(tempfile.mkdtemp(prefix="peer-demo-"))
    cluster = Cluster(DataDir(folder))
    with interruptible():
        try:
            started_at = time.monotonic()
            reader = {} if no_spark else {READER: {"spark": "warm"}}
            cluster.start(READER, name="demo", settings={"spark": "off"}, settings_of=reader)
            cluster.wait_until_up()
            _say(f"{counted(READER, 'peer')} found each other in {time.monotonic() - started_at:.1f} s")
            show_rows(cluster.client(1).get("/members"), MEMBER_COLUMNS, "table")
            sys.stdout.flush()
            published, displays = asyncio.run(_Play(cluster, for_s, not no_spark).run())
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)
    _summarise(published, displays)
    _say(f"stopped {counted(READER, 'peer')}")


class _Play:
    """The scenario from the first stream to the last result."""

    def __init__(self, cluster: Cluster, for_s: float, has_spark: bool) -> None:
        from peerd.cli.airline import DELAYED, DISPLAY, SOURCES

        self._cluster = cluster
        self._for_s = for_s
        self._has_spark = has_spark
        self._stop = asyncio.Event()
        self._published = {name: _Published() for name in SOURCES}
        self._sent_at: dict[datetime, float] = {}
        self._delayed = _Display("delayed", DELAYED)
        self._terminal = _Display("terminal N", DISPLAY)

    async def run(self) -> tuple[dict[str, _Published], list[_Display]]:
        from peerd.cli.airline import COMPRESSION, SOURCES, Clock
        from peerd.client import Client

        async with Client(self._cluster.base.embedded(1).path) as client:
            for name, source in SOURCES.items():
                await client.create_stream(name, source.schema, event_time="AT")
        per_min = sum(source.per_min for source in SOURCES.values())
        _say(f"peer 1 made the streams {', '.join(SOURCES)}: {per_min:.0f} tuples in a minute of the airline")
        _say(f"peers 1 to 4 publish, {COMPRESSION} times as fast; peer {READER} asks:\n")
        clock = Clock(datetime.now(UTC), time.monotonic())
        async with Client(self._cluster.base.embedded(READER).path) as reader:
            publishing = [asyncio.create_task(self._publish(name, clock)) for name in SOURCES]
            try:
                displays = await self._watch(reader, publishing)
            finally:
                self._stop.set()
                await asyncio.gather(*publishing)
        return self._published, displays

    async def _watch(self, reader: Client, publishing: list[asyncio.Task[None]]) -> list[_Display]:
        """Both queries: the first results come at once, those of the join when Spark has started."""
        async with reader.query(self._delayed.text, name="delayed") as delayed:
            tasks = [asyncio.create_task(self._read(delayed, self._delayed))]
            displays = [self._delayed]
            self._delayed.inserted_at = (await reader.show_query("delayed")).inserted_at
            if self._has_spark and await self._spark_is_ready():
                async with reader.query(self._terminal.text, name="terminal-N") as terminal:
                    self._terminal.inserted_at = (await reader.show_query("terminal-N")).inserted_at
                    tasks.append(asyncio.create_task(self._read(terminal, self._terminal)))
                    displays.append(self._terminal)
                    await self._until_the_end(displays, tasks, publishing)
            else:
                await self._until_the_end(displays, tasks, publishing)
        return displays

    async def _spark_is_ready(self) -> bool:
        """Wait for Spark and say what it is about; False if it cannot be had."""
        began_at = time.monotonic()
        _say("  the display of terminal N joins four streams: Spark starts …")
        while True:
            status = await asyncio.to_thread(self._cluster.client(READER).get, "/status")
            spark = status["spark"]
            if spark["state"] == "ready":
                took_s = time.monotonic() - began_at
                _say(f"  Spark {spark['spark']} on Java {spark['java']} is there after {took_s:.1f} s")
                return True
            if spark["state"] == "off" and spark["last_failure"]:
                _say(f"  there is no display of terminal N: {spark['last_failure']}")
                return False
            await asyncio.sleep(0.1)

    async def _until_the_end(
        self, displays: list[_Display], reading: list[asyncio.Task[None]], publishing: list[asyncio.Task[None]]
    ) -> None:
        """Play, kill and restart a peer on the way, then wait until everything that is due has come."""
        deadline_at = time.monotonic() + CATCH_UP_S
        while not all(display.arrived for display in displays) and time.monotonic() < deadline_at:
            await asyncio.sleep(0.05)
        await asyncio.sleep(self._for_s * 0.4)
        _say(f"\n  ⚡ kill -9 peer {KILLED}\n")
        self._cluster.kill(KILLED)
        await asyncio.sleep(min(2.0, self._for_s * 0.2))
        _say(f"\n  peer {KILLED} is started again\n")
        await asyncio.to_thread(self._cluster.restart, KILLED)
        await asyncio.sleep(self._for_s * 0.4)
        self._stop.set()
        await asyncio.gather(*publishing)
        deadline_at = time.monotonic() + CATCH_UP_S
        for display in displays:
            due = await asyncio.to_thread(display.due, self._published, with_uncertain=False)
            while due - display.arrived and time.monotonic() < deadline_at and not any(map(asyncio.Task.done, reading)):
                await asyncio.sleep(0.05)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    async def _publish(self, stream: str, clock: Clock) -> None:
        from peerd.cli.airline import SOURCES, tuples
        from peerd.client import Client, ConnectionLost

        coming = tuples(stream, clock, random.Random(stream))
        at_s, row = next(coming)
        async with Client(self._cluster.base.embedded(SOURCES[stream].peer).path) as client:
            while not self._stop.is_set():
                rows = []
                while at_s <= time.monotonic():
                    rows.append(row)
                    at_s, row = next(coming)
                self._sent_at.update(dict.fromkeys((each[-1] for each in rows), time.monotonic()))
                stamp = None
                if rows:
                    try:
                        stamp = (await client.publish(stream, rows)).stamp
                    except ConnectionLost:  # Nobody can tell whether these made it; they are not among the promised.
                        pass
                    self._published[stream].rows += [(stamp, each) for each in rows]
                await asyncio.sleep(BATCH_S)

    async def _read(self, query: RunningQuery, display: _Display) -> None:
        async for row in query:
            now = time.monotonic()
            display.arrived[tuple(row)] += 1
            said = ""
            if display is self._delayed:
                display.delays_ms.append((now - self._sent_at[row.AT]) * 1000)
                said = f"flight {row.NUM:<5} to {row.DEST:<9} gate {row.GATE:<4} {milliseconds(display.delays_ms[-1])}"
            else:
                said = (
                    f"flight {row.NUM:<5} gate {row.GATE:<4} bags {row.AREA}  check-in {row.STATUS:<8} {row.FORECAST}"
                )
            if now - display.shown_at >= 1 / SHOWN_PER_S:
                display.shown_at = now
                click.echo(f"  {display.title:<11} {said}")
                sys.stdout.flush()


def _summarise(published: dict[str, _Published], displays: list[_Display]) -> None:
    _say("")
    uncertain = sum(stamp is None for each in published.values() for stamp, _ in each.rows)
    total = sum(len(each.rows) for each in published.values()) - uncertain
    cut_off = f"; {uncertain} cut off by the kill, unacknowledged" if uncertain else ""
    _say(f"acknowledged  {total:,} tuples of {len(published)} streams{cut_off}")
    is_broken = False
    for display in displays:
        lost = (display.due(published, with_uncertain=False) - display.arrived).total()
        twice = (display.arrived - display.due(published, with_uncertain=True)).total()
        is_broken |= bool(lost or twice)
        took = f", {milliseconds(statistics.median(display.delays_ms))} in the median" if display.delays_ms else ""
        _say(f"{display.title:<13} {display.arrived.total():,} results, lost {lost}, twice {twice}{took}")
    if is_broken:
        raise PeerError("the network broke its promise", hint="This is a bug: please report it with this output.")


def _say(text: str) -> None:
    click.echo(text, err=True)
