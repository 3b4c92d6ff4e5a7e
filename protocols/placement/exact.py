"""The cheapest placement there is, without a delay bound: dynamic programming over operators and peers.

cost(o, v) = Σ over children c of min over u of cost(c, u) + β(c) · d(u, v). The minimum over u is taken row by row, for
all v at once, and only for the u that can still be part of something cheaper than a placement already known. Measured
distances often break the triangle inequality, so it is used only where the view says that it holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from protocols.ids import PeerId
from protocols.placement.tree import ProcessingTree, overlay_cost, rest
from protocols.placement.view import NetworkView

_SLACK: Final = 1e-9  # Sums in another order differ in their last bits; nothing may be cut off for that.


def place_exactly(tree: ProcessingTree, view: NetworkView) -> tuple[PeerId, ...]:
    """Where each vertex goes. A first pass among sources and proxy alone gives the cost to stay below."""
    edge = view.among((*tree.source_peers, tree.proxy))
    hosts = tuple(vertex.peer or tree.proxy for vertex in tree.vertices)
    for stage in (edge, view):
        ceiling = overlay_cost(tree, hosts, view.distance) * (1 + _SLACK)
        hosts = _Pass(tree, stage, ceiling).run()
    return hosts


class _Pass:
    """The dynamic programme over the peers of one view."""

    def __init__(self, tree: ProcessingTree, view: NetworkView, ceiling: float) -> None:
        self._tree, self._view, self._ceiling = tree, view, ceiling
        self._costs: list[list[float]] = [[] for _ in tree.vertices]
        self._least = [0.0] * len(tree.vertices)
        self._heights = self._measured_heights()

    def _measured_heights(self) -> list[int]:
        heights: list[int] = []
        for vertex in self._tree.vertices:
            heights.append(max((heights[child] + 1 for child in vertex.children), default=0))
        return heights

    def run(self) -> tuple[PeerId, ...]:
        tree = self._tree
        # Lowest first: the more subtrees are known, the less is left for the others below the ceiling.
        for number in sorted(tree.operators, key=lambda each: (self._heights[each], each)):
            arriving = [self._arriving(child) for child in tree.vertices[number].children]
            self._costs[number] = arriving[0] if len(arriving) == 1 else list(map(sum, zip(*arriving, strict=True)))
            self._least[number] = min(self._costs[number])
        return self._hosts()

    def _arriving(self, child: int) -> list[float]:
        """What the output of a child costs at each peer."""
        vertex, rows = self._tree.vertices[child], self._view.rows
        beta = vertex.beta
        if vertex.peer is not None:
            return [beta * ms for ms in rows[self._view.index[vertex.peer]]]
        costs = self._costs[child]
        spared = self._ceiling - rest(self._tree, child, self._least)
        best = [math.inf] * len(rows)
        for cost, place in sorted((cost, place) for place, cost in enumerate(costs) if cost <= spared):
            if self._view.is_metric and best[place] <= cost:
                continue  # Made elsewhere and carried here it costs no more, and by the direct way to any other place.
            best = [
                known if known <= (carried := cost + beta * ms) else carried
                for known, ms in zip(best, rows[place], strict=True)
            ]
        return best

    def _hosts(self) -> tuple[PeerId, ...]:
        """From the delivery down, each child where it was cheapest for its parent's place."""
        index = self._view.index
        places = {self._tree.root: index[self._tree.proxy]}
        for number in reversed(range(len(self._tree.vertices))):
            row = self._view.rows[places[number]]
            for child in self._tree.vertices[number].children:
                vertex = self._tree.vertices[child]
                places[child] = (
                    _nearest(self._costs[child], vertex.beta, row) if vertex.peer is None else index[vertex.peer]
                )
        return tuple(self._view.peers[places[number]] for number in range(len(self._tree.vertices)))


def _nearest(costs: Sequence[float], beta: float, row: Sequence[float]) -> int:
    carried = [cost + beta * ms for cost, ms in zip(costs, row, strict=True)]
    return carried.index(min(carried))
