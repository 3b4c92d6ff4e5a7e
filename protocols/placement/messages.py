"""Messages of the distributed placement; the five names are the paper's (SAND, Figure 4).

proxy ── ADD_SUBTREE ──▶ coordinator of each zone
proxy ── OPERATOR_MAPPED, MAP ──▶ source ── MAP ──▶ coordinator ── MAP ──▶ coordinator upstream ── … ──▶ proxy
         coordinator ── OPERATOR_MAPPED, INVALIDATE_MAP ──▶ hosts
         coordinator ── OPERATOR_REMAPPED ──▶ coordinator of a child that moves

Every decision of one attempt follows from the tree, the rates and the network view alone. So a message that comes
twice, or from a coordinator that replaced a dead one, says the same again. `decided_by` orders the decisions on one
operator: vertices are numbered in post-order, so a vertex higher up decides with a higher number.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from protocols.ids import Key, PeerId
from protocols.messages import Message
from protocols.placement.configuration import Configuration
from protocols.placement.tree import Site

PlacementId = str
Distributed = Literal["edge", "edge+", "in-network"]


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """What all coordinators of an attempt work by: the rest of the paper's MAP message."""

    algorithm: Distributed
    proxy: PeerId
    bound_ms: float | None = None  # The constraint.
    peers: tuple[PeerId, ...] = ()  # The network view: these peers,
    distances: tuple[tuple[float, ...], ...] = ()  # and how far each is from each.
    candidates: tuple[PeerId, ...] = ()  # In-Network's interesting peers.


class AddSubtree(Message, frozen=True, kw_only=True, tag="ADD_SUBTREE"):
    """You coordinate this zone: a subtree, in post-order, and the children at its boundary."""

    placement: PlacementId
    attempt: int
    subtree: tuple[Site, ...]
    boundary: tuple[int, ...]


class Map(Message, frozen=True, kw_only=True, tag="MAP"):
    """A child of your zone is placed; place your own operators once all children are."""

    placement: PlacementId
    attempt: int
    operator: int
    configuration: Configuration
    alternatives: tuple[Configuration, ...]  # Its cost at the places that operators above may ask for.
    elsewhere: Configuration | None  # Its cost at any other place; only where distances do not count.
    path: tuple[int, ...]  # The leaf-to-root path: the zones still to come, yours first.
    terms: Terms


class OperatorMapped(Message, frozen=True, kw_only=True, tag="OPERATOR_MAPPED"):
    """An operator is placed at a host; told to the host, and to the proxy, which gathers the whole mapping."""

    placement: PlacementId
    attempt: int
    operator: int
    configuration: Configuration
    decided_by: int


class OperatorRemapped(Message, frozen=True, kw_only=True, tag="OPERATOR_REMAPPED"):
    """The root of your zone moves, for the sake of an operator above it."""

    placement: PlacementId
    attempt: int
    operator: int
    location: PeerId
    decided_by: int


class InvalidateMap(Message, frozen=True, kw_only=True, tag="INVALIDATE_MAP"):
    """An operator is no longer placed at you."""

    placement: PlacementId
    attempt: int
    operator: int
    decided_by: int


PlacementMessage = AddSubtree | Map | OperatorMapped | OperatorRemapped | InvalidateMap


def zone_key(placement: PlacementId, zone: int) -> Key:
    """The point of the identifier space whose owner coordinates a zone."""
    return Key.of("zone", placement, str(zone))
