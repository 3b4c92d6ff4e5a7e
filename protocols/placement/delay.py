"""Delay bounds (SAND, section 3.5): whether one can be kept at all, and the cheapest placement that keeps it.

The heuristics keep a bound by `Measure.extended`. Here is the exact search: for each operator and location, labels of
cost and delay, of which only those stay that no other beats in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from protocols.ids import PeerId
from protocols.placement.baseline import place_at_proxy
from protocols.placement.tree import Distance, ProcessingTree, Vertex, overlay_cost, path_delay, rest
from protocols.placement.view import NetworkView

LABELS_MAX: Final = 500_000
"""How many labels one search may keep; beyond, it gives up and says so."""

_SLACK: Final = 1e-9  # Sums in another order differ in their last bits; nothing may be cut off for that.


class Infeasible(msgspec.Struct, frozen=True):
    """The bound cannot be kept: a source is farther than that from the proxy, or all who can run an operator are.

    Where a way round is shorter than the direct one a placement might exist all the same; it is not looked for.
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

    The bound must be feasible. A first search among sources and proxy alone gives a cost that bounds the second. There
    is no place at all if those who can run an operator are too far away.
    """
    edge = view.among((*tree.source_peers, tree.proxy))
    is_proved = True
    baseline = place_at_proxy(tree, view.distance)
    hosts = baseline if path_delay(tree, baseline, view.distance) <= bound_ms else None
    for stage in (edge, view):
        ceiling = math.inf if hosts is None else overlay_cost(tree, hosts, view.distance)
        try:
            hosts = _Search(tree, stage, bound_ms, ceiling, labels_max).run() or hosts
        except _LimitReached:
            is_proved = False
    return hosts, is_proved


class _Search:
    """One search over the peers of a view, for less than a cost already known to be possible."""

    def __init__(
        self, tree: ProcessingTree, view: NetworkView, bound_ms: float, ceiling: float, labels_max: int
    ) -> None:
        self._tree, self._view = tree, view
        self._bound_ms, self._ceiling = bound_ms, ceiling * (1 + _SLACK)
        self._labels_left = labels_max
        self._home = [ms * (1 - _SLACK) for ms in view.shortest_from(tree.proxy)]
        self._fronts: list[dict[int, Front]] = [{} for _ in tree.vertices]
        self._least = [0.0] * len(tree.vertices)

    def run(self) -> tuple[PeerId, ...] | None:
        tree, index = self._tree, self._view.index
        for number, vertex in enumerate(tree.vertices):
            if not vertex.children:
                assert vertex.peer is not None
                self._fronts[number] = {index[vertex.peer]: [Label(0.0, 0.0, ())]}
                continue
            places = self._places(vertex)
            self._fronts[number] = self._front_at_each(number, places)
            fronts = self._fronts[number].values()
            self._least[number] = min((front[-1].cost for front in fronts), default=math.inf)
        final = self._fronts[tree.root].get(index[tree.proxy])
        return self._hosts(final[-1]) if final else None

    def _places(self, vertex: Vertex) -> Iterable[int]:
        if vertex.peer is not None:
            return (self._view.index[vertex.peer],)
        if vertex.able is None:
            return range(len(self._view.index))
        return [self._view.index[peer] for peer in vertex.able if peer in self._view.index]

    def _front_at_each(self, number: int, places: Iterable[int]) -> dict[int, Front]:
        spared = self._ceiling - rest(self._tree, number, self._least)
        found: dict[int, Front] = {}
        for place in places:
            front: Front | None = None
            for child in self._tree.vertices[number].children:
                arriving = self._arriving(child, place, spared)
                front = arriving if front is None else _both(front, arriving, spared)
                if not front:
                    break
            if front:
                found[place] = front
                self._labels_left -= len(front)
                if self._labels_left < 0:
                    raise _LimitReached
        return found

    def _arriving(self, child: int, place: int, spared: float) -> Front:
        """The ways to have a child's output at a place in time: each label of the child, carried over."""
        beta, row = self._tree.vertices[child].beta, self._view.rows[place]
        carried = []
        for at, front in self._fronts[child].items():
            ms = row[at]
            paid = beta * ms
            for label in front:
                delay, cost = label.delay + ms, label.cost + paid
                if delay + self._home[place] > self._bound_ms:
                    break
                if cost <= spared:
                    carried.append(Label(delay, cost, ((at, label),)))
        return _undominated(carried)

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
