"""How far the inputs of a subgraph have come: positions, times, and what will never be needed again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from protocols.delivery.messages import Origin, Position
from protocols.execution.messages import Progress
from protocols.ids import Millis

IDLE_MS: Final = 2000  # An origin that has been silent for so long holds no watermark back.
CLOCK_LAG_MS: Final = 1500  # Publication times of a silent stream are younger than this: clocks differ by 500 ms.


@dataclass(slots=True)
class _Heard:
    time_us: int
    at: Millis
    spans: deque[tuple[int, int]] = field(default_factory=deque)  # Position after a batch, the latest time in it.


@dataclass(slots=True)
class InputClock:
    """The times of one input: its watermark is that of its slowest lively publisher, less the lateness allowed.

    For an input that is a flow, the subgraph that makes it says how far it is.
    """

    lateness_us: int
    follows_clock: bool  # Its time is the publication time: silence lets it go on.
    watermark_us: int | None = None
    floor_us: int | None = None  # As the watermark, but no silence lets it go on.
    said: Progress | None = None  # By the subgraph that makes the flow.
    _origins: dict[Origin, _Heard] = field(default_factory=dict)

    def note(self, origin: Origin, after: int, time_us: int, now: Millis) -> None:
        """Rows of an origin have come, up to a position; the latest of them is of this time."""
        heard = self._origins.get(origin)
        if heard is None:
            heard = self._origins[origin] = _Heard(time_us, now)
        heard.time_us, heard.at = max(heard.time_us, time_us), now
        heard.spans.append((after, heard.time_us))

    def is_idle(self, now: Millis) -> bool:
        if self.said is not None:
            return self.said.is_idle
        return all(now - heard.at >= IDLE_MS for heard in self._origins.values())

    def advance(self, now: Millis) -> int | None:
        """The watermark as of now; it never goes back."""
        if self.said is not None:
            self.watermark_us, self.floor_us = self.said.watermark_us, self.said.floor_us
            return self.watermark_us
        lively = [heard.time_us for heard in self._origins.values() if now - heard.at < IDLE_MS]
        times = [heard.time_us for heard in self._origins.values()]
        if not times:
            return self.watermark_us
        reached = (min(lively) if lively else max(times)) - self.lateness_us
        if not lively and self.follows_clock:
            reached = max(reached, (now - CLOCK_LAG_MS) * 1000 - self.lateness_us)
        self.floor_us = max(self.floor_us or 0, min(times) - self.lateness_us)
        self.watermark_us = reached if self.watermark_us is None else max(self.watermark_us, reached)
        return self.watermark_us

    def lows(self, horizon_us: int | None, floor_us: int | None) -> tuple[Position, ...]:
        """The positions below which no row can meet one still to come."""
        if horizon_us is None or floor_us is None:
            return ()
        found = []
        for origin, heard in self._origins.items():
            low = None
            while heard.spans and heard.spans[0][1] + horizon_us < floor_us:
                low = heard.spans.popleft()[0]
            if low is not None:
                found.append(Position(origin, low))
        return tuple(found)


@dataclass(slots=True)
class Vector:
    """A position for each origin; only ever forward."""

    next: dict[Origin, int] = field(default_factory=dict)

    @classmethod
    def of(cls, positions: tuple[Position, ...]) -> Vector:
        return cls({position.origin: position.next for position in positions})

    def advance(self, positions: tuple[Position, ...]) -> None:
        for position in positions:
            if position.next > self.next.get(position.origin, 0):
                self.next[position.origin] = position.next

    def positions(self) -> tuple[Position, ...]:
        return tuple(Position(origin, upto) for origin, upto in self.next.items())


def merged(before: Progress, after: Progress) -> Progress:
    """Two reports of one flow made into one."""
    covers, lows = Vector.of(before.covers), Vector.of(before.lows)
    covers.advance(after.covers)
    lows.advance(after.lows)
    watermark_us = _later(before.watermark_us, after.watermark_us)
    floor_us = _later(before.floor_us, after.floor_us)
    return Progress(covers.positions(), lows.positions(), watermark_us, floor_us, after.is_idle)


def _later(a: int | None, b: int | None) -> int | None:
    return max((time for time in (a, b) if time is not None), default=None)
