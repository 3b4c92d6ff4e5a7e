"""Virtual time: what is going to happen, in the order of (time, sequence); nothing takes time but waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from protocols.ids import Millis

Action = Callable[..., None]


class Agenda:
    """The one queue of a simulation.

    Two things due in the same millisecond happen in the order they were asked for, so a run depends on nothing else.
    What is due in one millisecond is one list: the heap holds times, not actions, and a large network that does much
    in each of them pays for a list's end. An action that raises ends the run: its millisecond is not taken up again.

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
        self._times: list[Millis] = []  # Those of `_due`, as a heap.

    def at(self, when: Millis, action: Action, *arguments: Any) -> None:
        """Perform an action at a time not before now."""
        assert when >= self.now, f"{action} is due at {when}, now is {self.now}"
        due = self._due.get(when)
        if due is None:
            self._due[when] = [(action, arguments)]
            heapq.heappush(self._times, when)
        else:
            due.append((action, arguments))

    def after(self, wait_ms: Millis, action: Action, *arguments: Any) -> None:
        """Perform an action so much later."""
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
            # What these ask for at once makes a new list, whose turn comes next.
            for action, arguments in self._due.pop(self.now):
                self.done += 1
                action(*arguments)
        self.now = until
