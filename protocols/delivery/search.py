"""Whom a host reads an origin from: its publisher, or another host that reads the stream already.

A choice is a function of what is known: distances, and how many already read from whom. Other searches can stand in its
place (`Search`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from protocols.ids import PeerId

READERS_FREE: Final = 8  # So many readers of one server are no burden to it; twice as many make it twice as dear.
GAIN_MIN: Final = 0.2  # Another server must be better by this share.
DEPTH_MAX: Final = 4  # A chain of relays is no longer than this.


class Server(NamedTuple):
    """Who could serve an origin."""

    peer: PeerId
    delay_ms: float  # From there to here.
    readers: int  # How many it serves.
    depth: int = 0  # Of the stream as it has it: 0 for the publisher.

    @property
    def cost(self) -> float:
        """What a byte from there costs: the way, dearer where many others take it."""
        return (self.delay_ms + 1.0) * (1.0 + max(0, self.readers - READERS_FREE) / READERS_FREE)


class Search(Protocol):
    """Chooses a relay, or None for the publisher."""

    def __call__(
        self, publisher: Server, relays: Sequence[Server], now_at: PeerId | None, gain: float
    ) -> PeerId | None: ...


def nearest(
    publisher: Server, relays: Sequence[Server], now_at: PeerId | None, gain: float = GAIN_MIN
) -> PeerId | None:
    """The cheapest server, unless the present one is nearly as cheap."""
    present = next((each for each in relays if each.peer == now_at), publisher)
    best = min((publisher, *relays), key=lambda each: (each.cost, each.depth, each.peer))
    if best.cost > (1.0 - gain) * present.cost:
        best = present
    return None if best is publisher else best.peer
