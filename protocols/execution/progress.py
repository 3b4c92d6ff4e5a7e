"""The clocks of a subgraph's inputs: watermarks, floors, and the positions that no state needs any more.

How far an input is follows from what was read of each publisher and from what publishers said of themselves
(`Silence`), never from how long the reader has waited. So what is on time in one attempt of a query is on time in the
next, however fast that one reads what has piled up. The one exception is a publisher that does not answer at all: after
`patience_ms` the others go on without it, and the status of the subgraph says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from protocols.clock import Stamp, wall_ms
from protocols.delivery.messages import FINISHED_US, Origin, Publishers, Silence
from protocols.ids import Millis, PeerId
from protocols.subgraphs import PATIENCE_MS, Hold, Progress, Reach, later, merged

START_MS: Final = 2000  # For so long after a query was inserted, every publisher that is listed is waited for.


@dataclass(slots=True)
class _Publisher:
    """One publisher of an input, by its origin: how far it is, and what it has said of itself."""

    heard_at: Millis  # When it was last heard of, by our own clock.
    time_us: int | None = None  # The latest time among its rows.
    stamp: Stamp = 0  # Nothing else with a stamp up to this one can come.
    silence: Silence | None = None  # What it said behind its last row.
    is_read: bool = False  # Rows of it were read, in this attempt or in an earlier one.
    is_over: bool = False  # Its publisher no longer keeps it: there is nothing to wait for once it is read.
    spans: deque[tuple[int, int]] = field(default_factory=deque)  # Position after a batch, the latest time in it.

    @property
    def has_finished(self) -> bool:
        return self.silence is not None and self.silence.before_us == FINISHED_US

    @property
    def is_away(self) -> bool:
        """Whether it is read to its end, and nothing will be added before it is back."""
        return self.silence is not None and (self.silence.is_leaving or self.is_over)

    def is_idle(self, since: Stamp) -> bool:
        """Whether it has said that it is idle, and not just at the very start of the query."""
        silence = self.silence
        return silence is not None and silence.is_idle and wall_ms(silence.at) >= wall_ms(since) + START_MS


@dataclass(slots=True)
class InputClock:
    """The times of one input: its watermark is that of its slowest publisher that is not idle, less its lateness.

    For an input that is a flow, the subgraph that makes it says how far it is.
    """

    lateness_us: int
    follows_clock: bool  # Its time is the publication time, so the heartbeats of publishers move it on.
    horizon_us: int | None = None  # How long a row can matter after its time; None: the run has no state.
    since: Stamp = 0  # When the query was inserted.
    patience_ms: Millis = PATIENCE_MS
    is_listed: bool = False  # The publishers are known. Before that nobody can tell who is slowest.
    watermark_us: int | None = None
    floor_us: int | None = None  # Like the watermark, but idle publishers hold it back, too.
    reported: Progress | None = None  # Of a flow: what the subgraph that makes it has reported.
    latest_us: int | None = None  # Of all rows.
    _origins: dict[Origin, _Publisher] = field(default_factory=dict)
    # If a join makes the flow: the floors that it reported, each with its lows. Once our own floor has passed one of
    # them, nothing below these lows is needed.
    _joined: deque[tuple[int, tuple[Reach, ...]]] = field(default_factory=deque)

    # What is heard.

    def await_again(self, origins: Iterable[Origin], now: Millis) -> None:
        """An earlier attempt has read these: their rows are needed again."""
        for origin in origins:
            self._origins[origin] = _Publisher(now, is_read=True)

    def meet(self, publishers: Publishers, now: Millis) -> None:
        """There are these publishers: wait for each of them. Nobody is forgotten for not being found again."""
        self.is_listed = True
        for origin in publishers.origins:
            self._origins.setdefault(origin, _Publisher(now))
        for origin in publishers.over:
            self._origins.setdefault(origin, _Publisher(now)).is_over = True
            if origin not in publishers.origins:  # And no backup has a copy of it.
                del self._origins[origin]

    def note(self, origin: Origin, after: int, time_us: int | None, stamp: Stamp, now: Millis) -> None:
        """Rows of an origin have come, up to a position; the latest of them is of this time."""
        publisher = self._origins.setdefault(origin, _Publisher(now))
        publisher.heard_at, publisher.silence, publisher.is_read = now, None, True
        publisher.stamp = max(publisher.stamp, stamp)
        if time_us is None:
            return
        publisher.time_us = time_us if publisher.time_us is None else max(publisher.time_us, time_us)
        self.latest_us = time_us if self.latest_us is None else max(self.latest_us, time_us)
        if self.horizon_us is not None:
            publisher.spans.append((after, publisher.time_us))

    def note_silence(self, silence: Silence, now: Millis) -> None:
        """An origin that is read to its end says that there is no more."""
        publisher = self._origins.setdefault(silence.origin, _Publisher(now))
        publisher.heard_at, publisher.silence, publisher.stamp = now, silence, max(publisher.stamp, silence.at)

    def note_flow(self, alias: str, progress: Progress, latest_us: int | None, now: Millis) -> None:
        """Rows of a flow have come, with their latest time. Of a batch in parts, only the last part has progress."""
        assert self.reported is not None
        self.reported = merged(self.reported, progress)
        if latest_us is not None:
            self.latest_us = latest_us if self.latest_us is None else max(self.latest_us, latest_us)
        for reach in progress.covers:
            if reach.alias == alias:
                self.note(reach.origin, reach.next, self.latest_us, 0, now)
        joined = tuple(reach for reach in progress.lows if reach.alias != alias)
        if joined and progress.floor_us is not None and self.horizon_us is not None:
            self._joined.append((progress.floor_us, joined))

    # How far it is.

    def is_idle(self, now: Millis) -> bool:
        """Whether nobody need wait for this input: all its publishers are idle, or there are none."""
        if self.reported is not None:
            return self.reported.is_idle
        return self.is_listed and not self._active(now)

    def has_finished(self, now: Millis) -> bool:
        """Whether all its publishers have finished, so that its last windows can close."""
        if self.reported is not None:
            return self.reported.has_finished
        present = {} if self.follows_clock else self._present(now)
        return bool(present) and all(each.has_finished for each in present.values())

    def advance(self, now: Millis) -> int | None:
        """The watermark as of now; it never goes back."""
        if self.reported is not None:
            self.watermark_us, self.floor_us = self.reported.watermark_us, self.reported.floor_us
        elif self.is_listed:
            self.watermark_us = later(self.watermark_us, self._reached(now))
            present = self._present(now)
            floors = [
                self._mark(each)
                for origin, each in self._origins.items()
                if (each.is_read or origin in present) and not each.has_finished
            ]
            if floors and None not in floors:
                self.floor_us = later(self.floor_us, min(floor for floor in floors if floor is not None))
        return self.watermark_us

    def _reached(self, now: Millis) -> int | None:
        active = [self._mark(each) for each in self._active(now).values()]
        if active:
            return None if None in active else min(mark for mark in active if mark is not None)
        # Everybody is silent: the furthest says how far it is.
        known = [mark for each in self._origins.values() if (mark := self._mark(each)) is not None]
        return max(known, default=None)

    def _mark(self, publisher: _Publisher) -> int | None:
        """The watermark of one publisher: no earlier row of it is to come. None: that is not known yet."""
        if self.follows_clock:
            return wall_ms(publisher.stamp) * 1000 - self.lateness_us if publisher.stamp else None
        mark = publisher.time_us - self.lateness_us if publisher.time_us is not None else None
        before_us = publisher.silence.before_us if publisher.silence is not None else None
        return later(mark, before_us) if before_us != FINISHED_US else mark

    def _present(self, now: Millis) -> dict[Origin, _Publisher]:
        """The publishers that can be waited for: those that are there, or have been until a while ago."""
        return {
            origin: publisher
            for origin, publisher in self._origins.items()
            if now - publisher.heard_at < self.patience_ms and not publisher.is_away
        }

    def _active(self, now: Millis) -> dict[Origin, _Publisher]:
        """The publishers that hold the watermark back."""
        found = {origin: publisher for origin, publisher in self._present(now).items() if not publisher.has_finished}
        if self.follows_clock:
            return found
        return {origin: publisher for origin, publisher in found.items() if not publisher.is_idle(self.since)}

    def hold(self, now: Millis) -> Hold | None:
        """Which publisher holds the watermark back most, and why."""
        active = self._active(now)
        if self.reported is not None or not active:
            return None
        origin = min(active, key=lambda each: (self._mark(active[each]) or 0, each.publisher))
        publisher = active[origin]
        return Hold(origin.publisher, now - publisher.heard_at, has_rows=publisher.time_us is not None)

    def left_out(self, now: Millis) -> tuple[PeerId, ...]:
        """The publishers that nothing was heard of for too long."""
        gone = (origin for origin, each in self._origins.items() if now - each.heard_at >= self.patience_ms)
        return tuple(dict.fromkeys(origin.publisher for origin in gone)) if self.reported is None else ()

    def lows(self, alias: str, floor_us: int | None) -> tuple[Reach, ...]:
        """Positions below which no row can meet one that is still to come; each is returned once."""
        if self.horizon_us is None or floor_us is None:
            return ()
        found: list[Reach] = []
        while self._joined and self._joined[0][0] <= floor_us:
            found = [*self._joined.popleft()[1]]
        for origin, publisher in self._origins.items():
            low = None
            while publisher.spans and publisher.spans[0][1] + self.horizon_us < floor_us:
                low = publisher.spans.popleft()[0]
            if low is not None:
                found.append(Reach(alias, origin, low))
        return tuple(found)
