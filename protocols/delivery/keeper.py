"""The backup of other peers' `replicated` streams: keeps a copy, and serves it when the ingress peer cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.clock import COUNT_BITS, Stamp
from protocols.delivery.feed import Feed, Served, subscribed
from protocols.delivery.messages import (
    Ack,
    Backed,
    Backup,
    BackupFrozen,
    BackupNoted,
    BackupOpened,
    Batch,
    Note,
    Origin,
    Silence,
    Subscribe,
    Unsubscribe,
)
from protocols.effects import AfterSync, Append, AppendBatch, Effect, Send, SetTimer, Tell
from protocols.errors import expect
from protocols.events import (
    Event,
    LogBounds,
    LogRead,
    PeerDown,
    Received,
    Started,
    StoredBatch,
    TimerFired,
    Unreachable,
)
from protocols.ids import LogId, Millis, PeerId
from protocols.limits import Limits
from protocols.messages import Record
from protocols.role import Owned

TICK: Final = "keeper/tick"
SIFT: Final = "keeper/sift/"  # And the name of a log.
_NOTHING: Final = Note(0, 0, 0, ())  # In the journal: the notes are forgotten.
EPOCHS_MAX: Final = 4  # Of a stream whose tuples are all kept still.


class CopySynced(Event, frozen=True):
    """Our disk has everything of an origin's copy below this sequence."""

    origin: Origin
    next: int
    noted: Stamp = 0  # And its notes up to this one.


