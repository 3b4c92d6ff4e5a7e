"""How fast the links of a peer may send and receive, all together: a token bucket for each direction.

One frame may overdraw a bucket; the next one waits until that is paid back. Those that wait have their turn in the
order in which they came, whichever link they are for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BURST_S: Final = 0.05  # What may be used at once after a pause, in seconds of the rate.
DEBT_S_MAX: Final = 1.0  # Frames that go first wait, too, once this much is overdrawn: then what is configured holds.


class Pace:
    """The bucket of one direction."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._level = bytes_per_s * BURST_S
        self._at = clock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def use(self, size: int) -> None:
        self._fill()
        self._level -= size

    @property
    def is_open(self) -> bool:
        """Whether bulk may be sent now."""
        self._fill()
        return self._level > 0

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing may be sent now."""
        self._fill()
        return self._level < -DEBT_S_MAX * self.bytes_per_s

    def when_open(self, turn: Callable[[], None]) -> None:
        """Give a turn once there is something to use, after those that wait already."""
        self._waiting.append(turn)
        self._wait()

    def _wait(self) -> None:
        if self._timer is None and self._waiting:
            wait_s = max(0.0, -self._level / self.bytes_per_s) + 0.001
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._give_turns)

    def _give_turns(self) -> None:
        self._timer = None
        for _ in range(len(self._waiting)):
            if not self.is_open:
                break
            self._waiting.popleft()()
        self._wait()

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._level + (now - self._at) * self.bytes_per_s, self.bytes_per_s * BURST_S)
        self._at = now


@dataclass(frozen=True, slots=True)
class Paces:
    """Both directions; None: as fast as the network goes."""

    up: Pace | None = None
    down: Pace | None = None

    @classmethod
    def of(cls, uplink: float | None, downlink: float | None) -> Paces:
        return cls(*(None if rate is None else Pace(rate) for rate in (uplink, downlink)))
