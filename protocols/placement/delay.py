"""Delay bounds (SAND, section 3.5): whether one can be kept at all, and the cheapest placement that keeps it.

The heuristics keep a bound by `Measure.extended`. Here is the exact search: for each operator and location it keeps the
labels of cost and delay that no other label beats in both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from protocols.ids import PeerId
from protocols.placement.baseline import place_at_proxy
from protocols.placement.exact import carried
from protocols.placement.tree import Distance, ProcessingTree, overlay_cost, path_delay
from protocols.placement.view import NetworkView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from protocols.placement.exact import Numbers

    Places = NDArray[np.bool_]

LABELS_MAX: Final = 500_000
"""How many labels one search may keep; beyond, it gives up and says so."""

_SLACK: Final = 1e-9  # Sums in another order differ in their last bits; that must not prune anything.
# Ceilings for the cost, as factors of the least cost without a bound.
_GUESSES: Final = (1.001, 1.01, 1.04, 1.15, 1.5, 3.0)


class Infeasible(msgspec.Struct, frozen=True):
    """The bound cannot be kept: a source, or every peer that can run an operator, is farther than that from the proxy.

    Where a detour is shorter than the direct way a placement might still exist; it is not looked for.
    """

    bound_ms: float
    source: PeerId
    away_ms: float


def infeasible(tree: ProcessingTree, distance: Distance, bound_ms: float) -> Infeasible | None:
    """The paper's test: the bound must hold with every operator at the proxy."""
    away_ms, source = max((distance(peer, tree.proxy), peer) for peer in tree.source_peers)
    return Infeasible(bound_ms, source, away_ms) if away_ms > bound_ms else None


class Label(NamedTuple):
    """One way to have an operator's output at a location."""

    delay: float
    cost: float
    below: tuple[tuple[int, Label], ...]  # For each child, where it is and its own label.


Front = list[Label]
"""Labels by rising delay and falling cost."""


class _LimitReached(Exception):
    """There are more labels than the search may keep."""


def place_within(
    tree: ProcessingTree, view: NetworkView, bound_ms: float, labels_max: int = LABELS_MAX
) -> tuple[tuple[PeerId, ...] | None, bool]:
    """Where each vertex goes for the least cost within the bound, and whether that is proved to be the least.

    The bound must be feasible. No placement exists if all peers that can run an operator are too far away. If there are
    too many labels, only the sources and the proxy are searched.
    """
    baseline = place_at_proxy(tree, view.distance)
    known = baseline if path_delay(tree, baseline, view.distance) <= bound_ms else None
    ceiling = math.inf if known is None else overlay_cost(tree, known, view.distance)
    try:
        return _Search(tree, view, bound_ms, labels_max).best(ceiling) or known, True
    except _LimitReached:
        edge = view.among((*tree.source_peers, tree.proxy))
    try:
        return _Search(tree, edge, bound_ms, labels_max).best(ceiling) or known, False
    except _LimitReached:
        return known, False


