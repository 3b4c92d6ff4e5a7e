"""CQ-DHT's experiments: the paper's workload, and a network of the project's own machines in one process.

The machines are those of this package, every message is delivered at once and in order. Relations have 10
attributes, half of the relations are small, half big; values are 1 to 10^4 with a Zipf distribution of 0.9; for one
tuple of a small relation come `bos` of big ones; a query equates an attribute of a small relation with one of a big.

`--scale` shrinks peers, relations and tuples in proportion, and queries with the square, as pairs of relations do: so
an attribute keeps its 1.6 queries for each attribute it can be joined with. It then has fewer of these, so JOIN
weighs less beside the 20 messages that index a tuple at any scale, and ratios of hops come out lower.

Hops are counted by a model, not by routing: a message to a key costs half of log2(peers), as a lookup in Chord does
on average, one to a known peer costs 1. Counted are AL_INDEX, VL_INDEX and JOIN, as the paper counts what it takes to
index a tuple and evaluate the queries (of ours: all but FINGER); not FINGER and NOTIFY. Bytes are those
of the same messages as they are encoded for the wire, once for each message; of many JOINs every 61st is encoded.
DAI-T runs with results as sets: a rewritten query is sent once. No tuple has come when queries are posed, so SAI
indexes them by their left attribute, that of the small relation; DAI-V indexes no values.

Where only messages are looked at (`is_kept` false), evaluators have no room and keep nothing: what a rewriter sends
does not depend on it, and all that follows from a JOIN is a FINGER, which is learnt without sending it. Rewriters of
different attributes then have nothing to do with each other, so a run can be cut into parts, each with the rewriters of
some attributes of all relations, and what they send adds up. And a tuple that only trains fingers need not come to a
rewriter that has had its value: all that it would send there goes along known fingers.
"""

from __future__ import annotations

import gc
import math
import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from experiments.cqdht.codec import CODEC
from experiments.cqdht.events import QueryPosed, TuplePublished
from experiments.cqdht.interests import Interests
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.machine import JoinIndex
from experiments.cqdht.messages import (
    AlIndex,
    AnyAlgorithm,
    AskLoad,
    Bundle,
    Halved,
    HandedOn,
    Join,
    JoinQuery,
    Moved,
    PeerLoad,
    StreamTuple,
    TupleId,
    VlIndex,
)
from experiments.report import with_progress
from protocols.clock import COUNT_BITS
from protocols.effects import Route, Send
from protocols.events import Event, Received
from protocols.ids import ID_BITS, Key, Millis, PeerId
from protocols.join_index.messages import Attribute
from protocols.messages import Message
from queries import sql
from queries.catalogue import DAY_MS, Stream
from queries.expressions import columns_of
from queries.plan import Join as PlanJoin
from queries.plan import Operator, Project, Source
from queries.schema import Schema

ATTRIBUTES: Final = 10
DOMAIN: Final = 10_000
ZIPF: Final = 0.9
BOS: Final = 10  # Big over small.
STEP_MS: Final = 100  # Between two tuples.
SWEEP_EVERY: Final = 1_000
ENCODED: Final = 5_000  # JOINs at the beginning of a measurement; then
SAMPLED: Final = 61  # one of so many.
SCHEMA: Final = Schema.parse(", ".join(f"a{number} int" for number in range(ATTRIBUTES)))
_FIRST_BITS: Final = 32
COUNTED: Final = frozenset((AlIndex, VlIndex, Join, Bundle, Moved, HandedOn, Halved, AskLoad, PeerLoad))


class Size(NamedTuple):
    """How large a network and its workload are; at scale 1 they are the paper's."""

    peers: int
    queries: int
    relations: int

    @classmethod
    def of(cls, scale: float) -> Size:
        half = max(1, round(25 * scale))
        return cls(max(16, round(10_000 * scale)), round(100_000 * (half / 25) ** 2), 2 * half)


