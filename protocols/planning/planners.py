"""All planners behind one call, so that they can be compared on one network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, assert_never, get_args

from protocols.ids import PeerId
from protocols.planning.at_random import plan_at_random
from protocols.planning.bottom_up import plan_bottom_up, plan_by_present_cost
from protocols.planning.cells import Cell, prove
from protocols.planning.coordinates import Coordinates
from protocols.planning.exact import plan_in_time
from protocols.planning.exhaustive import plan_exhaustively
from protocols.planning.hierarchy import Hierarchy
from protocols.planning.in_network import Zones, plan_in_network
from protocols.planning.phased import plan_in_phases
from protocols.planning.problem import Decision, Problem
from protocols.planning.relaxation import Point, plan_by_relaxation
from protocols.planning.top_down import plan_top_down

Planner = Literal[
    "exact", "exhaustive", "top-down", "npc", "npc-inputs", "bottom-up", "phased", "in-network", "relaxation", "random"
]
PLANNERS: Final[tuple[Planner, ...]] = get_args(Planner)
CLUSTERED: Final[tuple[Planner, ...]] = ("top-down", "npc", "npc-inputs", "bottom-up")
PHASED: Final[tuple[Planner, ...]] = ("phased", "in-network", "relaxation", "random")


@dataclass(frozen=True, slots=True)
class Known:
    """What planners know of the network beside its distances, each only what it asks for."""

    hierarchy: Hierarchy
    zones: Zones = field(default_factory=dict)
    points: Mapping[PeerId, Point] = field(default_factory=dict)
    cells: Cell | None = None  # Of a network with coordinates: exact proves what candidates leave open.
    luck: Random = field(default_factory=lambda: Random(0))


def plan(planner: Planner, problem: Problem, known: Known) -> Decision:
    """What one planner decides."""
    match planner:
        case "exact":
            found = plan_in_time(problem)
            if found.gap > 0 and known.cells is not None and isinstance(problem.network, Coordinates):
                return prove(problem, problem.network, known.cells, found)
            return found
        case "exhaustive":
            return plan_exhaustively(problem)
        case "top-down":
            return plan_top_down(problem, known.hierarchy)
        case "npc":
            return plan_by_present_cost(problem, known.hierarchy)
        case "npc-inputs":
            return plan_by_present_cost(problem, known.hierarchy, "inputs")
        case "bottom-up":
            return plan_bottom_up(problem, known.hierarchy)
        case "phased":
            return plan_in_phases(problem)
        case "in-network":
            return plan_in_network(problem, known.zones)
        case "relaxation":
            return plan_by_relaxation(problem, known.points)
        case "random":
            return plan_at_random(problem, known.luck)
    assert_never(planner)


def zones_of(hierarchy: Hierarchy) -> Zones:
    """The zones of In-Network: the clusters of level 1."""
    return {
        member: cluster.members for cluster in hierarchy.clusters() if cluster.level == 1 for member in cluster.members
    }
