"""One origin's tuples, served to everyone who reads them: the upstream end of delivery.

A feed knows what its log holds, how far that is committed, and where each consumer stands. It sends within a consumer's
credit (back-pressure), resends what stays unacknowledged, and sends GAP if it no longer keeps what is due. The ingress
peer of a stream has a feed, and so has its backup.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocols.clock import Stamp
from protocols.delivery.messages import (
    Batch,
    BatchMessage,
    Gap,
    Heartbeat,
    Origin,
    Position,
    Silence,
    Subscribe,
    Subscribed,
)
from protocols.delivery.needs import Needs
from protocols.delivery.sieving import SIFTED_BYTES_MAX, SPAN_MS, Sieving, Strainer
from protocols.effects import Effect, ReadLog, ReleaseLog, Send, SetTimer
from protocols.events import LogBounds, StoredBatch
from protocols.ids import LogId, Millis, PeerId, SubscriptionId, TimerName
from protocols.limits import Limits

BATCH_OVERHEAD_BYTES: Final = 128  # Roughly what a batch adds to its rows; it counts where batches are tiny.

DROPPED_MAX: Final = 4096


class Served(NamedTuple):
    """What SUBSCRIBED says of one feed."""

    position: Position
    heeded: tuple[int, int]  # By which version of the reader's needs its tuples are sieved, and from where on.
    end: int


def subscribed(message: Subscribe, served: Sequence[Served]) -> Subscribed:
    """The answer to SUBSCRIBE of a peer that serves these origins."""
    return Subscribed(
        subscription=message.subscription,
        stream=message.stream,
        positions=tuple(each.position for each in served),
        heeded=tuple(each.heeded for each in served),
        ends=tuple(each.end for each in served),
    )


def _as_batch(origin: Origin, batch: StoredBatch | Batch) -> Batch:
    """A batch for a reader that needs everything."""
    if isinstance(batch, Batch):
        assert batch.sieved is None, "what a reader needs was left out before it came here"
        return batch
    return Batch(origin, batch.first, batch.count, batch.published_at, batch.rows)


@dataclass(slots=True)
class Consumer:
    """One subscription, as its upstream sees it."""

    peer: PeerId
    acked: int
    sent: int
    credit: int
    in_flight: deque[tuple[int, int, Millis]] = field(default_factory=deque)  # Next sequence, bytes, time sent.
    in_flight_bytes: int = 0
    reading: int | None = None  # The sequence from which the log is being read.
    needs: Needs | None = None  # None: it has not said that it needs less than everything.
    unlisted: int = 0  # In how many lookups the catalogue did not list it.
    any_version: bool = False  # It reads rows of every version of the stream.
    heartbeats: bool = False  # It wants to hear that there is nothing to send.

    def rewind(self) -> None:
        """Forget what is in flight, so that it is sent again."""
        self.sent = self.acked
        self.in_flight.clear()
        self.in_flight_bytes = 0


@dataclass(slots=True)
class Feed:
    """The log of one origin and its consumers.

    Invariant: acked <= sent <= committed <= next for every consumer; first <= settled <= next
    """

    origin: Origin
    log: LogId
    limits: Limits
    # Its rows may be of a later version of the stream, so readers of 0.2 get none: they cannot read them.
    is_altered: bool = False
    is_logged: bool = True  # False for a `memory` stream, which has only recent batches.
    first: int = 0  # The lowest sequence still kept.
    next: int = 0
    committed: int = 0
    counted_from: int = 0  # The counters start at this sequence, the first one found at the last start.
    settled: int = 0  # Below this, every tuple was read by all consumers or has expired.
    processed: int = 0
    dead_lettered: int = 0  # Read by all consumers, and dead-lettered by at least one.
    expired: int = 0
    consumers: dict[SubscriptionId, Consumer] = field(default_factory=dict)
    latest: Stamp = 0  # Of the last tuple.
    recent_bytes: int = 0
    row_bytes: float = 0.0  # Smoothed.
    _recent: dict[int, StoredBatch | Batch] = field(default_factory=dict)  # By first sequence, oldest first.
    _firsts: list[int] = field(default_factory=list)  # First sequence of every batch kept, in order.
    _stamps: list[Stamp] = field(default_factory=list)
    _dead: dict[int, None] = field(default_factory=dict)  # Dead-lettered by a consumer and not settled yet.
    # Batches no longer kept.
    _dropped: deque[tuple[int, Stamp]] = field(default_factory=lambda: deque(maxlen=DROPPED_MAX))
    sieving: Sieving = field(init=False)
    wake: TimerName = ""  # Fires when there is more to sieve, or something to tell of what was left out.
    _wakes_at: Millis | None = None

    def __post_init__(self) -> None:
        self.sieving = Sieving(self.origin)

    @classmethod
    def restored(cls, origin: Origin, log: LogId, limits: Limits, bounds: LogBounds) -> Feed:
        """The feed of a log found on disk; all of it is committed."""
        feed = cls(origin, log, limits, first=bounds.first, next=bounds.next)
        feed.committed, feed.settled, feed.counted_from = bounds.next, bounds.first, bounds.first
        feed._firsts = [first for first, _ in bounds.stamps]
        feed._stamps = [stamp for _, stamp in bounds.stamps]
        feed.latest = max(feed._stamps, default=0)
        # The log no longer knows when these were published, only that it was earlier.
        if bounds.first and feed._stamps:
            feed._dropped.append((0, feed._stamps[0] - 1))
        return feed

    def append(self, batch: StoredBatch | Batch) -> None:
        """Take in a batch; consumers get it once it is committed."""
        assert batch.first == self.next
        self.next, self.latest = batch.next, batch.published_at
        self._firsts.append(batch.first)
        self._stamps.append(batch.published_at)
        self._recent[batch.first] = batch
        self.recent_bytes += len(batch.rows)
        size = len(batch.rows) / batch.count
        self.row_bytes += (size - self.row_bytes) / 16 if self.row_bytes else size
        while self.is_logged and self.recent_bytes > self.limits.recent_bytes and len(self._recent) > 1:
            oldest = next(iter(self._recent))
            if oldest >= self.committed:  # Not committed yet, so the disk may not have it to read back.
                break
            self.recent_bytes -= len(self._recent.pop(oldest).rows)

    def skip_to(self, first: int) -> None:
        """Begin anew at a later sequence; no copy of what lies between exists any more."""
        assert not self._firsts
        assert first >= self.next
        self.expired += first - self.settled
        self.first = self.next = self.committed = self.settled = first

    def commit(self, upto: int, now: Millis) -> list[Effect]:
        """Everything below is committed, as far as it is whole batches: send it to the consumers."""
        upto = min(upto, self.next)
        if upto < self.next and (place := bisect_right(self._firsts, upto)):
            upto = self._firsts[place - 1]
        if upto <= self.committed:
            return []
        self.committed = upto
        return self.pump(now)

    # Consumers.

    def subscribe(
        self,
        subscription: SubscriptionId,
        peer: PeerId,
        position: int | None,
        since: Stamp,
        credit: int,
        *,
        restart: bool,
    ) -> int:
        """A subscription reads from here on; returns its position. A repetition changes only the credit."""
        start = self._start(since) if position is None else min(position, self.next)
        consumer = self.consumers.get(subscription)
        if consumer is None or consumer.peer != peer or restart:
            self.sieving.drop(subscription)
            consumer = self.consumers[subscription] = Consumer(peer, acked=start, sent=start, credit=credit)
        elif start < consumer.acked:
            consumer.acked, consumer.credit = start, credit
            consumer.rewind()
        else:
            consumer.credit = credit
            self._advance(consumer, start)
        self._settle()
        return start

    def accept(self, message: Subscribe, sender: PeerId) -> int:
        """Handle SUBSCRIBE; returns the subscription's position in this feed."""
        known = {position.origin: position for position in message.positions}
        position = known.get(self.origin)
        if position is not None:
            self._note_dead(position.dead)
        start = self.subscribe(
            message.subscription,
            sender,
            position.next if position is not None else None,
            message.since,
            message.credit,
            restart=message.restart,
        )
        consumer, needs = self.consumers[message.subscription], message.needs
        consumer.heartbeats = message.heartbeats
        consumer.any_version = message.any_version
        if needs is not None and (consumer.needs is None or needs.version > consumer.needs.version):
            consumer.needs = needs
            self.sieving.heed(message.subscription, needs)
        return start

    def serve(self, message: Subscribe, sender: PeerId) -> Served:
        """Handle SUBSCRIBE; returns what SUBSCRIBED is to say of this feed."""
        return self.served(message.subscription, self.accept(message, sender))

    def served(self, subscription: SubscriptionId, upto: int) -> Served:
        consumer = self.consumers[subscription]
        version = consumer.needs.version if consumer.needs is not None else 0
        return Served(Position(self.origin, upto), (version, consumer.sent), self.committed)

    def expect(self, listed: Mapping[SubscriptionId, PeerId]) -> None:
        """Hold a place for every subscription that the catalogue lists, and drop others after two lookups."""
        for subscription, peer in listed.items():
            if subscription not in self.consumers:
                self.consumers[subscription] = Consumer(peer, acked=self.first, sent=self.first, credit=0)
        for subscription, consumer in list(self.consumers.items()):
            if subscription in listed:
                consumer.unlisted = 0
            # It was unlisted before, so it is not just new: it has ended, and its UNSUBSCRIBE was lost.
            elif consumer.unlisted:
                self._forget(subscription)
            else:
                consumer.unlisted = 1
        self._settle()

    def ack(
        self, subscription: SubscriptionId, peer: PeerId, upto: int, now: Millis, dead: tuple[int, ...] = ()
    ) -> list[Effect]:
        """A subscription has processed everything below; `dead` names its dead letters among that."""
        consumer = self.consumers.get(subscription)
        if consumer is None or consumer.peer != peer:
            return []
        self._note_dead(dead)
        self._advance(consumer, min(upto, self.next))
        self._settle()
        self.sieving.budget = SIFTED_BYTES_MAX
        return self._pump_one(subscription, consumer, now, {})

    def unsubscribe(self, subscription: SubscriptionId, peer: PeerId) -> None:
        consumer = self.consumers.get(subscription)
        if consumer is not None and consumer.peer == peer:
            self._forget(subscription)
            self._settle()

    def _forget(self, subscription: SubscriptionId) -> None:
        del self.consumers[subscription]
        self.sieving.drop(subscription)

    def unreachable(self, peer: PeerId) -> None:
        """What was on its way to a peer may be lost: send it again when the peer asks, or at the next resend."""
        for consumer in self.consumers.values():
            if consumer.peer == peer:
                consumer.rewind()
                consumer.credit = 0  # Until the peer subscribes again.

    def resend(self, now: Millis) -> list[Effect]:
        """Send again what has been in flight for too long."""
        for consumer in self.consumers.values():
            if consumer.in_flight and now - consumer.in_flight[0][2] >= self.limits.resend_after_ms:
                consumer.rewind()
        return self.pump(now)

    def pump(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        self.sieving.budget = SIFTED_BYTES_MAX
        for subscription, consumer in self.consumers.items():
            effects += self._pump_one(subscription, consumer, now, {})
        return effects

    @property
    def has_heartbeats(self) -> bool:
        """Whether some consumer wants to hear that there is nothing to send."""
        return any(consumer.heartbeats for consumer in self.consumers.values())

    def beat(self, silence: Silence, now: Millis, only: SubscriptionId | None = None) -> list[Effect]:
        """Tell those who have been sent everything, and want to know, that there is no more."""
        by_peer: dict[PeerId, list[SubscriptionId]] = {}
        spans: list[Effect] = []
        for subscription, consumer in self.consumers.items() if self.committed == self.next else ():
            if not consumer.heartbeats or not consumer.credit or only not in (None, subscription):
                continue
            spans += self._tell_span(subscription, consumer, now, always=True)
            if consumer.sent == self.next:
                by_peer.setdefault(consumer.peer, []).append(subscription)
        beats = [Send(peer, Heartbeat(subscriptions=tuple(group), silence=silence)) for peer, group in by_peer.items()]
        return [*spans, *beats]

    def read(self, first: int, batches: tuple[StoredBatch, ...], now: Millis) -> list[Effect]:
        """A log read has ended. It serves the consumers that wait at this place; the others wait for their own read."""
        loaded = {batch.first: batch for batch in batches}
        effects: list[Effect] = []
        self.sieving.budget = SIFTED_BYTES_MAX
        for subscription, consumer in self.consumers.items():
            if consumer.reading == first:
                consumer.reading = None
                if batches:  # Otherwise wait for the next resend: reading again at once would loop.
                    effects += self._pump_one(subscription, consumer, now, loaded)
        return effects

    def _pump_one(
        self, subscription: SubscriptionId, consumer: Consumer, now: Millis, loaded: dict[int, StoredBatch]
    ) -> list[Effect]:
        effects: list[Effect] = []
        if self.is_altered and not consumer.any_version:
            return []
        strainer = self.sieving.strainers.get(subscription)
        if strainer is not None:
            strainer.begin(consumer.sent)
            if consumer.sent < self.first:
                effects += self._tell_span(subscription, consumer, now, always=True)
        if consumer.sent < self.first:
            if not consumer.credit:
                return effects
            gap = Gap(subscription=subscription, origin=self.origin, first=consumer.sent, next=self.first)
            effects.append(Send(consumer.peer, gap))
            consumer.sent = self.first
            consumer.in_flight.append((self.first, 0, now))  # Resent, like tuples, until it is acknowledged.
        if strainer is not None:
            return [*effects, *self._pump_sieved(subscription, consumer, strainer, now, loaded)]
        while consumer.sent < self.committed and consumer.in_flight_bytes < consumer.credit:
            batches: list[Batch] = []
            size = 0
            while consumer.sent < self.committed and size < self.limits.message_bytes:
                found = self.find(consumer.sent, loaded)
                if found is None or (batches and size + len(found.rows) > self.limits.message_bytes):
                    break
                batches.append(_as_batch(self.origin, found))
                size += len(found.rows) + BATCH_OVERHEAD_BYTES
                consumer.sent = found.next
            if not batches:
                if consumer.reading is None:
                    consumer.reading = consumer.sent
                    effects.append(ReadLog(self.log, consumer.sent, self.limits.message_bytes))
                break
            effects.append(self._sent(subscription, consumer, batches, size, now))
        return effects

    def _sent(
        self, subscription: SubscriptionId, consumer: Consumer, batches: list[Batch], size: int, now: Millis
    ) -> Effect:
        consumer.sent = batches[-1].next
        consumer.in_flight.append((consumer.sent, size, now))
        consumer.in_flight_bytes += size
        return Send(consumer.peer, BatchMessage(subscription=subscription, batches=tuple(batches)))

    # Sieved tuples.

    def _pump_sieved(
        self,
        subscription: SubscriptionId,
        consumer: Consumer,
        strainer: Strainer,
        now: Millis,
        loaded: dict[int, StoredBatch],
    ) -> list[Effect]:
        effects: list[Effect] = []
        strainer.begin(consumer.sent)
        while consumer.in_flight_bytes < consumer.credit:
            batches: list[Batch] = []
            size = 0
            while size < self.limits.message_bytes and (strainer.ready or self._sift(subscription, strainer, loaded)):
                more = strainer.next(now)
                batches += more
                size += sum(len(each.rows) + BATCH_OVERHEAD_BYTES for each in more)
            if not batches:
                break
            effects.append(self._sent(subscription, consumer, batches, size, now))
        if strainer.at < self.committed and not strainer.ready and consumer.in_flight_bytes < consumer.credit:
            if self.sieving.budget <= 0:
                effects += self._wake(now, 0)
            elif consumer.reading is None:
                consumer.reading = strainer.at
                effects.append(ReadLog(self.log, strainer.at, self.limits.message_bytes))
        return [*effects, *(self._wake(now, SPAN_MS) if strainer.span is not None else [])]

    def _sift(self, subscription: SubscriptionId, strainer: Strainer, loaded: dict[int, StoredBatch]) -> bool:
        """Sieve the next batch for a consumer, and for all that stand where it does; False: that must wait."""
        at = strainer.at
        if at >= self.committed or self.sieving.budget <= 0:
            return False
        found = self.find(at, loaded)
        if found is None:
            return False
        same: list[SubscriptionId] = []
        for name, each in self.sieving.strainers.items():
            consumer = self.consumers[name]
            if name != subscription:
                each.begin(consumer.sent)
            if not each.ready and each.at == at and consumer.in_flight_bytes < consumer.credit:
                same.append(name)
        self.sieving.sift(found, self.sieving.together(subscription, same))
        return True

    def _tell_span(
        self, subscription: SubscriptionId, consumer: Consumer, now: Millis, *, always: bool = False
    ) -> list[Effect]:
        """Tell a consumer how far the stream has come without a tuple for it, if it has waited long enough."""
        strainer = self.sieving.strainers.get(subscription)
        if strainer is None or strainer.sent != consumer.sent or consumer.in_flight_bytes >= consumer.credit:
            return []
        if not always and not strainer.is_due(now, is_timed=consumer.heartbeats):
            return []
        span = strainer.flushed()
        if not span:
            return []
        return [self._sent(subscription, consumer, span, BATCH_OVERHEAD_BYTES, now)]

    def _wake(self, now: Millis, after_ms: Millis) -> list[Effect]:
        if not self.wake or (self._wakes_at is not None and self._wakes_at <= now + after_ms):
            return []
        self._wakes_at = now + after_ms
        return [SetTimer(self.wake, after_ms)]

    def woken(self, now: Millis) -> list[Effect]:
        """Go on sieving, and tell of what was left out."""
        self._wakes_at = None
        effects: list[Effect] = []
        for subscription in self.sieving.strainers:
            effects += self._tell_span(subscription, self.consumers[subscription], now)
        return [*effects, *self.pump(now)]

    def find(self, sequence: int, loaded: dict[int, StoredBatch]) -> StoredBatch | Batch | None:
        """The batch that holds a sequence, if it is in memory."""
        first = self._firsts[bisect_right(self._firsts, sequence) - 1]
        return self._recent.get(first) or loaded.get(first)

    def _advance(self, consumer: Consumer, upto: int) -> None:
        consumer.acked = max(consumer.acked, upto)
        consumer.sent = max(consumer.sent, consumer.acked)
        while consumer.in_flight and consumer.in_flight[0][0] <= consumer.acked:
            consumer.in_flight_bytes -= consumer.in_flight.popleft()[1]

    def _start(self, since: Stamp) -> int:
        """The first sequence published at this stamp or later. A reader from the start gets the first one kept."""
        if since and self._dropped and since <= self._dropped[-1][1]:  # It was due and is gone: the reader gets a GAP.
            return next(first for first, stamp in self._dropped if stamp >= since)
        place = bisect_left(self._stamps, since)
        return self._firsts[place] if place < len(self._firsts) else self.next

    # What need not be kept.

    def _settle(self) -> None:
        """Count what all consumers have read."""
        if self.consumers:
            read = min(consumer.acked for consumer in self.consumers.values())
            if read > self.settled:
                dead = self._forget_dead(read)
                self.dead_lettered += dead
                self.processed += read - self.settled - dead
                self.settled = read

    def _note_dead(self, sequences: tuple[int, ...]) -> None:
        for sequence in sequences:
            if self.settled <= sequence < self.next:
                self._dead[sequence] = None

    def _forget_dead(self, below: int) -> int:
        """Forget the dead letters below a sequence, as they are settled; returns how many there were."""
        settled = [sequence for sequence in self._dead if sequence < below]
        for sequence in settled:
            del self._dead[sequence]
        return len(settled)

    def expire(self, before: Stamp) -> list[Effect]:
        """Let go of what was published before a stamp; consumers that have not read it get a GAP."""
        place = bisect_left(self._stamps, before)
        keep = self._firsts[place] if place < len(self._firsts) else self.next
        return self.drop(min(keep, self.committed))

    def drop(self, below: int) -> list[Effect]:
        """Let go of everything below a batch's first sequence."""
        if below <= self.first:
            return []
        place = bisect_left(self._firsts, below)
        for first in self._firsts[:place]:
            batch = self._recent.pop(first, None)
            if batch is not None:
                self.recent_bytes -= len(batch.rows)
        self._dropped.extend(zip(self._firsts[:place], self._stamps[:place], strict=True))
        del self._firsts[:place], self._stamps[:place]
        if below > self.settled:
            self._forget_dead(below)  # Another consumer has not read them.
            self.expired += below - self.settled
            self.settled = below
        self.first = below
        return [ReleaseLog(self.log, below)] if self.is_logged else []

    def drop_oldest(self) -> None:
        """Let go of the oldest batch, read or not."""
        self.drop(self._firsts[1] if len(self._firsts) > 1 else self.next)

    def is_unclaimed(self, before: Stamp) -> bool:
        """Whether nobody waits for the oldest batch: it is older than the stamp, and there is no consumer."""
        return not self.consumers and bool(self._stamps) and self._stamps[0] < before

    def drop_settled(self, before: Stamp) -> None:
        """Let go of what all consumers have read and is older than the stamp; for `memory` streams only."""
        settled = bisect_right(self._firsts, self.settled) - 1
        place = min(settled, bisect_left(self._stamps, before))
        if self.consumers and place > 0:
            self.drop(self._firsts[place])

    def validate(self) -> None:
        assert self.first <= self.settled <= self.next
        assert self.committed <= self.next
        for consumer in self.consumers.values():
            assert consumer.acked <= consumer.sent <= max(self.committed, self.first, consumer.acked)
            assert consumer.in_flight_bytes == sum(size for _, size, _ in consumer.in_flight)
        assert self.sieving.strainers.keys() <= self.consumers.keys()
        self.sieving.validate()
        assert self.recent_bytes == sum(len(batch.rows) for batch in self._recent.values())
        assert self.processed + self.dead_lettered + self.expired == self.settled - self.counted_from
        assert all(self.settled <= sequence < self.next for sequence in self._dead)
