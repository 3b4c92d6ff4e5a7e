"""CQ-DHT, experiment E1: hops per tuple of SAI, DAI-Q, DAI-T and DAI-V as the join fingers train.

    python -m experiments.cqdht_e1 --scale 0.02

The machines are those of protocols/join_index, all peers in one process, every message delivered at once and in order.
The set-up is the paper's: relations of 10 attributes, half of them small, half big, values 1 to 10^4 with a Zipf
distribution of 0.9, ten tuples of big relations for one of the small, queries that equate an attribute of a small
relation with one of a big. `--scale` shrinks peers, relations and tuples in proportion, and queries with the square, as
pairs of relations do: so an attribute keeps its 1.6 queries for each attribute it can be joined with. It then has fewer
of these, so JOIN weighs less beside the 20 messages that index a tuple at any scale, and ratios of hops come out lower.

Hops are counted by a model, not by routing: a message to a key costs half of log2(peers), as a lookup in Chord does on
average, one to a known peer costs 1. Counted are AL_INDEX, VL_INDEX and JOIN, as the paper counts what it takes to
index a tuple and evaluate the queries; FINGER and NOTIFY are in `all messages`. DAI-T runs with results as sets: a
rewritten query is sent once. No tuple has come when queries are posed, so SAI indexes them by their left attribute,
that of the small relation; DAI-V indexes no values.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple, get_args

from protocols.clock import COUNT_BITS
from protocols.effects import Effect, Route, Send
from protocols.events import Event, Received
from protocols.ids import ID_BITS, Key, Millis, PeerId
from protocols.join_index.events import QueryPosed, TuplePublished
from protocols.join_index.interests import Interests
from protocols.join_index.limits import JoinLimits
from protocols.join_index.machine import JoinIndex
from protocols.join_index.messages import Algorithm, AlIndex, Join, JoinQuery, Rate, StreamTuple, TupleId, VlIndex
from protocols.messages import Message
from queries import sql
from queries.catalogue import DAY_MS, Stream
from queries.schema import Schema

ATTRIBUTES: Final = 10
DOMAIN: Final = 10_000
ZIPF: Final = 0.9
BOS: Final = 10  # Big over small.
STEP_MS: Final = 100  # Between two tuples.
SWEEP_EVERY: Final = 100
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)
CLAIMS: Final[tuple[tuple[Algorithm, Algorithm, int], ...]] = (
    ("dai-q", "sai", 7),
    ("dai-t", "sai", 7),
    ("sai", "dai-v", 3),
)
SCHEMA: Final = Schema.parse(", ".join(f"a{number} int" for number in range(ATTRIBUTES)))


class Size(NamedTuple):
    """How large an experiment is; at scale 1 it is the paper's."""

    peers: int
    queries: int
    relations: int
    measured: int
    trained: tuple[int, ...]  # Tuples that fingers have been trained with, point by point.

    @classmethod
    def of(cls, scale: float) -> Size:
        half = max(1, round(25 * scale))
        queries = round(100_000 * (half / 25) ** 2)
        measured = max(1, round(100 * scale)) * (BOS + 1)
        trained = tuple(round(each * scale) for each in (0, 5_000, 20_000, 40_000))
        return cls(max(16, round(10_000 * scale)), queries, 2 * half, measured, trained)


class Point(NamedTuple):
    """What was measured after some training."""

    trained: int
    hops: float  # Per tuple, as are the next three.
    index_messages: float
    joins: float
    messages: float
    fingers: float  # Per rewriter that has any.


@dataclass
class Workload:
    """The paper's relations, tuples and queries from one seed."""

    size: Size
    seed: int
    luck: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)
        self._weights = list(accumulate(1 / rank**ZIPF for rank in range(1, DOMAIN + 1)))
        self.streams = {name: Stream(name, SCHEMA) for name in map(self._name, range(self.size.relations))}

    @staticmethod
    def _name(number: int) -> str:
        return f"r{number}"

    def query(self) -> str:
        """Equates an attribute of a small relation, on the left, with one of a big."""
        half = self.size.relations // 2
        small, big = self._name(self.luck.randrange(half)), self._name(half + self.luck.randrange(half))
        one, other = self.luck.randrange(ATTRIBUTES), self.luck.randrange(ATTRIBUTES)
        select = f"SELECT s.a{one} AS small, b.a{other} AS big"
        return f"{select} FROM {small} s, {big} b WHERE s.a{one} = b.a{other}"

    def tuple(self, number: int) -> tuple[str, tuple[int, ...]]:
        """One of a small relation, then BOS of big ones, and so on."""
        half = self.size.relations // 2
        relation = self.luck.randrange(half) + (0 if number % (BOS + 1) == 0 else half)
        return self._name(relation), tuple(self._value() for _ in range(ATTRIBUTES))

    def _value(self) -> int:
        return bisect_left(self._weights, self.luck.random() * self._weights[-1]) + 1


