"""The clocks of a subgraph's inputs: watermarks, floors, and the positions that no state needs any more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from protocols.delivery.messages import Origin
from protocols.ids import Millis
from protocols.subgraphs import Progress, Reach, merged

IDLE_MS: Final = 2000  # An origin that was silent for so long is idle: it does not hold the watermark back.
CLOCK_LAG_MS: Final = 1500  # The next tuple of a silent stream was published no longer ago: clocks differ by 500 ms.


@dataclass(slots=True)
class _Heard:
    """What has come of one origin: its latest time, and when that was heard."""

    time_us: int
    at: Millis
    spans: deque[tuple[int, int]] = field(default_factory=deque)  # Position after a batch, the latest time in it.


@dataclass(slots=True)
class InputClock:
    """The times of one input: its watermark is that of its slowest publisher that is not idle, less its lateness.

    For an input that is a flow, the subgraph that makes it says how far it is.
    """

    lateness_us: int
    follows_clock: bool  # Its time is the publication time: silence lets it go on.
    horizon_us: int | None = None  # How long a row can matter after its time; None: the run has no state.
    awaited: dict[Origin, None] = field(default_factory=dict)  # Read by an earlier attempt, not yet by this one.
    begun_at: Millis = 0  # An input is not idle until it has been silent since then.
    watermark_us: int | None = None
    floor_us: int | None = None  # Like the watermark, but idle publishers hold it back, too.
    said: Progress | None = None  # What the maker of the flow has reported.
    latest_us: int = 0  # Of the rows of the flow.
    _origins: dict[Origin, _Heard] = field(default_factory=dict)
    # If a join makes the flow: floors and lows that it reported. Once our floor passes one of its floors, rows of its
    # sources below these lows are not needed.
    _joined: deque[tuple[int, tuple[Reach, ...]]] = field(default_factory=deque)

    def note(self, origin: Origin, after: int, time_us: int, now: Millis) -> None:
        """Rows of an origin have come, up to a position; the latest of them is of this time."""
        heard = self._origins.get(origin)
        if heard is None:
            heard = self._origins[origin] = _Heard(time_us, now)
        self.awaited.pop(origin, None)
        heard.time_us, heard.at = max(heard.time_us, time_us), now
        if self.horizon_us is not None:
            heard.spans.append((after, heard.time_us))

    def note_flow(self, alias: str, progress: Progress, latest_us: int, now: Millis) -> None:
        """Rows of a flow have come, with their latest time. Of a batch in parts, only the last part has progress."""
        assert self.said is not None
        self.said = merged(self.said, progress)
        self.latest_us = max(self.latest_us, latest_us)
        for reach in progress.covers:
            if reach.alias == alias:
                self.note(reach.origin, reach.next, self.latest_us, now)
        joined = tuple(reach for reach in progress.lows if reach.alias != alias)
        if joined and progress.floor_us is not None and self.horizon_us is not None:
            self._joined.append((progress.floor_us, joined))

    def is_idle(self, now: Millis) -> bool:
        if self.said is not None:
            return self.said.is_idle
        if not self._origins:
            return now - self.begun_at >= IDLE_MS
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
        if not self.awaited:  # A publisher not heard yet may have older rows than all others.
            floor_us = min(times) - self.lateness_us
            self.floor_us = floor_us if self.floor_us is None else max(self.floor_us, floor_us)
        self.watermark_us = reached if self.watermark_us is None else max(self.watermark_us, reached)
        return self.watermark_us

    def lows(self, alias: str, floor_us: int | None) -> tuple[Reach, ...]:
        """Positions below which no row can meet one that is still to come; each is returned once."""
        if self.horizon_us is None or floor_us is None:
            return ()
        found: list[Reach] = []
        while self._joined and self._joined[0][0] <= floor_us:
            found = [*self._joined.popleft()[1]]
        for origin, heard in self._origins.items():
            low = None
            while heard.spans and heard.spans[0][1] + self.horizon_us < floor_us:
                low = heard.spans.popleft()[0]
            if low is not None:
                found.append(Reach(alias, origin, low))
        return tuple(found)
