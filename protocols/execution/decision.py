"""Where the parts of a query run: its plan as a processing tree, the network as its peer sees it, and a choice.

These parts can be placed: for each source, the selections on it with the projection to what is needed, which "narrow"
it; each join below another; and all operators above with state, together, at the "worker". The proxy makes the shape of
the results.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final, get_args

import msgspec

from protocols.catalogue.messages import PublisherShown, StreamShown
from protocols.catalogue.statistics import StreamStatistics
from protocols.execution.apart import Aliases, aliases_of, inner_joins, made_by
from protocols.execution.cut import is_stateful, narrowed, runs_inline
from protocols.execution.messages import Move, PlacementName
from protocols.execution.refusals import NoEngine
from protocols.ids import Millis, PeerId, StreamName
from protocols.placement.delay import Infeasible
from protocols.placement.messages import Distributed
from protocols.placement.place import ALGORITHMS, Algorithm, Placement, place
from protocols.placement.tree import ProcessingTree, Vertex, overlay_cost, path_delay
from protocols.placement.view import NetworkView
from protocols.sight import NetworkSeen
from protocols.subgraphs import PATIENCE_MS, Indexed, Sharing
from queries.casts import read_interval
from queries.cost import Rates, StreamRates
from queries.plan import Operator, Restructure, Source, sources
from queries.selectivity import ColumnStatistics, merged_quantiles
from queries.statistics import from_json

GAIN_MIN: Final = 0.2  # A move must save this share of the cost, since it restarts the query.
UNDER_WAY_MIN: Final = 1000.0  # Bytes in transit that `auto` must save: one more engine is not free.
AGAIN_MS: Final = 10_000  # How often a running query is weighed again.
SETTLED_MS: Final = 20_000  # How long a query stays where it is after it has started.
MOVES_KEPT: Final = 20
BETTER_PLACED: Final = "it is better placed elsewhere"  # Why a query moves although no host was lost.
UNREADY_MS: Final = 120_000  # A host whose engine did not start is not chosen again for this long.
PUBLISHERS_MAX: Final = 8  # Only the busiest publishers of a stream become leaves of the tree.


class Choice(msgspec.Struct, frozen=True):
    """Which peer runs the operators with state, and which narrows each source, by alias."""

    worker: PeerId
    chains: dict[str, PeerId]
    why: str = ""
    is_by_coordinators: bool = False
    joins: dict[Aliases, PeerId] = {}  # Joins at another peer than their reader; the worker has all other state.

    def is_as(self, other: Choice) -> bool:
        """Whether both run every part at the same peer, for whatever reason."""
        is_same = self.worker == other.worker and self.joins == other.joins
        return is_same and self._apart() == other._apart()

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return (self.worker, *self.joins.values(), *self.chains.values())

    def _apart(self) -> dict[str, PeerId]:
        """The sources that another peer than their reader narrows."""
        return {alias: peer for alias, peer in self.chains.items() if peer != self._reader(alias)}

    def _reader(self, alias: str) -> PeerId:
        above = [aliases for aliases in self.joins if alias in aliases]
        return self.joins[min(above, key=len)] if above else self.worker

    def moved_from(self, before: Choice) -> tuple[PeerId, PeerId]:
        """The peers between which the operators with state moved, or one join of them."""
        if self.worker == before.worker:
            for aliases in (*before.joins, *self.joins):
                ends = before.joins.get(aliases, before.worker), self.joins.get(aliases, self.worker)
                if ends[0] != ends[1]:
                    return ends
        return before.worker, self.worker


@dataclass(frozen=True, slots=True)
class Basis:
    """What a placement is decided on: the parts of the plan, the network as it was seen, the peers with an engine."""

    parts: Parts
    view: NetworkView
    able: tuple[PeerId, ...]


class Decision(msgspec.Struct, frozen=True):
    """How a query runs: its plan, which a planner may have reordered, and who runs which part of it."""

    plan: Operator
    choice: Choice
    basis: Basis | None = None  # None: the join index runs it, which finds its own peers.
    index: Indexed | None = None
    is_provisional: bool = False  # Deployed before the coordinators have confirmed it.

    @property
    def has_no_state(self) -> bool:
        return self.basis is not None and self.basis.parts.work is None

    def by_coordinators(self, hosts: Sequence[PeerId], placement: PlacementName) -> Decision:
        """The same plan, where coordinators have put its parts."""
        assert self.basis is not None
        choice = self.basis.parts.choice(hosts, f"{placement}, by its coordinators")
        return msgspec.structs.replace(self, choice=msgspec.structs.replace(choice, is_by_coordinators=True))


@dataclass(slots=True)
class Placing:
    """How one query wants to be placed, where it is, and where it was."""

    placement: PlacementName = "auto"
    within_ms: float | None = None
    statistics: str = ""  # What the client knows of the streams, for instance from their past.
    streams: dict[str, StreamShown] = field(default_factory=dict)
    choice: Choice | None = None
    moves: list[Move] = field(default_factory=list)
    weighed_at: Millis = 0
    patience_ms: Millis = PATIENCE_MS  # How long it waits for a publisher that is not heard of.
    sharing: Sharing = "auto"
    unready: dict[PeerId, Millis] = field(default_factory=dict)  # Hosts without a working engine, avoided until then.
    crowded: Container[PeerId] = ()  # Hosts that had no room for a part of it.
    unable: dict[PeerId, str] = field(default_factory=dict)  # Hosts that could not start a new query, and why.

    def take_options(self, options: Iterable[tuple[str, str]]) -> None:
        """Take the options of the text, except where the client has said otherwise."""
        for key, value in options:
            if key == "placement" and self.placement == "auto" and value in ALGORITHMS:
                self.placement = value
            elif key == "within" and self.within_ms is None and (within := read_interval(value)) is not None:
                self.within_ms = within / timedelta(milliseconds=1)
            elif key == "sharing":
                self.sharing = "off" if value == "off" else "auto"
            elif key == "patience" and (patience := read_interval(value)) is not None:
                self.patience_ms = patience // timedelta(milliseconds=1)

    @property
    def rates(self) -> dict[str, StreamRates]:
        """The rates of the streams as the client says they are."""
        return from_json(self.statistics) if self.statistics else {}

    @property
    def bound_ms(self) -> float:
        return math.inf if self.within_ms is None else self.within_ms

    @property
    def is_distributed(self) -> bool:
        return self.placement in get_args(Distributed)

    @property
    def is_by_coordinators(self) -> bool:
        """Whether the query runs where coordinators have placed it."""
        return self.choice is not None and self.choice.is_by_coordinators

    def settle(self, choice: Choice, reason: str, now: Millis) -> None:
        """The query now runs there; `reason` says why the attempt before it ended."""
        before = self.choice
        if before is not None and not before.is_as(choice):
            self._note(Move(now, *choice.moved_from(before), reason or choice.why))
        self.choice, self.weighed_at = choice, now
        self.unready = {peer: until for peer, until in self.unready.items() if peer not in choice.peers}

    def stay(self, choice: Choice, host: PeerId, why: str, now: Millis) -> None:
        """Give up a move, because one of its hosts has no engine ready."""
        assert self.choice is not None
        before, _ = choice.moved_from(self.choice)
        self._note(Move(now, before, host, f"peer {host.short} {why}", is_given_up=True))
        self.avoid(host, now)
        self.weighed_at = now

    def avoid(self, host: PeerId, now: Millis) -> None:
        """The engine of a host does not start: plans choose another for a while, if there is one."""
        self.unready[host] = now + UNREADY_MS

    def _note(self, move: Move) -> None:
        self.moves = [*self.moves, move][-MOVES_KEPT:]

    def is_due(self, plan: Operator, attempted_at: Millis, now: Millis) -> bool:
        """Whether it is time to weigh the placement again."""
        is_movable = self.placement != "baseline" and is_stateful(plan)
        return is_movable and now - attempted_at >= SETTLED_MS and now - self.weighed_at >= AGAIN_MS


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a plan as a processing tree."""

    tree: ProcessingTree
    chains: dict[str, int]  # The vertex that narrows each source, by alias.
    joins: dict[Aliases, int]  # The vertex of each join below another.
    work: int | None  # The vertex of all other operators with state.
    is_known: bool  # Every stream has a rate.

    def choice(self, hosts: Sequence[PeerId], why: str) -> Choice:
        worker = self.tree.proxy if self.work is None else hosts[self.work]
        chains = {alias: hosts[vertex] for alias, vertex in self.chains.items()}
        joins = {
            aliases: hosts[vertex]
            for aliases, vertex in self.joins.items()
            if hosts[vertex] != hosts[self.tree.parents[vertex]]
        }
        return Choice(worker, chains, why, joins=joins)

    def hosts(self, choice: Choice) -> tuple[PeerId, ...] | None:
        """The host of each vertex under a choice; None if one of them has no engine (any more)."""
        hosts = [vertex.peer or choice.worker for vertex in self.tree.vertices]
        for aliases, vertex in reversed(self.joins.items()):  # Readers first.
            hosts[vertex] = choice.joins.get(aliases, hosts[self.tree.parents[vertex]])
        for alias, vertex in self.chains.items():
            hosts[vertex] = choice.chains.get(alias, hosts[self.tree.parents[vertex]])
        stateful = [*self.joins.values(), *(() if self.work is None else (self.work,))]
        return tuple(hosts) if all(self.tree.sites[each].can_be_at(hosts[each]) for each in stateful) else None

    def together(self) -> Parts:
        """The same tree with all operators with state in one part."""
        vertices: list[Vertex] = []
        places: dict[int, tuple[int, ...]] = {}  # New numbers; a join has those of its inputs.
        for number, vertex in enumerate(self.tree.vertices):
            children = tuple(place for child in vertex.children for place in places[child])
            if number in self.joins.values():
                places[number] = children
            else:
                places[number] = (len(vertices),)
                vertices.append(msgspec.structs.replace(vertex, children=children))
        chains = {alias: places[vertex][0] for alias, vertex in self.chains.items()}
        work = None if self.work is None else places[self.work][0]
        return Parts(ProcessingTree(vertices), chains, {}, work, self.is_known)

    def at_sources(self, worker: PeerId) -> Choice:
        """Each source narrowed where it is published, everything else at one peer."""
        chains: dict[str, PeerId] = {}
        for alias, vertex in self.chains.items():
            leaves = [self.tree.vertices[child] for child in self.tree.vertices[vertex].children]
            peer = max(leaves, key=lambda leaf: leaf.beta).peer
            assert peer is not None
            chains[alias] = peer
        return Choice(worker, chains)


