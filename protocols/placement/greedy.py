"""The paper's centralised traversal: operators in post-order, each placed where its subtree is cheapest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocols.ids import PeerId
from protocols.placement.configuration import Configuration, Location, Measure, Table, joined
from protocols.placement.tree import ProcessingTree, Site

Choose = Callable[[Site, Sequence[Table], Measure], Configuration | None]
"""One algorithm's choice for one operator, once its children are placed; None if nowhere is in time."""


class _Gamma:
    """γ for one operator at any location, by recursion down the tree (Equation 5)."""

    def __init__(self, site: Site, tables: Sequence[Table], measure: Measure, best: Configuration) -> None:
        self.best = best
        self._site, self._tables, self._measure = site, tables, measure
        self._known: dict[Location, Configuration | None] = {}

    def at(self, location: Location) -> Configuration | None:
        if location not in self._known:
            self._known[location] = joined(location, self._site, self._tables, self._measure)
        return self._known[location]


class Pinned:
    """A source; its place is fixed."""

    def __init__(self, peer: PeerId) -> None:
        self.best = Configuration(peer, 0.0, 0.0)

    def at(self, location: Location) -> Configuration | None:
        return self.best if location == self.best.location else None


def place_greedily(tree: ProcessingTree, measure: Measure, choose: Choose) -> tuple[PeerId, ...] | None:
    """Where each vertex goes; None if an operator that not every peer can run finds no place within the bound."""
    tables: list[Table] = []
    for index, vertex in enumerate(tree.vertices):
        if not vertex.children:
            assert vertex.peer is not None
            tables.append(Pinned(vertex.peer))
            continue
        site = tree.sites[index]
        below = [tables[child] for child in vertex.children]
        best = choose(site, below, measure)
        if best is None:
            return None
        tables.append(_Gamma(site, below, measure, best))
    return _settled(tree, tables)


def _settled(tree: ProcessingTree, tables: Sequence[Table]) -> tuple[PeerId, ...]:
    """Follow the configurations down from the delivery: a choice above may have moved what is below."""
    hosts: dict[int, PeerId] = {}
    wanted: dict[int, Location] = {tree.root: tree.proxy}
    for index in reversed(range(len(tree.vertices))):
        configuration = settled(tables[index], wanted[index])
        assert configuration is not None, "what was chosen is possible"
        assert configuration.location is not None, "what was chosen is somewhere"
        hosts[index] = configuration.location
        wanted.update(zip(tree.vertices[index].children, configuration.children, strict=True))
    return tuple(hosts[index] for index in range(len(tree.vertices)))


def settled(table: Table, location: Location) -> Configuration | None:
    """The configuration at a location: the chosen one at the chosen place, γ's anywhere else."""
    return table.best if table.best.location == location else table.at(location)
