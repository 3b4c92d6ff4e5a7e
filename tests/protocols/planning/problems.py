"""Random problems for tests of planners: peers in a plane, or with distances that are no metric."""

from __future__ import annotations

import math
from functools import lru_cache
from random import Random

from protocols.ids import PeerId
from protocols.placement.view import NetworkView
from protocols.planning.problem import Betas, Derived, Origin, Problem, Stream, Streams, is_connected, members_of


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(20, "big"))


def make_view(luck: Random, peers: int, *, is_metric: bool = True) -> NetworkView:
    """Peers in a square behind access links of their own; without a metric, any distances."""
    points = [(luck.uniform(0, 100), luck.uniform(0, 100), luck.expovariate(0.5)) for _ in range(peers)]
    rows = [[math.hypot(a[0] - b[0], a[1] - b[1]) + a[2] + b[2] for b in points] for a in points]
    for a in range(peers):
        rows[a][a] = 0.0
        for b in range(a):
            if not is_metric:
                rows[a][b] *= luck.uniform(0.2, 2)
            rows[b][a] = rows[a][b]
    return NetworkView([peer(number) for number in range(peers)], rows, is_metric=is_metric)


def make_graph(luck: Random, streams: int, extra: float) -> tuple[Streams, ...]:
    """A random tree of conditions, and a share of all others."""
    graph = [0] * streams
    for one in range(1, streams):
        tree = luck.randrange(one)
        for other in range(one):
            if other == tree or luck.random() < extra:
                graph[one] |= 1 << other
                graph[other] |= 1 << one
    return tuple(graph)


def make_betas(luck: Random, graph: tuple[Streams, ...]) -> Betas:
    """Rates in [1, 100], and a selectivity for each condition that makes joins smaller or larger than their inputs."""
    rates = [luck.uniform(1, 100) for _ in graph]
    share = {
        (one, other): luck.uniform(0.001, 0.1)
        for other in range(len(graph))
        for one in members_of(graph[other])
        if one < other
    }

    @lru_cache
    def beta(streams: Streams) -> float:
        inside = list(members_of(streams))
        met = math.prod(share[one, other] for one in inside for other in inside if (one, other) in share)
        return math.prod(rates[each] for each in inside) * met

    return beta


def make_problem(
    luck: Random, view: NetworkView, streams: int, *, hosts: int | None = None, derived: float = 0.3, extra: float = 0.5
) -> Problem:
    """`derived` is the chance of a set of streams to be had somewhere, up to three times."""
    graph = make_graph(luck, streams, extra)
    beta = make_betas(luck, graph)
    published = []
    for number in range(streams):
        places = luck.choices(view.peers, k=luck.choice((1, 1, 1, 2)))
        published.append(Stream(f"s{number}", tuple(Origin(each, beta(1 << number) / len(places)) for each in places)))
    flowing = []
    for each in range(1, 1 << streams):
        if is_connected(graph, each) and luck.random() < derived:
            for _ in range(luck.randint(1, 3)):
                widening = luck.choice((0.0, luck.uniform(0, 5) * beta(each)))
                flowing.append(Derived(each, Origin(luck.choice(view.peers), beta(each)), (), widening))
    able = view.peers if hosts is None else tuple(sorted(luck.sample(view.peers, hosts)))
    return Problem(view, able, tuple(published), graph, beta, luck.choice(view.peers), tuple(flowing))