def parts_of(
    plan: Operator,
    streams: Mapping[str, StreamShown],
    proxy: PeerId,
    able: Sequence[PeerId],
    by_client: Mapping[str, StreamRates] = MappingProxyType({}),
    instead: Sequence[tuple[PeerId, PeerId]] = (),
    sieved: Container[StreamName] = (),
) -> Parts:
    """The tree of a plan: a leaf for each publisher of each source, the narrowing of a source above its leaves.

    `able` are the peers with an engine; `instead` names, for a peer without one, a peer that stands in for it. Where
    nothing flows in a stream now, the rates `by_client` count. The publishers of `sieved` streams send what is needed,
    so nobody narrows them: the leaves are narrow.
    """
    flowing = {name: known for name, shown in streams.items() if (known := known_of(shown)) is not None}
    rates = Rates({**by_client, **flowing})
    body = plan.input if isinstance(plan, Restructure) else plan
    narrow, inner = narrowed(plan), inner_joins(body)
    vertices: list[Vertex] = []
    chains: dict[str, int] = {}
    joins: dict[Aliases, int] = {}

    def add(vertex: Vertex) -> int:
        vertices.append(vertex)
        return len(vertices) - 1

    def stateful(name: str, tops: Sequence[int], beta: float) -> Vertex:
        return Vertex(name, tuple(tops), beta, able=tuple(able), instead=tuple(instead))

    def add_source(source: Source) -> list[int]:
        publishers = publishers_of(streams.get(source.stream))
        is_sieved = source.stream in sieved and source.alias in narrow and bool(publishers)
        beta = rates.estimate(narrow[source.alias] if is_sieved else source).beta
        leaves = [add(Vertex(source.alias, (), beta * share, peer)) for peer, share in publishers or [(proxy, 1.0)]]
        if source.alias not in narrow or not publishers or is_sieved:
            return leaves
        beta = rates.estimate(narrow[source.alias]).beta
        chains[source.alias] = add(Vertex(f"narrow {source.alias}", tuple(leaves), beta))
        return [chains[source.alias]]

    def add_below(operator: Operator) -> list[int]:
        if isinstance(operator, Source):
            return add_source(operator)
        tops = [top for each in operator.inputs for top in add_below(each)]
        aliases = aliases_of(operator)
        if operator is not inner.get(aliases):
            return tops
        made = made_by(body, inner[aliases])
        joins[aliases] = add(stateful(f"join {made.alias}", tops, rates.estimate(made).beta))
        return [joins[aliases]]

    tops, work = add_below(plan), None
    if is_stateful(plan):
        work = add(stateful("work", tops, rates.estimate(plan).beta))
        tops = [work]
    add(Vertex("delivery", tuple(tops), 0.0, proxy))
    is_known = all(source.stream in rates.streams for source in sources(plan))
    return Parts(ProcessingTree(vertices), chains, joins, work, is_known)


