"""Queries that come one after the other, each planned given what the same planner has deployed: costs add up.

Every join that is deployed, and every sink, is a derived stream for all later queries (IFLOW, section 3.1.3). What
those may read of it depends on filters:

    none     queries have no filters (the synthetic workload)
    shared   joins are over whole streams, and each query filters what it takes: so every join can be reused as it is
    pushed   each query filters its streams where they are published. It can read joins whose filters are wider, and
             joins with other filters once these are relaxed, which adds its rows upstream (telescoped filters)
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeVar

from experiments import sweep
from experiments.iflow.model import Query, Workload, World, cost_space, is_wider, make_world, size_of
from experiments.report import Claim, print_table
from protocols.ids import PeerId
from protocols.planning.hierarchy import Hierarchy
from protocols.planning.planners import CLUSTERED, PHASED, Known, Planner, plan, zones_of
from protocols.planning.problem import (
    Base,
    Derived,
    Origin,
    Plan,
    Problem,
    Reused,
    Stream,
    Streams,
    joins_of,
    members_of,
)
from protocols.planning.top_down import most_above_optimum, most_examined

Filters = Literal["none", "shared", "pushed"]
ZONES_MAX: Final = 32  # max_cs of In-Network's zones: five of them for 128 peers, as in the paper.
CLOSE: Final = 1 + 1e-9  # Sums in another order differ in their last bits.


@dataclass(slots=True)
class Flowing:
    """A derived stream of the run: which streams, where, whose rows, and what all below it costs without filters."""

    streams: Streams
    peer: PeerId
    upstream: float
    tags: dict[str, None]


@dataclass(slots=True)
class Deployed:
    """What one planner has deployed so far."""

    world: World
    filters: Filters
    reuses: bool
    flowing: list[Flowing] = field(default_factory=list)
    cost: float = 0.0
    joins: int = 0
    examined: float = 0.0
    _offered: list[Flowing] = field(default_factory=list)  # By the numbers of the problem's derived streams.

    def problem(self, query: Query) -> Problem:
        """The next query, given what flows."""
        world, streams = self.world, list(members_of(query.streams))

        @cache
        def everywhere(local: Streams) -> Streams:
            return sum(1 << streams[each] for each in members_of(local))

        whole = (1 << len(streams)) - 1

        def beta(local: Streams) -> float:
            """The filters of a query are at its streams, or where it takes the result of all joins."""
            is_filtered = self.filters == "pushed" or (self.filters == "shared" and local == whole)
            return world.beta(everywhere(local)) * (query.share if is_filtered else 1.0)

        local_of = {stream: number for number, stream in enumerate(streams)}
        graph = tuple(
            sum(1 << local_of[other] for other in members_of(world.graph[stream] & query.streams)) for stream in streams
        )
        sources = tuple(
            Stream(f"s{stream}", (Origin(world.publishers[stream], beta(1 << number)),))
            for number, stream in enumerate(streams)
        )
        self._offered = [each for each in self.flowing if each.streams & ~query.streams == 0] if self.reuses else []
        derived = []
        for each in self._offered:
            local = sum(1 << local_of[stream] for stream in members_of(each.streams))
            is_enough = self.filters != "pushed" or any(is_wider(tag, query.tag) for tag in each.tags)
            widening = 0.0 if is_enough else each.upstream * query.share
            derived.append(Derived(local, Origin(each.peer, beta(local)), (), widening))
        return Problem(world.view, world.view.peers, sources, graph, beta, query.sink, tuple(derived))

    def deploy(self, query: Query, problem: Problem, chosen: Plan) -> None:
        """What was decided runs from now on."""
        streams = list(members_of(query.streams))

        def settle(part: Plan) -> float:
            """What all below a part costs if nothing is filtered."""
            match part:
                case Base():
                    return 0.0
                case Reused(number):
                    self._offered[number].tags[query.tag] = None
                    return self._offered[number].upstream
            upstream = sum(
                settle(side) + self._way(streams, problem, side, part.peer) for side in (part.left, part.right)
            )
            whole = sum(1 << streams[each] for each in members_of(part.streams))
            self.flowing.append(Flowing(whole, part.peer, upstream, {query.tag: None}))
            return upstream

        upstream = settle(chosen)
        if self.filters != "shared" and len(streams) > 1:
            upstream += self._way(streams, problem, chosen, query.sink)
            self.flowing.append(Flowing(query.streams, query.sink, upstream, {query.tag: None}))
        self.cost += problem.cost(chosen)
        self.joins += sum(1 for _ in joins_of(chosen))

    def _way(self, streams: list[int], problem: Problem, part: Plan, to: PeerId) -> float:
        """Bytes under way from a part to its reader, unfiltered."""
        whole = sum(1 << streams[each] for each in members_of(problem.streams_of(part)))
        (origin,) = problem.origins(part)
        return self.world.beta(whole) * problem.network.distance(origin.peer, to)


class Outcome(NamedTuple):
    """What a planner made of all queries of one world."""

    cost: float
    joins: int
    examined: float
    above_bound: int  # Queries that broke theorem 2, 3 or 4; there must be none.
    bound_used: float  # Theorem 3: the largest share of the printed bound by which Top-Down was above the optimum.


def measure(
    seed: int,
    network: int,
    peers: int,
    workload: Workload,
    queries: int,
    max_cs: int,
    planners: list[Planner],
    *,
    filters: Filters = "none",
    reuse: bool = True,
    phased_reuse: bool = True,
    **options: Any,
) -> dict[str, list[Any]]:
    """One cell: all queries of a world, deployed by each planner."""
    world = make_world(seed, network, peers, workload, queries, **options)
    known = knowledge(world, max_cs, f"{seed} {network}")
    found: dict[str, list[Any]] = {}
    for planner in planners:
        reuses = reuse and (phased_reuse or planner not in PHASED)
        found[planner] = list(_deployed(planner, Deployed(world, filters, reuses), known))
    return found


def knowledge(world: World, max_cs: int, seed: str) -> Known:
    view = world.view
    hierarchy = Hierarchy.of(view.peers, view.distance, max_cs)
    five = hierarchy if max_cs == ZONES_MAX else Hierarchy.of(view.peers, view.distance, ZONES_MAX)
    return Known(hierarchy, zones_of(five), cost_space(view), luck=random.Random(seed))


def _deployed(planner: Planner, deployed: Deployed, known: Known) -> Outcome:
    broken, used = 0, 0.0
    for query in deployed.world.queries:
        problem = deployed.problem(query)
        found = plan(planner, problem, known)
        if planner in CLUSTERED:
            broken += found.examined > most_examined(problem, known.hierarchy) * CLOSE
        if planner == "top-down":
            best = plan("exact", problem, known)
            printed = most_above_optimum(problem, known.hierarchy, found.plan)
            sound = printed + most_above_optimum(problem, known.hierarchy, best.plan)
            above = found.cost - best.cost
            broken += above > sound + best.cost * (CLOSE - 1)
            used = max(used, above / printed if printed else 0.0)
        deployed.examined += found.examined
        deployed.deploy(query, problem, found.plan)
    return Outcome(deployed.cost, deployed.joins, deployed.examined, broken, used)


# What the figures share.

Measured = Mapping[str, list[Any]]
"""What a cell has found: an `Outcome` of each planner, as JSON has it."""

Setting = TypeVar("Setting", bound=Hashable)
"""What tells the bars or points of a figure apart."""

TELLS: Final[dict[str, str]] = {
    "exact": "exact",
    "top-down": "Top-Down",
    "npc": "NPC, as printed",
    "npc-inputs": "NPC, rates of inputs",
    "bottom-up": "Bottom-Up",
    "phased": "phased, best places",
    "in-network": "In-Network",
    "relaxation": "Relaxation",
    "random": "random",
}


def cells(chosen: sweep.Options, queries: int, **parameters: Any) -> list[dict[str, Any]]:
    """A cell for each network, with as many queries as the scale says."""
    networks, each = size_of(chosen.scale, queries)
    usual = {"seed": chosen.seed, "peers": 128, "workload": "synthetic", "queries": each, "max_cs": 32}
    return [{**usual, "network": network, **parameters} for network in range(networks)]


def run_all(
    name: str, asked: Mapping[Setting, list[dict[str, Any]]], chosen: sweep.Options
) -> dict[Setting, list[Measured]]:
    """The cells of all settings of a figure in one sweep; what they found, by setting."""
    every = [cell for each in asked.values() for cell in each]
    results: Iterator[Measured] = iter(sweep.run(name, measure, every, chosen))
    return {setting: [next(results) for _ in each] for setting, each in asked.items()}


def over(results: Sequence[Measured], planner: str, beside: str = "exact", of: str = "cost") -> float:
    """What a planner's deployments come to over those of another: the mean over all worlds."""
    ratios = [getattr(outcome(each, planner), of) / getattr(outcome(each, beside), of) for each in results]
    return statistics.fmean(ratios)


