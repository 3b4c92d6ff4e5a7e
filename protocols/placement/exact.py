"""The cheapest placement there is, without a delay bound: dynamic programming over operators and peers.

cost(o, v) = Σ over children c of min over u of cost(c, u) + β(c) · d(u, v). The minimum is taken for all v at once.

Half of the time goes into moving numbers, so a first pass uses 32-bit floats and finds the cheapest up to rounding. A
second pass tries, with 64 bits, the few peers that rounding may have put behind another. For few operators and peers
plain Python is done before numpy would be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from protocols.ids import PeerId
from protocols.placement.tree import ProcessingTree
from protocols.placement.view import NetworkView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.floating]
    Places = NDArray[np.intp]

FEW: Final = 40_000  # Operators times peers times peers: about ten milliseconds without numpy.
_BLOCK: Final = 128  # Rows at a time, so that what is written is still in the cache when it is read.
_ROUNDING: Final = 2.0**-24  # Of one operation on 32-bit floats.


def place_exactly(tree: ProcessingTree, view: NetworkView) -> tuple[PeerId, ...]:
    """Where each vertex goes."""
    if len(tree.operators) * len(view.peers) ** 2 <= FEW:
        return _by_hand(tree, view)
    rough = _rough_costs(tree, view)
    candidates = _candidates(tree, view, rough)
    return _hosts(tree, view, candidates)


def _by_hand(tree: ProcessingTree, view: NetworkView) -> tuple[PeerId, ...]:
    """For each place of the parent, the cheapest place of a vertex and its cost; then the choices from the delivery
    down.
    """
    everywhere = range(len(view.peers))
    best: list[list[tuple[float, int]]] = [[] for _ in tree.vertices]
    for number in range(tree.root):
        vertex = tree.vertices[number]
        places: Sequence[int] = everywhere
        if vertex.peer is not None:
            places = [view.index[vertex.peer]]
        elif vertex.able is not None:
            places = [view.index[peer] for peer in vertex.able if peer in view.index]
        costs = [(sum(best[child][place][0] for child in vertex.children), place) for place in places]
        for row in view.rows:
            best[number].append(min((cost + row[place] * vertex.beta, place) for cost, place in costs))
    chosen = [view.index[tree.proxy]] * len(tree.vertices)
    for number in reversed(range(tree.root)):
        chosen[number] = best[number][chosen[tree.parents[number]]][1]
    return tuple(view.peers[place] for place in chosen)


def _rough_costs(tree: ProcessingTree, view: NetworkView) -> list[Numbers | None]:
    """What each operator costs at each peer, up to rounding."""
    distances = view.short_matrix
    costs: list[Numbers | None] = [None] * len(tree.vertices)
    for number in tree.operators:
        total: Numbers | float = 0.0
        for child in tree.vertices[number].children:
            vertex = tree.vertices[child]
            below = costs[child]
            if below is None:
                assert vertex.peer is not None
                total = total + distances[view.index[vertex.peer]] * vertex.beta
            else:
                total = total + carried(below, vertex.beta, distances)
        assert not isinstance(total, float)
        costs[number] = _only_at(tree.vertices[number].able, total, view)
    return costs


def _only_at(able: Sequence[PeerId] | None, costs: Numbers, view: NetworkView) -> Numbers:
    if able is None:
        return costs
    import numpy as np

    places = [view.index[peer] for peer in able if peer in view.index]
    assert places, "somebody can run it"
    masked = np.full_like(costs, np.inf)
    masked[places] = costs[places]
    return masked


def carried(costs: Numbers, beta: float, distances: Numbers) -> Numbers:
    """For each peer (a column), the cost of having the output there, made wherever (a row) that is cheapest."""
    import numpy as np

    scale = costs.dtype.type(beta)
    count, tos = distances.shape
    if scale <= 0:
        return np.full(tos, costs.min(), costs.dtype)
    scaled = (costs / scale)[:, None]
    room = np.empty((min(_BLOCK, count), tos), costs.dtype)
    best = np.full(tos, np.inf, costs.dtype)
    for first in range(0, count, _BLOCK):
        after = min(first + _BLOCK, count)
        sums = np.add(distances[first:after], scaled[first:after], out=room[: after - first])
        np.minimum(best, sums.min(axis=0), out=best)
    return best * scale


def _candidates(tree: ProcessingTree, view: NetworkView, rough: list[Numbers | None]) -> list[Places]:
    """From the delivery down: the peers that are cheapest, or nearly so, for some place of the parent."""
    import numpy as np

    distances = view.short_matrix
    places: list[Places] = [np.empty(0, np.intp)] * len(tree.vertices)
    places[tree.root] = np.array([view.index[tree.proxy]])
    for number in reversed(range(len(tree.vertices))):
        for child in tree.vertices[number].children:
            vertex, costs = tree.vertices[child], rough[child]
            if vertex.peer is not None:
                places[child] = np.array([view.index[vertex.peer]])
                continue
            assert costs is not None
            is_near = np.zeros(len(costs), bool)
            for place in places[number]:
                paid = costs + distances[place] * vertex.beta
                # Nothing is subtracted on the way, so each operation adds at most its rounding to the relative error.
                is_near |= paid <= paid.min() * (1 + 16 * len(tree.vertices) * _ROUNDING)
            places[child] = np.flatnonzero(is_near)
    return places


def _hosts(tree: ProcessingTree, view: NetworkView, candidates: list[Places]) -> tuple[PeerId, ...]:
    """The same programme over the candidates alone; then the choices from the delivery down."""
    distances = view.matrix
    paid: list[Numbers] = [distances[:0]] * len(tree.vertices)  # For each place of its parent, at each of its own.
    for number in range(tree.root):
        vertex, here, above = tree.vertices[number], candidates[number], candidates[tree.parents[number]]
        paid[number] = distances[above[:, None], here] * vertex.beta
        for child in vertex.children:
            paid[number] += paid[child].min(axis=1)
    chosen = [0] * len(tree.vertices)
    for number in reversed(range(tree.root)):
        chosen[number] = int(paid[number][chosen[tree.parents[number]]].argmin())
    return tuple(view.peers[int(places[pick])] for places, pick in zip(candidates, chosen, strict=True))