def published_in(view: NetworkView, streams: Mapping[str, StreamShown]) -> dict[str, StreamShown]:
    """The streams, with only those publishers that are in the view."""
    return {
        name: msgspec.structs.replace(
            shown, publishers=tuple(each for each in shown.publishers if each.peer in view.index)
        )
        for name, shown in streams.items()
    }


def stand_ins(
    view: NetworkView, streams: Mapping[str, StreamShown], proxy: PeerId, able: Sequence[PeerId]
) -> list[tuple[PeerId, PeerId]]:
    """For the proxy and for publishers without an engine, the nearest peer that has one."""
    publishers = [each.peer for shown in streams.values() for each in shown.publishers]
    unable = [peer for peer in dict.fromkeys((proxy, *publishers)) if able and peer not in able]
    return [(peer, view.nearest(peer, able)) for peer in unable]


def basis_of(
    plan: Operator, placing: Placing, seen: NetworkSeen, proxy: PeerId, engine: str, lost: Container[PeerId]
) -> Basis | NoEngine:
    """What there is to decide on: the network as it is seen now, without the peers that were lost."""
    view = NetworkView(seen.peers, seen.rows)
    view = view.among(peer for peer in view.peers if peer == proxy or peer not in lost)
    is_inline = is_stateful(plan) and runs_inline(plan, engine)
    with_one = [peer for peer in view.peers if peer not in seen.older] if is_inline else seen.engines
    engines = [
        peer
        for peer in view.peers
        if peer in with_one and peer not in placing.unable and (peer == proxy or peer not in seen.closed)
    ]
    spared = [peer for peer in engines if peer not in placing.unready and peer not in placing.crowded]
    # Better an unready engine than none, and better one that says it is full: that may have changed.
    able = [peer for peer in spared if peer not in dict(seen.full)] or spared or engines
    is_forced = _is_forced(plan, engine)
    lacks_engine = not able if is_stateful(plan) else is_forced and proxy not in able
    if lacks_engine:
        return NoEngine(len(view.peers), is_forced, len(seen.unshared), len(seen.closed))
    streams = published_in(view, placing.streams)
    instead, sieved = stand_ins(view, streams, proxy, able), sieved_in(plan, placing, seen, engine)
    parts = parts_of(plan, streams, proxy, able, placing.rates, instead, sieved)
    return Basis(parts, view, tuple(able))