@dataclass
class Workload:
    """The paper's relations, tuples and queries from one seed."""

    size: Size
    seed: int
    bos: float = BOS
    zipf: float = ZIPF
    luck: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)
        self._weights = list(accumulate(1 / rank**self.zipf for rank in range(1, DOMAIN + 1)))
        self._due = 0.0

    def query(self) -> Operator:
        """Equates an attribute of a small relation, on the left, with one of a big."""
        half = self.size.relations // 2
        small, big = self.luck.randrange(half), half + self.luck.randrange(half)
        plan = _plan(self.luck.randrange(ATTRIBUTES), self.luck.randrange(ATTRIBUTES))
        assert isinstance(plan, Project)
        join = plan.input
        assert isinstance(join, PlanJoin)
        left, right = _renamed(join.left, small), _renamed(join.right, big)
        return msgspec.structs.replace(plan, input=msgspec.structs.replace(join, left=left, right=right))

    def tuple(self) -> tuple[str, tuple[int, ...]]:
        """One of a small relation, then `bos` of big ones, and so on."""
        half = self.size.relations // 2
        is_small = self._due <= 0
        self._due += self.bos if is_small else -1
        relation = self.luck.randrange(half) + (0 if is_small else half)
        return f"r{relation}", tuple(self._value() for _ in range(ATTRIBUTES))

    def _value(self) -> int:
        return bisect_left(self._weights, self.luck.random() * self._weights[-1]) + 1


@cache
def _plan(one: int, other: int) -> Operator:
    streams = {name: Stream(name, SCHEMA) for name in ("small", "big")}
    select = f"SELECT s.a{one} AS small, b.a{other} AS big"
    return sql.plan(f"{select} FROM small s, big b WHERE s.a{one} = b.a{other}", streams).plan


def _attributes(plan: Operator) -> Iterator[str]:
    assert isinstance(plan, Project)
    return (column.path[0] for each in plan.outputs for column in columns_of(each.expression))


def _renamed(source: Operator, relation: int) -> Operator:
    assert isinstance(source, Source)
    return msgspec.structs.replace(source, stream=f"r{relation}")


