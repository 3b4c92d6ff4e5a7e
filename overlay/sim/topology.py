"""How far simulated peers are apart: one-way delays between any two of them, by index.

`uniform` and `lan` draw every pair independently. `transit-stub` is the generator of the placement papers (Zegura et
al., INFOCOM 1996): transit domains joined by long links, stub domains attached to each transit router, and peers in the
stubs. Peers that are near to each other are then near to the same others, as on the Internet.
"""

from __future__ import annotations

import heapq
import random
from array import array
from typing import Final, Literal, Protocol, get_args

import msgspec

from overlay.sim.mix import mix
from protocols.ids import Millis

DelayRange = tuple[float, float]
"""Shortest and longest delay of one kind of link, in milliseconds."""

_MANY: Final = 1 << 32


class Topology(Protocol):
    """One-way delays between peers, symmetric."""

    def delay_ms(self, a: int, b: int) -> Millis: ...

    def shift(self, rng: random.Random) -> None:
        """Draw new distances of the same kind."""


class UniformTopology:
    """Every pair of peers has its own distance, drawn from one range; costs no memory."""

    def __init__(self, rng: random.Random, range_ms: tuple[Millis, Millis]) -> None:
        self._salt = rng.getrandbits(32)
        self._low, high = range_ms
        self._width = high - self._low + 1

    def delay_ms(self, a: int, b: int) -> Millis:
        return self._low + mix(min(a, b), max(a, b), self._salt) * self._width // _MANY

    def shift(self, rng: random.Random) -> None:
        self._salt = rng.getrandbits(32)


class TransitStubShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a transit-stub network: how many of each, and how long the links are."""

    transit_domains: int = 3
    transit_routers: int = 3  # In each transit domain.
    stub_domains: int = 2  # At each transit router.
    stub_routers: int = 3  # In each stub domain.
    # Share of further links between a domain's routers, beyond the tree that connects them.
    extra_link_share: float = 0.3
    between_transit_ms: DelayRange = (20.0, 60.0)
    within_transit_ms: DelayRange = (5.0, 20.0)
    to_stub_ms: DelayRange = (2.0, 8.0)
    within_stub_ms: DelayRange = (0.5, 2.0)
    to_peer_ms: DelayRange = (0.1, 1.0)


class TransitStubTopology:
    """Peers attached to the stub routers of a drawn transit-stub network; paths are the shortest ones."""

    def __init__(self, rng: random.Random, shape: TransitStubShape) -> None:
        self._rng = rng
        self._shape = shape
        self._links: list[list[tuple[int, float]]] = []
        self._stubs: list[int] = []
        self._homes: list[tuple[int, float]] = []  # For each peer: its router, and the delay to it.
        self._from: dict[int, array[float]] = {}
        self._build()

    @property
    def routers(self) -> int:
        return len(self._links)

    def delay_ms(self, a: int, b: int) -> Millis:
        homes = self._homes
        while len(homes) <= a or len(homes) <= b:
            homes.append((self._rng.choice(self._stubs), self._rng.uniform(*self._shape.to_peer_ms)))
        (router_a, access_a), (router_b, access_b) = homes[a], homes[b]
        if router_a > router_b:  # The same in both directions, to the last bit.
            router_a, router_b = router_b, router_a
        delays = self._from.get(router_a) or self._delays_from(router_a)
        return int(access_a + access_b + delays[router_b]) + 1

    def between_stubs(self) -> list[list[float]]:
        """The delays between all stub routers, to the last bit: for networks whose peers these are."""
        rows = [[0.0] * len(self._stubs) for _ in self._stubs]
        for number, router in enumerate(self._stubs):
            delays = self._from.get(router) or self._delays_from(router)
            for other in range(number):
                rows[number][other] = rows[other][number] = delays[self._stubs[other]]
        return rows

    def shift(self, rng: random.Random) -> None:
        """Peers change places."""
        rng.shuffle(self._homes)

    def _build(self) -> None:
        shape, rng = self._shape, self._rng
        domains = [self._domain(shape.transit_routers, shape.within_transit_ms) for _ in range(shape.transit_domains)]
        for index, domain in enumerate(domains[1:], start=1):
            self._link(rng.choice(domain), rng.choice(domains[rng.randrange(index)]), shape.between_transit_ms)
        for transit in [router for domain in domains for router in domain]:
            for _ in range(shape.stub_domains):
                stub = self._domain(shape.stub_routers, shape.within_stub_ms)
                self._link(transit, rng.choice(stub), shape.to_stub_ms)
                self._stubs += stub

    def _domain(self, routers: int, delay: DelayRange) -> list[int]:
        """New routers: a random tree, plus a share of the other possible links."""
        first = len(self._links)
        domain = list(range(first, first + routers))
        self._links += [[] for _ in domain]
        for router in domain[1:]:
            nearest = self._rng.randrange(first, router)
            self._link(router, nearest, delay)
            for other in range(first, router):
                if other != nearest and self._rng.random() < self._shape.extra_link_share:
                    self._link(router, other, delay)
        return domain

    def _link(self, a: int, b: int, delay: DelayRange) -> None:
        ms = self._rng.uniform(*delay)
        self._links[a].append((b, ms))
        self._links[b].append((a, ms))

    def _delays_from(self, source: int) -> array[float]:
        """The shortest delays from one router to all others, computed on demand (Dijkstra)."""
        best = array("d", [float("inf")]) * len(self._links)
        best[source] = 0.0
        queue = [(0.0, source)]
        while queue:
            ms, router = heapq.heappop(queue)
            if ms > best[router]:
                continue
            for other, link_ms in self._links[router]:
                if ms + link_ms < best[other]:
                    best[other] = ms + link_ms
                    heapq.heappush(queue, (ms + link_ms, other))
        self._from[source] = best
        return best


TopologyName = Literal["uniform", "lan", "transit-stub"]
TOPOLOGY_NAMES: Final[tuple[TopologyName, ...]] = get_args(TopologyName)


def make_topology(name: TopologyName, rng: random.Random, shape: TransitStubShape) -> Topology:
    """The topology a scenario names."""
    match name:
        case "uniform":
            return UniformTopology(rng, (5, 80))
        case "lan":
            return UniformTopology(rng, (1, 2))
        case "transit-stub":
            return TransitStubTopology(rng, shape)
