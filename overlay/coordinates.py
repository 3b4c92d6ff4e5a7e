"""Vivaldi network coordinates: where peers sit in a space whose distances are round-trip times.

Each round trip of ordinary traffic moves this peer's coordinate a little, and every datagram carries its sender's. So
the distance between two peers with known coordinates needs no probe. After Dabek et al., SIGCOMM 2004, with the height
vector; a median of three guards against a single late answer.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final, Literal

from protocols.ids import PeerId

DIMENSIONS: Final = 4
ERROR_MAX: Final = 1.5
_HEIGHT_MIN_MS: Final = 0.01
_GAIN: Final = 0.25
_ROUND_TRIP_MAX_MS: Final = 10_000.0
_FILTERED_PEERS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A point, a height above it (the access link), both in milliseconds, and an estimate of its own error."""

    position: tuple[float, ...] = (0.0,) * DIMENSIONS
    height: float = _HEIGHT_MIN_MS
    error: float = ERROR_MAX

    def distance_ms(self, other: Coordinate) -> float:
        return math.dist(self.position, other.position) + self.height + other.height

    def is_sane(self) -> bool:
        """Whether the numbers are usable; another peer may send anything."""
        parts = (*self.position, self.height, self.error)
        in_bounds = all(math.isfinite(part) and abs(part) <= _ROUND_TRIP_MAX_MS for part in parts)
        return in_bounds and self.height >= 0 and self.error >= 0


@dataclass(frozen=True, slots=True)
class Distance:
    """A round-trip time between two peers, and how it is known."""

    ms: float | None
    error_ms: float | None
    kind: Literal["measured", "estimated", "unknown"]


UNKNOWN: Final = Distance(None, None, "unknown")


def estimate(a: Coordinate, b: Coordinate) -> Distance:
    ms = a.distance_ms(b)
    return Distance(ms, ms * max(a.error, b.error), "estimated")


class Vivaldi:
    """This peer's own coordinate.

    >>> here = Vivaldi(random.Random(1))
    >>> for _ in range(200):
    ...     here.observe(PeerId(bytes(20)), Coordinate(error=0.1), 30.0)
    >>> round(here.coordinate.distance_ms(Coordinate()))
    30
    """

    def __init__(self, rng: random.Random) -> None:
        self.coordinate = Coordinate()
        self._rng = rng
        self._recent: OrderedDict[PeerId, deque[float]] = OrderedDict()

    def observe(self, peer: PeerId, other: Coordinate, round_trip_ms: float) -> None:
        """Take in one measured round trip to a peer that claims to be at `other`."""
        if not 0 <= round_trip_ms <= _ROUND_TRIP_MAX_MS or not other.is_sane():
            return
        round_trip_ms = max(self._median(peer, round_trip_ms), _HEIGHT_MIN_MS)
        here = self.coordinate
        predicted = here.distance_ms(other)
        weight = here.error / max(here.error + other.error, 1e-6)
        wrong = abs(predicted - round_trip_ms) / round_trip_ms
        error = min(_GAIN * weight * wrong + here.error * (1 - _GAIN * weight), ERROR_MAX)
        force = _GAIN * weight * (round_trip_ms - predicted)
        direction, apart = self._direction(here, other)
        position = tuple(x + force * step for x, step in zip(here.position, direction, strict=True))
        height = here.height
        if apart > 0:
            height = max(_HEIGHT_MIN_MS, height + (height + other.height) * force / apart)
        moved = Coordinate(position, height, error)
        self.coordinate = moved if moved.is_sane() else Coordinate()

    def _median(self, peer: PeerId, round_trip_ms: float) -> float:
        recent = self._recent.get(peer)
        if recent is None:
            recent = self._recent[peer] = deque(maxlen=3)
            if len(self._recent) > _FILTERED_PEERS_MAX:
                self._recent.popitem(last=False)
        recent.append(round_trip_ms)
        return sorted(recent)[len(recent) // 2]

    def _direction(self, here: Coordinate, other: Coordinate) -> tuple[tuple[float, ...], float]:
        """The unit vector away from the other, and the distance; a random direction if both coincide."""
        gap = tuple(a - b for a, b in zip(here.position, other.position, strict=True))
        apart = math.hypot(*gap)
        if apart > 1e-9:
            return tuple(x / apart for x in gap), apart
        luck = tuple(self._rng.gauss(0, 1) for _ in gap)
        length = math.hypot(*luck) or 1.0
        return tuple(x / length for x in luck), 0.0
