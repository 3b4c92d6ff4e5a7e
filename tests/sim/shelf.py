"""The replicated store alone, on simulated peers, with clients that put and get and remember what they were told."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from overlay.sim.oracle import Violation
from overlay.sim.peer import SimPeer
from overlay.sim.world import World
from protocols.clock import HybridClock
from protocols.effects import Effect, Reply, Tell
from protocols.events import Event, LogBounds, Requested
from protocols.ids import Key, LogId, Millis, PeerId
from protocols.messages import Answer, Command, Record
from protocols.store.events import StoreFailed, StoreRead, StoreWritten
from protocols.store.machine import StoreMachine
from protocols.wire import MESSAGES, RECORDS

KEYS = tuple(Key.of("shelf", str(number)) for number in range(6))


class Put(Command, frozen=True, kw_only=True, tag="PUT"):
    key: Key
    item: str
    version: int


class Get(Command, frozen=True, kw_only=True, tag="GET"):
    key: Key


class PutDone(Answer, frozen=True, kw_only=True, tag="PUT_DONE"):
    replicas: int


class Got(Answer, frozen=True, kw_only=True, tag="GOT"):
    versions: tuple[tuple[str, int], ...]


class Failed(Answer, frozen=True, kw_only=True, tag="FAILED"):
    reason: str


class Shelf:
    """A peer with no role but the store."""

    def __init__(self, peer_id: PeerId, rng: random.Random) -> None:
        self._clock = HybridClock()
        self.store = StoreMachine(peer_id, self._clock, rng)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        pending: list[Event] = [event]
        while pending:
            for effect in self._handle(pending.pop(0), now):
                if isinstance(effect, Tell):
                    pending.append(effect.event)
                else:
                    effects.append(effect)
        return effects

    def _handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Requested(request=request, command=Put(key=key, item=item, version=version)):
                return self.store.write(key, item, b"%d" % version, 0, ("shelf", request), now)
            case Requested(request=request, command=Get(key=key)):
                return self.store.read(key, ("shelf", request), now)
            case StoreWritten(token=(_, int(request)), replicas=replicas):
                return [Reply(request, PutDone(replicas=replicas))]
            case StoreRead(token=(_, int(request)), entries=entries):
                versions = tuple((entry.item, int(entry.value or b"-1")) for entry in entries)
                return [Reply(request, Got(versions=versions))]
            case StoreFailed(token=(_, int(request)), reason=reason):
                return [Reply(request, Failed(reason=reason))]
        return self.store.handle(event, now)

    def restore(self, records: Sequence[Record], logs: Mapping[LogId, LogBounds], now: Millis) -> None:
        for record in records:
            self.store.restore(record)
        self._clock.tick(now)

    def snapshot(self) -> list[Record]:
        return self.store.snapshot()

    def validate(self) -> None:
        self.store.validate()


class ShelfWorld(World):
    """Clients put rising versions under a few names, each name from one client at a time, and get them anywhere."""

    def __init__(self, seed: int, peers: int, **options: object) -> None:
        options = {"codec": lambda message: MESSAGES.decode(MESSAGES.encode(message)), "segment_bytes": 4096} | options
        super().__init__(seed, Shelf, RECORDS.encode, RECORDS.decode, **options)
        self.promised: dict[tuple[Key, str], int] = {}  # The highest version anybody was told is safe.
        self.put = self.got = self.failed = 0
        self._versions = 0
        self._rng = self.rng("clients")
        self.start(peers)

    def put_some(self) -> None:
        peer = self._someone()
        if peer is not None:
            self._versions += 1
            key, item, version = self._rng.choice(KEYS), f"item-{self._rng.randrange(3)}", self._versions

            def answered(answer: Answer | None, last: bool) -> None:
                if isinstance(answer, PutDone):
                    self.put += 1
                    self.promised[key, item] = max(version, self.promised.get((key, item), 0))
                else:
                    self.failed += 1

            peer.request(Put(key=key, item=item, version=version), answered)

    def get_some(self, peer: SimPeer | None = None, key: Key | None = None) -> None:
        peer, key = peer or self._someone(), key or self._rng.choice(KEYS)
        if peer is not None:
            before = {item: version for (of, item), version in self.promised.items() if of == key}
            was_torn = self.membership.is_torn  # The parts of a torn network may know different things.

            def answered(answer: Answer | None, last: bool) -> None:
                if isinstance(answer, Got):
                    self.got += 1
                    found = dict(answer.versions)
                    for item, version in before.items():
                        if item not in found and not (was_torn or self.membership.is_torn):
                            raise Violation(f"{peer} at {self.now} ms: {item} under {key!r} is gone, was {version}")

            peer.request(Get(key=key), answered)

    def _someone(self) -> SimPeer | None:
        up = [peer for peer in self.peers if peer.is_up]
        return self._rng.choice(up) if up else None
