"""Messages, records, commands and answers of delivery.

client ── PUBLISH ──▶ ingress peer                                  rows, checked against the schema, logged
                      ingress ── BACKUP ──▶ backup ── BACKED ──▶    `replicated` streams: on a second disk
subscriber ── SUBSCRIBE ──▶ ingress ── SUBSCRIBED, BATCH ──▶ subscriber ── ACK ──▶ ingress
                            ingress ── HEARTBEAT ──▶ subscriber      while there is nothing to send
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec

from protocols.catalogue.shares import WHOLE, PublisherShare
from protocols.catalogue.streams import READS_ALL, Reads, StreamDefinition
from protocols.clock import Stamp
from protocols.delivery.needs import Needs, Sieved
from protocols.errors import expect
from protocols.events import Event
from protocols.ids import COUNT_MAX, Count, Micros, Millis, PeerId, StreamName, SubscriptionId
from protocols.messages import Answer, Command, Message, Record

SUBSCRIPTION_NAME_MAX: Final = (
    500  # Characters. It goes with every message, and into the name of an entry of the store.
)
SESSION_BYTES_MAX: Final = 64
_raw_rows: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_skip: Final = msgspec.msgpack.Decoder(msgspec.Raw)
_MARGIN: Final = b"\x91" * 100
_SHALLOW_BYTES: Final = 400  # So few cannot be nested too deeply for anybody.
FINISHED_US: Final = (1 << 63) - 1  # The punctuation of a publisher that has finished: nothing follows at any time.


def subscription_name(text: str) -> SubscriptionId:
    """The name of a subscription that a role makes up, cut where it would be too long.

    >>> subscription_name("flights~1"), len(subscription_name("x" * 5000))
    ('flights~1', 500)
    """
    if len(text) <= SUBSCRIPTION_NAME_MAX:
        return text
    end = sha256(text.encode()).hexdigest()
    return text[: SUBSCRIPTION_NAME_MAX - len(end)] + end


def count_rows(rows: bytes) -> int:
    """How many rows a batch has, without decoding them; below 0: it cannot be read.

    Nor can it if it nests nearly as deeply as the decoder can go: where it is read next, less of the stack may be left.
    """
    try:
        if len(rows) > _SHALLOW_BYTES:
            _skip.decode(_MARGIN + rows)
        return len(_raw_rows.decode(rows))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return -1


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where a sequence of tuples comes from: a publishing peer, a stream, and an epoch (one life of the
    peer's disk).
    """

    publisher: PeerId
    stream: StreamName
    epoch: Millis


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A place in what one origin has published: everything below `next` is behind it."""

    origin: Origin
    next: Count
    dead: tuple[Count, ...] = ()  # Tuples below `next` that were dead-lettered, not processed; the latest ones.


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive tuples of one origin; tuple i has the id (origin, first + i)."""

    origin: Origin
    first: Count
    count: Count
    published_at: Stamp
    rows: bytes  # A msgpack array of rows, each an array in the order of the schema.
    # Not all tuples are among the rows, or not all columns: the reader does not need them. None: nothing is left out.
    sieved: Sieved | None = None

    @property
    def next(self) -> int:
        return self.first + self.count

    def check(self) -> None:
        """What holds of every batch, whoever sends it; see Message.check."""
        expect(self.count > 0, "a batch without tuples")
        expect(self.next <= COUNT_MAX, "a batch beyond the end of all sequences")
        rows = count_rows(self.rows)
        if self.sieved is not None:
            self.sieved.check(self.count, rows)
        else:
            expect(rows == self.count, "a batch whose rows are not as many as it says, or cannot be read")


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A tuple that a subscription's client could not process, put aside."""

    batch: Batch  # Exactly one tuple.
    reason: str
    at: Millis


# From peer to peer.


class Subscribe(Message, frozen=True, kw_only=True, tag="SUBSCRIBE"):
    """A subscriber wants what this peer publishes, from its positions on, or from a time on where it has none yet."""

    subscription: SubscriptionId
    stream: StreamName
    positions: tuple[Position, ...]  # Its position in each origin that it knows at this peer.
    since: Stamp  # For any other origin: start at the first tuple with this stamp or a later one.
    credit: Count  # How many bytes of rows may be on their way; 0 while no client reads.
    copies_of: tuple[Origin, ...] = ()  # For a backup: the origins whose copy it should serve.
    restart: bool = False  # Resend from the positions on; what is in flight is useless.
    heartbeats: bool = False  # Send HEARTBEAT while there is nothing else to send.
    witness: Stamp = 0  # The subscription has heard of times up to this one: tuples to come get higher stamps.
    any_version: bool = False  # It reads rows of every version of the stream; peers of 0.2 cannot.
    needs: Needs | None = None  # What it does not need may be left out. None: the last needs that it stated hold.
    depth: Count = 0  # For a relay, which serves only readers of a greater depth than its own.

    def check(self) -> None:
        expect(len(self.subscription) <= SUBSCRIPTION_NAME_MAX, "the name of the subscription is too long")
        if self.needs is not None:
            self.needs.check()


