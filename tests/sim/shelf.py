"""The replicated store alone, on simulated peers, with clients that put and get and remember what they were told."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overlay.sim.faults import FaultRule, Faults, draw_rules
from overlay.sim.oracle import Violation
from overlay.sim.peer import SimPeer
from overlay.sim.world import World
from protocols.clock import HybridClock
from protocols.effects import Effect, Reply, Tell
from protocols.events import Event, LogBounds, Requested
from protocols.ids import Key, LogId, Millis, PeerId
from protocols.messages import Answer, Command, Record
from protocols.store.events import StoreFailed, StoreRead, StoreWritten
from protocols.store.limits import StoreLimits
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
            self.store.restore(record, {})
        self._clock.tick(now)

    def snapshot(self) -> list[Record]:
        return self.store.snapshot()

    def validate(self) -> None:
        self.store.validate()


@dataclass(slots=True)
class _Put:
    """One version of an item, as its client sees it."""

    asked_at: Millis
    done_at: Millis = 1 << 62  # Until its client is told that it is safe.


_NOTHING = _Put(-1, -1)


class ShelfWorld(World):
    """Clients put ever higher versions under old and new names, and get them anywhere."""

    def __init__(self, seed: int, peers: int, **options: object) -> None:
        options = {"codec": lambda message: MESSAGES.decode(MESSAGES.encode(message)), "segment_bytes": 4096} | options
        super().__init__(seed, Shelf, RECORDS.encode, RECORDS.decode, **options)
        self._puts: dict[tuple[Key, str], dict[int, _Put]] = {}  # All there were of an item, by version.
        self.put = self.got = self.failed = 0
        self.unanswered = 0  # Of the questions at the end, when all is well.
        self._versions = 0
        self._rng = self.rng("clients")
        self.start(peers)

    def put_some(self) -> None:
        peer = self._someone()
        if peer is not None:
            self._versions += 1
            key, version = self._rng.choice(KEYS), self._versions
            item = f"item-{version if self._rng.random() < 0.5 else self._rng.randrange(3)}"
            put = self._puts.setdefault((key, item), {})[version] = _Put(self.now)

            def answered(answer: Answer | None, last: bool) -> None:
                if isinstance(answer, PutDone):
                    self.put += 1
                    put.done_at = self.now
                else:
                    self.failed += 1

            peer.request(Put(key=key, item=item, version=version), answered)

    def get_some(self, peer: SimPeer | None = None, key: Key | None = None) -> None:
        peer, key = peer or self._someone(), key or self._rng.choice(KEYS)
        if peer is not None:
            asked_at = self.now
            was_torn = self.membership.is_torn  # The parts of a torn network may know different things.

            def answered(answer: Answer | None, last: bool) -> None:
                if isinstance(answer, Got):
                    self.got += 1
                    if not (was_torn or self.membership.is_torn):
                        self._judge(key, dict(answer.versions), asked_at)

            peer.request(Get(key=key), answered)

    def get_everything(self) -> None:
        """Let every peer get every key, when all is well."""
        before, up = self.got, [peer for peer in self.peers if peer.is_up]
        for peer in up:
            for key in KEYS:
                self.get_some(peer, key)
        self.run_for(16_000)
        self.unanswered = len(up) * len(KEYS) - (self.got - before)

    def _judge(self, key: Key, found: dict[str, int], asked_at: Millis) -> None:
        """What was safe when somebody asked is found, or something that is not older."""
        for (of, item), puts in self._puts.items():
            if of == key:
                found_put = puts.get(found.get(item, -1), _NOTHING)
                for version, put in puts.items():
                    if put.done_at < asked_at and found_put.done_at < put.asked_at:
                        what = f"{item} under {key!r} is {found.get(item)}, was {version}"
                        raise Violation(f"asked at {asked_at} ms, answered at {self.now} ms: {what}")

    def _someone(self) -> SimPeer | None:
        up = [peer for peer in self.peers if peer.is_up]
        return self._rng.choice(up) if up else None


HARD_RULES = (
    FaultRule(name="crash", times=15),
    FaultRule(name="join", times=4),
    FaultRule(name="loss", times=1, share=0.3, at_s=0, for_s=15),
    FaultRule(name="delay", times=1, share=0.1, at_s=0, for_s=15),
    FaultRule(name="lost-write"),
)
DISK_LOSS = FaultRule(name="disk-loss", times=1)


def play(seed: int, *, is_hard: bool = False, with_disk_loss: bool = False) -> ShelfWorld:
    """Put and get under faults, then heal and let every peer get everything; few peers crash much if it is hard."""
    hard_rules = (*HARD_RULES, DISK_LOSS) if with_disk_loss else HARD_RULES
    rng = random.Random(f"{seed}/scenario")
    world = ShelfWorld(seed, rng.randint(4, 9) if is_hard else rng.randint(5, 25))
    faults = Faults(world, hard_rules if is_hard else draw_rules(rng), span_ms=15_000)
    world.run_for(1_500)
    faults.plan()
    for _ in range(400 if is_hard else 150):
        world.agenda.after(rng.randrange(15_000), world.put_some)
        world.agenda.after(rng.randrange(15_000), world.get_some)
    world.run_for(15_000)
    faults.heal()
    world.run_for(15_000)
    world.get_everything()
    return world


def play_leaving(seed: int) -> ShelfWorld:
    """Peers leave for good, three owners of one key together, until three are left; then everybody gets everything."""
    rng = random.Random(f"{seed}/scenario")
    world = ShelfWorld(seed, rng.choice((6, 9, 13, 16, 20)))
    spoilt = [FaultRule(name=name, times=1, share=0.1, at_s=0, for_s=100) for name in ("loss", "delay", "duplicate")]
    Faults(world, [rule for rule in spoilt if rng.random() < 0.5], span_ms=100_000).plan()
    world.run_for(1_500)
    while len(staying := [peer for peer in world.peers if peer.is_up]) > 3:
        for _ in range(60):
            world.agenda.after(rng.randrange(3_000), world.put_some)
            world.agenda.after(rng.randrange(3_000), world.get_some)
        world.run_for(rng.randrange(1_000, 3_000))
        key = rng.choice(KEYS)
        staying.sort(key=lambda peer: peer.peer_id.number ^ key.number)
        for peer in staying[: min(3, len(staying) - 3)]:
            world.agenda.after(rng.randrange(300), peer.leave, lambda: None)
        world.run_for(StoreLimits().drain_ms + 1_000)
    world.run_for(5_000)
    world.get_everything()
    return world


def play_power_cuts(seed: int) -> ShelfWorld:
    """All peers crash in the same moment, three times, with disks that are slow and keep nothing unsynced."""
    rng = random.Random(f"{seed}/scenario")
    world = ShelfWorld(seed, 5, sync_ms_max=300)
    rules = (FaultRule(name="crash", times=3, share=1.0, for_s=1), FaultRule(name="lost-write", share=1.0))
    faults = Faults(world, rules, span_ms=15_000)
    world.run_for(1_500)
    faults.plan()
    for _ in range(400):
        world.agenda.after(rng.randrange(15_000), world.put_some)
    world.run_for(15_000)
    faults.heal()
    world.run_for(5_000)
    world.get_everything()
    return world
