"""Edge: operators at sources or at the proxy, counting what flows between peers and not how far (SAND, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

from protocols.ids import PeerId
from protocols.placement.configuration import Configuration, Measure, Table, cheapest, joined
from protocols.placement.tree import Site


def choose_edge(site: Site, tables: Sequence[Table], measure: Measure) -> Configuration | None:
    """λ (Equation 6): the cheapest of the child case, the common locations, and the proxy.

    Where one of them cannot run the operator, as the paper's servers all can, the nearest peer that does stands in for
    it; if no such peer is in time, the cheapest that does is.
    """
    if site.peer is not None:
        candidates: tuple[PeerId, ...] = (site.peer,)
    else:
        candidates = tuple(map(site.standing_in, (_child_case(site, tables), *site.common, measure.proxy)))
    found = cheapest([joined(location, site, tables, measure) for location in candidates])
    if found is None and site.able is not None:
        found = cheapest([joined(location, site, tables, measure) for location in site.able])
    return found


def _child_case(site: Site, tables: Sequence[Table]) -> PeerId:
    """λ' (Equation 4): the child's location whose children send the most, since that no longer travels."""
    saved: dict[PeerId, float] = {}
    for beta, table in zip(site.betas, tables, strict=True):
        location = table.best.location
        assert location is not None, "what was placed is somewhere"
        saved[location] = saved.get(location, 0.0) + beta
    return min(saved, key=lambda location: (-saved[location], location))
