"""How far this peer's clock is from those of the others, judged by the wall clocks that their answers carry.

Pure: the times come as arguments. What another clock shows is kept against our steady clock, which nobody sets: when
our own wall clock is set, the difference shows at once and not only after the next answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocols.events import ClockCompared

SAMPLES: Final = 4  # Of one peer: about as many seconds until it is noticed that its clock was set.


@dataclass(slots=True)
class ClockSamples:
    """What the last answers of one peer say of its clock."""

    _samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def add(self, rtt_ms: float, ahead_of_steady_ms: float) -> None:
        self._samples.append((rtt_ms, ahead_of_steady_ms))

    @property
    def ahead_of_steady_ms(self) -> float | None:
        """Its clock less our steady one, by the shortest round trip: half of it is how wrong this can be."""
        return min(self._samples)[1] if self._samples else None


@dataclass(slots=True)
class Clocks:
    """The verdict over all of them: the median of all clocks, our own included, is the network's time.

    So one wrong clock moves nobody else's verdict, and where as many say one thing as the other, our own is believed.
    With a single other peer nobody can tell whose clock is wrong: the difference is only told.
    """

    _last: tuple[float, int] | None = None  # The network's time against our steady clock, and how many others agreed.

    def compare(self, own_ms: float, others_ms: Sequence[float]) -> ClockCompared:
        """Compare our clock with others, each given as its distance from our steady clock.

        >>> Clocks().compare(2_000.0, [0.0, 10.0])
        ClockCompared(offset_ms=1990, peers=2)
        """
        if others_ms:
            self._last = own_ms - _offset(own_ms, others_ms), len(others_ms)
        if self._last is None:
            return ClockCompared(0, 0)
        network_ms, peers = self._last  # Of before, should nobody be there now: our steady clock has gone on.
        return ClockCompared(round(own_ms - network_ms), peers)


def _offset(own_ms: float, others_ms: Sequence[float]) -> float:
    offsets = [own_ms - other_ms for other_ms in others_ms]
    if len(offsets) == 1:
        return offsets[0]
    offsets = sorted([0.0, *offsets])
    middle = len(offsets) // 2
    return min(offsets[middle], offsets[(len(offsets) - 1) // 2], key=abs)
