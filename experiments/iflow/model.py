"""What IFLOW's experiments share: its networks, its two workloads, and the streams and queries in them.

Networks are transit-stub (section 4.1): one transit domain of four routers, at each four stub domains of eight; the
stub routers are the 128 peers. The text gives no costs of links, so they are chosen: 1 to 5 in a stub, 5 to 15 to it,
20 to 60 between transit routers. At scale 1 there are ten networks, each with all queries of the paper; the paper seems
to have one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from overlay.sim.topology import TransitStubShape, TransitStubTopology
from protocols.ids import PeerId
from protocols.placement.view import NetworkView
from protocols.planning.problem import Streams, is_connected, members_of

SHAPES: Final[Mapping[int, tuple[int, int, int]]] = {
    32: (4, 2, 4),
    64: (4, 4, 4),
    128: (4, 4, 8),
    256: (4, 8, 8),
    510: (6, 5, 17),
}
"""Transit routers, stub domains at each, and peers in each."""

NETWORKS: Final = 10  # At scale 1.
LIKE_ONE: Final = 0.1  # The scale of one network with all queries; below it there are fewer queries.
RATES: Final = (1.0, 100.0)
JOINS: Final = (2, 5)  # Of a query of the synthetic workload.
FEWEST: Final = 1e-3  # The least selectivity.
DIMENSIONS: Final = 3  # Of Relaxation's cost space.


class Query(NamedTuple):
    """One query: its streams, where its results go, and which rows of them it wants."""

    streams: Streams
    sink: PeerId
    share: float = 1.0  # Of the rows that its filters leave.
    tag: str = ""  # Queries with equal tags have equal filters.


class World(NamedTuple):
    """A network, streams on it, and queries in the order in which they come."""

    view: NetworkView
    publishers: tuple[PeerId, ...]
    beta: Callable[[Streams], float]  # Of whole streams and joins, without filters.
    graph: tuple[Streams, ...]
    queries: tuple[Query, ...]


def size_of(scale: float, queries: int) -> tuple[int, int]:
    """How many networks, and how many queries on each."""
    return max(1, round(NETWORKS * scale)), max(3, min(queries, round(queries * scale / LIKE_ONE)))


def size_told(scale: float, queries: int) -> str:
    networks, each = size_of(scale, queries)
    return f"{networks} network{'s' if networks > 1 else ''} with {each} queries"


@lru_cache(maxsize=4)
def make_view(seed: int, network: int, peers: int) -> NetworkView:
    transits, stubs, routers = SHAPES[peers]
    shape = TransitStubShape(
        transit_domains=1,
        transit_routers=transits,
        stub_domains=stubs,
        stub_routers=routers,
        within_transit_ms=(20.0, 60.0),
        to_stub_ms=(5.0, 15.0),
        within_stub_ms=(1.0, 5.0),
    )
    rows = TransitStubTopology(random.Random(f"iflow {seed} {network} {peers}"), shape).between_stubs()
    return NetworkView([PeerId(number.to_bytes(20, "big")) for number in range(len(rows))], rows, is_metric=True)


@lru_cache(maxsize=4)
def cost_space(view: NetworkView) -> dict[PeerId, tuple[float, ...]]:
    """A point for each peer by classical scaling: where network coordinates of so few dimensions come to rest."""
    squares = view.matrix**2
    centring = np.eye(len(squares)) - 1 / len(squares)
    values, vectors = np.linalg.eigh(-0.5 * centring @ squares @ centring)
    top = np.argsort(values)[::-1][:DIMENSIONS]
    points = vectors[:, top] * np.sqrt(np.maximum(values[top], 0.0))
    return {peer: tuple(map(float, point)) for peer, point in zip(view.peers, points, strict=True)}


# Workloads.


def synthetic_betas(luck: random.Random, streams: int) -> Callable[[Streams], float]:
    """Uniform rates and pair selectivities.

    The text does not say how large joins are. With a uniform selectivity for each pair they would vanish as streams are
    added; here a join of k streams has Π rates · (mean selectivity of its pairs / mean rate)^(k - 1).
    """
    rates = [luck.uniform(*RATES) for _ in range(streams)]
    mean = sum(rates) / streams
    logs = [[math.log(max(luck.random(), FEWEST) / mean) for _ in range(streams)] for _ in range(streams)]

    @cache
    def beta(chosen: Streams) -> float:
        inside = list(members_of(chosen))
        whole = math.prod(rates[each] for each in inside)
        if len(inside) == 1:
            return whole
        pairs = [logs[one][other] for one in inside for other in inside if one < other]
        return whole * math.exp(sum(pairs) / len(pairs) * (len(inside) - 1))

    return beta


def every_pair(streams: int) -> tuple[Streams, ...]:
    """The graph in which a condition connects each two streams."""
    return tuple(((1 << streams) - 1) ^ (1 << each) for each in range(streams))


def make_synthetic(
    luck: random.Random, view: NetworkView, queries: int, streams: int = 10, joined: int | None = None
) -> World:
    """Streams and sinks at any peers; a query joins 3 to 6 streams, or as many as it is told."""
    beta = synthetic_betas(luck, streams)
    asked = []
    for _ in range(queries):
        count = luck.randint(*JOINS) + 1 if joined is None else joined
        chosen = luck.sample(range(streams), count)
        asked.append(Query(sum(1 << each for each in chosen), luck.choice(view.peers)))
    return World(view, tuple(luck.choices(view.peers, k=streams)), beta, every_pair(streams), tuple(asked))


FLIGHTS, CHECKINS, BAGGAGE, WEATHER, SALES = range(5)
PER_MINUTE: Final = (300.0, 240.0, 500.0, 90.0, 70.0)  # Figure 5.
WINDOW_MINUTES: Final = (5.0, 1.0, 1.0, 5.0, 1.0)
PER_KEY: Final = (1, 2, 4, 1, 1)  # Rows of a flight, or of a destination, in a window.
KEYS: Final = (1500, 120, 125, 450, 70)  # Flights, or destinations, in a window.
OF_FLIGHTS: Final = 1 << FLIGHTS | 1 << CHECKINS | 1 << BAGGAGE
OF_DESTINATIONS: Final = 1 << WEATHER | 1 << SALES
AIRLINE_GRAPH: Final = tuple(
    (OF_FLIGHTS if 1 << each & OF_FLIGHTS else OF_DESTINATIONS | 1 << FLIGHTS) & ~(1 << each)
    | (OF_DESTINATIONS if each == FLIGHTS else 0)
    for each in range(5)
)
"""Flights, check-ins and baggage have a flight in common; flights, weather and sales a destination."""
ROW_BYTES: Final = 100.0
GATES: Final = 120
TERMINALS: Final = 6


@cache
def airline_beta(chosen: Streams) -> float:
    """Bytes a minute; a combination of rows is new when any of its rows is.

    The paper's records have 100 bytes; here so do the results of joins, since its queries keep a few fields of each
    record. Flights that have check-ins or baggage now are those that are being handled; few of the 1,500 are.
    """
    inside = list(members_of(chosen))
    if len(inside) == 1:
        return PER_MINUTE[inside[0]] * ROW_BYTES
    limiting = [KEYS[each] for each in inside if 1 << each & OF_FLIGHTS] or [KEYS[WEATHER]]
    keys = float(min(limiting))
    if chosen & OF_DESTINATIONS and chosen & 1 << SALES:
        keys *= KEYS[SALES] / KEYS[WEATHER]
    rows = keys * math.prod(PER_KEY[each] for each in inside)
    return rows * sum(1 / WINDOW_MINUTES[each] for each in inside) * ROW_BYTES


def airline_beta_long(chosen: Streams) -> float:
    """The same if the result of a join is as large as all its records."""
    return airline_beta(chosen) * chosen.bit_count()


def make_airline(luck: random.Random, view: NetworkView, queries: int, *, has_long_results: bool = False) -> World:
    """80 % gate agents (one of 120 flights), 15 % terminals (one of 6), 5 % ad hoc over any streams that join."""
    asked = []
    for _ in range(queries):
        draw, sink = luck.random(), luck.choice(view.peers)
        gate, terminal = luck.randrange(GATES), luck.randrange(TERMINALS)
        if draw < 0.80:
            asked.append(Query(OF_FLIGHTS, sink, 1 / GATES, f"gate {gate} of terminal {gate % TERMINALS}"))
        elif draw < 0.95:
            asked.append(Query(OF_FLIGHTS | 1 << WEATHER, sink, 1 / TERMINALS, f"terminal {terminal}"))
        else:
            joins = [each for each in range(3, 32) if each.bit_count() > 1 and is_connected(AIRLINE_GRAPH, each)]
            asked.append(Query(luck.choice(joins), sink))
    beta = airline_beta_long if has_long_results else airline_beta
    return World(view, tuple(luck.choices(view.peers, k=5)), beta, AIRLINE_GRAPH, tuple(asked))


Workload = Literal["synthetic", "airline"]


def make_world(seed: int, network: int, peers: int, workload: Workload, queries: int, **options: Any) -> World:
    view = make_view(seed, network, peers)
    luck = random.Random(f"iflow {seed} {network} {peers} {workload}")
    if workload == "airline":
        return make_airline(luck, view, queries, **options)
    return make_synthetic(luck, view, queries, **options)


def is_wider(tag: str, other: str) -> bool:
    """Whether filters of one tag keep all rows that those of another keep.

    >>> is_wider("", "terminal 3"), is_wider("terminal 3", "gate 9 of terminal 3"), is_wider("terminal 3", "terminal 4")
    (True, True, False)
    """
    return tag == "" or other == tag or other.endswith(f"of {tag}")
