"""The states of a query, the one table of their changes, and the story of what happened to it.

starting ─▶ running ─▶ ending ─▶ ended
   ▲           │
   └─ waiting ◀┘  a host was lost, or the query moves

A query that starts is planned, then deployed. It can go to `ending` from every earlier state; if nothing was made for
it, it is `ended` at once. After a loss it waits, then starts the next attempt. A refusal ends a query that is not
acknowledged yet, but if a host cannot start its engine, the next host is tried first. An acknowledged query is tried
again for ever. `submitted.py` says which events lead to which change.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

from protocols.errors import LocalProtocolError
from protocols.ids import Millis

STORY_KEPT: Final = 32  # The latest events that `peer query show` tells.

State = Literal["starting", "running", "waiting", "ending", "ended"]
Change = Literal["runs", "loses its attempt", "begins again", "ends", "is gone"]

CHANGES: Final[dict[State, dict[Change, State]]] = {
    "starting": {"runs": "running", "loses its attempt": "waiting", "ends": "ending", "is gone": "ended"},
    "running": {"loses its attempt": "waiting", "ends": "ending", "is gone": "ended"},
    "waiting": {"begins again": "starting", "ends": "ending", "is gone": "ended"},
    "ending": {"ends": "ending", "is gone": "ended"},  # A refused query may be stopped before its stream is dropped.
    "ended": {},
}
"""For each state, the changes that are possible, and the state that each leads to."""


@dataclass(slots=True)
class Lifecycle:
    """The state of a query, and how it came there.

    Keeps:     its state, and the latest things that happened to it
    Invariant: a state changes as CHANGES says and in no other way
    """

    state: State = "starting"
    story: deque[tuple[Millis, str]] = field(default_factory=lambda: deque(maxlen=STORY_KEPT))

    def change(self, change: Change, now: Millis, why: str = "") -> None:
        if change not in CHANGES[self.state]:
            raise LocalProtocolError(f"a query {change} while it is {self.state}")
        self.state = CHANGES[self.state][change]
        self.note(now, f"it {change}: {why}" if why else f"it {change}")

    def note(self, now: Millis, what: str) -> None:
        """Something happened that leaves the state as it is."""
        self.story.append((now, what))
