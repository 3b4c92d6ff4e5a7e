"""Answers that several roles give about streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocols.catalogue.events import QueryEntry, SubscriberEntry
from protocols.clock import OFFSET_MAX_MS, HybridClock
from protocols.ids import Millis, StreamName
from protocols.messages import Refused

CLOCK_RETRY_MS: Final[Millis] = 1000
READERS_NAMED: Final = 8
ALTER_RETRY_MS: Final[Millis] = 500


def unknown_stream(name: StreamName, nearest: StreamName | None) -> Refused:
    """The answer for a stream that is not there."""
    meant = f'Did you mean "{nearest}"? ' if nearest else ""
    return Refused(
        code="unknown",
        error=f'stream "{name}" is not known',
        hint=f'{meant}"peer stream ls" shows the streams there are, "peer stream create" makes one.',
    )


def still_read(
    name: StreamName, queries: Sequence[QueryEntry], subscribers: Sequence[SubscriberEntry]
) -> Refused | None:
    """The answer to whoever removes a stream that queries or kept subscriptions read; None if none does."""
    readers = [f'query "{each.name}" of peer {each.proxy.short}' for each in queries]
    readers += [f'subscription "{each.subscription}" at peer {each.peer.short}' for each in subscribers if each.kept]
    if not readers:
        return None
    more = f" And {len(readers) - READERS_NAMED} more." if len(readers) > READERS_NAMED else ""
    return Refused(
        code="in use",
        error=f'stream "{name}" is still read',
        detail=f"By {', '.join(readers[:READERS_NAMED])}.{more}",
        hint='"peer query stop NAME" ends a query; "peer stream rm --force" removes the stream in any case.',
    )


def clock_is_off(name: StreamName, clock: HybridClock) -> Refused:
    """The answer of a peer whose clock is off: it may not stamp tuples."""
    where = "ahead of" if clock.offset_ms > 0 else "behind"
    return Refused(
        code="unavailable",
        error=f'stream "{name}" cannot be used here now: the clock of this peer is wrong',
        detail=f"It is {abs(clock.offset_ms)} ms {where} {clock.compared_with} others; {OFFSET_MAX_MS} ms are allowed.",
        hint="Set the clock of that machine (NTP does): this peer then goes on by itself. Or ask another peer.",
        retry_after_ms=CLOCK_RETRY_MS,
    )


def unanswered(name: StreamName, reason: str) -> Refused:
    return Refused(
        code="unavailable",
        error=f'stream "{name}": the peers that keep the catalogue did not answer in time',
        detail=reason,
        hint="Try again; the network may be healing.",
        retry_after_ms=1000,
    )


def altering_already(name: StreamName) -> Refused:
    return Refused(
        code="busy",
        error=f'stream "{name}" is being altered',
        detail="Another alteration has not been decided yet.",
        hint="Try again.",
        retry_after_ms=ALTER_RETRY_MS,
    )
