"""Virtual time: what is going to happen, ordered by (time, sequence); only waiting takes time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from protocols.ids import Millis

Action = Callable[..., None]


class Agenda:
    """The one queue of a simulation.

    Actions due in the same millisecond happen in the order in which they were scheduled, so a run depends on nothing
    else. The actions of one millisecond are one list, and the heap holds times, not actions; so adding an action to a
    busy millisecond costs no more than appending to a list. An action that raises ends the run.

    >>> agenda, seen = Agenda(), []
    >>> for when in (20, 10, 20):
    ...     agenda.at(when, lambda when=when: seen.append((agenda.now, when)))
    >>> agenda.run_until(15)
    >>> seen, agenda.now
    ([(10, 10)], 15)
    """

    __slots__ = ("_due", "_times", "done", "now")

    def __init__(self) -> None:
        self.now: Millis = 0
        self.done = 0  # How many actions have been performed.
        self._due: dict[Millis, list[tuple[Action, tuple[Any, ...]]]] = {}
        self._times: list[Millis] = []  # The keys of `_due`, as a heap.

    def at(self, when: Millis, action: Action, *arguments: Any) -> None:
        """Perform an action at a time, which is not in the past."""
        assert when >= self.now, f"{action} is due at {when}, now is {self.now}"
        due = self._due.get(when)
        if due is None:
            self._due[when] = [(action, arguments)]
            heapq.heappush(self._times, when)
        else:
            due.append((action, arguments))

    def after(self, wait_ms: Millis, action: Action, *arguments: Any) -> None:
        """Perform an action after a wait."""
        assert wait_ms >= 0, f"{action} is due {-wait_ms} ms ago"
        when = self.now + wait_ms
        due = self._due.get(when)
        if due is None:
            self._due[when] = [(action, arguments)]
            heapq.heappush(self._times, when)
        else:
            due.append((action, arguments))

    def run_until(self, until: Millis) -> None:
        """Perform everything due up to a time, that time included."""
        times = self._times
        while times and times[0] <= until:
            self.now = heapq.heappop(times)
            # What these schedule for the same millisecond makes a new list, which comes next.
            for action, arguments in self._due.pop(self.now):
                self.done += 1
                action(*arguments)
        self.now = until