class Subscribed(Message, frozen=True, kw_only=True, tag="SUBSCRIBED"):
    """Where a subscription stands with each origin that this peer serves; an origin left out is not kept here."""

    subscription: SubscriptionId
    stream: StreamName
    positions: tuple[Position, ...]
    # For each position: the version of the needs that is heeded there, and from where on. Empty: none are known here.
    heeded: tuple[tuple[Count, Count], ...] = ()
    ends: tuple[Count, ...] = ()  # For each position: up to where there are tuples now.
    depth: Count = 0  # Of a relay. It serves no more of the stream than it names here.

    def check(self) -> None:
        for each in (self.heeded, self.ends):
            expect(len(each) in (0, len(self.positions)), "says more or less than where it serves")


class BatchMessage(Message, frozen=True, kw_only=True, tag="BATCH"):
    """Tuples for a subscription, in the order of their sequence."""

    subscription: SubscriptionId
    batches: tuple[Batch, ...]

    def check(self) -> None:
        for batch in self.batches:
            batch.check()


class Silence(msgspec.Struct, frozen=True, array_like=True):
    """What a publisher says of itself: as of a time, nothing of its origin follows a position.

    Whoever has read up to there knows how far the publisher is without a tuple. Who has not read so far learns nothing.
    """

    origin: Origin
    next: Count
    at: Stamp  # Every later tuple gets a higher stamp.
    is_idle: bool = False  # It has been silent for so long that nobody need wait for its event time.
    before_us: Micros | None = None  # Punctuation: no tuple to come has an event time before this one.
    is_leaving: bool = False  # It leaves the network, and will not be heard of for a while.


class Heartbeat(Message, frozen=True, kw_only=True, tag="HEARTBEAT"):
    """A publisher has nothing to send to these subscriptions, and says how long that has been so."""

    subscriptions: tuple[SubscriptionId, ...]
    silence: Silence


class Gap(Message, frozen=True, kw_only=True, tag="GAP"):
    """Tuples that were due are no longer kept: the subscriber was away longer than the stream's retention."""

    subscription: SubscriptionId
    origin: Origin
    first: Count
    next: Count

    def check(self) -> None:
        expect(self.first < self.next, "a gap without tuples")


class Ack(Message, frozen=True, kw_only=True, tag="ACK"):
    """The subscriber has processed these, so more may be sent."""

    subscription: SubscriptionId
    positions: tuple[Position, ...]


class Unsubscribe(Message, frozen=True, kw_only=True, tag="UNSUBSCRIBE"):
    """A subscription has ended."""

    subscription: SubscriptionId
    stream: StreamName


class PublisherNews(Message, frozen=True, kw_only=True, tag="PUBLISHER_NEWS"):
    """A peer begins to publish to a stream, or begins a new epoch: readers should look it up again."""

    stream: StreamName


class StreamGone(Message, frozen=True, kw_only=True, tag="STREAM_GONE"):
    """A stream was removed: whoever publishes to it looks it up before it takes more for it."""

    stream: StreamName


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What the publisher of results keeps beside them; it means something only to whoever makes them go on."""

    number: Stamp  # Later ones have higher numbers.
    next: Count  # It speaks of the tuples below, and is void without them.
    after: Stamp  # The note that it adds to; 0: it stands for all earlier ones.
    parts: tuple[bytes, ...]


class Backup(Message, frozen=True, kw_only=True, tag="BACKUP"):
    """The ingress peer of a `replicated` stream asks its backup to keep these too, and to forget below `first`."""

    origin: Origin
    batches: tuple[Batch, ...]
    first: Count  # Where the ingress peer's log begins; what lies below is kept nowhere any more.
    retention_ms: Millis
    notes: tuple[Note, ...] = ()
    noted: Stamp = 0  # The last note that speaks of these batches: they are of no use without it.

    def check(self) -> None:
        for batch in self.batches:
            expect(batch.origin == self.origin, "a batch of another origin")
            batch.check()


class Backed(Message, frozen=True, kw_only=True, tag="BACKED"):
    """The backup has everything below `next` on disk and wants the tuples from there on."""

    origin: Origin
    next: Count
    noted: Stamp | None = None  # The last note on its disk. None: it keeps no notes, as a peer of 0.2.
    is_over: bool = False  # It takes no more: it takes the stream over.


# In the journal.


class OutboxOpened(Record, frozen=True, kw_only=True, tag="OUTBOX"):
    """This peer publishes to a stream, in this epoch, with this backup; the log holds the tuples."""

    definition: StreamDefinition
    epoch: Millis
    backup: PeerId | None


class OutboxClosed(Record, frozen=True, kw_only=True, tag="OUTBOX_CLOSED"):
    """The stream no longer exists."""

    stream: StreamName


class OutboxPunctuated(Record, frozen=True, kw_only=True, tag="PUNCTUATED"):
    """From this position on, no tuple of ours has an event time before this one."""

    stream: StreamName
    next: int
    before_us: int


class PublishNoted(Record, frozen=True, kw_only=True, tag="NOTED"):
    """Which tuples a client's publish became; a repetition gets this answer and publishes nothing."""

    stream: StreamName
    session: bytes
    number: int
    first: int
    count: int
    stamp: Stamp


