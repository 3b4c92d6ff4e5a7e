"""Hybrid logical time: stamps that follow the wall clock and never contradict causality.

If a query was acknowledged before a publish, the tuple's stamp is higher than the query's, whatever the clock skew
between them: each peer stamps above all it has seen (Kulkarni et al., 2014). A stamp is one integer: milliseconds since
1970, times 2^16, plus a count within the millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from protocols.ids import Millis

Stamp = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
COUNT_BITS: Final = 16
OFFSET_MAX_MS: Final = 500  # A peer whose clock is further off may not stamp.
AHEAD_MAX_MS: Final = 24 * 3600 * 1000  # Nobody's clock is ahead of ours by more.
PEERS_MIN: Final = 2  # With one other peer nobody can tell whose clock is wrong.


@dataclass(slots=True)
class HybridClock:
    """One peer's source of stamps."""

    latest: Stamp = 0
    offset_ms: Millis = 0  # How far the wall clock is ahead of the other peers'.
    compared_with: int = 0  # How many peers it was compared with.
    now: Millis = 0  # The wall clock at the latest event; 0: not known.

    @property
    def is_off(self) -> bool:
        """Whether the wall clock is known to be too far from the others'."""
        return abs(self.offset_ms) > OFFSET_MAX_MS and self.compared_with >= PEERS_MIN

    def tick(self, now: Millis) -> Stamp:
        """A stamp above all earlier ones."""
        self.latest = max(self.latest + 1, now << COUNT_BITS)
        return self.latest

    def witness(self, stamp: Stamp) -> None:
        """Note the stamp of another peer or of a client. One that no clock can have given is not heeded."""
        if stamp > self.latest and (not self.now or wall_ms(stamp) <= self.now + AHEAD_MAX_MS):
            self.latest = stamp


def wall_ms(stamp: Stamp) -> Millis:
    """The wall-clock part of a stamp.

    >>> wall_ms(HybridClock().tick(1234))
    1234
    """
    return stamp >> COUNT_BITS
