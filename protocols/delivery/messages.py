"""Messages, records, commands and answers of delivery.

client ── PUBLISH ──▶ ingress peer                                  rows, checked against the schema, logged
                      ingress ── BACKUP ──▶ backup ── BACKED ──▶    `replicated` streams: on a second disk
subscriber ── SUBSCRIBE ──▶ ingress ── SUBSCRIBED, BATCH ──▶ subscriber ── ACK ──▶ ingress
"""

from __future__ import annotations

from typing import Literal

import msgspec

from protocols.catalogue.shares import WHOLE, PublisherShare
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import Stamp
from protocols.ids import Millis, PeerId, StreamName, SubscriptionId
from protocols.messages import Answer, Command, Message, Record


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where a sequence of tuples comes from: a publishing peer, a stream, and one life of that peer's disk."""

    publisher: PeerId
    stream: StreamName
    epoch: Millis


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A place in what one origin has published: everything below `next` is behind it."""

    origin: Origin
    next: int
    dead: tuple[int, ...] = ()  # Below it, and not processed: the last that went to the dead letters.


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive tuples of one origin; tuple i has the id (origin, first + i)."""

    origin: Origin
    first: int
    count: int
    published_at: Stamp
    rows: bytes  # A msgpack array of rows, each an array in the order of the schema.

    @property
    def next(self) -> int:
        return self.first + self.count


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A tuple that a subscription's client could not bear, put aside."""

    batch: Batch  # Of one tuple.
    reason: str
    at: Millis


# From peer to peer.


class Subscribe(Message, frozen=True, kw_only=True, tag="SUBSCRIBE"):
    """A subscriber wants what an origin publishes, from a position on, or from a time on if it has none yet."""

    subscription: SubscriptionId
    stream: StreamName
    positions: tuple[Position, ...]  # Where it stands with each origin it knows at this peer.
    since: Stamp  # For origins not among them: the first tuple published at this stamp or later.
    credit: int  # How many bytes of rows may be on their way; 0 while no client reads.
    copies_of: tuple[Origin, ...] = ()  # Asked of a backup: the origins it keeps a copy of, and shall serve.
    restart: bool = False  # What is on its way is of no use: send from the positions on.


class Subscribed(Message, frozen=True, kw_only=True, tag="SUBSCRIBED"):
    """Where a subscription stands with each origin this peer serves; an origin not named here is not kept here."""

    subscription: SubscriptionId
    stream: StreamName
    positions: tuple[Position, ...]


class BatchMessage(Message, frozen=True, kw_only=True, tag="BATCH"):
    """Tuples for a subscription, in the order of their sequence."""

    subscription: SubscriptionId
    batches: tuple[Batch, ...]


class Gap(Message, frozen=True, kw_only=True, tag="GAP"):
    """Tuples that were due are no longer kept: the subscriber was away longer than the stream's retention."""

    subscription: SubscriptionId
    origin: Origin
    first: int
    next: int


class Ack(Message, frozen=True, kw_only=True, tag="ACK"):
    """The subscriber has these behind it for good; more may be sent."""

    subscription: SubscriptionId
    positions: tuple[Position, ...]


class Unsubscribe(Message, frozen=True, kw_only=True, tag="UNSUBSCRIBE"):
    """A subscription has ended."""

    subscription: SubscriptionId
    stream: StreamName


class PublisherNews(Message, frozen=True, kw_only=True, tag="PUBLISHER_NEWS"):
    """A peer publishes to a stream from now on, or from another disk: whoever reads it should look again."""

    stream: StreamName


class Backup(Message, frozen=True, kw_only=True, tag="BACKUP"):
    """The ingress peer of a `replicated` stream asks a near peer to keep these too, and to forget below `first`."""

    origin: Origin
    batches: tuple[Batch, ...]
    first: int  # Where the ingress peer's own log begins: what lies below is kept nowhere any more.
    retention_ms: Millis


class Backed(Message, frozen=True, kw_only=True, tag="BACKED"):
    """The backup has everything below `next` on its disk; it wants the tuples from there on."""

    origin: Origin
    next: int


# In the journal.


class OutboxOpened(Record, frozen=True, kw_only=True, tag="OUTBOX"):
    """This peer publishes to a stream, in this epoch, with this backup; the log holds the tuples."""

    definition: StreamDefinition
    epoch: Millis
    backup: PeerId | None


class OutboxClosed(Record, frozen=True, kw_only=True, tag="OUTBOX_CLOSED"):
    """The stream is no more."""

    stream: StreamName


class PublishNoted(Record, frozen=True, kw_only=True, tag="NOTED"):
    """Which tuples a client's publish has become: asked again, it is answered, not repeated."""

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