class _Search:
    """A search over the peers of a view.

    The same tree without a bound gives a lower bound for everything beside and above a label. So a ceiling for the
    whole cost leaves few labels. The ceiling rises until one was high enough.
    """

    def __init__(self, tree: ProcessingTree, view: NetworkView, bound_ms: float, labels_max: int) -> None:
        self._tree, self._view = tree, view
        self._bound_ms, self._labels_max = bound_ms, labels_max
        self._home = [ms * (1 - _SLACK) for ms in view.shortest_from(tree.proxy)]
        self._fronts: list[dict[int, Front]] = [{} for _ in tree.vertices]
        self._allowed = self._places_in_time()
        self._brought = self._least_brought()
        self._above = self._least_above()

    def best(self, ceiling: float) -> tuple[PeerId, ...] | None:
        """The cheapest placement within the bound that costs no more than the ceiling."""
        tree, proxy = self._tree, self._view.index[self._tree.proxy]
        least = sum(float(self._brought[child][proxy]) for child in tree.vertices[tree.root].children)
        for cost in (*(least * share for share in _GUESSES), math.inf):
            guess = min(ceiling, cost) * (1 + _SLACK)
            final = self._run(guess).get(proxy)
            if final:
                return self._hosts(final[-1])
            if guess >= ceiling:
                break
        return None

    def _places_in_time(self) -> list[Places]:
        """For each vertex and peer, whether it can be there: the peer can run it, and is not too far from sources and
        proxy.
        """
        import numpy as np

        tree, view = self._tree, self._view
        home = np.asarray(self._home)
        allowed: list[Places] = []
        for vertex, sources in zip(tree.vertices, tree.below, strict=True):
            able = (vertex.peer,) if vertex.peer is not None else vertex.able
            is_able = np.full(len(home), able is None)
            is_able[[view.index[peer] for peer in able or () if peer in view.index]] = True
            if view.is_metric:  # Otherwise a detour may be shorter.
                farthest = view.matrix[[view.index[peer] for peer in sources]].max(axis=0)
                is_able &= farthest * (1 - _SLACK) + home <= self._bound_ms
            allowed.append(is_able)
        return allowed

    def _least_brought(self) -> list[Numbers]:
        """The least cost of having the output of each vertex at each peer."""
        import numpy as np

        brought: list[Numbers] = []
        for vertex, allowed in zip(self._tree.vertices, self._allowed, strict=True):
            below = sum((brought[child] for child in vertex.children), np.zeros(len(allowed)))
            brought.append(carried(np.where(allowed, below, math.inf), vertex.beta, self._view.matrix))
        return brought

    def _least_above(self) -> list[Numbers]:
        """The least cost of everything that is not below a vertex, for each peer that it may be at."""
        import numpy as np

        tree = self._tree
        above: list[Numbers] = [np.zeros(len(self._home)) for _ in tree.vertices]
        for number in reversed(range(tree.root)):
            parent = tree.parents[number]
            siblings = [self._brought[each] for each in tree.vertices[parent].children if each != number]
            there = np.where(self._allowed[parent], sum(siblings, above[parent]), math.inf)
            above[number] = carried(there, tree.vertices[number].beta, self._view.matrix)
        return above

    def _run(self, ceiling: float) -> dict[int, Front]:
        """The labels of the delivery that cost no more than the ceiling."""
        index, labels_left = self._view.index, self._labels_max
        for number, vertex in enumerate(self._tree.vertices):
            if not vertex.children:
                assert vertex.peer is not None
                self._fronts[number] = {index[vertex.peer]: [Label(0.0, 0.0, ())]}
                continue
            found: dict[int, Front] = {}
            for place in self._places(number, ceiling):
                front = self._front(number, place, ceiling - float(self._above[number][place]))
                if front:
                    found[place] = front
                    labels_left -= len(front)
                    if labels_left < 0:
                        raise _LimitReached
            self._fronts[number] = found
        return self._fronts[self._tree.root]

    def _places(self, number: int, ceiling: float) -> list[int]:
        """Where a vertex can be without exceeding the ceiling by itself."""
        import numpy as np

        least = sum((self._brought[child] for child in self._tree.vertices[number].children), self._above[number])
        found: list[int] = np.flatnonzero(self._allowed[number] & np.isfinite(least) & (least <= ceiling)).tolist()
        return found

    def _front(self, number: int, place: int, spared: float) -> Front:
        """The ways to have all inputs of a vertex at a place, within the budget that is left for them."""
        children = self._tree.vertices[number].children
        least = [float(self._brought[child][place]) for child in children]
        front: Front | None = None
        for child, own in zip(children, least, strict=True):
            arriving = self._arriving(child, place, spared - (sum(least) - own))
            front = arriving if front is None else _both(front, arriving, spared)
            if not front:
                break
        return front or []

    def _arriving(self, child: int, place: int, spared: float) -> Front:
        """The ways to have a child's output at a place in time: each label of the child, carried there."""
        beta, row = self._tree.vertices[child].beta, self._view.rows[place]
        latest = self._bound_ms - self._home[place]
        arriving = []
        for at, front in self._fronts[child].items():
            ms = row[at]
            paid = beta * ms
            for label in front:
                delay, cost = label.delay + ms, label.cost + paid
                if delay > latest:
                    break
                if cost <= spared:
                    arriving.append(Label(delay, cost, ((at, label),)))
        return _undominated(arriving)

    def _hosts(self, final: Label) -> tuple[PeerId, ...]:
        places = {self._tree.root: self._view.index[self._tree.proxy]}
        labels = {self._tree.root: final}
        for number in reversed(range(len(self._tree.vertices))):
            for child, (place, label) in zip(self._tree.vertices[number].children, labels[number].below, strict=True):
                places[child], labels[child] = place, label
        return tuple(self._view.peers[places[number]] for number in range(len(self._tree.vertices)))


def _undominated(labels: list[Label]) -> Front:
    labels.sort(key=lambda label: (label.delay, label.cost))
    front: Front = []
    for label in labels:
        if not front or label.cost < front[-1].cost:
            front.append(label)
    return front


def _both(first: Front, second: Front, spared: float) -> Front:
    """Two inputs at one place: costs add up, the later delay counts. Walks both fronts by rising delay."""
    a = b = 0
    found: list[Label] = []
    while a < len(first) and b < len(second):
        one, other = first[a], second[b]
        cost = one.cost + other.cost
        if cost <= spared:
            found.append(Label(max(one.delay, other.delay), cost, (*one.below, *other.below)))
        next_a = first[a + 1].delay if a + 1 < len(first) else math.inf
        next_b = second[b + 1].delay if b + 1 < len(second) else math.inf
        if math.isinf(next_a) and math.isinf(next_b):
            break
        if next_a <= next_b:
            a += 1
        else:
            b += 1
    return _undominated(found)
