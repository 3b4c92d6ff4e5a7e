"""What a peer publishes to one stream, and what it says about its own time while it is silent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.events import PublisherEntry, SubscriberEntry
from protocols.catalogue.statistics import SAMPLE_MAX, StatisticsSketch
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import COUNT_BITS, Stamp, wall_ms
from protocols.delivery.feed import Feed
from protocols.delivery.messages import FINISHED_US, LogKept, LogsKept, OutboxOpened, OutboxPunctuated, Publish, Silence
from protocols.delivery.mirror import Mirror
from protocols.delivery.refusals import another_stream, of_rows, taken_over
from protocols.effects import Append, Effect
from protocols.events import StoredBatch
from protocols.ids import LogId, Millis, PeerId, RequestId, StreamName, SubscriptionId
from protocols.limits import Limits
from protocols.messages import Record, Refused
from queries.schema import Row

SAMPLE_EVERY_MS: Final = 100  # In this time as many rows are sampled as one batch has samples at most.
QUIET_MS: Final = 2000  # After so long a silent publisher is idle, unless its stream says otherwise.
GRACE_MS: Final = 2000  # Clocks differ: a subscription's stamp may be lower by so much than that of a tuple before it.
RETURN_MS: Final = 10_000  # A publisher that restarts is not idle before its clients had time to come back.


@dataclass(slots=True)
class WaitingPublish:
    """A publish whose tuples are not safe yet."""

    request: RequestId
    first: int
    count: int
    stamp: Stamp
    size: int


@dataclass(slots=True)
class Greeting:
    """A new publisher makes itself known before its first tuple, to all readers that go by the time of publishers.

    Without it the watermark of a reader could pass the first tuples: the reader would not know whom to wait for. A
    reader that stays away delays the first tuple until `until`, not longer. If tuples have an event time, others who
    begin in the same moment are to be known, too, before it passes theirs.
    """

    until: Millis
    least: Millis = 0
    awaited: dict[SubscriptionId, None] | None = None  # None: the catalogue has not said yet who reads.

    def hear(self, readers: tuple[SubscriberEntry, ...], feed: Feed) -> None:
        """The catalogue lists these readers."""
        known = {name for name, consumer in feed.consumers.items() if consumer.credit}
        timed = [each.subscription for each in readers if each.heartbeats]
        self.awaited = {each: None for each in timed if each not in known}
        self.least = self.least if timed else 0

    def is_over(self, now: Millis) -> bool:
        return now >= self.until or (self.awaited == {} and now >= self.least)


@dataclass(slots=True)
class Outbox:
    """What this peer publishes to one stream."""

    definition: StreamDefinition
    feed: Feed
    mirror: Mirror | None  # The copy at the backup, for `replicated` streams.
    statistics: StatisticsSketch
    quiet_from: Millis = 0  # Silence counts from here on, or from the last tuple.
    is_open: bool = False  # Advertised in this run, so subscribers find it.
    greeting: Greeting | None = None  # While readers get to know this publisher, its first tuples wait.
    readers: tuple[PeerId, ...] = ()  # Peers with subscriptions; they get PUBLISHER_NEWS once a lookup finds us.
    durable: int = 0  # Below: on our own disk.
    waiting: deque[WaitingPublish] = field(default_factory=deque)
    advertised: PublisherEntry | None = None
    advertised_at: Millis = 0
    weighed: int = 0  # The next sequence when the statistics were last compared with the advertised ones,
    ticked: int = 0  # and at the last tick.
    rested_at: Millis = 0  # The next batch after this is sampled for the statistics.
    checked_at: Millis = 0  # When the catalogue was last asked about the stream.
    # When the last question that it answered was asked: every subscription older than that has its place.
    known_at: Millis = 0
    before_us: int | None = None  # Punctuation: no tuple to come has an event time before this one.
    finished_at: int | None = None  # The position at which a client said that it had finished.
    is_leaving: bool = False
    is_renewing: bool = False  # Somebody knows more of the stream: the catalogue is asked for it.

    @classmethod
    def of(cls, definition: StreamDefinition, feed: Feed, backup: PeerId | None, durable: int) -> Outbox:
        feed.is_logged = definition.durability != "memory"
        feed.is_altered = definition.version > 1
        mirror = None
        if definition.durability == "replicated":  # Our disk may hold tuples that have not reached the backup.
            mirror = Mirror(feed, backup, definition.retention_ms, listed=backup, floor=feed.next)
            mirror.confirmed_next = mirror.sent = feed.committed = feed.first
        return cls(definition, feed, mirror, _sketch(definition), durable=durable)

    @property
    def has_custody(self) -> bool:
        """Whether its backup may take the stream over: it has the results of a query, with their notes."""
        return self.mirror is not None and bool(self.definition.query)

    def is_other(self, created_at: Stamp) -> bool:
        """Whether somebody means another stream of this name; 0: it does not say which."""
        return created_at not in (0, self.definition.created_at)

    def is_behind(self, command: Publish) -> bool:
        """Whether a client may know more of the stream than we do."""
        known = self.definition
        return self.is_renewing or known.version < command.version or known.created_at < command.created_at

    def adopt(self, definition: StreamDefinition) -> bool:
        """The stream may have been altered. Rows before keep their places; their columns are counted anew."""
        if definition.version <= self.definition.version:
            return False
        self.definition, self.statistics, self.feed.is_altered = definition, _sketch(definition), True
        return True

    def make_room(self, size: int) -> bool:
        """Let go of what a `memory` stream need not keep; says whether so many bytes more have their place then."""
        feed, all_known_before = self.feed, (self.known_at - GRACE_MS) << COUNT_BITS
        feed.drop_settled(all_known_before)
        while feed.recent_bytes and feed.recent_bytes + size > feed.limits.memory_stream_bytes_max:
            if self.definition.policy == "block" and not feed.is_unclaimed(all_known_before):
                return False
            feed.drop_oldest()
        return True

    def safe(self, *, is_alone: bool) -> int:
        """Everything below is as safe as the stream promises."""
        return self.durable if self.mirror is None else self.mirror.safe(self.durable, is_alone=is_alone)

    def objection(self, command: Publish, limits: Limits) -> Refused | None:
        """Why these tuples are not for this stream, whatever room there is."""
        if self.is_other(command.created_at):
            return another_stream(command.stream)
        if self.mirror is not None and self.mirror.is_over:
            return taken_over(command.stream)
        return of_rows(self.definition, command, limits)

    def punctuated(self, before_us: int) -> list[Effect]:
        """A client has said that no tuple to come has an event time before this one."""
        position = self.feed.next
        self.punctuate(position, before_us)
        record = OutboxPunctuated(stream=self.definition.name, next=position, before_us=before_us)
        return [Append(record)] if self.feed.is_logged else []

    def punctuate(self, position: int, before_us: int) -> None:
        if before_us == FINISHED_US:
            self.finished_at = position
        else:
            self.before_us = before_us if self.before_us is None else max(self.before_us, before_us)

    def silence(self, at: Stamp) -> Silence:
        """What we can say of ourselves as of a stamp just given."""
        silent_ms = wall_ms(at) - max(wall_ms(self.feed.latest), self.quiet_from)
        idle_ms = self.definition.idle_ms
        has_finished = self.finished_at == self.feed.next or (idle_ms and silent_ms >= idle_ms)
        return Silence(
            self.feed.origin,
            self.feed.next,
            at,
            is_idle=silent_ms >= (idle_ms or QUIET_MS),
            before_us=FINISHED_US if has_finished else self.before_us,
            is_leaving=self.is_leaving,
        )

    def note_statistics(self, batch: StoredBatch, lively: int, now: Millis) -> None:
        """Count every tuple, but sample a batch only now and then, whatever the rate and the number of lively streams.

        Each stream has turns of its own: a client that alternates between two streams would otherwise give statistics
        of one.
        """
        rows: list[Row] = []
        if now >= self.rested_at:
            self.rested_at = now + SAMPLE_EVERY_MS * lively * min(batch.count, SAMPLE_MAX) // SAMPLE_MAX
            rows = self.definition.current.decode(batch.rows)
        self.statistics.add(rows, batch.count, len(batch.rows), now)

    def entry(self, now: Millis) -> PublisherEntry:
        """What the catalogue is to tell of this publisher."""
        feed = self.feed
        return PublisherEntry(
            peer=feed.origin.publisher,
            epoch=feed.origin.epoch,
            backup=self.mirror.listed if self.mirror else None,
            accepted=feed.next - feed.counted_from,
            processed=feed.processed,
            pending=feed.next - feed.settled,
            dead_lettered=feed.dead_lettered,
            expired=feed.expired,
            statistics=self.statistics.summary(now),
            created_at=self.definition.created_at,
        )

    def records(self) -> list[Record]:
        """What a snapshot of the journal tells of it."""
        name = self.definition.name
        records: list[Record] = [self.opened()]
        if self.before_us is not None:
            records.append(OutboxPunctuated(stream=name, next=0, before_us=self.before_us))
        if self.finished_at is not None:
            records.append(OutboxPunctuated(stream=name, next=self.finished_at, before_us=FINISHED_US))
        return records

    def opened(self) -> OutboxOpened:
        backup = self.mirror.listed if self.mirror else None
        return OutboxOpened(definition=self.definition, epoch=self.feed.origin.epoch, backup=backup)


def log_of(stream: StreamName, epoch: Millis) -> LogId:
    return f"out/{stream}/{epoch}"


def logs_kept(outboxes: Mapping[StreamName, Outbox]) -> LogsKept:
    """The tuples that can be read only here or at the backup."""
    kept = [
        LogKept(name, outbox.feed.next - outbox.feed.settled, outbox.mirror.listed if outbox.mirror else None)
        for name, outbox in sorted(outboxes.items())
        if outbox.feed.next > outbox.feed.settled
    ]
    return LogsKept(logs=tuple(kept))


def _sketch(definition: StreamDefinition) -> StatisticsSketch:
    return StatisticsSketch.of(definition.current.fields)


def peers_of(readers: Iterable[SubscriberEntry]) -> tuple[PeerId, ...]:
    return tuple(dict.fromkeys(entry.peer for entry in readers))