class SubscriptionOpened(Record, frozen=True, kw_only=True, tag="SUBSCRIPTION"):
    """A client of this peer reads a stream, and may come back."""

    subscription: SubscriptionId
    stream: StreamName
    since: Stamp
    ended: bool = False
    share: PublisherShare = WHOLE


class CursorMoved(Record, frozen=True, kw_only=True, tag="CURSOR"):
    """The client has seen everything before these positions."""

    subscription: SubscriptionId
    positions: tuple[Position, ...]


class TupleBuried(Record, frozen=True, kw_only=True, tag="DEAD"):
    """A tuple was put aside; the subscription goes on behind it."""

    subscription: SubscriptionId
    number: int  # How many this subscription has had, with this one.
    letter: DeadLetter


# Between a client and its peer.


class Publish(Command, frozen=True, kw_only=True, tag="PUBLISH"):
    """Publish rows to a stream. Answered with Published once the stream's durability is reached.

    Without rows it makes the peer ready to publish to that stream: the next one waits for nothing but that.
    """

    stream: StreamName
    rows: bytes
    count: int
    witness: Stamp = 0  # The highest stamp the client has seen: its next tuple is younger than that.
    session: bytes = b""  # One client; with it, a publish that is asked again takes effect once.
    number: int = 0  # Which publish of that client.


class Published(Answer, frozen=True, kw_only=True, tag="PUBLISHED"):
    """All of them are accepted: none will be lost."""

    first: int
    count: int
    stamp: Stamp


class OpenSubscription(Command, frozen=True, kw_only=True, tag="OPEN"):
    """Read a stream. Answered with Opened, then Rows and Missed until the client goes away."""

    stream: StreamName
    subscription: SubscriptionId  # A name the client may come back to; unique names are made by the client.
    since: Literal["now", "start"] | Stamp = "now"  # For a new one.
    positions: tuple[Position, ...] = ()  # What the client itself remembers; the further of both counts.
    keep: bool = False  # Keep it, and what arrives, while the client is away.
    witness: Stamp = 0
    known: tuple[Origin, ...] = ()  # Who publishes to it, of a stream on disk: then nothing is looked up before.
    share: PublisherShare = WHOLE  # Whose tuples to read.


class Opened(Answer, frozen=True, kw_only=True, tag="OPENED"):
    """From now on nothing published is missed."""

    subscription: SubscriptionId
    stamp: Stamp
    dead: int = 0  # How many tuples lie in its dead letters.


class Rows(Answer, frozen=True, kw_only=True, tag="ROWS"):
    """Tuples for the client; it says Seen when it has them behind it."""

    batches: tuple[Batch, ...]


class Missed(Answer, frozen=True, kw_only=True, tag="MISSED"):
    """These tuples came and went while nobody read them."""

    origin: Origin
    first: int
    next: int


class Seen(Command, frozen=True, kw_only=True, tag="SEEN"):
    """The client has everything before these positions behind it. Not answered."""

    subscription: SubscriptionId
    positions: tuple[Position, ...]


class Refuse(Command, frozen=True, kw_only=True, tag="REFUSE"):
    """The client could not process one of these tuples, and has those before them behind it. Not answered.

    They are handed out again, three times in all; then the tuple it names, or fails on, goes to the dead letters.
    """

    subscription: SubscriptionId
    origin: Origin
    first: int
    next: int
    reason: str


class DeadLettered(Answer, frozen=True, kw_only=True, tag="DEAD_LETTERED"):
    """This tuple has been tried often enough: it is put aside, and the next one follows."""

    origin: Origin
    sequence: int
    reason: str


class ListDeadLetters(Command, frozen=True, kw_only=True, tag="LIST_DEAD"):
    """Which tuples of a stream were put aside at this peer: for one subscription, or for all?"""

    stream: StreamName
    subscription: SubscriptionId = ""


class SubscriptionLetters(msgspec.Struct, frozen=True, array_like=True):
    """What was put aside for one subscription."""

    subscription: SubscriptionId
    count: int  # All there ever were.
    letters: tuple[DeadLetter, ...]  # The newest, newest first.


class DeadLettersListed(Answer, frozen=True, kw_only=True, tag="DEAD_LISTED"):
    """These."""

    subscriptions: tuple[SubscriptionLetters, ...]


class CloseSubscription(Command, frozen=True, kw_only=True, tag="CLOSE"):
    """Forget a subscription and what is kept for it. Answered with Done."""

    subscription: SubscriptionId


class LogKept(msgspec.Struct, frozen=True, array_like=True):
    """What an ingress peer has of one stream that somebody has not read yet."""

    stream: StreamName
    pending: int
    backup: PeerId | None  # Serves them in its place.


class LogsKept(Answer, frozen=True, kw_only=True, tag="LOGS_KEPT"):
    """Before a peer leaves: tuples that stay on its disk, and can be read again when it is back."""

    logs: tuple[LogKept, ...]