def mean(results: Sequence[Measured], planner: str, of: str) -> float:
    return statistics.fmean(getattr(outcome(each, planner), of) for each in results)


def outcome(result: Measured, planner: str) -> Outcome:
    return Outcome(*result[planner])


def percent(ratio: float) -> str:
    """How far above or below.

    >>> percent(1.1), percent(0.6)
    ('+10 %', '-40 %')
    """
    return f"{100 * (ratio - 1):+.0f} %"


def print_costs(found: Mapping[str, Sequence[Measured]], planners: Sequence[str], paper: Mapping[str, float]) -> None:
    """How far each planner is above exact, in each setting, beside what the paper says."""
    rows = []
    for name in planners:
        said = percent(paper[name]) if name in paper else "-"
        rows.append((TELLS[name], said, *(percent(over(results, name)) for results in found.values())))
    print_table(("cost over exact", "paper", *found), rows)


def bounds_claim(where: str, results: Sequence[Measured]) -> Claim:
    """Theorems 2, 3 and 4, of every query that was planned."""
    every = [Outcome(*values) for each in results for values in each.values()]
    used = max(each.bound_used for each in every)
    broken = sum(each.above_bound for each in every)
    measured = f"{broken} queries broke one; at most {used:.0%} of the bound of theorem 3 was used"
    return Claim(where, "the bounds of theorems 2, 3 and 4 are never exceeded", measured, broken == 0)
