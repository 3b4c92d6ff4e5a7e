"""One zone as its coordinator knows it: the tables of the children at its boundary, and where its own operators go."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from protocols.ids import PeerId
from protocols.placement.configuration import Configuration, Location, Measure, Table, joined
from protocols.placement.greedy import settled
from protocols.placement.messages import Map, Terms
from protocols.placement.place import chooser
from protocols.placement.tree import ProcessingTree, Site
from protocols.placement.view import NetworkView


@dataclass(frozen=True, slots=True)
class MappedTable:
    """What is known of an operator that a coordinator placed: a row of the operators mapped table."""

    best: Configuration
    alternatives: dict[Location, Configuration]
    elsewhere: Configuration | None

    @classmethod
    def of(cls, message: Map) -> MappedTable:
        alternatives = {each.location: each for each in message.alternatives}
        return cls(message.configuration, alternatives, message.elsewhere)

    def at(self, location: Location) -> Configuration | None:
        known = self.alternatives.get(location)
        if known is not None or self.elsewhere is None or location is None:
            return known or self.elsewhere
        moved = tuple(location if child is None else child for child in self.elsewhere.children)
        return msgspec.structs.replace(self.elsewhere, location=location, children=moved)


def measure_of(terms: Terms) -> Measure:
    bound_ms = math.inf if terms.bound_ms is None else terms.bound_ms
    view = NetworkView(terms.peers, terms.distances)
    is_blind = not terms.peers  # Edge without a bound needs no distances, and nobody sends it any.
    return Measure(terms.proxy, (lambda a, b: 0.0) if is_blind else view.distance, bound_ms, terms.algorithm != "edge")


@dataclass(slots=True)
class Zone:
    """A subtree, and the tables of its boundary children as they come in."""

    attempt: int
    subtree: tuple[Site, ...] = ()
    boundary: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    terms: Terms | None = None
    tables: dict[int, Table] = field(default_factory=dict)
    is_mapped: bool = False
    decided_by: int = -1
    hosts: dict[int, PeerId] = field(default_factory=dict)  # Of its operators and boundary children, as last decided.
    wanted: tuple[int, PeerId] | None = None  # The latest word from above: who decided, and where the root goes.

    @property
    def root(self) -> int:
        return self.subtree[-1].operator

    @property
    def is_ready(self) -> bool:
        has_tables = self.terms is not None and all(child in self.tables for child in self.boundary)
        return bool(self.subtree) and has_tables

    def map(self) -> None:
        """Place every operator of the zone, and work out its cost wherever those above may want it.

        An operator that not every peer can run may find no place within the bound; the zone then stays unplaced. So it
        does if the messages that made it name peers outside the network view.
        """
        terms = self.terms
        assert terms is not None
        if terms.peers and not frozenset(terms.peers).issuperset(self._named()):
            return
        measure = measure_of(terms)
        choose = chooser(terms.algorithm, terms.candidates)
        for site in self.subtree:
            below = [self.tables[child] for child in site.children]
            best = choose(site, below, measure)
            if best is None:
                return
            self.tables[site.operator] = MappedTable(best, *_options(site, below, measure, terms))
        self.is_mapped = True

    def _named(self) -> Iterator[PeerId]:
        """Every peer whose distance the placement may ask for."""
        for site in self.subtree:
            yield from (*site.common, *site.wanted, *(peer for below in site.below for peer in below))
            yield from (other for _, other in site.instead)
            yield from (site.peer,) if site.peer is not None else ()
        for child in self.boundary:
            table = self.tables[child]
            yield from (table.best.location,) if table.best.location is not None else ()

    def settle(self, location: PeerId) -> dict[int, Configuration] | None:
        """The configuration of every operator of the zone with its root at a location; None if it cannot be there."""
        found: dict[int, Configuration] = {}
        places: dict[int, Location] = {self.root: location}
        for site in reversed(self.subtree):
            configuration = settled(self.tables[site.operator], places[site.operator])
            if configuration is None:
                return None
            found[site.operator] = configuration
            places.update(zip(site.children, configuration.children, strict=True))
        return found


def _options(
    site: Site, below: Sequence[Table], measure: Measure, terms: Terms
) -> tuple[dict[Location, Configuration], Configuration | None]:
    """Edge: the common locations above, and one price for all other peers; Edge+: also dl; In-Network: candidates."""
    locations = {*site.wanted, terms.proxy}
    if terms.algorithm != "edge":
        locations.update(map(site.standing_in, site.locations))
    if terms.algorithm == "in-network":
        locations.update(terms.candidates)
    alternatives: dict[Location, Configuration] = {}
    for location in sorted(locations):
        configuration = joined(location, site, below, measure)
        if configuration is not None:
            alternatives[location] = configuration
    has_one_price = terms.algorithm == "edge" and terms.bound_ms is None
    return alternatives, joined(None, site, below, measure) if has_one_price else None


def zones_of(tree: ProcessingTree, levels: int) -> dict[int, list[int]]:
    """The zones of a tree by their roots, each with its operators in post-order; the delivery is a zone of its own."""
    zones: dict[int, list[int]] = {tree.root: [tree.root]}
    roots = {tree.root: tree.root}
    depths = {tree.root: -1}
    for index in reversed(range(tree.root)):
        parent = tree.parents[index]
        depths[index] = depths[parent] + 1
        if tree.vertices[index].children:
            roots[index] = index if depths[index] % levels == 0 else roots[parent]
            zones.setdefault(roots[index], []).insert(0, index)
    return zones
