"""What SAND's experiments share: its networks, its layouts of sources, its trees, and what is measured of a placement.

Networks are transit-stub, of 14 transit domains, scaled so that the longest delay is 500 ms; every peer is a candidate.
At scale 1 there are ten of them, ten runs on each, 100 trees in a run. Rates of sources are uniform in [1, 100], and an
operator gives a share of what it takes that is uniform in [0, selectivity].

A departure: the paper lays sources 0.4 of the diameter (200 ms) away from the proxy, and bounds the delay to 120 ms;
both at once cannot be had. Here every source lies within some reach of the proxy, usually half the tight bound, and the
layouts differ in the ratio of the average distance to the proxy (APD) and to each other (ASD), as the paper's do.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from experiments.report import Claim, span
from overlay.sim.topology import TransitStubShape, TransitStubTopology
from protocols.ids import PeerId
from protocols.placement.place import Algorithm, Placement, place
from protocols.placement.tree import ProcessingTree, Vertex
from protocols.placement.view import NetworkView

DIAMETER_MS: Final = 500.0
SHAPE: Final = TransitStubShape(transit_domains=14, transit_routers=3, stub_domains=2, stub_routers=4)
PEERS: Final = 400
SOURCES_MAX: Final = 32
TIGHT_MS: Final = 120.0
LOOSE_MS: Final = 300.0
REACH_MS: Final = TIGHT_MS / 2
BOUNDS: Final = {"tight": TIGHT_MS, "loose": LOOSE_MS}
SCENARIOS: Final = {"star": 0.5, "uniform": 1.0, "cluster": 2.0}
"""APD over ASD."""
DEPTHS: Final = (3, 4, 5)
RATES: Final = (1.0, 100.0)
TRIES: Final = 4
SPARE: Final = 1.2  # So many peers must be near a proxy for each of its sources.
SWAPS: Final = 400
NEAR: Final = 0.1  # The paper says "approximately".
CLOSE: Final = 1e-9  # Sums in another order differ in their last bits.

Rows = Sequence[Sequence[float]]
Off = Callable[[float, float], float]
"""How far APD and ASD are off what is wanted."""


class Outcome(NamedTuple):
    """One tree, placed; or the means of many."""

    ratio: float  # Bandwidth over that of the baseline.
    stretch: float
    over_optimum: float  # Cost over that of the optimum within the bound, less 1.
    at_sources: float  # Share of the operators, as are the next two.
    in_network: float
    at_proxy: float
    apd_ms: float
    asd_ms: float


class Slice(NamedTuple):
    """A run on one network."""

    topology: int
    run: int
    trees: int


def slices(scale: float) -> list[Slice]:
    """At scale 1 ten networks, ten runs, 100 trees; fewer trees first, then fewer runs and networks."""
    wanted = 10_000 * scale
    runs = max(1, round(10 * scale))
    trees = min(100, max(len(DEPTHS), round(wanted / 10 / runs)))
    topologies = min(10, max(1, round(wanted / runs / trees)))
    return [Slice(topology, run, trees) for topology in range(topologies) for run in range(runs)]


@lru_cache(maxsize=2)
def make_network(seed: int, topology: int) -> NetworkView:
    """A network in which somebody has enough peers near to be the proxy of the largest tree; others are drawn again."""
    luck = random.Random(f"{seed} {topology}")
    while True:
        view = _network(luck)
        if max(map(len, _near(view, REACH_MS))) >= SPARE * SOURCES_MAX:
            return view


def _network(luck: random.Random) -> NetworkView:
    network = TransitStubTopology(luck, SHAPE)
    numbers = range(PEERS)
    delays = [[0.0 if a == b else float(network.delay_ms(a, b)) for b in numbers] for a in numbers]
    scale = DIAMETER_MS / max(map(max, delays))
    rows = [[ms * scale for ms in row] for row in delays]
    return NetworkView([PeerId(number.to_bytes(20, "big")) for number in numbers], rows, is_metric=True)


# Layouts.


def wanted(apd_over_asd: float) -> Off:
    """A scenario: only the ratio of the two counts."""
    return lambda apd, asd: abs(apd / asd / apd_over_asd - 1)


def wanted_ms(apd_ms: float, asd_ms: float) -> Off:
    return lambda apd, asd: max(abs(apd / apd_ms - 1), abs(asd / asd_ms - 1))


def make_locations(
    luck: random.Random, view: NetworkView, off: Off, count: int, reach_ms: float
) -> tuple[PeerId, list[PeerId]]:
    """A proxy and sources laid out nearly as wanted: swapped one by one while that comes nearer to it.

    A star of many sources can be had in no network: some are always neighbours. The nearest of a few tries is taken.
    """
    rows = view.rows
    near = _near(view, reach_ms)
    proxies = [place for place, others in enumerate(near) if len(others) >= SPARE * count]
    assert proxies, f"nobody has {count} peers within {reach_ms:g} ms"
    best: tuple[float, int, list[int]] = (math.inf, -1, [])
    for _ in range(TRIES):
        proxy = luck.choice(proxies)
        error, sources = _sources(luck, rows, proxy, near[proxy], off, count)
        best = min(best, (error, proxy, sources))
        if error <= NEAR:
            break
    return view.peers[best[1]], [view.peers[place] for place in best[2]]


@lru_cache(maxsize=2)
def _near(view: NetworkView, reach_ms: float) -> list[list[int]]:
    """For each peer, those that it reaches."""
    return [[place for place, ms in enumerate(row) if 0 < ms <= reach_ms] for row in view.rows]


def _sources(
    luck: random.Random, rows: Rows, proxy: int, near: Sequence[int], off: Off, count: int
) -> tuple[float, list[int]]:
    chosen = luck.sample(near, count)
    to_proxy, to_others = _sums(rows, proxy, chosen)
    pairs = count * (count - 1)
    error = off(to_proxy / count, to_others / pairs)
    for _ in range(SWAPS):
        if error <= NEAR:
            break
        index, other = luck.randrange(count), luck.choice(near)
        if other in chosen:
            continue
        former, pick = chosen[index], itemgetter(*chosen)
        nearer = to_proxy + rows[proxy][other] - rows[proxy][former]
        closer = to_others + 2 * (sum(pick(rows[other])) - rows[other][former] - sum(pick(rows[former])))
        if (changed := off(nearer / count, closer / pairs)) < error:
            chosen[index] = other
            error, to_proxy, to_others = changed, nearer, closer
    return error, chosen


def _sums(rows: Rows, proxy: int, sources: Sequence[int]) -> tuple[float, float]:
    pick = itemgetter(*sources)
    return sum(pick(rows[proxy])), sum(sum(pick(rows[source])) for source in sources)


def layout(view: NetworkView, tree: ProcessingTree) -> tuple[float, float]:
    """APD and ASD."""
    sources = [view.index[peer] for peer in tree.source_peers]
    to_proxy, to_others = _sums(view.rows, view.index[tree.proxy], sources)
    return to_proxy / len(sources), to_others / (len(sources) * (len(sources) - 1))


# Trees.


def make_tree(
    luck: random.Random,
    depth: int,
    proxy: PeerId,
    sources: Iterable[PeerId],
    *,
    fanout: int = 2,
    selectivity: float = 1.0,
) -> ProcessingTree:
    vertices: list[Vertex] = []
    waiting = iter(sources)

    def grow(height: int) -> int:
        if height == 0:
            vertices.append(Vertex("source", (), luck.uniform(*RATES), next(waiting)))
        else:
            children = tuple(grow(height - 1) for _ in range(fanout))
            flow = sum(vertices[child].beta for child in children)
            vertices.append(Vertex("operator", children, flow * luck.random() * selectivity))
        return len(vertices) - 1

    top = grow(depth)
    vertices.append(Vertex("delivery", (top,), 0.0, proxy))
    return ProcessingTree(vertices)


# Measurements.


def measure(
    seed: int,
    topology: int,
    run: int,
    trees: int,
    bounds_ms: Sequence[float],
    algorithms: Sequence[Algorithm],
    apd_over_asd: float = 0.0,
    layout_ms: Sequence[float] = (),
    reach_ms: float = REACH_MS,
    depths: Sequence[int] = DEPTHS,
    fanout: int = 2,
    selectivity: float = 1.0,
) -> list[list[list[float]]]:
    """For each bound and each algorithm the mean outcome of a run; a cell of every figure.

    What is drawn does not depend on bounds and selectivity, so their effects are seen on the same trees.
    """
    view = make_network(seed, topology)
    luck = random.Random(f"{seed} {topology} {run}")
    off = wanted_ms(*layout_ms) if layout_ms else wanted(apd_over_asd)
    found: list[list[list[Outcome]]] = [[[] for _ in algorithms] for _ in bounds_ms]
    for number in range(trees):
        depth = depths[number % len(depths)]
        proxy, sources = make_locations(luck, view, off, fanout**depth, reach_ms)
        tree = make_tree(luck, depth, proxy, sources, fanout=fanout, selectivity=selectivity)
        for bound_ms, by_algorithm in zip(bounds_ms, found, strict=True):
            for outcomes, outcome in zip(by_algorithm, placed(tree, view, bound_ms, algorithms), strict=True):
                outcomes.append(outcome)
    return [[list(mean(outcomes)) for outcomes in by_algorithm] for by_algorithm in found]


def placed(
    tree: ProcessingTree, view: NetworkView, bound_ms: float, algorithms: Sequence[Algorithm]
) -> Iterator[Outcome]:
    """One tree, by each algorithm, beside the baseline and the optimum."""
    baseline, exact = _placed("baseline", tree, view, bound_ms), _placed("exact", tree, view, bound_ms)
    assert exact.is_optimal, "the search reached its limit"
    apd_ms, asd_ms = layout(view, tree)
    known = {"baseline": baseline, "exact": exact}
    for algorithm in algorithms:
        found = known.get(algorithm) or _placed(algorithm, tree, view, bound_ms)
        assert found.cost >= exact.cost * (1 - CLOSE), "nothing is below the optimum"
        hosts = [found.hosts[operator] for operator in tree.operators]
        at_proxy = sum(host == tree.proxy for host in hosts) / len(hosts)
        at_sources = sum(host in tree.source_peers for host in hosts) / len(hosts)
        over = found.cost / exact.cost - 1
        shares = at_sources, 1 - at_sources - at_proxy, at_proxy
        yield Outcome(found.cost / baseline.cost, found.stretch, over, *shares, apd_ms, asd_ms)


def _placed(algorithm: Algorithm, tree: ProcessingTree, view: NetworkView, bound_ms: float) -> Placement:
    found = place(algorithm, tree, view, bound_ms)
    assert isinstance(found, Placement), "every source is within the bound"
    assert found.delay_ms <= bound_ms, "no bound is violated"
    return found


def mean(outcomes: Iterable[Sequence[float]]) -> Outcome:
    return Outcome(*(statistics.fmean(column) for column in zip(*outcomes, strict=True)))


Lines = dict[tuple[str, Algorithm], dict[float, Outcome]]
"""The curves of a figure: by what they stand for and by algorithm, the mean at each point."""


def optimum_claim(lines: Lines) -> Claim:
    """Ours, in every figure of In-Network."""
    over = [
        outcome.ratio / lines[name, "exact"][point].ratio
        for (name, algorithm), line in lines.items()
        if algorithm == "in-network"
        for point, outcome in line.items()
    ]
    measured = f"In-Network's over the optimum's: {span(over)}"
    return Claim("ours", "exact uses no more than In-Network in every cell", measured, min(over) >= 1 - CLOSE)


def size_told(scale: float) -> str:
    runs = slices(scale)
    return f"{len(runs)} runs of {runs[0].trees} trees"


def gathered(
    cells: Sequence[Mapping[str, Any]],
    results: Sequence[list[list[list[float]]]],
    name: Callable[[Mapping[str, Any]], Any],
) -> dict[tuple[Any, float, Algorithm], Outcome]:
    """Means over networks and runs, by what a figure calls a cell, by bound and by algorithm."""
    found: dict[tuple[Any, float, Algorithm], list[list[float]]] = {}
    for cell, result in zip(cells, results, strict=True):
        for bound_ms, by_algorithm in zip(cell["bounds_ms"], result, strict=True):
            for algorithm, outcome in zip(cell["algorithms"], by_algorithm, strict=True):
                found.setdefault((name(cell), bound_ms, algorithm), []).append(outcome)
    return {key: mean(outcomes) for key, outcomes in found.items()}