def sieved_in(plan: Operator, placing: Placing, seen: NetworkSeen, engine: str) -> tuple[StreamName, ...]:
    """The streams whose publishers leave out what the reader does not need: nobody has to narrow these.

    None of them where the rows go into Spark, since a chain narrows them further than the needs of a whole host do, nor
    where the query does not share.
    """
    is_inline = engine != "spark" if not is_stateful(plan) else runs_inline(plan, engine)
    if placing.sharing == "off" or not is_inline:
        return ()
    there = {name: [each.peer for each in shown.publishers] for name, shown in placing.streams.items()}
    there = {name: [peer for peer in peers if peer in seen.peers] for name, peers in there.items()}
    return tuple(name for name, peers in there.items() if peers and all(peer in seen.sieving for peer in peers))


def _is_forced(plan: Operator, engine: str) -> bool:
    """Whether the client asks for Spark though the plan has no state. Then the proxy needs an engine, too."""
    return engine == "spark" and not is_stateful(plan)


def decide(
    plan: Operator, placing: Placing, seen: NetworkSeen, proxy: PeerId, engine: str, lost: Container[PeerId]
) -> Decision | Infeasible | NoEngine:
    """Where a query runs on the network as it is seen now, without the peers that were lost."""
    basis = basis_of(plan, placing, seen, proxy, engine, lost)
    if isinstance(basis, NoEngine):
        return basis
    choice = choose(basis.parts, basis.view, placing)
    if isinstance(choice, Infeasible):
        return choice
    if _is_forced(plan, engine):
        chains = {alias: peer for alias, peer in choice.chains.items() if peer in basis.able}
        choice = msgspec.structs.replace(choice, chains=chains)
    return Decision(plan, choice, basis)


