"""One peer whose machines a test drives by hand."""

from __future__ import annotations

import random

from overlay.sim.disk import SimDisk
from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import Durability, StreamDefinition
from protocols.commit import SyncGate
from protocols.delivery.messages import (
    Position,
    Publish,
    Rows,
)
from protocols.effects import (
    AfterSync,
    Append,
    AppendBatch,
    Effect,
    ReadLog,
    ReleaseLog,
    Reply,
    Route,
    Send,
    SetTimer,
    Tell,
)
from protocols.events import (
    Event,
    LogRead,
    NearestPeers,
    Received,
    Requested,
    Started,
    TimerFired,
)
from protocols.ids import PeerId
from protocols.journal.journal import Journal
from protocols.limits import Limits
from protocols.messages import Answer, Command
from protocols.peer import Peer
from protocols.sight import LookAtNetwork, NetworkSeen
from protocols.wire import RECORDS
from queries.schema import Schema

ALONE = PeerId(b"a" * 20)

SCHEMA = Schema.parse("id int, dest string")


class Lone:
    """A network of one peer in virtual time, on a disk that survives restart()."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.disk = SimDisk(random.Random(1), capacity_bytes=1 << 30)
        self.limits = limits or Limits()
        self.now = 1_800_000_000_000
        self.requests = 0
        self.answers: dict[int, list[Answer]] = {}
        self.start()

    def start(self) -> None:
        self.peer = Peer(ALONE, random.Random(1), self.limits)
        self.journal = Journal(self.disk, RECORDS.encode, RECORDS.decode)
        self.gate = SyncGate()
        self.timers: dict[str, int] = {}
        recovered = self.journal.recover()
        self.peer.restore(recovered.records, recovered.logs, self.now)
        self.happen(Started())
        self.happen(NearestPeers(()))

    def restart(self, *, snapshot: bool = False) -> None:
        """Die and come back with what the disk has; with a snapshot in place of the records if asked for."""
        if snapshot:
            self.journal.snapshot(self.peer.snapshot())
            self.commit()
        self.start()

    def happen(self, event: Event) -> None:
        self.perform(self.peer.handle(event, self.now))
        self.commit()
        self.peer.validate()

    def commit(self) -> None:
        while True:
            while pending := self.journal.take():
                pending.write(self.disk)
                self.journal.done(pending)
            released = self.gate.release(self.journal.synced)
            if not released:
                return
            self.perform(released)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message=message) | Route(message=message):
                    self.perform(self.peer.handle(Received(ALONE, message), self.now))
                case Append(record):
                    self.journal.append(record)
                case AppendBatch(log, batch):
                    self.journal.append_batch(log, batch)
                case ReleaseLog(log, below):
                    self.journal.release(log, below)
                case ReadLog(log, first, bytes_max):
                    batches = self.journal.read(log, first, bytes_max)
                    self.perform(self.peer.handle(LogRead(log, first, batches), self.now))
                case AfterSync(held):
                    self.gate.hold(self.journal.appended, held)
                case Tell(event):
                    self.perform(self.peer.handle(event, self.now))
                case SetTimer(name, after_ms):
                    self.timers[name] = self.now + after_ms
                case LookAtNetwork(placement):
                    self.perform(self.peer.handle(NetworkSeen(placement, (ALONE,), ((0.0,),), (ALONE,)), self.now))
                case Reply(request, answer):
                    self.answers.setdefault(request, []).append(answer)

    def wait(self, ms: int) -> None:
        """Let time pass, and every timer that runs down in it."""
        end = self.now + ms
        while self.timers and min(self.timers.values()) <= end:
            name = min(self.timers, key=lambda each: (self.timers[each], each))
            self.now = max(self.now, self.timers.pop(name))
            self.happen(TimerFired(name))
        self.now = end

    def ask(self, command: Command, within_ms: int = 0) -> int:
        self.requests += 1
        self.happen(Requested(self.requests, command))
        self.wait(within_ms)
        return self.requests

    def answer(self, command: Command, within_ms: int = 90_000) -> Answer:
        """Ask, and wait for the first answer; a peer alone needs a minute to be sure that it is."""
        request = self.ask(command)
        for _ in range(within_ms // 100):
            if request in self.answers:
                break
            self.wait(100)
        return self.answers[request][0]

    def create(self, durability: Durability = "disk", **changes: int) -> Answer:
        definition = StreamDefinition(name="flights", schema=SCHEMA, durability=durability, **changes)
        return self.answer(CreateStream(definition=definition))

    def publish(self, *ids: int, **changes: object) -> Answer:
        rows = SCHEMA.encode([(number, "VIE") for number in ids])
        return self.answer(Publish(stream="flights", rows=rows, count=len(ids), **changes))  # type: ignore[arg-type]

    def read(self, request: int) -> list[int]:
        return [
            row[0]
            for answer in self.answers.get(request, [])
            if isinstance(answer, Rows)
            for batch in answer.batches
            for row in SCHEMA.decode(batch.rows)
        ]

    def positions(self, request: int) -> tuple[Position, ...]:
        rows = [answer for answer in self.answers[request] if isinstance(answer, Rows)]
        return tuple(Position(batch.origin, batch.next) for answer in rows for batch in answer.batches)
