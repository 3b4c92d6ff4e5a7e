"""In-Network: operators also at well-located peers that neither publish nor subscribe (SAND, section 3.4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from heapq import merge

from protocols.ids import PeerId
from protocols.placement.configuration import Configuration, Measure, Table, arranged, cheapest, joined
from protocols.placement.edge_plus import Arrangement, by_separation, choose_edge_plus
from protocols.placement.tree import Site

CONFIGURATIONS: int = 200
"""k: how many configurations one operator tries, closest first. The paper does not say which k it used."""


def choose_in_network(
    site: Site, tables: Sequence[Table], measure: Measure, candidates: Sequence[PeerId], k: int = CONFIGURATIONS
) -> Configuration | None:
    """The best of Edge+'s cases and of the k closest configurations around the peers between the children."""
    start = choose_edge_plus(site, tables, measure)
    if site.peer is not None or start is None:
        return start
    able = [peer for peer in candidates if site.can_be_at(peer)]
    hubs = convex_set([_placed(table) for table in tables], able, measure)
    around = [_around(hub, site, tables, measure) for hub in hubs]
    options = [joined(hub, site, tables, measure) for hub in hubs[:k]]
    options += [
        arranged(location, children, site, tables, measure)
        for _, location, children in itertools.islice(merge(*around), k)
    ]
    return cheapest([start, *options]) or start


def convex_set(children: Sequence[PeerId], candidates: Sequence[PeerId], measure: Measure) -> list[PeerId]:
    """φ: the peers nearer to any two children than these are to each other; nearest to all children first."""
    pairs = list(itertools.combinations(children, 2))
    if not pairs:
        return []
    apart = [(a, b, measure.distance(a, b)) for a, b in pairs]
    inside = [
        peer
        for peer in candidates
        if all(measure.distance(peer, a) < ms and measure.distance(peer, b) < ms for a, b, ms in apart)
    ]
    return sorted(inside, key=lambda peer: (sum(measure.distance(peer, child) for child in children), peer))


def _around(hub: PeerId, site: Site, tables: Sequence[Table], measure: Measure) -> Iterator[Arrangement]:
    choices = [sorted({*below, _placed(table)}) for below, table in zip(site.below, tables, strict=True)]
    return by_separation(hub, choices, measure.distance)


def _placed(table: Table) -> PeerId:
    location = table.best.location
    assert location is not None, "what was placed is somewhere"
    return location
