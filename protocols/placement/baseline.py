"""Baseline: every operator at the proxy, every source shipped there (SAND, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence

from protocols.ids import PeerId
from protocols.placement.tree import Distance, ProcessingTree


def place_at_proxy(tree: ProcessingTree, distance: Distance) -> tuple[PeerId, ...]:
    """Where each vertex goes. An operator that the proxy cannot run goes, with all below it, to the nearest peer that
    can.
    """
    hosts = [tree.proxy] * len(tree.vertices)
    for index in reversed(range(tree.root)):
        vertex, above = tree.vertices[index], hosts[tree.parents[index]]
        if vertex.peer is not None:
            hosts[index] = vertex.peer
        elif vertex.able is None or above in vertex.able:
            hosts[index] = above
        else:
            hosts[index] = _nearest(vertex.able, above, distance)
    return tuple(hosts)


def _nearest(peers: Sequence[PeerId], to: PeerId, distance: Distance) -> PeerId:
    return min(peers, key=lambda peer: (distance(peer, to), peer))
