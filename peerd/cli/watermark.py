"""How far the time of a query is, who holds it back, and what to do about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.errors import PeerError
from peerd.words import milliseconds

if TYPE_CHECKING:
    from protocols.subgraphs import Hold

SHORT_ID: Final = 8
UNHEARD_MS: Final = 3000  # A publisher sends tuples or heartbeats more often than that.
QUIET_S: Final = 10.0  # A query with state that is silent for so long explains itself.
_HOLDING: Final = ("watermark", "lag_ms", "is_idle", "has_finished", "held_by", "left_out")


def shown_time(watermark_us: int | None) -> str | None:
    """A watermark for people; None where there is none, or where it is beyond the calendar.

    >>> shown_time(1_777_636_841_500_000)
    '2026-05-01T12:00:41.500Z'
    """
    from queries.expressions import EPOCH, MICROSECOND

    try:
        time = EPOCH + watermark_us * MICROSECOND if watermark_us is not None else None
    except OverflowError:
        return None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z") if time is not None else None


def lag_ms(watermark_us: int | None, now: float) -> float | None:
    """How far a watermark is behind the clock on the wall."""
    return now * 1000 - watermark_us / 1000 if watermark_us is not None else None


def holder_of(subgraphs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The stream whose time has come least far: everything that waits, waits for it. Silent ones hold nobody up."""
    streams = [
        {"stream": each["from"], "at": row["host"], **{key: each[key] for key in _HOLDING}}
        for row in subgraphs
        for each in row["inputs"]
        if not each["from"].startswith("subgraph ") and each["is_idle"] is not None
    ]
    lively = [each for each in streams if not each["is_idle"]]
    return max(lively or streams, key=lambda each: (each["lag_ms"] is None, each["lag_ms"] or 0.0), default=None)


def hold_record(hold: Hold) -> dict[str, Any]:
    return {"peer": hold.publisher.hex(), "unheard_ms": hold.unheard_ms, "has_rows": hold.has_rows}


def watermark_sentence(holder: dict[str, Any] | None) -> str:
    """How far time is, who holds it back, and what to do about it.

    >>> held = {"peer": "0123456789", "unheard_ms": 400, "has_rows": True}
    >>> holder = {"stream": "s", "at": "ab", "watermark": "2026-05-01T12:00:41Z", "held_by": held, "left_out": []}
    >>> watermark_sentence(holder | {"has_finished": False})
    'at 2026-05-01T12:00:41Z, held by peer 01234567, a publisher of stream s; "peer publish s --done" there ends that'
    """
    if holder is None:
        return "-"
    stream, held = holder["stream"], holder["held_by"]
    where = f"stream {stream}, read at peer {holder['at'][:SHORT_ID]}"
    behind = f"at {holder['watermark']}" if holder["watermark"] else "no time yet"
    if holder["has_finished"]:
        said = f"all windows are closed: the publishers of {where}, have finished"
    elif held is None and holder["watermark"] is None:
        said = f"nothing has come yet of {where}"
    elif held is None:
        said = f"{behind}, held by {where}, which is silent; its next tuple or --done lets it go on"
    elif held["unheard_ms"] > UNHEARD_MS:
        said = f"{behind}, held by peer {held['peer'][:SHORT_ID]}, unheard for {milliseconds(held['unheard_ms'])}"
        said += f"; its tuples of stream {stream} are waited for as WITH (patience = …) says"
    else:
        said = f"{behind}, held by peer {held['peer'][:SHORT_ID]}, a publisher of stream {stream}"
        said += f'; "peer publish {stream} --done" there ends that'
    gone = ", ".join(each[:SHORT_ID] for each in holder["left_out"])
    return f"{said}; no longer waited for: peer {gone}" if gone else said


class Watch:
    """Says on stderr what a query waits for, once it has had no results for a while."""

    def __init__(self, look: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._look = look
        self._heard_at = time.monotonic()
        self._said = ""

    def hear(self) -> None:
        """A result has come."""
        self._heard_at = time.monotonic()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(max(self._heard_at + QUIET_S - time.monotonic(), QUIET_S / 10))
            if time.monotonic() < self._heard_at + QUIET_S:
                continue
            try:
                record = await self._look()
            except PeerError:  # The peer is away; the reader waits for it.
                continue
            self._explain(record)
            self.hear()

    def _explain(self, record: dict[str, Any]) -> None:
        holder = record["watermark"]
        waits = any(each["state_rows"] for each in record["subgraphs"])
        if not waits or holder is None or holder["has_finished"]:
            return
        held = holder["held_by"]
        who = f"{holder['stream']} {held and held['peer']} {holder['left_out']}"
        if who != self._said:
            self._said = who
            click.echo(f"no result for {QUIET_S:.0f} s: {watermark_sentence(holder)}", err=True)


@asynccontextmanager
async def explaining(look: Callable[[], Awaitable[dict[str, Any]]]) -> AsyncIterator[Watch]:
    """While somebody reads results: `look` shows the query as `peer query show` does."""
    watch = Watch(look)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
