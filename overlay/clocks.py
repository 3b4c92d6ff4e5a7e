"""How far this peer's clock is from the others', judged by the wall clocks in their answers.

Pure: times come as arguments. Another clock is compared with our monotonic clock, which nobody sets. So if our own wall
clock is set, the difference shows at once, not only after the next answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocols.events import ClockCompared

SAMPLES: Final = 4  # Per peer: so many seconds, about, until a changed clock is noticed.


@dataclass(slots=True)
class ClockSamples:
    """What the last answers of one peer say of its clock."""

    _samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def add(self, rtt_ms: float, ahead_of_steady_ms: float) -> None:
        self._samples.append((rtt_ms, ahead_of_steady_ms))

    @property
    def ahead_of_steady_ms(self) -> float | None:
        """Its clock minus our monotonic one, from the shortest round trip; the error is at most half of that."""
        return min(self._samples)[1] if self._samples else None


@dataclass(slots=True)
class Clocks:
    """The verdict: the median of all clocks, our own included, is the network's time.

    So one wrong clock does not move the others' verdict, and in a tie our own clock wins. With a single other peer
    nobody can tell whose clock is wrong, so the difference is only reported.
    """

    # The network's time relative to our monotonic clock, and how many others it came from.
    _last: tuple[float, int] | None = None

    def compare(self, own_ms: float, others_ms: Sequence[float]) -> ClockCompared:
        """Compare our clock with others, each given relative to our monotonic clock.

        >>> Clocks().compare(2_000.0, [0.0, 10.0])
        ClockCompared(offset_ms=1990, peers=2)
        """
        if others_ms:
            self._last = own_ms - _offset(own_ms, others_ms), len(others_ms)
        if self._last is None:
            return ClockCompared(0, 0)
        network_ms, peers = self._last  # The last verdict, if nobody is there now; our monotonic clock has gone on.
        return ClockCompared(round(own_ms - network_ms), peers)


def _offset(own_ms: float, others_ms: Sequence[float]) -> float:
    offsets = [own_ms - other_ms for other_ms in others_ms]
    if len(offsets) == 1:
        return offsets[0]
    offsets = sorted([0.0, *offsets])
    middle = len(offsets) // 2
    return min(offsets[middle], offsets[(len(offsets) - 1) // 2], key=abs)