class Network:
    """Peers in one process; each message costs hops, takes no time and arrives."""

    def __init__(self, size: Size, interests: Interests | None) -> None:
        self._ids = sorted(PeerId.of_public_key(number.to_bytes(4, "big")) for number in range(size.peers))
        self._numbers = [each.number for each in self._ids]
        limits = JoinLimits(queries_max=size.queries * 2, rewritten_max=1 << 40, tuples_max=1 << 40)
        self.nodes = {each: JoinIndex(limits, interests) for each in self._ids}
        self._owners: dict[Key, PeerId] = {}
        self._route_hops = math.log2(size.peers) / 2
        self.hops = 0.0
        self.sent: Counter[type[Message]] = Counter()

    def peer(self, luck: random.Random) -> PeerId:
        return self._ids[luck.randrange(len(self._ids))]

    def happen(self, peer: PeerId, event: Event, now: Millis) -> None:
        """An event and everything that follows from it."""
        waiting = deque([(peer, event)])
        while waiting:
            at, what = waiting.popleft()
            for effect in self.nodes[at].handle(what, now):
                waiting.extend(self._sent(at, effect))

    def sweep(self, now: Millis) -> None:
        for node in self.nodes.values():
            node.rewriter.sweep(now)
            node.evaluator.sweep(now)
            node.subscriber.sweep(now)

    def reset(self) -> None:
        self.hops = 0.0
        self.sent.clear()

    def fingers(self) -> float:
        sizes = [len(node.rewriter.fingers) for node in self.nodes.values()]
        return sum(sizes) / max(1, sum(size > 0 for size in sizes))

    def _sent(self, sender: PeerId, effect: Effect) -> list[tuple[PeerId, Event]]:
        match effect:
            case Route(key=key, message=message):
                to, hops = self._owner(key), self._route_hops
            case Send(peer=to, message=message):
                hops = 1.0
            case _:
                return []  # Told to a client.
        self.sent[type(message)] += 1
        if isinstance(message, AlIndex | VlIndex | Join):
            self.hops += hops
        return [(to, Received(sender, message))]

    def _owner(self, key: Key) -> PeerId:
        """The peer nearest to a key: bit by bit, the half of the key space that has peers."""
        if key not in self._owners:
            low, high, number = 0, len(self._ids), key.number
            for bit in range(ID_BITS - 1, -1, -1):
                if high - low == 1:
                    break
                border = (self._numbers[low] >> (bit + 1) << (bit + 1)) | (1 << bit)
                middle = bisect_right(self._numbers, border - 1, low, high)
                is_upper = bool(number >> bit & 1)
                if middle in (low, high):
                    continue
                low, high = (middle, high) if is_upper else (low, middle)
            self._owners[key] = self._ids[low]
        return self._owners[key]


def run(algorithm: Algorithm, size: Size, seed: int) -> Iterator[Point]:
    """All points of one algorithm, as they are measured."""
    workload = Workload(size, seed)
    interests = Interests() if algorithm == "dai-v" else None
    network = Network(size, interests)
    now = 1_000_000
    for number in range(size.queries):
        plan = sql.plan(workload.query(), workload.streams).plan
        peer = network.peer(workload.luck)
        query = JoinQuery(f"q{number}", peer, now << COUNT_BITS, algorithm, plan, DAY_MS, is_set=True)
        if interests is not None:
            interests.add(query)
        network.happen(peer, QueryPosed(query), now)
    count = 0

    def insert(tuples: int) -> None:
        nonlocal count, now
        for _ in range(tuples):
            relation, row = workload.tuple(count)
            peer = network.peer(workload.luck)
            each = StreamTuple(TupleId(peer, relation, 1, count), now << COUNT_BITS, SCHEMA.encode([row]))
            network.happen(peer, TuplePublished(each, SCHEMA, 0 if algorithm == "dai-t" else DAY_MS), now)
            count += 1
            now += STEP_MS
            if count % SWEEP_EVERY == 0:
                network.sweep(now)

    trained = 0
    for goal in size.trained:
        insert(goal - trained)
        network.reset()
        insert(size.measured)
        trained = goal
        yield _point(goal, network, size.measured)


def _point(trained: int, network: Network, tuples: int) -> Point:
    sent = network.sent
    return Point(
        trained,
        network.hops / tuples,
        (sent[AlIndex] + sent[VlIndex]) / tuples,
        sent[Join] / tuples,
        (sent.total() - sent[Rate]) / tuples,
        network.fingers(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="CQ-DHT, E1: hops per tuple as the join fingers train.")
    parser.add_argument("--scale", type=float, default=0.02, help="1 is the paper's size")
    parser.add_argument("--points", type=int, default=4, help="how many of the training points, the untrained first")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    size = Size.of(chosen.scale)
    size = size._replace(trained=size.trained[: chosen.points])
    print(f"seed={chosen.seed} {size}", flush=True)
    print(f"{'':8}{'trained':>9}{'hops':>10}{'index':>8}{'JOIN':>9}{'all messages':>14}{'fingers':>9}{'seconds':>9}")
    first: dict[Algorithm, Point] = {}
    for algorithm in ALGORITHMS:
        started = time.perf_counter()
        for point in run(algorithm, size, chosen.seed):
            took = time.perf_counter() - started
            first.setdefault(algorithm, point)
            figures = f"{point.hops:>10.1f}{point.index_messages:>8.1f}{point.joins:>9.1f}{point.messages:>14.1f}"
            print(f"{algorithm:8}{point.trained:>9}{figures}{point.fingers:>9.1f}{took:>9.1f}", flush=True)
    for more, less, paper in CLAIMS:
        hops = first[more].hops / first[less].hops
        joins = first[more].joins / first[less].joins
        print(f"untrained, {more} over {less}: {hops:.1f} in hops (the paper: about {paper}), {joins:.1f} in JOINs")


if __name__ == "__main__":
    main()
