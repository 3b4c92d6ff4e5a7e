"""Baseline: every operator at the proxy, every source shipped there (SAND, section 6.1)."""

from __future__ import annotations

from protocols.ids import PeerId
from protocols.placement.tree import ProcessingTree


def place_at_proxy(tree: ProcessingTree) -> tuple[PeerId, ...]:
    """Where each vertex goes."""
    return tuple(vertex.peer or tree.proxy for vertex in tree.vertices)
