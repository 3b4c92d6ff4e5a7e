"""How tests ask a simulated network for a placement, and read what came of it."""

from __future__ import annotations

from protocols.ids import PeerId
from protocols.placement.events import PlacementAsked
from protocols.placement.messages import (
    Distributed,
    Terms,
)
from protocols.placement.tree import ProcessingTree
from protocols.placement.view import NetworkView
from tests.protocols.placement.network import PlacementNetwork

LONG_MS = 50_000


def terms_of(tree: ProcessingTree, view: NetworkView, algorithm: Distributed, bound_ms: float | None = None) -> Terms:
    if algorithm == "edge" and bound_ms is None:
        return Terms(algorithm, tree.proxy)
    known = view if algorithm == "in-network" else view.among((*tree.source_peers, tree.proxy))
    candidates = view.peers if algorithm == "in-network" else ()
    return Terms(algorithm, tree.proxy, bound_ms, known.peers, tuple(map(tuple, known.rows)), candidates)


def ask(network: PlacementNetwork, tree: ProcessingTree, terms: Terms, attempt: int = 1, levels: int = 1) -> None:
    network.give(tree.proxy, PlacementAsked("q", attempt, tree.vertices, terms, levels))


def hosts_of(network: PlacementNetwork, attempt: int = 1) -> tuple[PeerId, ...]:
    (placed,) = [each for each in network.placed if each.attempt == attempt]
    return placed.hosts


def at_hosts(network: PlacementNetwork, attempt: int) -> dict[int, list[PeerId]]:
    """Which live peers think that they host an operator."""
    found: dict[int, list[PeerId]] = {}
    for host, machine in network.machines.items():
        for (_, operator), row in machine.mapped.items():
            if row.configuration is not None and row.attempt == attempt:
                found.setdefault(operator, []).append(host)
    return found
