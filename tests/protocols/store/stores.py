"""One store machine among neighbours that a test plays."""

from __future__ import annotations

import random

from protocols.clock import HybridClock
from protocols.effects import Effect, Send
from protocols.events import PeerUp, Received, Started, TimerFired
from protocols.ids import Key, PeerId
from protocols.store.entries import Entry
from protocols.store.limits import StoreLimits
from protocols.store.machine import StoreMachine
from protocols.store.messages import (
    StoreOffer,
    StoreReplicate,
)

NOW = 1_000_000

LIMITS = StoreLimits()


def peer(first: int) -> PeerId:
    return PeerId(bytes([first]) + bytes(19))


ME, A, B, C, D = peer(0), peer(1), peer(2), peer(4), peer(8)

KEY = Key(bytes(20))  # Its owners are ME, A and B, in this order.


def entry(key: Key = KEY, item: str = "x", stamp: int = 5, value: bytes | None = b"v", expires_at: int = 0) -> Entry:
    return Entry(key, item, stamp, A, value, expires_at)


def store(*neighbours: PeerId, limits: StoreLimits = LIMITS) -> StoreMachine:
    """A store that has settled among these neighbours."""
    machine = StoreMachine(ME, HybridClock(), random.Random(1), limits)
    machine.handle(Started(), NOW - 100_000)
    for each in neighbours:
        machine.handle(PeerUp(each), NOW - 100_000)
        meet(machine, each, NOW - 100_000)
    machine.handle(TimerFired("store/retry"), NOW - 90_000)
    return machine


def meet(machine: StoreMachine, other: PeerId, now: int = NOW) -> list[Effect]:
    """The other answers our comparison: it has nothing that we lack."""
    round_ = machine._comparisons._open[other].round
    return machine.handle(Received(other, StoreOffer(versions=(), round=round_, end=256)), now)


def sent(effects: list[Effect], kind: type) -> list[PeerId]:
    return [effect.peer for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def give(machine: StoreMachine, *entries: Entry) -> None:
    machine.handle(Received(A, StoreReplicate(entries=entries)), NOW)
