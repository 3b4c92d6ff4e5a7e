"""What the scenes of `peer demo` share: a peer that is killed on the way, and results compared with the reference."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.errors import PeerError
from peerd.words import milliseconds

if TYPE_CHECKING:
    from peerd.client import Client, RunningQuery
    from peerd.cluster import Cluster
    from queries.catalogue import Stream

SHOWN_PER_S: Final = 3.0
CATCH_UP_S: Final = 180.0
Row = tuple[Any, ...]


def say(text: str) -> None:
    click.echo(text, err=True)


@dataclass(slots=True)
class Published:
    """What was published to one stream: rows with their stamps; a row that a crash left uncertain has none."""

    rows: list[tuple[int | None, Row]] = field(default_factory=list)

    def since(self, stamp: int, *, with_uncertain: bool) -> list[Row]:
        return [row for stamped, row in self.rows if (with_uncertain if stamped is None else stamped >= stamp)]


@dataclass(slots=True)
class Display:
    """What one query brings to the peer that asks it."""

    title: str
    text: str
    streams: Mapping[str, Stream]
    say: Callable[[Any], str]  # A result as a line of text.
    inserted_at: int = 0
    shown_per_s: float = SHOWN_PER_S
    arrived: Counter[Row] = field(default_factory=Counter)
    delays_ms: list[float] = field(default_factory=list)
    shown_at: float = 0.0

    def due(self, published: Mapping[str, Published], *, with_uncertain: bool) -> Counter[Row]:
        """The reference evaluator's results for what was published."""
        from queries.expressions import EPOCH
        from queries.plan import sources
        from queries.query import parse
        from queries.reference import Tuple, evaluate

        plan = parse(self.text, self.streams).plan
        tuples = {}
        for name in dict.fromkeys(each.stream for each in sources(plan)):
            rows = published[name].since(self.inserted_at, with_uncertain=with_uncertain)
            has_time = self.streams[name].event_time is not None  # The last column; otherwise no window needs it.
            tuples[name] = [Tuple(row[-1] if has_time else EPOCH, row, place) for place, row in enumerate(rows)]
        return Counter(tuple(result.row) for result in evaluate(plan, tuples))

    async def read(self, query: RunningQuery, sent_at: Callable[[Any], float | None]) -> None:
        """Show some of what comes, and count all of it."""
        async for row in query:
            now = time.monotonic()
            self.arrived[tuple(row)] += 1
            published_at = sent_at(row)
            if published_at is not None:
                self.delays_ms.append((now - published_at) * 1000)
            if now - self.shown_at >= 1 / self.shown_per_s:
                self.shown_at = now
                took = "" if published_at is None else f" {milliseconds(self.delays_ms[-1])}"
                click.echo(f"  {self.title:<11} {self.say(row)}{took}")
                sys.stdout.flush()


@dataclass(slots=True)
class Stage:
    """The network that scenes are played on, and what was published in one of them."""

    cluster: Cluster
    for_s: float
    published: dict[str, Published] = field(default_factory=dict)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish(self, client: Client, stream: str, rows: list[Row]) -> None:
        from peerd.client import ConnectionLost

        stamp = None
        try:
            stamp = (await client.publish(stream, rows)).stamp
        except ConnectionLost:  # Nobody can tell whether these were published, so they are not promised.
            pass
        self.published[stream].rows += [(stamp, each) for each in rows]

    async def to_the_end(
        self,
        displays: list[Display],
        reading: list[asyncio.Task[None]],
        publishing: list[asyncio.Task[None]],
        victim: int,
    ) -> None:
        """Play, kill and restart a peer on the way, then wait until everything due has come."""
        deadline_at = time.monotonic() + CATCH_UP_S
        while not all(display.arrived for display in displays) and time.monotonic() < deadline_at:
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.for_s * 0.4)
        say(f"\n  ⚡ kill -9 peer {victim}\n")
        self.cluster.kill(victim)
        await asyncio.sleep(min(2.0, self.for_s * 0.2))
        say(f"\n  peer {victim} is started again\n")
        await asyncio.to_thread(self.cluster.restart, victim)
        await asyncio.sleep(self.for_s * 0.4)
        self.stop.set()
        await asyncio.gather(*publishing)
        deadline_at = time.monotonic() + CATCH_UP_S
        for display in displays:
            due = await asyncio.to_thread(display.due, self.published, with_uncertain=False)
            while due - display.arrived and time.monotonic() < deadline_at and not any(map(asyncio.Task.done, reading)):
                await asyncio.sleep(0.05)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    def summarise(self, displays: list[Display]) -> None:
        """What was promised and what came; an error if a promise was broken."""
        say("")
        uncertain = sum(stamp is None for each in self.published.values() for stamp, _ in each.rows)
        total = sum(len(each.rows) for each in self.published.values()) - uncertain
        cut_off = f"; {uncertain} cut off by the kill, unacknowledged" if uncertain else ""
        say(f"acknowledged  {total:,} tuples of {len(self.published)} streams{cut_off}")
        is_broken = False
        for display in displays:
            lost = (display.due(self.published, with_uncertain=False) - display.arrived).total()
            twice = (display.arrived - display.due(self.published, with_uncertain=True)).total()
            is_broken |= bool(lost or twice)
            took = f", {milliseconds(statistics.median(display.delays_ms))} in the median" if display.delays_ms else ""
            say(f"{display.title:<13} {display.arrived.total():,} results, lost {lost}, twice {twice}{took}")
        if is_broken:
            raise PeerError("the network broke its promise", hint="This is a bug: please report it with this output.")
