"""A small network of placement machines: messages are lost, repeated and overtake each other, coordinators die."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush

from protocols.effects import Effect, Route, Send, SetTimer, Tell
from protocols.events import Event, Received, TimerFired, Unreachable, Unroutable
from protocols.ids import Key, Millis, PeerId, distance
from protocols.placement.events import OperatorsPlaced
from protocols.placement.machine import PlacementMachine
from tests.protocols.placement.trees import peer

TIMEOUT_MS = 3_000


class PlacementNetwork:
    """Drives the machines through virtual time."""

    def __init__(
        self, luck: random.Random, peers: int, loss: float = 0.0, repeat: float = 0.0, forget_ms: Millis = 1_000_000
    ) -> None:
        self.luck, self.loss, self.repeat = luck, loss, repeat
        self.peers = [peer(number) for number in range(peers)]
        # Their places among the keys are drawn, so that zones spread; the tests' trees name them by number.
        self.keys = {each: Key(luck.randbytes(20)) for each in self.peers}
        self.machines = {each: PlacementMachine(each, forget_ms=forget_ms) for each in self.peers}
        self.placed: list[OperatorsPlaced] = []
        self.sent: Counter[str] = Counter()
        self.arrived: list[tuple[PeerId, Received]] = []
        self.time: Millis = 0
        self._agenda: list[tuple[Millis, int, Callable[[], None]]] = []
        self._sequence = 0
        self._timers: dict[tuple[PeerId, str], int] = {}

    def give(self, to: PeerId, event: Event) -> None:
        machine = self.machines.get(to)
        if machine is not None:
            effects = machine.handle(event, self.time)
            machine.validate()
            for effect in effects:
                self._perform(to, effect)

    def kill(self, victim: PeerId) -> None:
        del self.machines[victim]

    def coordinator(self, key: Key) -> PeerId:
        return min(self.machines, key=lambda each: distance(self.keys[each], key))

    def run(self, until_ms: Millis) -> None:
        """Until nothing is left to do, or for so long."""
        while self._agenda and self._agenda[0][0] <= until_ms:
            self.time, _, act = heappop(self._agenda)
            act()

    def _after(self, ms: Millis, act: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._agenda, (self.time + ms, self._sequence, act))

    def _perform(self, me: PeerId, effect: Effect) -> None:
        match effect:
            case Send(peer=to, message=message):
                failed: Event = Unreachable(to, message)
                self._deliver(me, to, Received(me, message), failed)
            case Route(key=key, message=message):
                failed = Unroutable(key, message)
                self._deliver(me, self.coordinator(key), Received(me, message), failed)
            case SetTimer(name=name, after_ms=after_ms):
                self._set(me, name, after_ms)
            case Tell(event=OperatorsPlaced() as placed):
                self.placed.append(placed)
            case _:
                raise AssertionError(f"no rule for {effect}")

    def _deliver(self, me: PeerId, to: PeerId, event: Received, failed: Event) -> None:
        self.sent[str(type(event.message).__struct_config__.tag)] += 1
        if to not in self.machines or self.luck.random() < self.loss:
            self._after(TIMEOUT_MS, lambda: self.give(me, failed))
            return
        for _ in range(2 if self.luck.random() < self.repeat else 1):
            self._after(self.luck.randint(1, 150), lambda: self._arrive(to, event))

    def _arrive(self, to: PeerId, event: Received) -> None:
        self.arrived.append((to, event))
        self.give(to, event)

    def _set(self, me: PeerId, name: str, after_ms: Millis) -> None:
        self._sequence += 1
        mine = self._timers[me, name] = self._sequence

        def fire() -> None:
            if self._timers.get((me, name)) == mine:
                self.give(me, TimerFired(name))

        self._after(after_ms, fire)
