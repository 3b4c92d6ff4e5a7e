"""How long planning takes: order, places and reuse of one query, as streams and peers grow.

    python -m experiments.benches.planning_bench [PEERS...]

First IFLOW's case: 128 peers, five streams, 200 derived streams that flow; the exact planner beside all others. Then
the curve, over peers with network coordinates and queries in which every two streams have a condition. Where it is
quick all peers are looked at, otherwise candidates, and then the cells prove the gap. At last what it takes to keep the
hierarchy. Times are those of the processor: other processes may want the cores as well.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from experiments.benches.figures import note
from experiments.benches.placement_bench import make_view
from experiments.iflow.model import cost_space, every_pair, synthetic_betas
from protocols.ids import PeerId
from protocols.planning.candidates import narrowed
from protocols.planning.cells import Cell, cells_of, prove
from protocols.planning.coordinates import Coordinates
from protocols.planning.exact import is_quick, plan_exactly, plan_in_time
from protocols.planning.hierarchy import Hierarchy
from protocols.planning.planners import PLANNERS, Known, Planner, plan, zones_of
from protocols.planning.problem import Decision, Derived, Distances, Origin, Problem, Stream

SEED: Final = 15
STREAMS: Final = (2, 3, 4, 5, 6, 8, 10)
PEERS: Final = (64, 128, 256, 1000, 4096)
RUNS: Final = 5
IFLOW_RUNS: Final = 21
FLOWING: Final = 200
SITES: Final = 60
MAX_CS: Final = 32
KEPT: Final = (1000, 10_000)  # Peers in a hierarchy.
COMPARED: Final[tuple[Planner, ...]] = tuple(each for each in PLANNERS if each != "exhaustive")


class Took(NamedTuple):
    """One case of the curve."""

    ms: float
    proof_ms: float  # Of the gap; 0 if all peers were looked at.
    gap: float
    hosts: int


def make_coordinates(seed: int, peers: int) -> Coordinates:
    """Peers around sites in a box of 120 by 100 by 40 ms, behind access links of 3 ms on average."""
    luck = np.random.default_rng(seed)
    sites = luck.uniform(0, 1, (SITES, 3)) * (120.0, 100.0, 40.0)
    points = sites[luck.integers(SITES, size=peers)] + luck.normal(0, 3, (peers, 3))
    names = [PeerId(number.to_bytes(20, "big")) for number in range(peers)]
    return Coordinates(names, points.tolist(), luck.gamma(2.0, 1.5, peers).tolist())


def make_problem(
    luck: random.Random, network: Distances, peers: tuple[PeerId, ...], streams: int, flowing: int = 0
) -> Problem:
    """A query of the synthetic workload; derived streams of joins of some of its streams, at any peers."""
    beta = synthetic_betas(luck, streams)
    sources = tuple(Stream(f"s{n}", (Origin(luck.choice(peers), beta(1 << n)),)) for n in range(streams))
    joins = [each for each in range(1 << streams) if 1 < each.bit_count() < streams]
    derived = []
    for _ in range(flowing):
        chosen = luck.choice(joins)
        derived.append(Derived(chosen, Origin(luck.choice(peers), beta(chosen)), (), luck.choice((0.0, beta(chosen)))))
    return Problem(network, peers, sources, every_pair(streams), beta, luck.choice(peers), tuple(derived))


def timed(decide: Callable[[], Decision]) -> tuple[float, Decision]:
    began = time.process_time()
    found = decide()
    return (time.process_time() - began) * 1000, found


def iflow_case(peers: int = 128, streams: int = 5, runs: int = IFLOW_RUNS) -> dict[Planner, tuple[list[float], float]]:
    """For each planner its times in ms, and its mean cost over exact."""
    view = make_view(SEED, peers)
    assert view.matrix.any()  # Made once for all queries on a network.
    hierarchy = Hierarchy.of(view.peers, view.distance, MAX_CS)
    known = Known(hierarchy, zones_of(hierarchy), cost_space(view), luck=random.Random(SEED))
    took: dict[Planner, list[float]] = {name: [] for name in COMPARED}
    over: dict[Planner, list[float]] = {name: [] for name in COMPARED}
    for run in range(runs):
        problem = make_problem(random.Random(f"{SEED} {run}"), view, view.peers, streams, FLOWING)
        best = plan_exactly(problem).cost
        for name in COMPARED:
            ms, found = timed(lambda name=name, problem=problem: plan(name, problem, known))  # type: ignore[misc]
            took[name].append(ms)
            over[name].append(found.cost / best if best else 1.0)
    return {name: (took[name], statistics.fmean(over[name])) for name in COMPARED}


def case(network: Coordinates, cells: Cell, streams: int, run: int) -> Took:
    """One query over all peers, or over candidates with a proof."""
    problem = make_problem(random.Random(f"{SEED} {streams} {run}"), network, network.peers, streams)
    ms, found = timed(lambda: plan_in_time(problem))
    if is_quick(problem):
        return Took(ms, 0.0, found.gap, len(network.peers))
    proof_ms, proved = timed(lambda: prove(problem, network, cells, found))
    return Took(ms, proof_ms, max(0.0, 1 - proved.bound / found.cost), len(narrowed(problem).hosts))


def curve(peers: int) -> dict[int, Took]:
    """The medians over some queries for each number of streams."""
    network = make_coordinates(SEED, peers)
    cells = cells_of(network, network.peers)  # Made once for all queries on a network.
    case(network, cells, 3, RUNS)  # What is loaded or first touched here is not counted.
    found = {}
    for streams in STREAMS:
        runs = [case(network, cells, streams, run) for run in range(RUNS)]
        found[streams] = Took(*(statistics.median(column) for column in zip(*runs, strict=True)))
    return found


class Upkeep(NamedTuple):
    """What one change of the hierarchy takes on average."""

    asked: float  # Distances.
    told: float  # Members that hear of it.
    ms: float


def upkeep(peers: int) -> dict[str, Upkeep]:
    """Peers join one by one, and the last tenth counts; then these get other distances, and leave."""
    network = make_coordinates(SEED, peers)
    points = [tuple(point) for point in network.points.tolist()]
    heights = network.heights.tolist()
    where = {peer: (points[number], heights[number]) for number, peer in enumerate(network.peers)}

    def distance(a: PeerId, b: PeerId) -> float:
        (one, access), (other, access_there) = where[a], where[b]
        return 0.0 if a == b else math.dist(one, other) + access + access_there

    hierarchy = Hierarchy(MAX_CS, distance)
    luck = random.Random(SEED)
    tenth = network.peers[-(peers // 10) :]
    for peer in network.peers[: -len(tenth)]:
        hierarchy.join(peer)

    def drift(peer: PeerId) -> None:
        where[peer] = where[luck.choice(network.peers)]
        hierarchy.drift(peer)

    found = {}
    for what, change in (("join", hierarchy.join), ("drift", drift), ("leave", hierarchy.leave)):
        asked, told, began = hierarchy.work.asked, hierarchy.work.told, time.process_time()
        for peer in tenth:
            change(peer)
        ms = (time.process_time() - began) * 1000
        found[what] = Upkeep(
            *(total / len(tenth) for total in (hierarchy.work.asked - asked, hierarchy.work.told - told, ms))
        )
    hierarchy.validate()
    return found


def main() -> None:
    counts = [int(each) for each in sys.argv[1:]] or PEERS
    print(f"128 peers, 5 streams, {FLOWING} derived streams flow; processor time, median of {IFLOW_RUNS}")
    for name, (times, over) in iflow_case().items():
        print(f"{name:>12} {statistics.median(times):8.1f} ms (at most {max(times):.1f})   cost over exact {over:.2f}")
        if name == "exact":
            note("plan of 5 streams on 128 peers", statistics.median(times), "ms")
        elif name in ("top-down", "bottom-up", "in-network", "relaxation"):
            note("cost of a plan, 128 peers", 1.0, "x", name, over)
    print(f"exact, ms (candidates: + ms of the proof, gap that is proved), median of {RUNS}")
    print(f"{'peers':>6}" + "".join(f"{f'{streams} streams':>22}" for streams in STREAMS))
    for peers in counts:
        line = f"{peers:>6}"
        for took in curve(peers).values():
            proof = f" (+{took.proof_ms:.0f}, {took.gap:.1%})" if took.hosts < peers else ""
            line += f"{f'{took.ms:.1f}{proof}':>22}"
        print(line, flush=True)
    print(f"the hierarchy, max_cs {MAX_CS}: distances asked, members told, ms, for one peer on average")
    for peers in KEPT:
        each = (f"{what} {it.asked:.0f}, {it.told:.0f}, {it.ms:.2f}" for what, it in upkeep(peers).items())
        print(f"{peers:>6} peers: {'; '.join(each)}", flush=True)


if __name__ == "__main__":
    main()
