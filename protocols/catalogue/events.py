"""What the catalogue tells the other roles of its peer, about what they asked it."""

from __future__ import annotations

import msgspec

from protocols.catalogue.shares import WHOLE, PublisherShare
from protocols.catalogue.statistics import StreamStatistics
from protocols.catalogue.streams import StreamDefinition
from protocols.events import Event
from protocols.ids import Millis, PeerId, StreamName, SubscriptionId
from protocols.store.events import Token
from queries.schema import Schema


class PublisherEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The advertisement of one publisher: a peer, one life of its disk, who keeps a copy, and what it has counted.

    Each (peer, epoch) has an entry of its own: tuples of an earlier epoch may live on at the backup.
    """

    peer: PeerId
    epoch: Millis
    backup: PeerId | None = None
    accepted: int = 0
    processed: int = 0
    pending: int = 0
    dead_lettered: int = 0
    expired: int = 0
    statistics: StreamStatistics | None = None


class SubscriberEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The statement that a subscription reads a stream, and at which peer it ends."""

    subscription: SubscriptionId
    peer: PeerId
    share: PublisherShare = WHOLE  # Publishers outside of it keep nothing for it.


class DerivedEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The advertisement of a stream that one part of a query makes for the next, while it runs."""

    name: StreamName  # The same for all that make the same.
    schema: Schema
    host: PeerId
    query: StreamName  # Of the results of the query that has it made.
    number: int  # Of the subgraph that makes it.
    rate_per_s: float


class StreamFound(Event, frozen=True):
    """The answer to lookup(): a stream with those who publish and read it, or no definition where there is none."""

    token: Token
    name: StreamName
    definition: StreamDefinition | None
    publishers: tuple[PublisherEntry, ...] = ()
    subscribers: tuple[SubscriberEntry, ...] = ()
    nearest_name: StreamName | None = None  # Where there is none: what may have been meant.
    is_dropped: bool = False  # Where there is none: somebody removed it. Otherwise its owners never heard of it.


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
