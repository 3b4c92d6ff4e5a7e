"""What the catalogue tells the other roles of its peer, about what they asked it."""

from __future__ import annotations

import msgspec

from protocols.catalogue.custody import Custody
from protocols.catalogue.shares import WHOLE, PublisherShare
from protocols.catalogue.statistics import StreamStatistics
from protocols.catalogue.streams import READS_ALL, Reads, StreamDefinition
from protocols.clock import Stamp
from protocols.events import Event
from protocols.ids import Count, Measured, Millis, PeerId, StreamName, SubscriptionId
from protocols.store.events import Token
from queries.schema import Schema


class PublisherEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The advertisement of one publisher: a peer, its epoch, its backup, and what it has counted.

    An epoch is one life of the peer's disk. Each (peer, epoch) has its own entry, because tuples of an earlier epoch
    may still lie at the backup.
    """

    peer: PeerId
    epoch: Millis
    backup: PeerId | None = None
    accepted: Count = 0
    processed: Count = 0
    pending: Count = 0
    dead_lettered: Count = 0
    expired: Count = 0
    statistics: StreamStatistics | None = None


class SubscriberEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The statement that a subscription reads a stream, and at which peer it ends."""

    subscription: SubscriptionId
    peer: PeerId
    share: PublisherShare = WHOLE  # Publishers outside of this share keep nothing for this subscription.
    heartbeats: bool = False  # It goes by the time of its publishers: a new one waits until it is known there.
    kept: bool = False  # It has a name, and waits for its client while that is away.
    reads: Reads = READS_ALL


class DerivedEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The advertisement of a derived stream: one part of a query makes it for the next part, while the query runs."""

    name: StreamName  # Equal for equal work, whichever query has it made.
    schema: Schema
    host: PeerId
    query: StreamName  # The result stream of the query that has it made.
    number: Count  # The subgraph that makes it.
    rate_per_s: Measured


class QueryEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The advertisement of a query by its proxy: what was submitted, where, and what it reads."""

    name: str
    stream: StreamName  # Of its results; no other query has it.
    proxy: PeerId
    text: str  # Perhaps only the beginning: where all queries are listed, and of a very long text.
    inserted_at: Stamp
    reads: tuple[StreamName, ...]
    engine: str = "auto"
    placement: str = "auto"
    within_ms: float | None = None
    since: Stamp = 0  # It reads what was published from then on.
    durability: str = "disk"  # Of the stream of its results.
    term: Count = 1  # Which of its proxies this is, counted from the first.


class StreamFound(Event, frozen=True):
    """The answer to lookup(): a stream with its publishers and readers; no definition if the stream does not exist."""

    token: Token
    name: StreamName
    definition: StreamDefinition | None
    publishers: tuple[PublisherEntry, ...] = ()
    subscribers: tuple[SubscriberEntry, ...] = ()
    nearest_name: StreamName | None = None  # If the stream does not exist: the name that was probably meant.
    # If the stream does not exist: whether somebody removed it, rather than nobody ever having made it.
    is_dropped: bool = False
    custodies: tuple[Custody, ...] = ()  # What was decided about the second copies of a query's results.


class StreamRemoved(Event, frozen=True):
    """A client of this peer has removed a stream."""

    name: StreamName


class LookupFailed(Event, frozen=True):
    """The owners of a stream's key did not answer in time; asking again is safe."""

    token: Token
    name: StreamName
    reason: str


class Advertised(Event, frozen=True):
    """An advertisement is safe: from now on every lookup finds it."""

    token: Token
    replicas: int


class AdvertiseFailed(Event, frozen=True):
    """Too few owners answered; the advertisement may or may not be there. Advertising again is safe."""

    token: Token
    reason: str


class QueriesFound(Event, frozen=True):
    """The answer to a question for queries: those there are, oldest first."""

    token: Token
    entries: tuple[QueryEntry, ...]


class QueryLookupFailed(Event, frozen=True):
    """The owners of the directory's keys did not answer in time; asking again is safe."""

    token: Token
    reason: str
