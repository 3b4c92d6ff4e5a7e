"""Edge+: Edge with distances, and with the children of an operator drawn together (SAND, section 3.3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, merge
from typing import Final

from protocols.ids import PeerId
from protocols.placement.configuration import Configuration, Measure, Table, arranged, cheapest
from protocols.placement.edge import choose_edge
from protocols.placement.tree import Distance, Site

PERMUTATIONS_MAX: Final = 2_000
"""How many permutations one operator tries, closest first; the paper sets no limit, and wide trees have millions."""

Arrangement = tuple[float, PeerId, tuple[PeerId, ...]]
"""Total separation, where the operator is, where its children are."""


def choose_edge_plus(site: Site, tables: Sequence[Table], measure: Measure) -> Configuration | None:
    """The best of Edge's cases and of the permutations that lie no farther apart than Edge's choice."""
    start = choose_edge(site, tables, measure)
    if site.peer is not None or start is None:
        return start
    limit = sum(measure.apart(start.location, child) for child in start.children)
    tried = itertools.takewhile(lambda each: each[0] <= limit, _permutations(site, measure.distance))
    options = [
        arranged(location, children, site, tables, measure)
        for _, location, children in itertools.islice(tried, PERMUTATIONS_MAX)
    ]
    return cheapest([start, *options]) or start


def _permutations(site: Site, distance: Distance) -> Iterator[Arrangement]:
    """One location below each child, the operator beside one of the children, closest first."""
    beside = []
    for number, locations in enumerate(site.below):
        for hub in locations:
            choices = [*site.below[:number], (hub,), *site.below[number + 1 :]]
            beside.append(by_separation(site.standing_in(hub), choices, distance))
    return merge(*beside)


def by_separation(hub: PeerId, choices: Sequence[Sequence[PeerId]], distance: Distance) -> Iterator[Arrangement]:
    """Every choice of one location for each child, by the sum of their distances to a hub."""
    ranked = [sorted((distance(hub, location), location) for location in locations) for locations in choices]
    if not all(ranked):
        return
    first = (0,) * len(ranked)
    queue = [(sum(each[0][0] for each in ranked), first)]
    seen = {first}
    while queue:
        separation, picks = heappop(queue)
        yield separation, hub, tuple(each[pick][1] for each, pick in zip(ranked, picks, strict=True))
        for number, pick in enumerate(picks):
            following = (*picks[:number], pick + 1, *picks[number + 1 :])
            if pick + 1 < len(ranked[number]) and following not in seen:
                seen.add(following)
                total = sum(each[picked][0] for each, picked in zip(ranked, following, strict=True))
                heappush(queue, (total, following))