class BackupOpened(Record, frozen=True, kw_only=True, tag="BACKUP_LOG"):
    """This peer keeps a copy of another's tuples; the log holds them."""

    origin: Origin
    retention_ms: Millis


class BackupNoted(Record, frozen=True, kw_only=True, tag="BACKUP_NOTE"):
    """A note beside the copy of another's tuples."""

    origin: Origin
    note: Note


class BackupFrozen(Record, frozen=True, kw_only=True, tag="BACKUP_FROZEN"):
    """This peer takes a stream over: from here on its copy stays as it is, unless it has not come to that."""

    origin: Origin
    is_frozen: bool


class SubscriptionOpened(Record, frozen=True, kw_only=True, tag="SUBSCRIPTION"):
    """A client of this peer reads a stream, and may come back."""

    subscription: SubscriptionId
    stream: StreamName
    since: Stamp
    ended: bool = False
    share: PublisherShare = WHOLE
    created_at: Stamp = 0  # Of the stream.


class CursorMoved(Record, frozen=True, kw_only=True, tag="CURSOR"):
    """The client has seen everything before these positions."""

    subscription: SubscriptionId
    positions: tuple[Position, ...]


class TupleBuried(Record, frozen=True, kw_only=True, tag="DEAD"):
    """A tuple was dead-lettered; the subscription goes on behind it."""

    subscription: SubscriptionId
    number: int  # How many dead letters this subscription has had, this one included.
    letter: DeadLetter


# Between a client and its peer.


class Publish(Command, frozen=True, kw_only=True, tag="PUBLISH"):
    """Publish rows to a stream. Answered with Published once the stream's durability is reached.

    Without rows it only opens the stream for publishing, so that the next PUBLISH waits for its tuples alone.
    """

    stream: StreamName
    rows: bytes
    count: int
    witness: Stamp = 0  # The highest stamp the client has seen; its tuples get a higher one.
    # Identifies the client, so that a repeated publish takes effect once.
    session: Annotated[bytes, msgspec.Meta(max_length=SESSION_BYTES_MAX)] = b""
    number: int = 0  # Counts the publishes of that client.
    version: int = 1  # Of the stream, as the client knew it: a peer that knows only an older one looks it up.
    created_at: Stamp = 0  # When the stream was created that the client means; 0: whichever has this name.


class Published(Answer, frozen=True, kw_only=True, tag="PUBLISHED"):
    """All rows are accepted: none will be lost."""

    first: int
    count: int
    stamp: Stamp


class Punctuate(Command, frozen=True, kw_only=True, tag="PUNCTUATE"):
    """Nothing that is published here from now on has an event time before this one. Answered with Done.

    Readers need not wait for this publisher up to that time, so windows close. FINISHED_US holds until the next tuple.
    """

    stream: StreamName
    before_us: Micros = FINISHED_US


class OpenSubscription(Command, frozen=True, kw_only=True, tag="OPEN"):
    """Read a stream. Answered with Opened, then Rows and Missed until the client goes away."""

    stream: StreamName
    subscription: SubscriptionId  # A name the client may come back to; without a name the client makes up a unique one.
    since: Literal["now", "start"] | Stamp = "now"  # For a new subscription.
    positions: tuple[Position, ...] = ()  # The client's own memory of its place; the further of both counts.
    keep: bool = False  # Keep the subscription, and what arrives, while the client is away.
    witness: Stamp = 0
    # The publishers of a stream on disk, if known: reading then begins without a lookup.
    known: tuple[Origin, ...] = ()
    share: PublisherShare = WHOLE  # The publishers to read from.
    heartbeats: bool = False  # Also answer with Publishers and Silent, for watermarks.
    reads: Reads = READS_ALL
    places: bool = False  # Also answer with Placed.
    needs: Needs | None = None  # What to leave out where that saves something; also answer with Heeded. None: nothing.
    created_at: Stamp = 0  # When the stream was created that the client means; 0: whichever has this name.
    relays: bool = False  # Read from other hosts where that is better, and let others read; also answer with Depth.