def choose(parts: Parts, view: NetworkView, placing: Placing) -> Choice | Infeasible:
    """The placement a query asked for. It stays where it is unless the new place is clearly better.

    `auto` begins with all state at the proxy, and moves to the optimum once that saves enough.
    """
    tree, bound_ms, is_auto = parts.tree, placing.bound_ms, placing.placement == "auto"
    if is_auto and parts.work is None and math.isinf(bound_ms):
        # Without state, narrowing at the source never sends more: this is the optimum.
        why = "what it reads is narrowed where it is published" if parts.chains else "its publishers send what it needs"
        return msgspec.structs.replace(parts.at_sources(tree.proxy), why=why)
    algorithm: Algorithm = "exact" if placing.placement == "auto" else placing.placement
    stay = placing.choice
    if stay is not None and not all(peer in view.index for peer in stay.peers):
        stay = None
    if stay is None and is_auto:
        stay = parts.at_sources(tree.proxy)
    staying = parts.hosts(stay) if stay is not None else None
    if staying is not None and path_delay(tree, staying, view.distance) > bound_ms:
        staying = None
    if is_auto and not parts.is_known:
        if staying is not None:
            return parts.choice(staying, "nothing is known yet of the rates of its streams")
        algorithm = "baseline"
    found = place(algorithm, tree, view, bound_ms)
    if isinstance(found, Infeasible):
        return found
    if is_auto and algorithm == "exact" and parts.joins:
        found = _together_unless_it_pays(found, parts, view, bound_ms)
    if algorithm != placing.placement and algorithm == "baseline":
        return parts.at_sources(parts.choice(found.hosts, "").worker)
    if staying is None:
        return parts.choice(found.hosts, f"{algorithm}: {_under_way(found.cost)}")
    cost = overlay_cost(tree, staying, view.distance)
    saved = cost - found.cost
    if not _pays(saved, cost, is_auto=is_auto):
        return parts.choice(staying, f"{_under_way(cost)}; {algorithm} would save {_under_way(max(saved, 0.0))}")
    return parts.choice(found.hosts, f"{algorithm}: {_under_way(found.cost)} instead of {_under_way(cost)}")


