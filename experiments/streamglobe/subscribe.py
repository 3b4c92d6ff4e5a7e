"""SUBSCRIBE as the paper prints it (algorithm 1), and data and query shipping to compare it with.

A query is refused if no plan fits; among those that fit the cost C decides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from experiments.streamglobe.capacity import Capacity, Refusal, Shortage, cpu_name, link_name
from experiments.streamglobe.match import match_properties
from experiments.streamglobe.windows import extent
from experiments.streamglobe.world import (
    AGGREGATE_BYTES,
    EVERYTHING,
    WEIGHTS,
    Asked,
    World,
    item_bytes,
)
from queries.properties import InputProperties


class Flow(NamedTuple):
    """What a stream carries."""

    items_per_s: float
    bytes_per_s: float


@dataclass(eq=False)
class Carried:
    """A stream on its way: what it holds, and the peers it begins at, passes and ends at."""

    properties: InputProperties | None  # None: the original stream.
    way: tuple[int, ...]
    flow: Flow


class Plan(NamedTuple):
    """How one query would be answered."""

    needs: dict[str, float]
    stream: Carried  # What is newly sent.
    cost: float
    shortages: tuple[Shortage, ...]
    parses: tuple[Carried, int] | None = None  # The stream that its operators read, and where.

    @property
    def rank(self) -> tuple[bool, float]:
        return bool(self.shortages), self.cost


@dataclass
class Network:
    """The streams of a backbone, and what is left of it."""

    world: World
    refusals: list[Refusal] = field(default_factory=list)
    plan_ms: list[float] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)
    _parsed: dict[tuple[int, int], None] = field(default_factory=dict)
    _matches: dict[tuple[int, int], bool] = field(default_factory=dict)

    @cached_property
    def capacity(self) -> Capacity:
        return self.world.capacity()

    @cached_property
    def streams(self) -> list[list[Carried]]:
        """By base stream, the original first."""
        whole = Flow(self.world.per_s, self.world.per_s * item_bytes(EVERYTHING))
        return [[Carried(None, (node,), whole)] for node in self.world.backbone.sources]

    def plan(self, query: Asked, base: Carried, at: int, *, operators_at: int | None = None) -> Plan:
        """Reuse a stream at a peer: the operators there, or elsewhere; what flows on goes the shortest way."""
        work, target = self.world.work, query.node
        place = at if operators_at is None else operators_at
        way = self.world.backbone.path(at, target)
        made = result(self.world, query)
        sent = Carried(query.needs, way, made) if place == at else Carried(None, way, base.flow)
        needs: dict[str, float] = {}
        for one, other in pairwise(way):
            _add(needs, link_name(one, other), 8 * sent.flow.bytes_per_s)
            for end in (one, other):
                _add(needs, cpu_name(end), work.carry_byte * sent.flow.bytes_per_s)
        is_parsed = self.world.is_parsed_once and place == at and (id(base), at) in self._parsed
        if base.properties != query.needs:
            _add(needs, cpu_name(place), self._operators(query, base, is_parsed=is_parsed))
        _add(needs, cpu_name(target), work.restructure * made.items_per_s)
        cost, shortages = self.capacity.cost(needs, WEIGHTS), self.capacity.shortages(needs)
        return Plan(needs, sent, cost, shortages, (base, at) if place == at else None)

    def _operators(self, query: Asked, base: Carried, *, is_parsed: bool) -> float:
        """CPU of selection and projection, or aggregation, of what a stream brings."""
        work = self.world.work
        if base.properties is not None and base.properties.grouping is not None:
            return work.aggregate * base.flow.items_per_s
        kept = self.world.rows_per_s(query.stream, [query.needs.predicate])
        once = work.test if is_parsed else work.parse + work.test
        return once * base.flow.items_per_s + (work.aggregate if query.is_aggregate else work.project) * kept

    def matches(self, stream: Carried, query: Asked) -> bool:
        if stream.properties is None:
            return True
        key = (id(stream), query.number)
        if key not in self._matches:
            self._matches[key] = match_properties(stream.properties, query.needs)
        return self._matches[key]

    def take(self, query: Asked, plan: Plan, *, is_shared: bool) -> None:
        """Install a plan, or note why it is refused."""
        if refusal := self.capacity.admit(f"q-{query.number}", plan.needs, now=0):
            self.refusals.append(refusal)
            return
        for name, needed in plan.needs.items():
            _add(self.used, name, needed)
        if plan.parses is not None:
            self._parsed[id(plan.parses[0]), plan.parses[1]] = None
        if is_shared and plan.stream.properties is not None:
            self.streams[query.stream].append(plan.stream)


def result(world: World, query: Asked) -> Flow:
    """What the result of a query flows with."""
    if query.needs.grouping is not None:
        per_s = float(1 / extent(query.needs.grouping.window)[1])  # det_time is in seconds.
        return Flow(per_s, AGGREGATE_BYTES * per_s)
    per_s = world.rows_per_s(query.stream, [query.needs.predicate])
    return Flow(per_s, per_s * item_bytes(query.needs.returned))


def data_shipping(network: Network, query: Asked) -> Plan:
    """The whole stream to the subscriber's super-peer, once for each query."""
    original = network.streams[query.stream][0]
    return network.plan(query, original, original.way[-1], operators_at=query.node)


def query_shipping(network: Network, query: Asked) -> Plan:
    """All operators at the source's super-peer."""
    original = network.streams[query.stream][0]
    return network.plan(query, original, original.way[-1])


def subscribe(network: Network, query: Asked) -> Plan:
    """SUBSCRIBE: breadth first from the source along streams that match; at each peer each of them is a candidate."""
    best = data_shipping(network, query)
    source = network.streams[query.stream][0].way[-1]
    waiting, marked = deque([source]), {source: None}
    while waiting:
        node = waiting.popleft()
        for stream in network.streams[query.stream]:
            if node not in stream.way or not network.matches(stream, query):
                continue
            for following in stream.way[stream.way.index(node) + 1 :][:1]:
                if following not in marked:
                    marked[following] = None
                    waiting.append(following)
            found = network.plan(query, stream, node)
            best = min(best, found, key=lambda each: each.rank)
    return best


STRATEGIES: Final[dict[str, tuple[Callable[[Network, Asked], Plan], bool]]] = {
    "data shipping": (data_shipping, False),
    "query shipping": (query_shipping, False),
    "SUBSCRIBE": (subscribe, True),
}


def run(world: World, name: str) -> Network:
    """All queries of a set-up, one after the other."""
    network, (strategy, is_shared) = Network(world), STRATEGIES[name]
    for query in world.queries:
        begun = time.process_time()
        plan = strategy(network, query)
        network.plan_ms.append(1000 * (time.process_time() - begun))
        network.take(query, plan, is_shared=is_shared)
    return network


def _add(totals: dict[str, float], name: str, more: float) -> None:
    totals[name] = totals.get(name, 0.0) + more
