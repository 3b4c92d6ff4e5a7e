"""The states of a query, the one table of their changes, and the story of what happened to it.

submitted ─▶ starting ─▶ running ─▶ ending ─▶ ended
                ▲           │
                └─ waiting ◀┘  a host was lost, or the query moves

A query that starts is planned, then deployed. What was acknowledged is tried for ever, so it waits after each loss;
what was not is refused and ends. `submitted.py` says which events lead to which change.
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
"""What can happen to a query in each state, and the state it is in then."""


@dataclass(slots=True)
class Life:
    """Where a query is in its life.

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
