"""Baseline: every operator at the proxy, every source shipped there (SAND, section 6.1)."""

from __future__ import annotations

from protocols.ids import PeerId
from protocols.placement.tree import Distance, ProcessingTree, Vertex


def place_at_proxy(tree: ProcessingTree, distance: Distance) -> tuple[PeerId, ...]:
    """Where each vertex goes; what the proxy cannot run goes to the nearest peer that can."""

    def host(vertex: Vertex) -> PeerId:
        if vertex.peer is not None or vertex.able is None or tree.proxy in vertex.able:
            return vertex.peer or tree.proxy
        return min(vertex.able, key=lambda peer: (distance(peer, tree.proxy), peer))

    return tuple(host(vertex) for vertex in tree.vertices)
