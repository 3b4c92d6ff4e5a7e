"""Edge: operators at sources or at the proxy, counting what flows between peers and not how far (SAND, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

from protocols.ids import PeerId
from protocols.placement.configuration import Configuration, Measure, Table, cheapest, joined
from protocols.placement.tree import Site


def choose_edge(site: Site, tables: Sequence[Table], measure: Measure) -> Configuration | None:
    """λ (Equation 6): the cheapest of the child case, the common locations, and the proxy.

    The paper's servers can all run everything. Here a location that cannot run the operator is replaced by the nearest
    peer that can; if none of these is in time, by the cheapest peer that can.
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
    """λ' (Equation 4): the location of the child whose children send the most, since that traffic then stays local."""
    saved: dict[PeerId, float] = {}
    for beta, table in zip(site.betas, tables, strict=True):
        location = table.best.location
        assert location is not None, "what was placed is somewhere"
        saved[location] = saved.get(location, 0.0) + beta
    return min(saved, key=lambda location: (-saved[location], location))
