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

from typing import Annotated, Literal

import msgspec

from protocols.errors import expect
from protocols.ids import NAME_MAX, Amount, Count, Key, PeerId
from protocols.messages import Message
from protocols.placement.configuration import Configuration
from protocols.placement.tree import Site

PlacementId = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
Distributed = Literal["edge", "edge+", "in-network"]


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """What all coordinators of an attempt work by: the rest of the paper's MAP message."""

    algorithm: Distributed
    proxy: PeerId
    bound_ms: Amount | None = None  # The constraint.
    peers: tuple[PeerId, ...] = ()  # The network view: these peers,
    distances: tuple[tuple[Amount, ...], ...] = ()  # and how far each is from each.
    candidates: tuple[PeerId, ...] = ()  # In-Network's interesting peers.

    def check(self) -> None:
        known = frozenset(self.peers)
        expect(len(known) == len(self.peers), "a peer is twice in the network view")
        expect(len(self.distances) == len(self.peers), "the network view lacks rows")
        expect(all(len(row) == len(self.peers) for row in self.distances), "the network view lacks columns")
        expect(not known or self.proxy in known, "the proxy is not in the network view")
        expect(not known or known.issuperset(self.candidates), "a candidate is not in the network view")


class AddSubtree(Message, frozen=True, kw_only=True, tag="ADD_SUBTREE"):
    """You coordinate this zone: a subtree, in post-order, and the children at its boundary."""

    placement: PlacementId
    attempt: Count
    subtree: tuple[Site, ...]
    boundary: tuple[Count, ...]

    def check(self) -> None:
        expect(bool(self.subtree), "a subtree without operators")
        seen = dict.fromkeys(self.boundary)
        for site in self.subtree:
            expect(bool(site.children), "an operator without children")
            expect(len(site.children) == len(site.betas) == len(site.below), "an operator whose lists differ in length")
            expect(all(child < site.operator for child in site.children), "operators that are not in post-order")
            for child in site.children:
                expect(child in seen, "a child that is neither in the subtree nor at its boundary, or has two parents")
                del seen[child]
            expect(site.operator not in seen, "an operator that is twice in the subtree")
            expect(site.able is None or bool(site.able), "an operator that nobody can run")
            seen[site.operator] = None
        expect(list(seen) == [self.subtree[-1].operator], "a subtree with several roots")


class Map(Message, frozen=True, kw_only=True, tag="MAP"):
    """A child of your zone is placed; place your own operators once all children are."""

    placement: PlacementId
    attempt: Count
    operator: Count
    configuration: Configuration
    alternatives: tuple[Configuration, ...]  # Its cost at the places that operators above may ask for.
    elsewhere: Configuration | None  # Its cost at any other place; only where distances do not count.
    path: tuple[Count, ...]  # The leaf-to-root path: the zones still to come, yours first.
    terms: Terms

    def check(self) -> None:
        self.terms.check()
        expect(bool(self.path), "a path without zones")
        expect(len(self.path) > 1 or self.path[0] != self.operator, "a path that ends at its source")
        expect(all(one < other for one, other in zip(self.path, self.path[1:], strict=False)), "a path that goes back")
        places = (self.configuration, *self.alternatives)
        expect(all(each.location is not None for each in places), "a configuration without a location")
        if self.elsewhere is not None:
            expect(self.elsewhere.location is None, "one price for all other peers, with a location")
            expect(
                self.terms.algorithm == "edge" and self.terms.bound_ms is None, "one price, although distances count"
            )


class OperatorMapped(Message, frozen=True, kw_only=True, tag="OPERATOR_MAPPED"):
    """An operator is placed at a host; told to the host, and to the proxy, which gathers the whole mapping."""

    placement: PlacementId
    attempt: Count
    operator: Count
    configuration: Configuration
    decided_by: Count


class OperatorRemapped(Message, frozen=True, kw_only=True, tag="OPERATOR_REMAPPED"):
    """The root of your zone moves, for the sake of an operator above it."""

    placement: PlacementId
    attempt: Count
    operator: Count
    location: PeerId
    decided_by: Count


class InvalidateMap(Message, frozen=True, kw_only=True, tag="INVALIDATE_MAP"):
    """An operator is no longer placed at you."""

    placement: PlacementId
    attempt: Count
    operator: Count
    decided_by: Count


PlacementMessage = AddSubtree | Map | OperatorMapped | OperatorRemapped | InvalidateMap


def zone_key(placement: PlacementId, zone: int) -> Key:
    """The point of the identifier space whose owner coordinates a zone."""
    return Key.of("zone", placement, str(zone))
