"""Answers that several roles give about streams."""

from __future__ import annotations

from typing import Final

from protocols.clock import OFFSET_MAX_MS, HybridClock
from protocols.ids import Millis, StreamName
from protocols.messages import Refused

CLOCK_RETRY_MS: Final[Millis] = 1000


def unknown_stream(name: StreamName, nearest: StreamName | None) -> Refused:
    """The answer for a stream that is not there."""
    meant = f'Did you mean "{nearest}"? ' if nearest else ""
    return Refused(
        code="unknown",
        error=f'stream "{name}" is not known',
        hint=f'{meant}"peer stream ls" shows the streams there are, "peer stream create" makes one.',
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
