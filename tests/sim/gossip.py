"""A small machine to try the simulator on: peers tell each other rumours, and lose none that they have acknowledged."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from overlay.sim.faults import FAULT_NAMES, FaultRule, Faults
from overlay.sim.trace import Trace
from overlay.sim.world import World
from protocols.effects import AfterSync, Append, Effect, Reply, Send, SetTimer
from protocols.events import (
    Event,
    LogBounds,
    NearestPeers,
    PeerDown,
    PeerUp,
    Received,
    Requested,
    Started,
    TimerFired,
    Unreachable,
)
from protocols.ids import LogId, Millis, PeerId
from protocols.messages import Answer, Command, Message, Record

TICK_MS = 500


class Rumours(Message, frozen=True, kw_only=True, tag="RUMOURS"):
    numbers: tuple[int, ...]


class Heard(Record, frozen=True, kw_only=True, tag="HEARD"):
    number: int


class Say(Command, frozen=True, kw_only=True, tag="SAY"):
    number: int


class Said(Answer, frozen=True, kw_only=True, tag="SAID"):
    number: int


class Gossip:
    """Tells somebody near, by identifier or in the network, all it knows, again and again."""

    def __init__(self, peer_id: PeerId, rng: random.Random, *, syncs: bool = True) -> None:
        self.peer_id = peer_id
        self.known: dict[int, None] = {}
        self.unreachable = 0
        self._rng = rng
        self._syncs = syncs
        self._neighbours: dict[PeerId, None] = {}
        self._near: tuple[PeerId, ...] = ()

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Requested(request=request, command=Say(number=number)):
                said = Reply(request, Said(number=number))
                return [*self._hear([number]), AfterSync((said,)) if self._syncs else said]
            case Received(message=Rumours(numbers=numbers)):
                return self._hear(numbers)
            case Started() | TimerFired():
                return [*self._tell(), SetTimer("tick", TICK_MS + self._rng.randrange(100))]
            case PeerUp(peer=peer):
                self._neighbours[peer] = None
            case PeerDown(peer=peer):
                del self._neighbours[peer]
            case NearestPeers(peers=peers):
                self._near = peers
            case Unreachable():
                self.unreachable += 1
        return []

    def _hear(self, numbers: Sequence[int]) -> list[Effect]:
        fresh = [number for number in numbers if number not in self.known]
        self.known.update(dict.fromkeys(fresh))
        return [Append(Heard(number=number)) for number in fresh]

    def _tell(self) -> list[Effect]:
        others = [*sorted(self._neighbours), *self._near]
        if not others or not self.known:
            return []
        return [Send(self._rng.choice(others), Rumours(numbers=tuple(self.known)))]

    def restore(self, records: Sequence[Record], logs: Mapping[LogId, LogBounds], now: Millis) -> None:
        self.known = dict.fromkeys(record.number for record in records if isinstance(record, Heard))

    def snapshot(self) -> list[Record]:
        return [Heard(number=number) for number in self.known]

    def validate(self) -> None:
        assert self.peer_id not in self._neighbours


class GossipWorld(World):
    """A world of gossips, with hands on their machines."""

    def __init__(self, seed: int, peers: int, *, syncs: bool = True, **options: object) -> None:
        self.machines: dict[PeerId, Gossip] = {}

        def make(peer_id: PeerId, rng: random.Random) -> Gossip:
            self.machines[peer_id] = Gossip(peer_id, rng, syncs=syncs)
            return self.machines[peer_id]

        decode: Callable[[bytes], Record] = msgspec.msgpack.Decoder(Heard).decode
        super().__init__(seed, make, msgspec.msgpack.Encoder().encode, decode, **options)
        self.said: dict[int, None] = {}
        self.start(peers)

    def say(self, index: int, number: int) -> None:
        def on_answer(answer: Answer | None, last: bool) -> None:
            if isinstance(answer, Said):
                self.said[answer.number] = None

        if self.peers[index].is_up:
            self.peers[index].request(Say(number=number), on_answer)

    def knows(self, index: int) -> dict[int, None]:
        return self.machines[self.peers[index].peer_id].known


def churn(seed: int, *, peers: int = 15, syncs: bool = True, trace: Trace | None = None) -> GossipWorld:
    """Rumours under every fault there is; afterwards everything is healed."""
    world = GossipWorld(seed, peers, syncs=syncs, trace=trace, segment_bytes=512)
    rules = [FaultRule(name=name) for name in FAULT_NAMES if name != "disk-loss"]
    faults = Faults(world, rules, span_ms=20_000)
    faults.plan()
    for number in range(200):
        world.agenda.at(100 * number, world.say, number % peers, number)
    world.run_for(20_000)
    faults.heal()
    world.run_for(30_000)
    return world
