"""What the placement is asked for, and what it answers."""

from __future__ import annotations

from protocols.events import Event
from protocols.ids import PeerId
from protocols.placement.messages import PlacementId, Terms
from protocols.placement.tree import Vertex


class PlacementAsked(Event, frozen=True):
    """A query of this peer wants its operators placed. Asking with a higher attempt places them anew."""

    placement: PlacementId
    attempt: int
    vertices: tuple[Vertex, ...]
    terms: Terms
    zone_levels: int = 1  # How many levels of operators make a zone; with 1, every operator is a zone.


class OperatorsPlaced(Event, frozen=True):
    """Every operator is placed: the host of each vertex."""

    placement: PlacementId
    attempt: int
    hosts: tuple[PeerId, ...]


class PlacementStopped(Event, frozen=True):
    """Nobody waits for this placement any more."""

    placement: PlacementId