def _pays(saved: float, cost: float, *, is_auto: bool) -> bool:
    return saved > 0 and saved >= GAIN_MIN * cost and not (is_auto and saved < UNDER_WAY_MIN * 1000)


def _together_unless_it_pays(found: Placement, parts: Parts, view: NetworkView, bound_ms: float) -> Placement:
    """A join of its own costs one more engine and one more hop: `auto` takes it only where it saves enough."""
    whole = parts.together()
    one = place("exact", whole.tree, view, bound_ms)
    if isinstance(one, Infeasible) or _pays(one.cost - found.cost, one.cost, is_auto=True):
        return found
    hosts = parts.hosts(whole.choice(one.hosts, ""))
    assert hosts is not None, "an engine is where it was placed"
    return msgspec.structs.replace(one, hosts=hosts)


def _under_way(cost: float) -> str:
    """A cost in words: bytes in transit between peers at any moment. The cost is in B/s times ms."""
    return f"{cost / 1000:.0f} B under way"


def publishers_of(shown: StreamShown | None) -> list[tuple[PeerId, float]]:
    """Who publishes a stream, and which share of it."""
    if shown is None or not shown.publishers:
        return []
    rates = [(_rate(each), each.accepted, each.peer) for each in shown.publishers]
    chosen = sorted(rates, reverse=True)[:PUBLISHERS_MAX]
    total = math.fsum(rate for rate, _, _ in chosen)
    if not total:
        return [(max(chosen, key=lambda each: (each[1], each[2]))[2], 1.0)]
    return [(peer, rate / total) for rate, _, peer in chosen if rate]


def _rate(publisher: PublisherShown) -> float:
    return publisher.statistics.rate_per_s if publisher.statistics is not None else 0.0


def known_of(shown: StreamShown) -> StreamRates | None:
    """What the publishers of a stream advertise, put together; None if nothing flows."""
    advertised = [each.statistics for each in shown.publishers if each.statistics is not None]
    rate = math.fsum(each.rate_per_s for each in advertised)
    if not rate:
        return None
    columns: dict[tuple[str, ...], ColumnStatistics] = {}
    # The busiest publisher has the last word on a column.
    for each in sorted(advertised, key=lambda each: each.rate_per_s):
        for known in each.fields:
            columns[known.name,] = ColumnStatistics(distinct=known.distinct, frequent=known.frequent)
    columns |= {path: _with_numbers(columns.get(path), path, advertised) for path in _numeric_paths(advertised)}
    row_bytes = math.fsum(each.rate_per_s * each.row_bytes for each in advertised) / rate
    retention_s = shown.definition.retention_ms / 1000
    return StreamRates(rate_per_s=rate, row_bytes=row_bytes, columns=columns, retention_s=retention_s)


def _numeric_paths(advertised: Sequence[StreamStatistics]) -> dict[tuple[str, ...], None]:
    return dict.fromkeys(each.path for statistics in advertised for each in statistics.numbers)


def _with_numbers(
    known: ColumnStatistics | None, path: tuple[str, ...], advertised: Sequence[StreamStatistics]
) -> ColumnStatistics:
    """A column with how its numbers are spread at all publishers together, each as weighty as its rate."""
    found = [
        (statistics.rate_per_s, each)
        for statistics in advertised
        if statistics.rate_per_s
        for each in statistics.numbers
        if each.path == path and each.is_sensible
    ]
    if not found:
        return known or ColumnStatistics()
    rate = math.fsum(weight for weight, _ in found)
    nulls = math.fsum(weight * each.nulls for weight, each in found) / rate
    quantiles = merged_quantiles([(weight * (1 - each.nulls), each.quantiles) for weight, each in found])
    return msgspec.structs.replace(known or ColumnStatistics(), quantiles=quantiles, nulls=nulls)
