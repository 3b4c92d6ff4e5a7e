"""The ingress peer of streams: takes tuples from clients, makes them safe, and serves them to subscribers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.catalogue.custody import CustodyDecided
from protocols.catalogue.events import (
    Advertised,
    AdvertiseFailed,
    LookupFailed,
    StreamFound,
    StreamRemoved,
)
from protocols.catalogue.machine import CatalogueMachine
from protocols.catalogue.refusals import clock_is_off, unknown_stream
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import COUNT_BITS, HybridClock
from protocols.delivery.advertising import ROLE, Advertising
from protocols.delivery.backups import Backups, StreamClosed, StreamTaken
from protocols.delivery.feed import Feed, Served, subscribed
from protocols.delivery.messages import (
    Ack,
    Backed,
    Origin,
    OutboxClosed,
    OutboxOpened,
    OutboxPunctuated,
    Publish,
    Published,
    PublisherNews,
    PublishNoted,
    Punctuate,
    StreamGone,
    Subscribe,
    Unsubscribe,
)
from protocols.delivery.mirror import Mirror
from protocols.delivery.outbox import RETURN_MS, Greeting, Outbox, WaitingPublish, log_of, logs_kept, peers_of
from protocols.delivery.refusals import (
    busy,
    disk_is_low,
    of_results,
    taken_over,
    too_many,
    unavailable,
    without_event_time,
)
from protocols.delivery.sessions import Sessions
from protocols.effects import AfterSync, Append, AppendBatch, Effect, ForgetLog, ReleaseLog, Reply, Send, SetTimer, Tell
from protocols.events import (
    DiskSpace,
    Event,
    LogBounds,
    LogRead,
    NearestPeers,
    PeerDown,
    Received,
    Requested,
    Started,
    StoredBatch,
    TimerFired,
    Unreachable,
)
from protocols.ids import LogId, Millis, PeerId, RequestId, StreamName, SubscriptionId
from protocols.inside import Inside
from protocols.limits import Limits
from protocols.messages import Done, Record, Refused
from protocols.role import Owned
from protocols.store.messages import Leave

TICK: Final = "publisher/tick"
BEAT: Final = "publisher/beat"
SIFT: Final = "publisher/sift/"  # And the name of a log.


class LogSynced(Event, frozen=True):
    """Our own disk has everything of a stream's epoch below this sequence."""

    stream: StreamName
    epoch: Millis
    next: int


