"""The subscriber's end of delivery: finds the publishers of a stream, takes each tuple once, and keeps its position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.catalogue.events import (
    Advertised,
    AdvertiseFailed,
    LookupFailed,
    PublisherEntry,
    StreamFound,
)
from protocols.catalogue.machine import CatalogueMachine
from protocols.catalogue.refusals import clock_is_off, unknown_stream
from protocols.clock import HybridClock
from protocols.delivery.cursor import Cursor, dead_letters, tail
from protocols.delivery.dead_letters import REASON_CHARACTERS_MAX, TRIES_MAX
from protocols.delivery.messages import (
    Ack,
    BatchMessage,
    CloseSubscription,
    CursorMoved,
    DeadLetter,
    DeadLettered,
    Gap,
    GuestsChanged,
    Heartbeat,
    ListDeadLetters,
    Missed,
    NeedsChanged,
    Opened,
    OpenSubscription,
    Origin,
    Placed,
    Position,
    PublisherNews,
    ReadsChanged,
    Refuse,
    Rows,
    Seen,
    Silent,
    Subscribe,
    Subscribed,
    SubscriptionOpened,
    TupleBuried,
    Unsubscribe,
)
from protocols.delivery.refusals import another_stream, lost_columns, of_opening, unavailable
from protocols.delivery.relay_reader import RelayReader
from protocols.effects import AfterSync, Append, Effect, Reply, Send, SetTimer, Tell
from protocols.events import (
    Abandoned,
    Event,
    LogBounds,
    PeerDown,
    Received,
    Requested,
    Started,
    TimerFired,
    Unreachable,
)
from protocols.ids import LogId, Millis, PeerId, RequestId, StreamName, SubscriptionId
from protocols.limits import Limits
from protocols.messages import Done, Record, Refused
from protocols.role import Owned
from protocols.sight import NetworkSeen

ROLE: Final = "subscriber"
POLL: Final = "subscriber/poll"


class LetterSynced(Event, frozen=True):
    """A dead letter is on our disk: its subscription can go on."""

    subscription: SubscriptionId
    letter: DeadLetter


@dataclass(slots=True)
class Subscriber:
    """Subscribing at one peer.

    In:        OPEN, SEEN, REFUSE, CLOSE, LIST_DEAD from clients; SUBSCRIBED, BATCH, GAP, HEARTBEAT, PUBLISHER_NEWS
               from those who serve it
    Out:       Opened, Rows, Missed, Publishers, Silent, DeadLettered; SUBSCRIBE, ACK, UNSUBSCRIBE
    Keeps:     how far each kept subscription has been seen, and its dead letters
    Invariant: a client gets each tuple of an origin once and in order while it stays; after it comes back, from
               where it had seen
    """

    owned: ClassVar[Owned] = Owned(
        ROLE,
        messages=(Subscribed, BatchMessage, Gap, Heartbeat, PublisherNews),
        commands=(OpenSubscription, Seen, Refuse, ListDeadLetters, CloseSubscription),
        events=(LetterSynced, ReadsChanged, NeedsChanged, GuestsChanged, NetworkSeen),
        records=(SubscriptionOpened, CursorMoved, TupleBuried),
    )

    peer_id: PeerId
    catalogue: CatalogueMachine
    clock: HybridClock
    limits: Limits
    subscriptions: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    _requests: dict[RequestId, SubscriptionId] = field(default_factory=dict)
    _relays: RelayReader = field(init=False)

    def __post_init__(self) -> None:
        self._relays = RelayReader(self.peer_id, self.limits, ROLE)

    def restore(self, record: Record, logs: Mapping[LogId, LogBounds]) -> None:
        match record:
            case SubscriptionOpened(ended=True):
                self.subscriptions.pop(record.subscription, None)
            case SubscriptionOpened():
                name = record.subscription
                restored = Cursor(name, record.stream, record.since, True, record.share, record.created_at)
                restored.is_journalled = True
                self.subscriptions.setdefault(name, restored)
            case CursorMoved():
                subscription = self.subscriptions.get(record.subscription)
                if subscription is not None:
                    for position in record.positions:
                        before = subscription.seen.get(position.origin, 0)
                        subscription.seen[position.origin] = max(before, position.next)
                        subscription.dead.tell(position.origin, position.dead)
            case TupleBuried(letter=letter):
                subscription = self.subscriptions.get(record.subscription)
                if subscription is not None:
                    subscription.dead.add(letter, self.limits)
                    subscription.dead.count = record.number
                    before = subscription.seen.get(letter.batch.origin, 0)
                    subscription.seen[letter.batch.origin] = max(before, letter.batch.next)

    def snapshot(self) -> list[Record]:
        records: list[Record] = []
        for each in self.subscriptions.values():
            if each.keep:
                positions = each.positions_at(list(each.seen))
                records += [each.record(), CursorMoved(subscription=each.subscription, positions=positions)]
                first = each.dead.count - len(each.dead.letters) + 1
                records += [
                    TupleBuried(subscription=each.subscription, number=number, letter=letter)
                    for number, letter in enumerate(each.dead.letters, start=first)
                ]
        return records

    def handle(self, event: Event, now: Millis) -> list[Effect]:  # noqa: C901 - one branch for each thing that happens
        match event:
            case TimerFired(name="subscriber/poll"):
                return [*self._poll(now), SetTimer(POLL, self.limits.poll_ms)]
            case Requested(request=request, command=OpenSubscription() as command):
                return self._open(request, command, now)
            case Requested(command=Seen() as command):
                return self._seen(command)
            case Requested(command=Refuse() as command):
                return self._refused(command, now)
            case Requested(request=request, command=ListDeadLetters() as command):
                return [AfterSync((Reply(request, dead_letters(self.subscriptions, command, self.limits)),))]
            case LetterSynced():
                return self._buried(event)
            case ReadsChanged():
                return self._relist(event, now)
            case NeedsChanged(subscription=name) if name in self.subscriptions:
                self.subscriptions[name].needs = event.needs
                return self._ask_all(self.subscriptions[name])
            case Requested(request=request, command=CloseSubscription() as command):
                return self._close(request, command, now)
            case Abandoned():
                return self._abandoned(event, now)
            case StreamFound() | Advertised() | AdvertiseFailed() | LookupFailed():
                return self._catalogue_said(event, now)
            case Received(sender=sender, message=Subscribed() as message):
                return self._subscribed(sender, message, now)
            case NetworkSeen() | GuestsChanged():
                return self._relays.told(self.subscriptions, event, now)
            case Received(sender=sender, message=BatchMessage() as message):
                return self._take(sender, message)
            case Received(sender=sender, message=Gap() as message):
                return self._gap(sender, message)
            case Received(sender=sender, message=Heartbeat() as message):
                return self._silent(sender, message)
            case Received(message=PublisherNews() as message):
                return self._poll(now, message.stream)
            case Unreachable(peer=peer, message=Subscribe()) | PeerDown(peer=peer):
                return self._lost(peer, now)
            case Started():
                return [SetTimer(POLL, self.limits.poll_ms)]
        return []

    def _catalogue_said(
        self, event: StreamFound | Advertised | AdvertiseFailed | LookupFailed, now: Millis
    ) -> list[Effect]:
        match event:
            case StreamFound(token=(_, _, str(subscription))) if subscription in self.subscriptions:
                return self._found(self.subscriptions[subscription], event, now)
            case Advertised(token=(_, "open", str(subscription))) if subscription in self.subscriptions:
                known = self.subscriptions[subscription]
                # A publisher may have looked before we were listed, and been listed after: this lookup finds it.
                again = self.catalogue.lookup(known.stream, (ROLE, "poll", subscription), now)
                return [*self._advertised(known), *again]
            case Advertised(token=(_, "listed", str(subscription))) if subscription in self.subscriptions:
                return self.catalogue.lookup(self.subscriptions[subscription].stream, (ROLE, "poll", subscription), now)
            case Advertised(token=(_, "close", str(name))) | AdvertiseFailed(token=(_, "close", str(name))):
                closed = self.subscriptions.get(name)
                return self._unlisted(event, closed, now) if closed is not None and closed.closers else []
            case AdvertiseFailed(token=(_, "listed", str(subscription))) if subscription in self.subscriptions:
                self.subscriptions[subscription].advertised_at = 0  # The next poll tries again.
            case (
                LookupFailed(token=(_, "open", str(subscription)), reason=reason)
                | AdvertiseFailed(token=(_, "open", str(subscription)), reason=reason)
            ):
                return self._give_up(subscription, reason)
        return []

    # Clients come and go.

    def serves(self, request: RequestId) -> bool:
        return request in self._requests

    def _open(self, request: RequestId, command: OpenSubscription, now: Millis) -> list[Effect]:
        self.clock.witness(command.witness)
        effects: list[Effect] = []
        known = self.subscriptions.get(command.subscription)
        is_full = len(self.subscriptions) >= self.limits.subscriptions_max
        if refusal := of_opening(known, command, self.limits, is_full=is_full):
            return [Reply(request, refusal)]
        if known is None:
            match command.since:
                case "now" if self.clock.is_off:
                    return [Reply(request, clock_is_off(command.stream, self.clock))]
                case "now":
                    since = self.clock.tick(now)
                case "start":
                    since = 0
                case stamp:
                    since = stamp
            known = Cursor(command.subscription, command.stream, since, command.keep, command.share, command.created_at)
            known.heartbeats = command.heartbeats
            self.subscriptions[command.subscription] = known
        elif known.request is not None:
            taken_over = Refused(code="exists", error=f'subscription "{known.subscription}" was taken over')
            effects.append(Reply(known.request, taken_over))
            self._requests.pop(known.request, None)
        for position in command.positions:
            known.seen[position.origin] = max(known.seen.get(position.origin, 0), position.next)
            known.doubts.passed(position.origin, position.next)
        known.attach(request, command)
        self._requests[request] = known.subscription
        if command.known and not known.keep and not known.is_open:
            return [*effects, *self._open_known(known, command.known, now)]
        return [*effects, *self.catalogue.lookup(known.stream, (ROLE, "open", known.subscription), now, guess=True)]

    def _open_known(self, subscription: Cursor, origins: tuple[Origin, ...], now: Millis) -> list[Effect]:
        """Read from these publishers at once: their logs keep what is published until we are listed. Then look for
        others.
        """
        subscription.publishers = {
            each: PublisherEntry(peer=each.publisher, epoch=each.epoch)
            for each in origins
            if subscription.share.has(each.publisher)
        }
        effects = [*self._ask_all(subscription), *self._advertised(subscription), *subscription.introduce()]
        return [*effects, *self._advertise(subscription, "listed", now)]

    def _found(self, subscription: Cursor, event: StreamFound, now: Millis) -> list[Effect]:
        if event.definition is None:
            if not event.is_dropped and (subscription.is_open or subscription.is_journalled):
                return []
            return self._refuse(subscription, unknown_stream(event.name, event.nearest_name), now)
        if not subscription.means(event.definition.created_at):
            return self._refuse(subscription, another_stream(event.name), now)
        if refusal := lost_columns(event.definition, subscription.reads):
            return self._refuse(subscription, refusal, now)
        subscription.publishers = {
            Origin(entry.peer, event.name, entry.epoch): entry
            for entry in event.publishers
            if subscription.share.has(entry.peer)
        }
        effects = [
            *self._ask_all(subscription),
            *subscription.introduce(),
            *self._relays.look(subscription, event, now),
        ]
        if event.token[1] == "open" and not subscription.is_open:
            effects += self._advertise(subscription, "open", now)
            if subscription.keep:
                subscription.is_journalled = True
                effects.append(Append(subscription.record()))
        elif event.token[1] == "open":
            effects += self._advertised(subscription)
        return effects

    def _advertise(self, subscription: Cursor, purpose: str, now: Millis) -> list[Effect]:
        subscription.advertised_at = now
        entry, token = subscription.entry(self.peer_id), (ROLE, purpose, subscription.subscription)
        return self.catalogue.advertise_subscriber(subscription.stream, entry, self._life(subscription), token, now)

    def _relist(self, event: ReadsChanged, now: Millis) -> list[Effect]:
        subscription = self.subscriptions.get(event.subscription)
        if subscription is None:
            return []
        begins = event.heartbeats and not subscription.heartbeats
        subscription.reads, subscription.heartbeats = event.reads, event.heartbeats
        # From now on it goes by the time of publishers: they are to say it, and it is to know them.
        effects = [*self._ask_all(subscription), *subscription.introduce()] if begins else []
        if subscription.is_open:
            effects += self._advertise(subscription, "listed", now)
        return effects

    def _life(self, subscription: Cursor) -> Millis:
        return self.limits.advertisement_life_ms if subscription.keep else self.limits.passing_life_ms

    def _advertised(self, subscription: Cursor) -> list[Effect]:
        """The subscription is listed, so the client may rely on it: nothing published from here on is missed."""
        subscription.is_open = True
        if subscription.request is None:
            return []
        stamp, dead = max(subscription.since, self.clock.latest), subscription.dead.count
        opened = Opened(subscription=subscription.subscription, stamp=stamp, dead=dead)
        return [AfterSync((Reply(subscription.request, opened, last=False),))]

    def _refuse(self, subscription: Cursor, refusal: Refused, now: Millis) -> list[Effect]:
        request = subscription.request
        effects = self._end(subscription, now)
        return [*effects, Reply(request, refusal)] if request is not None else effects

    def _give_up(self, name: SubscriptionId, reason: str) -> list[Effect]:
        """The owners of the stream's key did not answer; the client may try again."""
        subscription = self.subscriptions.get(name)
        if subscription is None or subscription.request is None:
            return []
        request, subscription.request = subscription.request, None
        self._requests.pop(request, None)
        if not subscription.is_journalled:
            del self.subscriptions[name]
        return [Reply(request, unavailable(subscription.stream, reason))]

    def _abandoned(self, event: Abandoned, now: Millis) -> list[Effect]:
        name = self._requests.pop(event.request, None)
        subscription = self.subscriptions.get(name) if name is not None else None
        if subscription is None:
            return []
        subscription.request = None
        if not subscription.keep:
            return self._end(subscription, now)
        effects: list[Effect] = []
        if event.is_broken and not subscription.is_burying:
            for origin, upto in subscription.in_hand().items():
                effects += self._failed(subscription, origin, upto, "the client went away while it had it", now)
        return effects + self._ask_all(subscription)  # Without credit: nothing more is sent until a client reads.

    def _close(self, request: RequestId, command: CloseSubscription, now: Millis) -> list[Effect]:
        subscription = self.subscriptions.get(command.subscription)
        if subscription is None:
            error = f'subscription "{command.subscription}" is not known at this peer'
            return [Reply(request, Refused(code="unknown", error=error))]
        subscription.closers.append(request)
        return self._unlist(subscription, "close", now)

    def _unlisted(self, event: Advertised | AdvertiseFailed, subscription: Cursor, now: Millis) -> list[Effect]:
        """Forget a subscription only when no publisher waits for it any more, whatever crashes meanwhile."""
        if isinstance(event, Advertised):
            return self._forget(subscription, now, event.replicas)
        closers, subscription.closers = subscription.closers, []
        return [Reply(request, unavailable(subscription.stream, event.reason)) for request in closers]

    def _end(self, subscription: Cursor, now: Millis) -> list[Effect]:
        return [*self._forget(subscription, now), *self._unlist(subscription, "end", now)]

    def _unlist(self, subscription: Cursor, purpose: str, now: Millis) -> list[Effect]:
        name = subscription.subscription
        token, life = (ROLE, purpose, name), self._life(subscription)
        return self.catalogue.withdraw_subscriber(subscription.stream, name, life, token, now)

    def _forget(self, subscription: Cursor, now: Millis, replicas: int = 1) -> list[Effect]:
        name = subscription.subscription
        del self.subscriptions[name]
        if subscription.request is not None:
            self._requests.pop(subscription.request, None)
        ended = [Append(subscription.record(ended=True))] if subscription.keep else []
        unsubscribe = Unsubscribe(subscription=name, stream=subscription.stream)
        peers = dict.fromkeys([*(peer for peer, _ in subscription.told), *subscription.served_by.values()])
        done = Done(stamp=self.clock.tick(now), replicas=replicas)
        told = AfterSync(tuple(Reply(request, done) for request in subscription.closers))
        return [*ended, *(Send(peer, unsubscribe) for peer in peers), *([told] if told.effects else [])]

    # Finding publishers.

    def _poll(self, now: Millis, stream: StreamName | None = None) -> list[Effect]:
        effects: list[Effect] = []
        for name, subscription in self.subscriptions.items():
            if subscription.request is not None and stream in (None, subscription.stream):
                purpose = "poll" if subscription.is_open else "open"
                effects += self.catalogue.lookup(subscription.stream, (ROLE, purpose, name), now)
            is_listed = (subscription.is_open or subscription.keep) and not subscription.closers
            if is_listed and now - subscription.advertised_at > self._life(subscription) / 3:
                effects += self._advertise(subscription, "renew", now)
        return effects

    def _ask_all(self, subscription: Cursor) -> list[Effect]:
        """Ask every publisher for its tuples, and the backups of those that cannot answer."""
        groups: dict[tuple[PeerId, bool], list[Origin]] = {}
        for origin, entry in subscription.publishers.items():
            groups.setdefault((origin.publisher, False), []).append(origin)
            if origin in subscription.absent and entry.backup is not None:
                groups.setdefault((entry.backup, True), []).append(origin)
        asked = [
            self._relays.ask_server(subscription, peer, origins, copies) for (peer, copies), origins in groups.items()
        ]
        return [*asked, *self._relays.ask_again(subscription)]

    def _subscribed(self, sender: PeerId, message: Subscribed, now: Millis) -> list[Effect]:
        subscription = self.subscriptions.get(message.subscription)
        if subscription is None:
            return [Send(sender, Unsubscribe(subscription=message.subscription, stream=message.stream))]
        served = {position.origin: position.next for position in message.positions}
        if not subscription.is_served(sender, served):
            return []
        fresh = [position for position in message.positions if position.origin not in subscription.seen]
        for position in fresh:
            subscription.seen[position.origin] = subscription.taken[position.origin] = position.next
        for origin in served:
            subscription.served_by[origin] = sender
            if origin.publisher == sender:
                subscription.absent.pop(origin, None)
        effects: list[Effect] = []
        if subscription.request is not None and (placed := subscription.place(served)):
            effects.append(Reply(subscription.request, Placed(positions=placed), last=False))
        effects += [*subscription.hear(sender, message), *self._relays.heard(subscription, sender, message, now)]
        if fresh and subscription.keep:
            effects.append(Append(CursorMoved(subscription=subscription.subscription, positions=tuple(fresh))))
        missing = [o for o in subscription.publishers if o.publisher == sender and o not in served]
        if missing and not message.depth and not any(origin.publisher != sender for origin in served):
            subscription.over.update(dict.fromkeys(missing))
            effects += [*self._ask_backups(subscription, missing), *subscription.introduce()]
        return effects

    def _lost(self, peer: PeerId, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for subscription in self.subscriptions.values():
            effects += self._relays.lost(subscription, peer, now)
            gone = [origin for origin in subscription.publishers if origin.publisher == peer]
            subscription.told.pop((peer, False), None)
            subscription.told.pop((peer, True), None)
            effects += self._ask_backups(subscription, gone)
        return effects

    def _ask_backups(self, subscription: Cursor, origins: list[Origin]) -> list[Effect]:
        """The ingress peer of these origins cannot serve them now: ask their backups."""
        effects: list[Effect] = []
        for origin in origins:
            backup = subscription.publishers[origin].backup
            if origin not in subscription.absent:
                subscription.absent[origin] = None
                if backup is not None and subscription.request is not None:
                    effects.append(self._relays.ask_server(subscription, backup, [origin], copies=True))
        return effects

    # Taking tuples.

    def _take(self, sender: PeerId, message: BatchMessage) -> list[Effect]:
        subscription = self.subscriptions.get(message.subscription)
        if subscription is None:
            stream = message.batches[0].origin.stream if message.batches else ""
            return [Send(sender, Unsubscribe(subscription=message.subscription, stream=stream))]
        if not subscription.is_served(sender, (batch.origin for batch in message.batches)):
            return []  # Of an earlier life of this peer, or a lie. If it is due, it comes again once we have asked.
        repeated: dict[Origin, None] = {}
        for batch in message.batches:
            origin = batch.origin
            subscription.served_by[origin] = sender
            upto = subscription.taken.get(origin)
            if upto is None or batch.first > upto or subscription.request is None:
                continue  # Something before it is missing; the sender resends from there.
            if batch.next <= upto:
                repeated[origin] = None
                continue
            if not subscription.accepts(batch):
                continue
            subscription.taken[origin] = batch.next
            subscription.heard_of = max(subscription.heard_of, batch.published_at)
            subscription.held.append(batch if batch.first == upto else tail(batch, upto))
        effects = self._hand_on(subscription)
        if repeated:  # Its sender missed our last ACK.
            positions = subscription.positions_at(list(repeated))
            effects.append(Send(sender, Ack(subscription=subscription.subscription, positions=positions)))
        return effects

    def _hand_on(self, subscription: Cursor) -> list[Effect]:
        """Give the client as much as it can take."""
        if subscription.request is None:
            return []
        batches = subscription.hand_out(self.limits.client_bytes_max)
        return [Reply(subscription.request, Rows(batches=tuple(batches)), last=False)] if batches else []

    def _silent(self, sender: PeerId, message: Heartbeat) -> list[Effect]:
        """A publisher has no more: say so to the clients that have read all it has.

        A backup cannot speak for its publisher, unless that one has said that the origin is over.
        """
        effects: list[Effect] = []
        silence, origin = message.silence, message.silence.origin
        for name in message.subscriptions:
            subscription = self.subscriptions.get(name)
            if subscription is None or subscription.request is None:
                continue
            is_ours = subscription.may_say(sender, origin) and subscription.is_served(sender, (origin,))
            if is_ours and subscription.taken.get(origin) == silence.next and not subscription.held:
                subscription.heard_of = max(subscription.heard_of, silence.at)
                effects.append(Reply(subscription.request, Silent(silence=silence), last=False))
        return effects

    def _gap(self, sender: PeerId, message: Gap) -> list[Effect]:
        subscription = self.subscriptions.get(message.subscription)
        is_ours = subscription is not None and subscription.is_served(sender, (message.origin,))
        if subscription is None or subscription.request is None or not is_ours:
            return []
        origin, upto = message.origin, subscription.taken.get(message.origin)
        is_tried = subscription.trial is not None or subscription.is_burying
        if upto is None or message.first > upto or subscription.held or is_tried:
            return []  # Something before it is in flight, lost, held or tried here; GAP will be sent again.
        if message.next <= upto:
            repeated = Ack(subscription=message.subscription, positions=subscription.positions_at([origin]))
            return [Send(sender, repeated)]
        subscription.taken[origin] = message.next
        subscription.served_by[origin] = sender
        subscription.unseen.append((origin, message.next, 0))
        return [Reply(subscription.request, Missed(origin=origin, first=upto, next=message.next), last=False)]

    def _seen(self, command: Seen) -> list[Effect]:
        subscription = self.subscriptions.get(command.subscription)
        if subscription is None:
            return []
        return [*self._moved(subscription, subscription.see(command.positions)), *self._hand_on(subscription)]

    def _moved(self, subscription: Cursor, moved: list[Position]) -> list[Effect]:
        """Record the client's new positions, and acknowledge them to whoever serves it."""
        acks = subscription.acks(moved)
        if not subscription.keep or not moved:
            return acks
        record = CursorMoved(subscription=subscription.subscription, positions=tuple(moved))
        return [Append(record), AfterSync(tuple(acks))]

    # What clients cannot process.

    def _refused(self, command: Refuse, now: Millis) -> list[Effect]:
        subscription = self.subscriptions.get(command.subscription)
        origin = command.origin
        if subscription is None or subscription.is_burying:
            return []
        effects = self._moved(subscription, subscription.see((Position(origin, command.first),)))
        in_hand = subscription.in_hand().get(origin, 0)
        if subscription.seen.get(origin, 0) != command.first or not command.first < command.next <= in_hand:
            return effects  # The client refuses tuples that it does not hold, or no longer.
        effects += self._failed(subscription, origin, command.next, command.reason, now)
        return [*effects, *self._hand_on(subscription)]

    def _failed(self, subscription: Cursor, origin: Origin, upto: int, reason: str, now: Millis) -> list[Effect]:
        """The client failed on what it held up to here: hand it out again, or dead-letter the tuple."""
        tries, trial = subscription.doubts.failed(origin, upto), subscription.trial
        if tries >= TRIES_MAX and trial is not None and trial.origin == origin:
            return self._bury(subscription, DeadLetter(trial, reason[:REASON_CHARACTERS_MAX], now))
        subscription.take_back(origin)
        if trial is not None or subscription.request is None:
            return []
        peer = subscription.served_by.get(origin, origin.publisher)
        copies = peer != origin.publisher
        subscription.told.pop((peer, copies), None)  # Asked as if for the first time, the server sends again.
        return [self._relays.ask_server(subscription, peer, [origin], copies)]

    def _bury(self, subscription: Cursor, letter: DeadLetter) -> list[Effect]:
        """Dead-letter a tuple; what follows waits until that is on disk."""
        subscription.is_burying = True
        subscription.dead.add(letter, self.limits)
        number, name = subscription.dead.count, subscription.subscription
        effects: list[Effect] = []
        if subscription.keep:
            effects.append(Append(TupleBuried(subscription=name, number=number, letter=letter)))
        return [*effects, AfterSync((Tell(LetterSynced(name, letter)),))]

    def _buried(self, event: LetterSynced) -> list[Effect]:
        subscription = self.subscriptions.get(event.subscription)
        if subscription is None or not subscription.is_burying:
            return []
        subscription.is_burying, batch = False, event.letter.batch
        subscription.skip(batch.origin, batch.next)
        effects = subscription.acks([subscription.position(batch.origin)])
        if subscription.request is not None:
            told = DeadLettered(origin=batch.origin, sequence=batch.first, reason=event.letter.reason)
            effects.append(Reply(subscription.request, told, last=False))
        return [*effects, *self._hand_on(subscription)]

    def validate(self) -> None:
        for request, name in self._requests.items():
            assert self.subscriptions[name].request == request
        for subscription in self.subscriptions.values():
            subscription.validate()
