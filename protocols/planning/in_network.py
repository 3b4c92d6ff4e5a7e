"""In-Network (SAND, section 3.4) as IFLOW compares itself with it: the order by rates, and candidates from zones.

The network is divided into zones. The candidates for an operator are the peers in the zones of its inputs and of the
sink; SAND's algorithm chooses among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from protocols.ids import PeerId
from protocols.placement.configuration import Configuration, Measure, Table
from protocols.placement.greedy import place_greedily
from protocols.placement.in_network import choose_in_network
from protocols.placement.tree import ProcessingTree, Site, Vertex
from protocols.planning.phased import best_order, deployed, phased_plans, reusing
from protocols.planning.problem import Base, Decision, Plan, Problem, Streams
from protocols.planning.programme import Splits

Zones = Mapping[PeerId, Sequence[PeerId]]
"""For each peer all peers of its zone, itself among them."""


def plan_in_network(problem: Problem, zones: Zones) -> Decision:
    order = best_order(problem)
    if not order:
        plan: Plan = Base(0)
    else:
        tree, numbers = _tree(problem, order, zones)
        measure = Measure(problem.sink, problem.network.distance, math.inf, is_network_aware=True)

        def choose(site: Site, tables: Sequence[Table], measure: Measure) -> Configuration | None:
            near = [*(table.best.location for table in tables), problem.sink]
            peers = dict.fromkeys(peer for each in near if each is not None for peer in zones[each])
            return choose_in_network(site, tables, measure, list(peers))

        hosts = place_greedily(tree, measure, choose)
        assert hosts is not None, "without a bound every operator has a place"
        plan = deployed(order, {streams: hosts[number] for streams, number in numbers.items()}, problem.whole)
    plan = reusing(problem, plan)
    in_zones = max(len(zone) for zone in zones.values())
    return Decision("in-network", plan, problem.cost(plan), phased_plans(problem, 3 * in_zones))


def _tree(problem: Problem, order: Splits, zones: Zones) -> tuple[ProcessingTree, dict[Streams, int]]:
    """The order as a processing tree, and the vertex of each join."""
    vertices: list[Vertex] = []
    numbers: dict[Streams, int] = {}
    able = None if len(problem.hosts) == len(zones) else problem.hosts
    instead = _stand_ins(problem) if able else ()

    def add(streams: Streams) -> list[int]:
        first = len(vertices)
        if streams not in order:
            stream = problem.streams[streams.bit_length() - 1]
            vertices.extend(Vertex(stream.name, (), origin.beta, origin.peer) for origin in stream.publishers)
            return list(range(first, len(vertices)))
        part = order[streams][0]
        children = tuple(add(part) + add(streams ^ part))
        vertices.append(Vertex("join", children, problem.beta(streams), None, able, instead))
        numbers[streams] = len(vertices) - 1
        return [numbers[streams]]

    top = add(problem.whole)
    vertices.append(Vertex("delivery", tuple(top), 0.0, problem.sink))
    return ProcessingTree(vertices), numbers


def _stand_ins(problem: Problem) -> tuple[tuple[PeerId, PeerId], ...]:
    """For each peer that the algorithm may think of and that hosts nothing, the nearest host."""
    able = dict.fromkeys(problem.hosts)
    named = dict.fromkeys(origin.peer for stream in problem.streams for origin in stream.publishers)
    return tuple(
        (peer, min(problem.hosts, key=lambda host: (problem.network.distance(peer, host), host)))
        for peer in sorted({**named, problem.sink: None})
        if peer not in able
    )
