"""What a peer knows of the network when it places operators: asked of its driver, answered with an event."""

from __future__ import annotations

from protocols.demand import ResourceName
from protocols.effects import Effect
from protocols.events import Event
from protocols.ids import PeerId


class LookAtNetwork(Effect, frozen=True):
    """Ask for NetworkSeen: the live peers that we know, and these."""

    placement: str  # What it is for.
    peers: tuple[PeerId, ...]


class NetworkSeen(Event, frozen=True):
    """Some peers, ourselves among them, and the estimated one-way delay between each two, in milliseconds."""

    placement: str
    peers: tuple[PeerId, ...]
    rows: tuple[tuple[float, ...], ...]
    engines: tuple[PeerId, ...]  # Those that say they can run operators with state.
    older: tuple[PeerId, ...] = ()  # Peers of a release whose daemons run no windows.
    unshared: tuple[PeerId, ...] = ()  # Live peers that are left out, since they do not share execution with us.
    sieving: tuple[PeerId, ...] = ()  # Those that, of what they publish, send each reader only what it needs.
    closed: tuple[PeerId, ...] = ()  # Peers that host nothing for others.
    full: tuple[tuple[PeerId, ResourceName], ...] = ()  # Peers that say they have no room, and the first they lack.
