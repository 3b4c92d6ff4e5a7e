"""A small network of join indexes that loses, repeats, delays and reorders messages: one seed gives one run.

A message that is lost is reported to its sender, as the overlay does it, and so may one be that arrived all the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heappop, heappush
from typing import Any

from experiments.cqdht.events import Notified, QueryPosed, QueryStopped, TuplePublished
from experiments.cqdht.interests import Interests
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.machine import JoinIndex
from experiments.cqdht.messages import AnyAlgorithm, JoinQuery, Notification, StreamTuple, TupleId
from protocols.clock import COUNT_BITS, Stamp
from protocols.effects import Effect, Route, Send, SetTimer, Tell
from protocols.events import Event, Received, Started, TimerFired, Unreachable, Unroutable
from protocols.ids import Key, Millis, PeerId, distance
from protocols.messages import Message
from queries import sql
from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.plan import Operator
from queries.reference import Result, Tuple, evaluate
from queries.schema import Row

START_MS = 1_000_000
HOUR_MS = 3_600_000


@dataclass
class Weather:
    """How bad it is."""

    loss: float = 0.0
    repeat: float = 0.0
    latency_ms: tuple[int, int] = (1, 1)


@dataclass
class Network:
    """Peers, the messages between them, and what a central evaluator would have seen."""

    streams: dict[str, Stream]
    peers: int = 12
    seed: int = 0
    weather: Weather = field(default_factory=Weather)
    limits: JoinLimits = field(default_factory=JoinLimits)
    interests: Interests | None = None  # Known to all peers at once; None: tuples are indexed in the paper's way.
    now: Millis = START_MS
    nodes: dict[PeerId, JoinIndex] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    heard: list[tuple[PeerId, Event]] = field(default_factory=list)
    published: dict[str, list[tuple[Stamp, Tuple]]] = field(default_factory=dict)
    plans: dict[str, tuple[Stamp, Operator]] = field(default_factory=dict)
    on_message: Callable[[PeerId, PeerId, Message], None] = lambda sender, to, message: None

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)
        self._agenda: list[tuple[Millis, int, PeerId, Event]] = []
        self._events = 0
        self._stamp = START_MS << COUNT_BITS
        self._sequences: Counter[tuple[PeerId, str]] = Counter()
        for number in range(self.peers):
            self.nodes[PeerId.of_public_key(b"%d %d" % (self.seed, number))] = JoinIndex(self.limits, self.interests)
        for peer in self.nodes:
            self._later(peer, Started(), 0)
        self.run(for_ms=1)

    @property
    def ids(self) -> list[PeerId]:
        return list(self.nodes)

    def nearest(self, key: Key) -> PeerId:
        return min(self.nodes, key=lambda peer: distance(peer, key))

    def stamp(self) -> Stamp:
        self._stamp = max(self._stamp + 1, self.now << COUNT_BITS)
        return self._stamp

    # What clients do.

    def pose(self, text: str, algorithm: AnyAlgorithm, peer: PeerId | None = None, **more: Any) -> str:
        plan = sql.plan(text, self.streams).plan
        name = f"q{len(self.plans) + 1}"
        peer = peer or self.luck.choice(self.ids)
        stamp = self.stamp()
        self.plans[name] = (stamp, plan)
        query = JoinQuery(name, peer, stamp, algorithm, plan, HOUR_MS, **more)
        if self.interests is not None:
            self.interests.add(query)
        self._happen(peer, QueryPosed(query))
        return name

    def stop(self, name: str) -> None:
        for peer in self.nodes:
            self._happen(peer, QueryStopped(name))

    def publish(self, stream: str, row: Row, peer: PeerId | None = None, keep_ms: Millis = HOUR_MS) -> StreamTuple:
        peer = peer or self.luck.choice(self.ids)
        schema = self.streams[stream].schema
        row = schema.row(row)
        name = TupleId(peer, stream, 1, self._sequences[peer, stream])
        self._sequences[peer, stream] += 1
        each = StreamTuple(name, self.stamp(), schema.encode([row]))
        at = EPOCH + timedelta(milliseconds=each.published_at >> COUNT_BITS)
        self.published.setdefault(stream, []).append((each.published_at, Tuple(at, row, _plain(name))))
        self._happen(peer, TuplePublished(each, schema, keep_ms))
        return each

    # What the reference says, and what came.

    def expected(self, name: str) -> list[Result]:
        """Results over the tuples published since a query was posed."""
        stamp, plan = self.plans[name]
        seen = {stream: [each for at, each in tuples if at >= stamp] for stream, tuples in self.published.items()}
        return evaluate(plan, seen)

    def told(self, name: str) -> list[Notification]:
        notified = [event.notification for _, event in self.heard if isinstance(event, Notified)]
        return [each for each in notified if each.query == name]

    def check(self, name: str) -> None:
        """Every result once, and nothing else: by identity, and so by row."""
        expected = Counter(result.notification_id(name) for result in self.expected(name))
        told = Counter(each.id for each in self.told(name))
        assert told == expected, f"seed={self.seed} {name}: lost {expected - told}, too many {told - expected}"

    # The world.

    def run(self, for_ms: Millis) -> None:
        """Let time pass."""
        end = self.now + for_ms
        while self._agenda and self._agenda[0][0] <= end:
            self.now, _, peer, event = heappop(self._agenda)
            self._happen(peer, event)
        self.now = end

    def validate(self) -> None:
        for node in self.nodes.values():
            node.validate()

    def _happen(self, peer: PeerId, event: Event) -> None:
        node = self.nodes[peer]
        for effect in node.handle(event, self.now):
            self._perform(peer, effect)

    def _perform(self, peer: PeerId, effect: Effect) -> None:
        match effect:
            case Route(key=key, message=message):
                self._travel(peer, self.nearest(key), message, Unroutable(key, message))
            case Send(peer=to, message=message):
                self._travel(peer, to, message, Unreachable(to, message))
            case SetTimer(name=name, after_ms=after_ms):
                self._later(peer, TimerFired(name), after_ms)
            case Tell(event=event):
                self.heard.append((peer, event))
            case _:
                raise AssertionError(f"nobody performs {effect}")

    def _travel(self, sender: PeerId, to: PeerId, message: Message, failed: Event) -> None:
        self.sent[str(message.__struct_config__.tag)] += 1
        self.on_message(sender, to, message)
        is_lost = self.luck.random() < self.weather.loss
        if is_lost:
            self._later(sender, failed, self._latency() * 2)
        if not is_lost or self.luck.random() < 0.5:
            copies = 1 + (self.luck.random() < self.weather.repeat)
            for _ in range(copies):
                self._later(to, Received(sender, message), self._latency())

    def _latency(self) -> Millis:
        return self.luck.randint(*self.weather.latency_ms)

    def _later(self, peer: PeerId, event: Event, after_ms: Millis) -> None:
        self._events += 1
        heappush(self._agenda, (self.now + after_ms, self._events, peer, event))


def _plain(name: TupleId) -> tuple[bytes, str, int, int]:
    return bytes(name.publisher), name.stream, name.epoch, name.sequence
