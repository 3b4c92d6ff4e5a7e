"""A small network of store machines, with everything that can go wrong: for the tests of the store and the catalogue.

Messages are lost, repeated and overtake each other; disks forget what was not synced; peers crash, come back, come back
empty; the network is cut. Each peer learns of the others late. One seed gives one run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from protocols.catalogue.machine import CatalogueMachine
from protocols.clock import HybridClock
from protocols.commit import SyncGate
from protocols.effects import AfterSync, Append, Effect, Reply, Route, Send, SetTimer, Tell
from protocols.events import Event, PeerDown, PeerUp, Received, Requested, Started, TimerFired
from protocols.ids import Key, Millis, PeerId, distance
from protocols.messages import Answer, Command, Message, Record
from protocols.store.events import StoreFailed, StoreRead, StoreWritten, Token
from protocols.store.limits import StoreLimits
from protocols.store.machine import StoreMachine

START_MS = 1_000_000

QUICK = StoreLimits(compare_ms=2_000, linger_ms=3_000, ghost_ms=20_000, heard_ms=6_000, deadline_ms=10_000)
"""Waits of seconds, not minutes, so that a run is short."""


@dataclass
class Faults:
    """How bad the weather is."""

    loss: float = 0.0
    repeat: float = 0.0
    latency_ms: tuple[int, int] = (1, 40)
    sync_ms: tuple[int, int] = (0, 30)
    notice_ms: tuple[int, int] = (100, 2_000)  # Until the others notice that a peer came or went.
    skew_ms: int = 0


@dataclass
class Node:
    """One peer with its disk; the machine is there while it is up."""

    peer_id: PeerId
    skew_ms: int
    journal: list[Record] = field(default_factory=list)
    synced: int = 0
    is_syncing: bool = False
    life: int = 0  # Counts its starts: what was meant for an earlier life is void.
    store: StoreMachine | None = None
    catalogue: CatalogueMachine | None = None
    gate: SyncGate = field(default_factory=SyncGate)
    seen: dict[PeerId, None] = field(default_factory=dict)  # The others it has been told are up.
    timers: dict[str, int] = field(default_factory=dict)


class StoreNetwork:
    """Drives the machines through virtual time."""

    def __init__(self, seed: int, peers: int, faults: Faults | None = None, limits: StoreLimits = QUICK) -> None:
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.limits = limits
        self.time: Millis = START_MS
        self.nodes: dict[PeerId, Node] = {}
        self.told: dict[Token, Event] = {}
        self.answers: dict[int, Answer] = {}
        self.sent: Counter[str] = Counter()
        self._cut: dict[PeerId, int] = {}  # Which side of a cut a peer is on.
        self._agenda: list[tuple[Millis, int, Callable[[], None]]] = []
        self._sequence = 0
        self._request = 0
        for _ in range(peers):
            self.add()

    # What a test does.

    def add(self) -> PeerId:
        peer = PeerId(self.rng.randbytes(20))
        self.nodes[peer] = Node(peer, self.rng.randint(-self.faults.skew_ms, self.faults.skew_ms))
        self.start(peer)
        return peer

    @property
    def up(self) -> list[PeerId]:
        return [peer for peer, node in self.nodes.items() if node.store]

    def start(self, peer: PeerId) -> None:
        node = self.nodes[peer]
        node.life += 1
        clock = HybridClock()
        node.store = StoreMachine(peer, clock, random.Random(self.rng.random()), self.limits)
        node.catalogue = CatalogueMachine(peer, node.store, clock)
        node.gate, node.timers, node.seen, node.is_syncing = SyncGate(), {}, {}, False
        for record in node.journal:
            node.store.restore(record, {})
        clock.tick(self.time + node.skew_ms)
        self._give(node, Started())
        for other in self.nodes.values():
            if other is not node and other.store:
                self._after(self._draw(self.faults.notice_ms) // 4, lambda other=other: self._notice(node, other))
                self._after(self._draw(self.faults.notice_ms) // 4, lambda other=other: self._notice(other, node, True))

    def crash(self, peer: PeerId, *, lose_disk: bool = False) -> None:
        """What was not synced is lost, except for what the disk had written by chance."""
        node = self.nodes[peer]
        kept = self.rng.randint(node.synced, len(node.journal))
        node.journal = [] if lose_disk else node.journal[:kept]
        node.synced = len(node.journal)
        node.store = node.catalogue = None
        for other in self.nodes.values():
            self._after(self._draw(self.faults.notice_ms), lambda other=other: self._notice(other, node))

    def cut(self, side: list[PeerId]) -> None:
        self._cut = dict.fromkeys(side, 1)
        self._notice_all()

    def heal(self) -> None:
        self._cut = {}
        self._notice_all()

    def write(self, peer: PeerId, key: Key, item: str, value: bytes | None, token: Token, life_ms: Millis = 0) -> None:
        node = self.nodes[peer]
        assert node.store
        self._perform(node, node.store.write(key, item, value, life_ms, token, self.time + node.skew_ms))

    def read(self, peer: PeerId, key: Key, token: Token) -> None:
        node = self.nodes[peer]
        assert node.store
        self._perform(node, node.store.read(key, token, self.time + node.skew_ms))

    def request(self, peer: PeerId, command: Command) -> int:
        self._request += 1
        self._give(self.nodes[peer], Requested(self._request, command))
        return self._request

    def ask(self, peer: PeerId, command: Command, within_ms: Millis = 30_000) -> Answer:
        request = self.request(peer, command)
        self.run_until(lambda: request in self.answers, within_ms)
        return self.answers[request]

    def run(self, for_ms: Millis) -> None:
        end = self.time + for_ms
        while self._agenda and self._agenda[0][0] <= end:
            self._step()
        self.time = end

    def run_until(self, condition: Callable[[], bool], within_ms: Millis = 30_000) -> None:
        end = self.time + within_ms
        while not condition():
            assert self._agenda, "nothing will ever happen again"
            assert self._agenda[0][0] <= end, f"not within {within_ms} ms"
            self._step()

    def owners(self, key: Key, count: int = 3) -> list[PeerId]:
        return sorted(self.up, key=lambda peer: distance(peer, key))[:count]

    def held(self, peer: PeerId, key: Key) -> dict[str, bytes | None]:
        store = self.nodes[peer].store
        assert store
        return {entry.item: entry.value for entry in store._table.entries(key)}

    def effects(self, peer: PeerId, effects: list[Effect]) -> None:
        """Perform what a test has asked a machine for directly."""
        self._perform(self.nodes[peer], effects)

    # Virtual time.

    def _draw(self, bounds: tuple[int, int]) -> Millis:
        return self.rng.randint(*bounds)

    def _after(self, delay_ms: Millis, action: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._agenda, (self.time + delay_ms, self._sequence, action))

    def _step(self) -> None:
        self.time, _, action = heappop(self._agenda)
        action()

    # Who sees whom.

    def _reaches(self, a: PeerId, b: PeerId) -> bool:
        return self._cut.get(a, 0) == self._cut.get(b, 0)

    def _notice_all(self) -> None:
        for node in self.nodes.values():
            for other in self.nodes.values():
                self._after(self._draw(self.faults.notice_ms), lambda node=node, other=other: self._notice(node, other))

    def _notice(self, node: Node, other: Node, again: bool = False) -> None:
        """A peer learns how it stands with another, as things are now."""
        if node.store is None or node is other:
            return
        is_there = other.store is not None and self._reaches(node.peer_id, other.peer_id)
        if is_there and (again or other.peer_id not in node.seen):
            node.seen[other.peer_id] = None
            self._give(node, PeerUp(other.peer_id))
        elif not is_there and other.peer_id in node.seen:
            del node.seen[other.peer_id]
            self._give(node, PeerDown(other.peer_id))

    # Effects.

    def _give(self, node: Node, event: Event) -> None:
        now = self.time + node.skew_ms
        pending, effects = [event], list[Effect]()
        while pending:
            current = pending.pop(0)
            for role in (node.store, node.catalogue):
                if role is None or (role is node.store and isinstance(current, Requested)):
                    continue
                for effect in role.handle(current, now):
                    if isinstance(effect, Tell):
                        self._tell(effect.event, pending)
                    else:
                        effects.append(effect)
        assert node.store
        node.store.validate()
        self._perform(node, effects)

    def _tell(self, event: Event, pending: list[Event]) -> None:
        """Events for the machines go to them; those for others end with the test."""
        is_answer = isinstance(event, StoreRead | StoreWritten | StoreFailed)
        token = getattr(event, "token", None)
        if token is None or (is_answer and token[0] == "catalogue"):
            pending.append(event)
        else:
            self.told[token] = event

    def _perform(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peer, message):
                    self._post(node.peer_id, peer, message)
                case Route(key, message):
                    self._route(node, node, key, message, hops=4)
                case SetTimer(name, after_ms):
                    self._set_timer(node, name, after_ms)
                case Append(record):
                    node.journal.append(record)
                    self._sync_soon(node)
                case AfterSync(held):
                    node.gate.hold(len(node.journal), held)
                    self._sync_soon(node)
                case Tell(event):
                    pending: list[Event] = []
                    self._tell(event, pending)
                    for each in pending:
                        self._give(node, each)
                case Reply(request, answer):
                    self.answers[request] = answer
                case _:
                    raise AssertionError(effect)

    def _sync_soon(self, node: Node) -> None:
        """One sync at a time: it makes safe what was appended before it began."""
        if node.is_syncing:
            return
        node.is_syncing = True
        life, appended = node.life, len(node.journal)

        def synced() -> None:
            if node.store and node.life == life:
                node.is_syncing = False
                node.synced = appended
                if appended < len(node.journal):
                    self._sync_soon(node)
                self._perform(node, node.gate.release(appended))

        self._after(self._draw(self.faults.sync_ms), synced)

    def _set_timer(self, node: Node, name: str, after_ms: Millis) -> None:
        life = node.life
        node.timers[name] = setting = node.timers.get(name, 0) + 1

        def fire() -> None:
            if node.store and node.life == life and node.timers[name] == setting:
                self._give(node, TimerFired(name))

        self._after(after_ms, fire)

    def _post(self, sender: PeerId, peer: PeerId, message: Message) -> None:
        self.sent[type(message).__name__] += 1
        copies = 0 if self.rng.random() < self.faults.loss else 2 if self.rng.random() < self.faults.repeat else 1
        for _ in range(copies):
            self._after(self._draw(self.faults.latency_ms), lambda: self._arrive(sender, peer, message))

    def _arrive(self, sender: PeerId, peer: PeerId, message: Message) -> None:
        node = self.nodes[peer]
        if node.store and self._reaches(sender, peer):
            self._give(node, Received(sender, message))

    def _route(self, origin: Node, at: Node, key: Key, message: Message, hops: int) -> None:
        """To the nearest peer that this one has seen, which may know a nearer one."""
        if at.store is None:
            return
        nearest = min([at.peer_id, *at.seen], key=lambda peer: distance(peer, key))
        if nearest == at.peer_id or not hops:
            self._post(origin.peer_id, at.peer_id, message)
            return
        if self._reaches(at.peer_id, nearest):
            delay = self._draw(self.faults.latency_ms)
            self._after(delay, lambda: self._route(origin, self.nodes[nearest], key, message, hops - 1))
