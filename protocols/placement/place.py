"""All placement algorithms behind one call, so that they can be compared on one network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, assert_never, get_args

import msgspec

from protocols.ids import PeerId
from protocols.placement.baseline import place_at_proxy
from protocols.placement.configuration import Configuration, Measure, Table
from protocols.placement.delay import Infeasible, infeasible, place_within
from protocols.placement.edge import choose_edge
from protocols.placement.edge_plus import choose_edge_plus
from protocols.placement.exact import place_exactly
from protocols.placement.greedy import Choose, place_greedily
from protocols.placement.in_network import CONFIGURATIONS, choose_in_network
from protocols.placement.tree import ProcessingTree, Site, overlay_cost, path_delay
from protocols.placement.view import NetworkView

Algorithm = Literal["baseline", "edge", "edge+", "in-network", "exact"]
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)


class Placement(msgspec.Struct, frozen=True):
    """Where each vertex of a tree goes, and what that means."""

    hosts: tuple[PeerId, ...]
    cost: float  # Σ rate × distance, in bytes under way.
    delay_ms: float  # The longest way of a tuple from its source to the proxy.
    stretch: float  # delay_ms over the longest direct way from a source to the proxy.
    is_optimal: bool  # Proved: no placement on these peers costs less within the bound.


def place(
    algorithm: Algorithm,
    tree: ProcessingTree,
    view: NetworkView,
    bound_ms: float = math.inf,
    k: int = CONFIGURATIONS,
) -> Placement | Infeasible:
    """Place a tree on the peers of a view, no path longer than the bound."""
    if (refusal := infeasible(tree, view.distance, bound_ms)) is not None:
        return refusal
    is_optimal = False
    hosts: tuple[PeerId, ...] | None
    match algorithm:
        case "baseline":
            hosts = place_at_proxy(tree, view.distance)
            hosts = hosts if path_delay(tree, hosts, view.distance) <= bound_ms else None
        case "exact" if math.isinf(bound_ms):
            hosts, is_optimal = place_exactly(tree, view), True
        case "exact":
            hosts = place_exactly(tree, view)
            is_optimal = path_delay(tree, hosts, view.distance) <= bound_ms  # If so, the bound changes nothing.
            if not is_optimal:
                hosts, is_optimal = place_within(tree, view, bound_ms)
        case "edge" | "edge+" | "in-network":
            measure = Measure(tree.proxy, view.distance, bound_ms, is_network_aware=algorithm != "edge")
            hosts = place_greedily(tree, measure, chooser(algorithm, view.peers, k))
        case _:
            assert_never(algorithm)
    direct_ms, source = max((view.distance(peer, tree.proxy), peer) for peer in tree.source_peers)
    if hosts is None:
        return Infeasible(bound_ms, source, direct_ms)
    delay_ms = path_delay(tree, hosts, view.distance)
    stretch = delay_ms / direct_ms if direct_ms else 1.0
    return Placement(hosts, overlay_cost(tree, hosts, view.distance), delay_ms, stretch, is_optimal)


def chooser(
    algorithm: Literal["edge", "edge+", "in-network"], candidates: Sequence[PeerId], k: int = CONFIGURATIONS
) -> Choose:
    """How an algorithm places one operator."""
    match algorithm:
        case "edge":
            return choose_edge
        case "edge+":
            return choose_edge_plus
        case "in-network":

            def choose(site: Site, tables: Sequence[Table], measure: Measure) -> Configuration | None:
                return choose_in_network(site, tables, measure, candidates, k)

            return choose
    assert_never(algorithm)
