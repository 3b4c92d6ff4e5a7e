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

    >>> agenda, seen = Agenda(), []
    >>> for when in (20, 10, 20):
    ...     agenda.at(when, lambda when=when: seen.append((agenda.now, when)))
    >>> agenda.run_until(15)
    >>> seen, agenda.now
    ([(10, 10)], 15)
    """

    __slots__ = ("_queue", "_sequence", "done", "now")

    def __init__(self) -> None:
        self.now: Millis = 0
        self.done = 0  # How many actions have been performed.
        self._sequence = 0
        self._queue: list[tuple[Millis, int, Action, tuple[Any, ...]]] = []

    def at(self, when: Millis, action: Action, *arguments: Any) -> None:
        """Perform an action at a time not before now."""
        assert when >= self.now, f"{action} is due at {when}, now is {self.now}"
        self._sequence = sequence = self._sequence + 1
        heapq.heappush(self._queue, (when, sequence, action, arguments))

    def after(self, wait_ms: Millis, action: Action, *arguments: Any) -> None:
        """Perform an action so much later."""
        assert wait_ms >= 0, f"{action} is due {-wait_ms} ms ago"
        self._sequence = sequence = self._sequence + 1
        heapq.heappush(self._queue, (self.now + wait_ms, sequence, action, arguments))

    def run_until(self, until: Millis) -> None:
        """Perform everything due up to a time, that time included."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= until:
            self.now, _, action, arguments = pop(queue)
            self.done += 1
            action(*arguments)
        self.now = until

    def __len__(self) -> int:
        return len(self._queue)
