"""The backup of other peers' `replicated` streams: keeps a copy, and serves it when the ingress peer cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.clock import COUNT_BITS
from protocols.delivery.feed import Feed
from protocols.delivery.messages import (
    Ack,
    Backed,
    Backup,
    BackupOpened,
    Origin,
    Position,
    Silence,
    Subscribe,
    Subscribed,
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
EPOCHS_MAX: Final = 4  # Of a stream whose tuples are all kept still.


class CopySynced(Event, frozen=True):
    """Our disk has everything of an origin's copy below this sequence."""

    origin: Origin
    next: int


@dataclass(slots=True)
class Keeper:
    """Copies of other peers' tuples.

    In:        BACKUP from ingress peers; SUBSCRIBE (with copies_of), ACK, UNSUBSCRIBE from subscribers
    Out:       BACKED; SUBSCRIBED, BATCH, GAP, HEARTBEAT
    Keeps:     a log for each origin, until the ingress peer lets go of it or its retention is over
    Invariant: BACKED names only what is on our disk, without a hole
    """

    owned: ClassVar[Owned] = Owned(
        "keeper", messages=(Subscribe, Ack, Unsubscribe, Backup), events=(CopySynced,), records=(BackupOpened,)
    )

    limits: Limits
    feeds: dict[Origin, Feed] = field(default_factory=dict)
    _retention_ms: dict[Origin, Millis] = field(default_factory=dict)
    _origins_of_logs: dict[LogId, Origin] = field(default_factory=dict)

    def restore(self, record: Record, logs: Mapping[LogId, LogBounds]) -> None:
        if isinstance(record, BackupOpened):
            bounds = logs.get(_log(record.origin), LogBounds(0, 0))
            self._open(record.origin, record.retention_ms, bounds)

    def snapshot(self) -> list[Record]:
        return [BackupOpened(origin=origin, retention_ms=kept) for origin, kept in self._retention_ms.items()]

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case TimerFired(name="keeper/tick"):
                return [*self._tick(now), SetTimer(TICK, self.limits.tick_ms)]
            case Received(sender=sender, message=Backup() as message):
                expect(message.origin.publisher == sender, "tuples of another publisher")
                return self._keep(message)
            case CopySynced():
                feed = self.feeds[event.origin]
                backed = Backed(origin=event.origin, next=event.next)
                return [Send(event.origin.publisher, backed), *feed.commit(event.next, now)]
            case Received(sender=sender, message=Subscribe() as message) if message.copies_of:
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

    def _keep(self, message: Backup) -> list[Effect]:
        origin = message.origin
        effects: list[Effect] = []
        feed = self.feeds.get(origin)
        if feed is None:
            theirs = sum(each.publisher == origin.publisher for each in self.feeds)
            expect(theirs < EPOCHS_MAX * self.limits.streams_max, "more streams than a peer can have")
            feed = self._open(origin, message.retention_ms, LogBounds(message.first, message.first))
            effects.append(Append(BackupOpened(origin=origin, retention_ms=message.retention_ms)))
        effects += feed.drop(min(message.first, feed.next))
        if message.first > feed.next:  # What lies between is kept nowhere any more.
            feed.skip_to(message.first)
        for batch in message.batches:
            if batch.first == feed.next:
                stored = StoredBatch(batch.first, batch.count, batch.published_at, batch.rows)
                feed.append(stored)
                effects.append(AppendBatch(feed.log, stored))
        return [*effects, AfterSync((Tell(CopySynced(origin, feed.next)),))]

    def _open(self, origin: Origin, retention_ms: Millis, bounds: LogBounds) -> Feed:
        log = _log(origin)
        feed = self.feeds[origin] = Feed.restored(origin, log, self.limits, bounds)
        feed.is_altered = True  # A keeper does not know the definition.
        self._retention_ms[origin] = retention_ms
        self._origins_of_logs[log] = origin
        return feed

    def _subscribe(self, sender: PeerId, message: Subscribe, now: Millis) -> list[Effect]:
        positions = []
        effects: list[Effect] = []
        for origin in message.copies_of:
            feed = self.feeds.get(origin)
            if feed is not None:
                positions.append(Position(origin, feed.accept(message, sender)))
                effects += feed.pump(now)
        answer = Subscribed(subscription=message.subscription, stream=message.stream, positions=tuple(positions))
        return [Send(sender, answer), *effects]

    def _tick(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for origin, feed in self.feeds.items():
            effects += feed.expire((now - self._retention_ms[origin]) << COUNT_BITS)
            effects += feed.resend(now)
            if feed.has_heartbeats:  # Of use once the publisher has said that the origin is over.
                effects += feed.beat(Silence(origin, feed.next, now << COUNT_BITS, is_idle=True))
        return effects

    def validate(self) -> None:
        for feed in self.feeds.values():
            feed.validate()


def _log(origin: Origin) -> LogId:
    return f"copy/{origin.publisher.hex()}/{origin.stream}/{origin.epoch}"