class Network:
    """Peers in one process; each message costs hops, takes no time and arrives."""

    def __init__(self, peers: int, limits: JoinLimits, interests: Interests | None = None) -> None:
        self._ids = sorted(PeerId.of_public_key(number.to_bytes(4, "big")) for number in range(peers))
        self.nodes = {each: JoinIndex(limits, interests) for each in self._ids}
        self._near = _nearest(self._ids, bits=peers.bit_length() + 3)
        self._rest_bits = _FIRST_BITS - peers.bit_length() - 3
        self._route_hops = math.log2(peers) / 2
        self._is_kept = limits.rewritten_max > 0
        self.is_counting = False
        self.is_wanted: Callable[[Message], bool] | None = None  # Else a message is neither delivered nor counted.
        self.reset()

    def reset(self) -> None:
        self.hops = 0.0
        self.sent: Counter[type[Message]] = Counter()
        self._bytes: Counter[type[Message]] = Counter()
        self._encoded: Counter[type[Message]] = Counter()

    def peer(self, luck: random.Random) -> PeerId:
        return self._ids[luck.randrange(len(self._ids))]

    def happen(self, peer: PeerId, event: Event, now: Millis) -> None:
        """An event and everything that follows from it."""
        nodes, route_hops = self.nodes, self._route_hops
        waiting = deque([(peer, event)])
        while waiting:
            at, what = waiting.popleft()
            for effect in nodes[at].handle(what, now):
                if type(effect) is Send:
                    to, hops = effect.peer, 1.0
                elif type(effect) is Route:
                    key, to, hops = effect.key, self.owner(effect.key), route_hops
                else:
                    continue  # Told to a client.
                message = effect.message
                if self.is_wanted is not None and not self.is_wanted(message):
                    continue
                if self.is_counting:
                    self._count(message, hops)
                if type(message) is Join and not self._is_kept:
                    if message.asks_finger:
                        nodes[at].rewriter.fingers.learn(key, to)
                    continue
                waiting.append((to, Received(at, message)))

    def sweep(self, now: Millis) -> None:
        for node in self.nodes.values():
            node.rewriter.sweep(now)
            node.evaluator.sweep(now)
            node.subscriber.sweep(now)

    def _count(self, message: Message, hops: float) -> None:
        kind = type(message)
        self.sent[kind] += 1
        if kind in COUNTED:
            self.hops += hops
            if kind is not Join or self.sent[kind] <= ENCODED or self.sent[kind] % SAMPLED == 0:
                self._encoded[kind] += 1
                self._bytes[kind] += len(CODEC.encode(message))

    def bytes(self) -> float:
        """Of all messages that are counted."""
        return sum(self._bytes[kind] * self.sent[kind] / count for kind, count in self._encoded.items())

    def owner(self, key: Key) -> PeerId:
        """The peer nearest to a key."""
        near = self._near[int.from_bytes(key[: _FIRST_BITS // 8], "big") >> self._rest_bits]
        if len(near) == 1:
            return near[0]
        number = int.from_bytes(key, "big")
        return min(near, key=lambda peer: peer.number ^ number)


def _nearest(peers: list[PeerId], bits: int) -> list[list[PeerId]]:
    """Who may be nearest to a key, by its first bits: those who share most of them."""
    near: list[list[PeerId]] = [[] for _ in range(1 << bits)]
    for peer in peers:
        near[peer.number >> (ID_BITS - bits)].append(peer)
    for step in (1 << level for level in range(bits)):  # Where nobody has these bits, those with one bit fewer.
        for low in range(0, len(near), 2 * step):
            left, right = near[low], near[low + step]
            if not left:
                near[low : low + step] = near[low + step : low + 2 * step]
            elif not right:
                near[low + step : low + 2 * step] = near[low : low + step]
    return near


@dataclass
class Run:
    """One algorithm on one network: queries posed, tuples inserted one after the other."""

    algorithm: AnyAlgorithm
    size: Size
    seed: int
    limits: JoinLimits
    bos: float = BOS
    zipf: float = ZIPF
    part: frozenset[str] | None = None  # The attributes of each relation that this run is about; None: all.
    now: Millis = 1_000_000
    inserted: int = 0
    trained: set[tuple[Attribute, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        gc.collect()
        gc.disable()  # Messages make no cycles, and there are many.
        self.workload = Workload(self.size, self.seed, self.bos, self.zipf)
        self.interests = Interests() if self.algorithm in ("dai-v", "cells") else None
        self.network = Network(self.size.peers, self.limits, self.interests)
        if not self.limits.rewritten_max:
            self.network.is_wanted = self._is_wanted

    def _is_wanted(self, message: Message) -> bool:
        kind = type(message)
        if kind is not AlIndex and kind is not VlIndex:
            return True
        assert isinstance(message, AlIndex | VlIndex)
        if self.part is not None and message.at.path[0] not in self.part:
            return False
        if self.network.is_counting:
            if kind is AlIndex:
                self.trained.add((message.at, message.value))
            return True
        if self.algorithm == "cells":
            return True  # How much comes decides how values are split.
        if kind is VlIndex or (message.at, message.value) in self.trained:
            return False
        self.trained.add((message.at, message.value))
        return True

    def pose(self) -> None:
        for number in with_progress(range(self.size.queries), f"{self.algorithm}: queries"):
            peer = self.network.peer(self.workload.luck)
            plan, stamp = self.workload.query(), self.now << COUNT_BITS
            if self.part is not None and not self.part.intersection(_attributes(plan)):
                continue
            query = JoinQuery(f"q{number}", peer, stamp, self.algorithm, plan, DAY_MS, is_set=True)
            if self.interests is not None:
                self.interests.add(query)
            self.network.happen(peer, QueryPosed(query), self.now)

    def insert(self, tuples: int) -> None:
        keep_ms = 0 if self.algorithm == "dai-t" else DAY_MS
        for _ in with_progress(range(tuples), f"{self.algorithm}: tuples from {self.inserted} on"):
            relation, row = self.workload.tuple()
            peer = self.network.peer(self.workload.luck)
            name = TupleId(peer, relation, 1, self.inserted)
            each = StreamTuple(name, self.now << COUNT_BITS, SCHEMA.encode([row]))
            self.network.happen(peer, TuplePublished(each, SCHEMA, keep_ms), self.now)
            self.inserted += 1
            self.now += STEP_MS
            if self.inserted % SWEEP_EVERY == 0:
                self.network.sweep(self.now)

    def measure(self, tuples: int) -> None:
        """Insert tuples and count what they cost."""
        self.network.reset()
        self.network.is_counting = True
        self.insert(tuples)
        self.network.is_counting = False


def limits_of(
    size: Size, *, is_kept: bool = True, replicas: int = 1, groups: bool = True, part: float = 1.0
) -> JoinLimits:
    """Room for everything; or, where only messages are looked at, evaluators that keep nothing and so tell nothing."""
    room = 1 << 40 if is_kept else 0
    by_attribute = 2 * size.queries / size.relations / ATTRIBUTES  # So many queries does a tuple trigger there.
    return JoinLimits(
        queries_max=size.queries * 2,
        rewritten_max=room,
        tuples_max=room,
        fingers_max=1 << 40,
        replicas=replicas,
        groups=groups,
        busy_above=round(part * by_attribute),
        load_ms=DAY_MS,
    )
