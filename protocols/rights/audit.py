"""The record of what was refused, changed or exhausted at one peer: bounded, newest last."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.effects import Effect
from protocols.ids import Millis
from protocols.rights.messages import AuditEvent, Principal

EVENTS_MAX: Final = 1000
SAME_MS: Final[Millis] = 10_000  # What repeats within this time is counted, not told again,
LOOKED_AT: Final = 16  # if it is among so many of the newest.
TOLD_MAX: Final = 200  # In so long a time. The rest is kept, and told to whoever asks: a log should not fill a disk.


class Audited(Effect, frozen=True):
    """Tell whoever watches over the network; the driver writes a line of the log."""

    event: AuditEvent


@dataclass(slots=True)
class Audit:
    """The newest events of one peer."""

    events: deque[AuditEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    _told_at: deque[Millis] = field(default_factory=lambda: deque(maxlen=TOLD_MAX))

    def note(self, what: str, principal: Principal, action: str, via: str, now: Millis) -> list[Effect]:
        """Keep an event. The effect tells of it, unless it repeats one of the last."""
        event = AuditEvent(now, what, principal, action, via)
        for place in range(len(self.events) - 1, max(len(self.events) - LOOKED_AT, 0) - 1, -1):
            known = self.events[place]
            if now - known.at < SAME_MS and event == msgspec.structs.replace(known, at=now, count=1):
                self.events[place] = msgspec.structs.replace(known, count=known.count + 1)
                return []
        self.events.append(event)
        if len(self._told_at) == TOLD_MAX and now - self._told_at[0] < SAME_MS:
            return []
        self._told_at.append(now)
        return [Audited(event)]