class Opened(Answer, frozen=True, kw_only=True, tag="OPENED"):
    """The subscription is listed: nothing published from now on is missed."""

    subscription: SubscriptionId
    stamp: Stamp
    dead: int = 0  # How many dead letters it has.


class Placed(Answer, frozen=True, kw_only=True, tag="PLACED"):
    """These origins are served from here on: nothing behind these positions is missed, nothing before them comes."""

    positions: tuple[Position, ...]


class Heeded(Answer, frozen=True, kw_only=True, tag="HEEDED"):
    """From where this origin is read now, nothing is left out that this version of the needs, or a later one, names."""

    origin: Origin
    version: Count


class Depth(Answer, frozen=True, kw_only=True, tag="DEPTH"):
    """How far from its publishers this reading of a stream is, for as long as it lasts; and from whom it reads."""

    depth: Count
    relays: tuple[tuple[Origin, PeerId], ...] = ()  # Origins that it reads from another host.


class Rows(Answer, frozen=True, kw_only=True, tag="ROWS"):
    """Tuples for the client, which says SEEN when it has processed them."""

    batches: tuple[Batch, ...]


class Publishers(Answer, frozen=True, kw_only=True, tag="PUBLISHERS"):
    """The publishers that the subscription has found so far, for a client that asked for heartbeats.

    An origin that its publisher no longer keeps is over. A backup may still serve tuples of it, but none is added.
    """

    origins: tuple[Origin, ...]
    over: tuple[Origin, ...] = ()


class Silent(Answer, frozen=True, kw_only=True, tag="SILENT"):
    """A publisher that the client has read to its end is silent."""

    silence: Silence


class Missed(Answer, frozen=True, kw_only=True, tag="MISSED"):
    """These tuples expired before they were read."""

    origin: Origin
    first: int
    next: int


class Seen(Command, frozen=True, kw_only=True, tag="SEEN"):
    """The client has processed everything before these positions. Not answered."""

    subscription: SubscriptionId
    positions: tuple[Position, ...]


class Refuse(Command, frozen=True, kw_only=True, tag="REFUSE"):
    """The client could not process one of these tuples; those before them are processed. Not answered.

    They are handed out again, three times in all. Then the tuple that the client names, or fails on, is dead-lettered.
    """

    subscription: SubscriptionId
    origin: Origin
    first: int
    next: int
    reason: str


class DeadLettered(Answer, frozen=True, kw_only=True, tag="DEAD_LETTERED"):
    """This tuple was tried often enough: it is dead-lettered, and the next one follows."""

    origin: Origin
    sequence: int
    reason: str


class ListDeadLetters(Command, frozen=True, kw_only=True, tag="LIST_DEAD"):
    """Which tuples of a stream were dead-lettered at this peer, for one subscription or for all?"""

    stream: StreamName
    subscription: SubscriptionId = ""


class SubscriptionLetters(msgspec.Struct, frozen=True, array_like=True):
    """The dead letters of one subscription."""

    subscription: SubscriptionId
    count: Count  # All that there ever were.
    letters: tuple[DeadLetter, ...]  # The newest, newest first.


class DeadLettersListed(Answer, frozen=True, kw_only=True, tag="DEAD_LISTED"):
    """The answer to LIST_DEAD."""

    subscriptions: tuple[SubscriptionLetters, ...]


class CloseSubscription(Command, frozen=True, kw_only=True, tag="CLOSE"):
    """Forget a subscription and what is kept for it. Answered with Done."""

    subscription: SubscriptionId


class LogKept(msgspec.Struct, frozen=True, array_like=True):
    """The tuples of one stream at an ingress peer that some subscription has not read yet."""

    stream: StreamName
    pending: Count
    backup: PeerId | None  # The peer that serves them meanwhile.


class LogsKept(Answer, frozen=True, kw_only=True, tag="LOGS_KEPT"):
    """Before a peer leaves: the tuples that stay on its disk, readable again once it is back."""

    logs: tuple[LogKept, ...]


# Inside a peer.


class ReadsChanged(Event, frozen=True):
    """The inside client of a subscription serves other readers than before: the catalogue is to know what they read."""

    subscription: SubscriptionId
    reads: Reads
    heartbeats: bool


class GuestsChanged(Event, frozen=True):
    """So many other peers read a stream from the inside client of a subscription now."""

    subscription: SubscriptionId
    readers: int


class NeedsChanged(Event, frozen=True):
    """The inside client of a subscription needs other tuples than before, or other columns of them."""

    subscription: SubscriptionId
    needs: Needs