@dataclass(slots=True)
class Ingress:
    """Publishing at one peer.

    In:        PUBLISH, PUNCTUATE from clients; SUBSCRIBE, ACK, UNSUBSCRIBE from subscribers; BACKED from the backup;
               STREAM_GONE from whoever removed a stream
    Out:       Published, Done or Refused; SUBSCRIBED, BATCH, GAP, HEARTBEAT; BACKUP; PUBLISHER_NEWS, STREAM_GONE
    Keeps:     a log for each stream published to, for as long as the stream's retention
    Invariant: nothing is acknowledged or served before it is as safe as its stream promises; nothing is stamped while
               our clock is known to be off
    """

    owned: ClassVar[Owned] = Owned(
        ROLE,
        messages=(Subscribe, Ack, Unsubscribe, StreamGone, Backed),
        commands=(Publish, Punctuate, Leave),
        events=(NearestPeers, LogSynced, StreamTaken, StreamRemoved),
        records=(OutboxOpened, OutboxClosed, OutboxPunctuated, PublishNoted),
    )

    peer_id: PeerId
    catalogue: CatalogueMachine
    clock: HybridClock
    limits: Limits
    advertising: Advertising = field(init=False)
    backups: Backups = field(init=False)
    outboxes: dict[StreamName, Outbox] = field(default_factory=dict)
    _streams_of_logs: dict[LogId, StreamName] = field(default_factory=dict)
    # Their outbox is not open yet.
    _early: dict[StreamName, deque[tuple[RequestId, Publish]]] = field(default_factory=dict)
    _just_closed: dict[StreamName, Millis] = field(default_factory=dict)  # Epochs that had only just begun.
    _sessions: Sessions = field(default_factory=Sessions)
    # Whether we ever met another peer. If we did, and see none now, the network may be cut in two.
    _has_met: bool = False
    _is_alone: bool = False
    _lively: int = 1  # Streams with tuples in the last second; they share the time that statistics may take.
    _unsafe_bytes: int = 0
    _disk_is_low: bool = False
    _is_beating: bool = False  # A reader wants heartbeats, or a greeting is under way.

    def __post_init__(self) -> None:
        self.advertising = Advertising(self.catalogue, self.limits)
        self.backups = Backups(self.peer_id, self.catalogue, self.advertising)

    def restore(self, record: Record, logs: Mapping[LogId, LogBounds]) -> None:
        match record:
            case OutboxOpened():
                bounds = logs.get(log_of(record.definition.name, record.epoch), LogBounds(0, 0))
                self._open(record.definition, record.epoch, record.backup, bounds)
            case OutboxClosed():
                self._forget(record.stream)
            case OutboxPunctuated():
                if record.stream in self.outboxes:
                    self.outboxes[record.stream].punctuate(record.next, record.before_us)
            case PublishNoted():
                outbox = self.outboxes.get(record.stream)
                if outbox is not None and record.first + record.count <= outbox.feed.next:
                    self._sessions.add(record)  # Without its tuples the note is void: the crash came in between.

    def snapshot(self) -> list[Record]:
        logged = (outbox for outbox in self.outboxes.values() if outbox.feed.is_logged)
        return [*(record for outbox in logged for record in outbox.records()), *self._sessions.notes()]

    def handle(self, event: Event, now: Millis) -> list[Effect]:  # noqa: C901 - one branch for each thing that happens
        match event:
            case TimerFired(name=name) if (log := name.removeprefix(SIFT)) in self._streams_of_logs:
                return self.outboxes[self._streams_of_logs[log]].feed.woken(now)
            case TimerFired(name="publisher/tick"):
                return [*self._tick(now), SetTimer(TICK, self.limits.tick_ms)]
            case TimerFired(name="publisher/beat"):
                return self._beat(now)
            case Requested(request=request, command=Publish() as command):
                return self._publish(request, command, now)
            case Requested(request=request, command=Punctuate() as command):
                return self._punctuate(request, command, now)
            case LogSynced():
                return self._synced(event, now)
            case Received(sender=sender, message=Subscribe() as message) if not message.copies_of:
                return self._subscribe(sender, message, now)
            case Received(sender=sender, message=Ack() as message):
                return self._ack(sender, message, now)
            case Received(sender=sender, message=Unsubscribe() as message):
                if (outbox := self.outboxes.get(message.stream)) is not None:
                    outbox.feed.unsubscribe(message.subscription, sender)
            case Received(message=StreamGone(stream=stream)) if stream in self.outboxes:
                return self._renew(self.outboxes[stream], now)
            case StreamRemoved():
                return [Send(peer, StreamGone(stream=event.name)) for peer in event.publishers]
            case Received(sender=sender, message=Backed() as message):
                return self._backed(sender, message, now)
            case StreamFound() | Advertised() | AdvertiseFailed() | LookupFailed():
                return self._catalogue_said(event, now)
            case LogRead():
                return self._log_read(event, now)
            case Started():
                for outbox in self.outboxes.values():
                    outbox.quiet_from = now + RETURN_MS
                return [SetTimer(TICK, self.limits.tick_ms)]
            case NearestPeers():
                self.backups.near = event.peers
                self._has_met = self._has_met or bool(event.peers)
                self._is_alone = not self._has_met
            case PeerDown(peer=peer) | Unreachable(peer=peer):
                return self._lost(peer, now)
            case CustodyDecided():
                return self._decided(event, now)
            case StreamTaken():
                return self._taken(event, now)
            case DiskSpace():
                self._disk_is_low = event.is_low
            case Requested(request=request, command=Leave()):
                return [Reply(request, logs_kept(self.outboxes), last=False), *self._say_goodbye(now)]
        return []

    def _catalogue_said(
        self, event: StreamFound | Advertised | AdvertiseFailed | LookupFailed, now: Millis
    ) -> list[Effect]:
        match event:
            case StreamFound():
                return self._found(event, now)
            case Advertised(token=(_, "open", str(stream), str(backup))):
                return [*self._listed(stream, backup, now), *self._opened(stream, now)]
            case Advertised(token=(_, "news", str(stream), str(backup))):
                return self._listed(stream, backup, now)
            case AdvertiseFailed(token=(_, "news", str(stream), _)) if stream in self.outboxes:
                self.outboxes[stream].advertised = None  # The next tick tries again.
            case LookupFailed(token=(_, "greet", str(stream))) if stream in self.outboxes:
                return self._end_greeting(self.outboxes[stream], now)
            case (
                LookupFailed(token=(_, "open" | "renew", str(stream)))
                | AdvertiseFailed(token=(_, "open", str(stream), _))
            ):
                return self._refuse_early(stream, unavailable(stream, event.reason))
        return []

    # Taking tuples.

    def _publish(self, request: RequestId, command: Publish, now: Millis) -> list[Effect]:
        self.clock.witness(command.witness)
        outbox = self.outboxes.get(command.stream)
        is_open = outbox is not None and outbox.is_open
        is_behind = outbox is not None and outbox.is_behind(command)
        if outbox is not None and is_open and outbox.greeting is None and not is_behind:
            return self._accept(outbox, request, command, now)
        early = self._early.setdefault(command.stream, deque())
        if len(early) >= self.limits.waiting_publishes_max:
            return [Reply(request, busy(command.stream, "its stream is still being looked up"))]
        early.append((request, command))
        if outbox is not None and is_open and is_behind:
            return self._renew(outbox, now)
        if is_open or len(early) > 1:
            return []
        return self.catalogue.lookup(command.stream, (ROLE, "open", command.stream), now, guess=True)

    def _renew(self, outbox: Outbox, now: Millis) -> list[Effect]:
        """Somebody knows more of the stream than we do: look it up before anything more is taken for it."""
        if outbox.is_renewing or not outbox.is_open:
            return []
        outbox.is_renewing, name = True, outbox.definition.name
        return self.catalogue.lookup(name, (ROLE, "renew", name), now)

    def _accept(self, outbox: Outbox, request: RequestId, command: Publish, now: Millis) -> list[Effect]:
        note = self._sessions.find(command)
        if note is not None:  # A repetition: the first answer was lost, or is still to come.
            outbox.waiting.append(WaitingPublish(request, note.first, note.count, note.stamp, 0))
            return self._commit(outbox, now)
        refusal = self._refusal(outbox, command)
        if outbox.definition.query and Inside.is_client(request):
            refusal = of_results(outbox.definition)
        if refusal is not None:
            return [Reply(request, refusal)]
        feed, size = outbox.feed, len(command.rows)
        if not command.count:
            return [Reply(request, Published(first=feed.next, count=0, stamp=self.clock.latest))]
        batch = StoredBatch(feed.next, command.count, self.clock.tick(now), command.rows)
        feed.append(batch)
        if outbox.mirror is not None:
            outbox.mirror.appended()
        outbox.note_statistics(batch, self._lively, now)
        effects: list[Effect] = []
        if command.session:
            note = self._sessions.note(command, batch)
            effects = [Append(note)] if feed.is_logged else []
        if not feed.is_logged:
            outbox.durable = feed.next
            answer = Published(first=batch.first, count=batch.count, stamp=batch.published_at)
            return [Reply(request, answer), *feed.commit(feed.next, now)]
        self._unsafe_bytes += size
        outbox.waiting.append(WaitingPublish(request, batch.first, batch.count, batch.published_at, size))
        synced = LogSynced(outbox.definition.name, feed.origin.epoch, feed.next)
        # The note goes first: a note without its tuples is ignored, but tuples without their note would be published
        # twice.
        return [*effects, AppendBatch(feed.log, batch), AfterSync((Tell(synced),))]

    def _refusal(self, outbox: Outbox, command: Publish) -> Refused | None:
        name, feed, size = command.stream, outbox.feed, len(command.rows)
        if self.clock.is_off:
            return clock_is_off(name, self.clock)
        if (refusal := outbox.objection(command, self.limits)) is not None:
            return refusal
        if command.session and not self._sessions.has_room_for(command):
            return busy(name, "too many clients have published here in the last minutes")
        if feed.is_logged:
            if self._disk_is_low:
                return disk_is_low(name, self.limits.poll_ms)
            if self._unsafe_bytes and self._unsafe_bytes + size > self.limits.unsafe_bytes_max:
                return busy(name, f"{self._unsafe_bytes} bytes wait for the disk")
            return None
        if not outbox.make_room(size):
            return busy(name, f"{feed.recent_bytes} bytes in memory wait for their subscribers")
        return None

    def _synced(self, event: LogSynced, now: Millis) -> list[Effect]:
        outbox = self.outboxes.get(event.stream)
        if outbox is None or outbox.feed.origin.epoch != event.epoch:
            return []
        outbox.durable = max(outbox.durable, event.next)
        effects = outbox.mirror.feed_on(outbox.durable, now) if outbox.mirror else []
        return effects + self._commit(outbox, now)

    def _commit(self, outbox: Outbox, now: Millis) -> list[Effect]:
        """Answer the clients whose tuples are now safe, and serve these tuples to subscribers."""
        effects = outbox.feed.commit(outbox.safe(is_alone=self._is_alone), now)
        while outbox.waiting and outbox.waiting[0].first + outbox.waiting[0].count <= outbox.feed.committed:
            done = outbox.waiting.popleft()
            self._unsafe_bytes -= done.size
            effects.append(Reply(done.request, Published(first=done.first, count=done.count, stamp=done.stamp)))
        return effects

    # Opening and closing outboxes.

    def _found(self, event: StreamFound, now: Millis) -> list[Effect]:
        definition, outbox, purpose = event.definition, self.outboxes.get(event.name), event.token[1]
        if definition is None:
            effects = self._close(event.name, now) if outbox and event.is_dropped else []
            return effects + self._refuse_early(event.name, unknown_stream(event.name, event.nearest_name))
        if outbox is not None and definition.created_at < outbox.definition.created_at:
            definition = outbox.definition  # The answer was long on its way.
        effects = self._close(event.name, now) if outbox and outbox.is_other(definition.created_at) else []
        outbox = self.outboxes.get(event.name)
        if outbox is None:
            return effects + (self._open_found(event, definition, now) if event.name in self._early else [])
        if outbox.adopt(definition) and outbox.feed.is_logged:
            effects.append(Append(outbox.opened()))
        if outbox.has_custody:
            effects += [*self.backups.found(outbox, event, now), *self._commit(outbox, now)]
        ours = tuple(entry for entry in event.subscribers if entry.share.has(self.peer_id))
        match purpose:
            case "check":
                outbox.feed.expect({entry.subscription: entry.peer for entry in ours})
                outbox.known_at = outbox.checked_at
            case "greet":
                readers = [each for each in peers_of(event.subscribers) if each not in outbox.readers]
                effects += [Send(peer, PublisherNews(stream=event.name)) for peer in readers]
                if outbox.greeting is not None:
                    outbox.greeting.hear(ours, outbox.feed)
                    effects += self._end_greeting(outbox, now) if outbox.greeting.is_over(now) else self._keep_beating()
            case "renew":
                outbox.is_renewing = False
                effects += self._accept_early(outbox, now)
            case "open":
                outbox.readers = peers_of(event.subscribers)
                effects.append(AfterSync(tuple(self.advertising.advertise(outbox, "open", now))))
        return effects

    def _open_found(self, event: StreamFound, definition: StreamDefinition, now: Millis) -> list[Effect]:
        early = self._early.get(event.name, ())
        if definition.query and all(Inside.is_client(request) for request, _ in early):
            return self._refuse_early(event.name, of_results(definition))
        if len(self.outboxes) >= self.limits.streams_max:
            return self._refuse_early(event.name, too_many(event.name, self.limits.streams_max))
        epoch = max(now, self._just_closed.pop(event.name, 0) + 1)
        outbox = self._open(definition, epoch, self.backups.nearest(), LogBounds(0, 0))
        least = now + self.limits.greet_least_ms if definition.event_time is not None else now
        outbox.quiet_from, outbox.greeting = now, Greeting(now + self.limits.greet_ms, least)
        outbox.readers = peers_of(event.subscribers)
        opened: list[Effect] = [Append(outbox.opened())] if outbox.feed.is_logged else []
        return [*opened, AfterSync(tuple(self.advertising.advertise(outbox, "open", now)))]

    def open_own(self, definition: StreamDefinition, now: Millis) -> list[Effect]:
        """Get ready to publish to a stream that a role of this peer creates and nobody else publishes to."""
        outbox = self._open(definition, now, self.backups.nearest(), LogBounds(0, 0))
        outbox.is_open, outbox.quiet_from = True, now
        if outbox.mirror is not None:
            outbox.mirror.is_checked = True  # Nobody can have taken it over yet.
        return [Append(outbox.opened()), AfterSync(tuple(self.advertising.advertise(outbox, "open", now)))]

    def close_own(self, stream: StreamName, now: Millis) -> list[Effect]:
        """The stream was never created, so the catalogue would never report it removed."""
        return self._close(stream, now) if stream in self.outboxes else []

    def own_origins(self, stream: StreamName) -> tuple[Origin, ...]:
        return (self.outboxes[stream].feed.origin,) if stream in self.outboxes else ()

    def _open(self, definition: StreamDefinition, epoch: Millis, backup: PeerId | None, bounds: LogBounds) -> Outbox:
        name = definition.name
        known = self.outboxes.get(name)
        # Replayed from the journal: only the backup has changed, or the stream was altered.
        if known is not None and known.feed.origin.epoch == epoch:
            known.adopt(definition)
            if known.mirror:
                known.mirror.move_to(backup)
                known.mirror.listed = backup
            self._has_met = self._has_met or backup is not None
            return known
        self._forget(name)
        feed = Feed.restored(Origin(self.peer_id, name, epoch), log_of(name, epoch), self.limits, bounds)
        outbox = self.outboxes[name] = Outbox.of(definition, feed, backup, bounds.next)
        self._streams_of_logs[feed.log] = name
        feed.wake = f"{SIFT}{feed.log}"
        self._has_met = self._has_met or backup is not None
        return outbox

    def _opened(self, stream: StreamName, now: Millis) -> list[Effect]:
        outbox = self.outboxes.get(stream)
        if outbox is None:
            return []
        outbox.is_open = True
        effects: list[Effect] = [Send(peer, PublisherNews(stream=stream)) for peer in outbox.readers]
        # A subscriber also looks again once it is listed: if both begin at once, at least one finds the other.
        effects += self.catalogue.lookup(stream, (ROLE, "greet", stream), now)
        return [*effects, *self._accept_early(outbox, now)]

    def _end_greeting(self, outbox: Outbox, now: Millis) -> list[Effect]:
        """All readers that wait for our time know us, or have had their chance."""
        outbox.greeting = None
        return self._accept_early(outbox, now)

    def _accept_early(self, outbox: Outbox, now: Millis) -> list[Effect]:
        if outbox.greeting is not None or outbox.is_renewing:
            return []
        early = self._early.pop(outbox.definition.name, ())
        return [effect for request, command in early for effect in self._accept(outbox, request, command, now)]

    def _refuse_early(self, stream: StreamName, refusal: Refused) -> list[Effect]:
        if stream in self.outboxes:
            self.outboxes[stream].is_renewing = False
        return [Reply(request, refusal) for request, _ in self._early.pop(stream, ())]

    def _close(self, stream: StreamName, now: Millis) -> list[Effect]:
        """The stream is gone, and its tuples with it; answer whoever waits."""
        outbox = self.outboxes[stream]
        gone = unknown_stream(stream, None)
        effects: list[Effect] = [Reply(waiting.request, gone) for waiting in outbox.waiting]
        self._unsafe_bytes -= sum(waiting.size for waiting in outbox.waiting)
        self._forget(stream)
        feed = outbox.feed
        if feed.origin.epoch >= now:
            self._just_closed[stream] = feed.origin.epoch
        if outbox.definition.query:
            effects.append(Tell(StreamClosed(stream)))
        if feed.is_logged:
            effects += [ReleaseLog(feed.log, feed.next), Append(OutboxClosed(stream=stream)), ForgetLog(feed.log)]
        return effects + self.advertising.withdraw(outbox, now)

    def _forget(self, stream: StreamName) -> None:
        outbox = self.outboxes.pop(stream, None)
        if outbox is not None:
            self._sessions.forget(stream)
            self._streams_of_logs.pop(outbox.feed.log, None)

    # Serving subscribers.

    def _subscribe(self, sender: PeerId, message: Subscribe, now: Millis) -> list[Effect]:
        self.clock.witness(max(message.since, message.witness))
        served: list[Served] = []
        effects: list[Effect] = []
        outbox = self.outboxes.get(message.stream)
        if outbox is not None:
            served.append(outbox.feed.serve(message, sender))
            effects = outbox.feed.pump(now)
            if message.heartbeats:
                effects += [*self._say_silent(outbox, now, message.subscription), *self._keep_beating()]
            if outbox.greeting is not None and outbox.greeting.awaited is not None:
                outbox.greeting.awaited.pop(message.subscription, None)
                effects += self._end_greeting(outbox, now) if outbox.greeting.is_over(now) else []
        answer = Send(sender, subscribed(message, served))
        # A crash could still lose what is not on disk, and other tuples would then get the same sequence numbers.
        is_safe = outbox is None or all(each.position.next <= outbox.durable for each in served)
        return [answer if is_safe else AfterSync((answer,)), *effects]

    def _ack(self, sender: PeerId, message: Ack, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for position in message.positions:
            outbox = self.outboxes.get(position.origin.stream)
            if outbox is not None and outbox.feed.origin == position.origin:
                effects += outbox.feed.ack(message.subscription, sender, position.next, now, position.dead)
        return effects

    def _log_read(self, event: LogRead, now: Millis) -> list[Effect]:
        stream = self._streams_of_logs.get(event.log)
        if stream is None:
            return []
        outbox = self.outboxes[stream]
        effects = outbox.feed.read(event.first, event.batches, now)
        if outbox.mirror:
            effects += outbox.mirror.read(event.first, event.batches, outbox.durable, now)
        return effects

    # Our own time.

    def _punctuate(self, request: RequestId, command: Punctuate, now: Millis) -> list[Effect]:
        outbox = self.outboxes.get(command.stream)
        if outbox is None:
            return [Reply(request, unavailable(command.stream, "This peer has not published to it yet."))]
        if outbox.definition.event_time is None:
            return [Reply(request, without_event_time(command.stream))]
        return [*outbox.punctuated(command.before_us), AfterSync((Reply(request, Done(stamp=self.clock.tick(now))),))]

    def _say_silent(self, outbox: Outbox, now: Millis, only: SubscriptionId | None = None) -> list[Effect]:
        """Tell readers that nothing follows what they have; not while our clock is off, as we could not stamp it."""
        return [] if self.clock.is_off else outbox.feed.beat(outbox.silence(self.clock.tick(now)), now, only)

    def _say_goodbye(self, now: Millis) -> list[Effect]:
        """Readers need not wait for a peer that leaves."""
        effects: list[Effect] = []
        for outbox in self.outboxes.values():
            outbox.is_leaving = True
            effects += self._say_silent(outbox, now)
        return effects

    def _keep_beating(self) -> list[Effect]:
        if self._is_beating:
            return []
        self._is_beating = True
        return [SetTimer(BEAT, self.limits.heartbeat_ms)]

    def _beat(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        self._is_beating = False
        for outbox in list(self.outboxes.values()):
            if outbox.greeting is not None and outbox.is_open and outbox.greeting.is_over(now):
                effects += self._end_greeting(outbox, now)
            if outbox.feed.has_heartbeats:
                effects += self._say_silent(outbox, now)
            if outbox.feed.has_heartbeats or outbox.greeting is not None:
                effects += self._keep_beating()
        return effects

    # The copy at the backup.

    def _backed(self, sender: PeerId, message: Backed, now: Millis) -> list[Effect]:
        outbox = self.outboxes.get(message.origin.stream)
        if outbox is None or outbox.feed.origin != message.origin:
            return []
        return [*self.backups.backed(outbox, sender, message, now), *self._commit(outbox, now)]

    def _listed(self, stream: StreamName, backup: str, now: Millis) -> list[Effect]:
        outbox = self.outboxes.get(stream)
        return [*self.backups.listed(outbox, backup, now), *self._commit(outbox, now)] if outbox is not None else []

    def _decided(self, event: CustodyDecided, now: Millis) -> list[Effect]:
        _, _, stream, epoch = event.token
        outbox = self.outboxes.get(str(stream))
        if outbox is None or outbox.feed.origin.epoch != epoch:
            return []
        return [*self.backups.decided(outbox, event, now), *self._commit(outbox, now)]

    def _taken(self, event: StreamTaken, now: Millis) -> list[Effect]:
        """Another peer goes on with these results: what it has not got of them nobody will."""
        outbox = self.outboxes[event.stream]
        effects = self._commit(outbox, now)
        self._unsafe_bytes -= sum(waiting.size for waiting in outbox.waiting)
        effects += [Reply(waiting.request, taken_over(event.stream)) for waiting in outbox.waiting]
        outbox.waiting.clear()
        return effects

    def copied(self, stream: StreamName) -> Mirror | None:
        """The second copy of the results of a query, for notes beside it; None where there is none."""
        outbox = self.outboxes.get(stream)
        mirror = outbox.mirror if outbox is not None and outbox.has_custody else None
        return mirror if mirror is not None and not mirror.is_over else None

    def _lost(self, peer: PeerId, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        self.backups.lost(peer)
        for outbox in self.outboxes.values():
            outbox.feed.unreachable(peer)
            if outbox.mirror and outbox.mirror.backup == peer:
                effects += [*self.backups.move(outbox, now), *self._commit(outbox, now)]
        return effects

    # From time to time.

    def _tick(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        lively = 0
        for name, outbox in list(self.outboxes.items()):
            lively += outbox.feed.next > outbox.ticked
            outbox.ticked = outbox.feed.next
            effects += outbox.feed.expire((now - outbox.definition.retention_ms) << COUNT_BITS)
            effects += outbox.feed.resend(now)
            if outbox.mirror:
                effects += self.backups.tend(outbox, now)
                effects += self._commit(outbox, now)  # A peer alone has nobody to confirm what it had before a restart.
            effects += self.advertising.renew(outbox, now)
            if now - outbox.checked_at >= self.limits.advertise_every_ms:
                outbox.checked_at = now
                effects += self.catalogue.lookup(name, (ROLE, "check", name), now)
        self._lively = max(lively, 1)
        return effects

    @property
    def sieved_bytes(self) -> int:
        """For /metrics: what was left out, as its readers did not need it."""
        return sum(outbox.feed.sieving.saved_bytes for outbox in self.outboxes.values())

    def validate(self) -> None:
        unsafe = sum(waiting.size for outbox in self.outboxes.values() for waiting in outbox.waiting)
        assert self._unsafe_bytes == unsafe
        for outbox in self.outboxes.values():
            outbox.feed.validate()
            assert outbox.feed.committed <= max(outbox.durable, outbox.feed.first)