@dataclass(slots=True)
class Keeper:
    """Copies of other peers' tuples.

    In:        BACKUP from ingress peers; SUBSCRIBE (with copies_of), ACK, UNSUBSCRIBE from subscribers
    Out:       BACKED; SUBSCRIBED, BATCH, GAP, HEARTBEAT
    Keeps:     a log for each origin, until the ingress peer lets go of it or its retention is over; notes beside it
    Invariant: BACKED names only what is on our disk, without a hole; a copy that is frozen stays as it is
    """

    owned: ClassVar[Owned] = Owned(
        "keeper",
        messages=(Subscribe, Ack, Unsubscribe, Backup),
        events=(CopySynced,),
        records=(BackupOpened, BackupNoted, BackupFrozen),
    )

    limits: Limits
    feeds: dict[Origin, Feed] = field(default_factory=dict)
    notes: dict[Origin, tuple[Note, ...]] = field(default_factory=dict)  # From one that stands for all before it on.
    frozen: dict[Origin, None] = field(default_factory=dict)  # Copies of streams that this peer takes over.
    heard_at: dict[Origin, Millis] = field(default_factory=dict)  # When the publisher of notes last sent a BACKUP.
    _retention_ms: dict[Origin, Millis] = field(default_factory=dict)
    _origins_of_logs: dict[LogId, Origin] = field(default_factory=dict)

    def restore(self, record: Record, logs: Mapping[LogId, LogBounds]) -> None:
        match record:
            case BackupOpened(origin=origin):
                bounds = logs.get(_log(origin), LogBounds(0, 0))
                self._open(origin, record.retention_ms, bounds)
            case BackupNoted(origin=origin, note=note) if not note.number:
                self.notes.pop(origin, None)
            case BackupNoted(origin=origin, note=note) if origin in self.feeds:
                if note.next <= self.feeds[origin].next:  # Otherwise the crash came before the tuples it speaks of.
                    self.notes[origin] = (*(self.notes.get(origin, ()) if note.after else ()), note)
            case BackupFrozen(origin=origin, is_frozen=is_frozen):
                self.frozen.pop(origin, None)
                if is_frozen:
                    self.frozen[origin] = None

    def snapshot(self) -> list[Record]:
        records: list[Record] = []
        for origin, retention_ms in self._retention_ms.items():
            records.append(BackupOpened(origin=origin, retention_ms=retention_ms))
            records += [BackupNoted(origin=origin, note=note) for note in self.notes.get(origin, ())]
            records += [BackupFrozen(origin=origin, is_frozen=True)] if origin in self.frozen else []
        return records

    def handle(self, event: Event, now: Millis) -> list[Effect]:  # noqa: C901 - one branch for each thing that happens
        match event:
            case TimerFired(name=name) if (log := name.removeprefix(SIFT)) in self._origins_of_logs:
                return self.feeds[self._origins_of_logs[log]].woken(now)
            case TimerFired(name="keeper/tick"):
                return [*self._tick(now), SetTimer(TICK, self.limits.tick_ms)]
            case Received(sender=sender, message=Backup() as message):
                expect(message.origin.publisher == sender, "tuples of another publisher")
                return self._keep(message, now)
            case CopySynced():
                feed = self.feeds[event.origin]
                backed = Backed(origin=event.origin, next=event.next, noted=event.noted)
                return [Send(event.origin.publisher, backed), *feed.commit(event.next, now)]
            case Received(sender=sender, message=Subscribe() as message) if message.copies_of and not message.depth:
                return self._subscribe(sender, message, now)
            case Received(sender=sender, message=Ack() as message):
                return [
                    effect
                    for each in message.positions
                    if each.origin in self.feeds
                    for effect in self.feeds[each.origin].ack(message.subscription, sender, each.next, now, each.dead)
                ]
            case Received(sender=sender, message=Unsubscribe() as message):
                for feed in self.feeds.values():
                    feed.unsubscribe(message.subscription, sender)
            case LogRead() if event.log in self._origins_of_logs:
                return self.feeds[self._origins_of_logs[event.log]].read(event.first, event.batches, now)
            case PeerDown(peer=peer) | Unreachable(peer=peer):
                for feed in self.feeds.values():
                    feed.unreachable(peer)
            case Started():
                return [SetTimer(TICK, self.limits.tick_ms)]
        return []

    def _keep(self, message: Backup, now: Millis) -> list[Effect]:
        origin = message.origin
        effects: list[Effect] = []
        feed = self.feeds.get(origin)
        if origin in self.frozen and feed is not None:
            over = Backed(origin=origin, next=feed.next, noted=self.noted(origin), is_over=True)
            return [Send(origin.publisher, over)]
        if feed is None:
            theirs = sum(each.publisher == origin.publisher for each in self.feeds)
            expect(theirs < EPOCHS_MAX * self.limits.streams_max, "more streams than a peer can have")
            feed = self._open(origin, message.retention_ms, LogBounds(message.first, message.first))
            effects.append(Append(BackupOpened(origin=origin, retention_ms=message.retention_ms)))
        effects += feed.drop(min(message.first, feed.next))
        if message.first > feed.next:  # What lies between is kept nowhere any more.
            feed.skip_to(message.first)
        batches = _following(feed.next, message.batches)
        notes = self._following_notes(message, batches[-1].next if batches else feed.next)
        if self.noted(origin, notes) < message.noted:  # Tuples without the note of what they are made of are of no use.
            batches, notes = [], self._following_notes(message, feed.next)
        effects += [Append(BackupNoted(origin=origin, note=note)) for note in notes]
        for note in notes:
            self.notes[origin] = (*(self.notes.get(origin, ()) if note.after else ()), note)
        if origin in self.notes:
            self.heard_at[origin] = now
        for batch in batches:
            stored = StoredBatch(batch.first, batch.count, batch.published_at, batch.rows)
            feed.append(stored)
            effects.append(AppendBatch(feed.log, stored))
        return [*effects, AfterSync((Tell(CopySynced(origin, feed.next, self.noted(origin))),))]

    def noted(self, origin: Origin, more: list[Note] | None = None) -> Stamp:
        """The last note of an origin that we have, or will have with these."""
        notes = more or self.notes.get(origin, ())
        return notes[-1].number if notes else 0

    def _following_notes(self, message: Backup, below: int) -> list[Note]:
        """The notes of a message that follow those we have, and speak of what we have or are about to have."""
        found: list[Note] = []
        for note in message.notes:
            latest = self.noted(message.origin, found)
            if note.number > latest >= note.after and note.next <= below:
                found.append(note)
        return found

    # Taking over, for the role that does it.

    def freeze(self, origin: Origin) -> list[Effect]:
        """From now on the copy stays as it is."""
        self.frozen[origin] = None
        return [Append(BackupFrozen(origin=origin, is_frozen=True))]

    def thaw(self, origin: Origin) -> list[Effect]:
        """It has not come to that: the publisher goes on, perhaps with another backup."""
        del self.frozen[origin]
        return [Append(BackupFrozen(origin=origin, is_frozen=False))]

    def forget_notes(self, origin: Origin) -> list[Effect]:
        """The stream is gone, or another peer is its backup now: this copy is none to go on from."""
        self.notes.pop(origin, None)
        self.heard_at.pop(origin, None)
        return [Append(BackupNoted(origin=origin, note=_NOTHING))]

    def _open(self, origin: Origin, retention_ms: Millis, bounds: LogBounds) -> Feed:
        log = _log(origin)
        feed = self.feeds[origin] = Feed.restored(origin, log, self.limits, bounds)
        feed.is_altered = True  # A keeper does not know the definition.
        feed.wake = f"{SIFT}{log}"
        self._retention_ms[origin] = retention_ms
        self._origins_of_logs[log] = origin
        return feed

    def _subscribe(self, sender: PeerId, message: Subscribe, now: Millis) -> list[Effect]:
        served: list[Served] = []
        effects: list[Effect] = []
        for origin in message.copies_of:
            feed = self.feeds.get(origin)
            if feed is not None:
                served.append(feed.serve(message, sender))
                effects += feed.pump(now)
        return [Send(sender, subscribed(message, served)), *effects]

    def _tick(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for origin, feed in self.feeds.items():
            effects += feed.expire((now - self._retention_ms[origin]) << COUNT_BITS)
            effects += feed.resend(now)
            if feed.has_heartbeats:  # Of use once the publisher has said that the origin is over.
                effects += feed.beat(Silence(origin, feed.next, now << COUNT_BITS, is_idle=True), now)
        return effects

    @property
    def sieved_bytes(self) -> int:
        """What was left out of copies that readers did not need, for /metrics."""
        return sum(feed.sieving.saved_bytes for feed in self.feeds.values())

    def validate(self) -> None:
        for feed in self.feeds.values():
            feed.validate()


def _following(position: int, batches: tuple[Batch, ...]) -> list[Batch]:
    """Those that follow a position without a hole."""
    found: list[Batch] = []
    for batch in batches:
        if batch.first == (found[-1].next if found else position):
            found.append(batch)
    return found


def _log(origin: Origin) -> LogId:
    return f"copy/{origin.publisher.hex()}/{origin.stream}/{origin.epoch}"
