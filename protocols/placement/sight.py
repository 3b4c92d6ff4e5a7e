"""What a peer sees of the network when it places operators: asked of its driver, answered with an event."""

from __future__ import annotations

from protocols.effects import Effect
from protocols.events import Event
from protocols.ids import PeerId


class LookAtNetwork(Effect, frozen=True):
    """Ask for NetworkSeen: the live peers we know, and these."""

    placement: str  # What it is for.
    peers: tuple[PeerId, ...]


class NetworkSeen(Event, frozen=True):
    """Some peers, ourselves among them, and how far they are from each other: one way, in milliseconds, as we guess."""

    placement: str
    peers: tuple[PeerId, ...]
    rows: tuple[tuple[float, ...], ...]
    engines: tuple[PeerId, ...]  # Those of them that say that they can run what has state.
