"""What clients ask of the catalogue, and what it answers."""

from __future__ import annotations

from protocols.catalogue.events import DerivedEntry
from protocols.catalogue.statistics import StreamStatistics
from protocols.catalogue.streams import StreamDefinition
from protocols.ids import Millis, PeerId, StreamName
from protocols.messages import Answer, Command
from queries.schema import Field


class CreateStream(Command, frozen=True, kw_only=True, tag="CREATE_STREAM"):
    """Make a stream. Answered with Done, or Refused if another of that name exists."""

    definition: StreamDefinition


class AlterStream(Command, frozen=True, kw_only=True, tag="ALTER_STREAM"):
    """Add a column to a stream, or drop one that nobody reads. Answered with Done, or Refused."""

    name: StreamName
    adds: Field | None = None  # It may be null: rows from before have no value for it.
    drops: str = ""


class DropStream(Command, frozen=True, kw_only=True, tag="DROP_STREAM"):
    """Remove a stream: its definition goes at once, its tuples with it. Refused while it is read."""

    name: StreamName
    force: bool = False  # Remove it in any case: its readers lose it.


class ListStreams(Command, frozen=True, kw_only=True, tag="LIST_STREAMS"):
    """Which streams are there?"""


class ShowStream(Command, frozen=True, kw_only=True, tag="SHOW_STREAM"):
    """Tell all about one stream."""

    name: StreamName
    exactly: bool = False  # True: do not guess which stream was meant if there is none of this name.


class StreamsListed(Answer, frozen=True, kw_only=True, tag="STREAMS"):
    """All streams, by name."""

    streams: tuple[StreamDefinition, ...]


class ListDerived(Command, frozen=True, kw_only=True, tag="LIST_DERIVED"):
    """Which derived streams do the parts of running queries make for each other?"""


class DerivedListed(Answer, frozen=True, kw_only=True, tag="DERIVED"):
    """All of them, by name."""

    streams: tuple[DerivedEntry, ...]


class PublisherShown(Answer, frozen=True, kw_only=True, tag="PUBLISHER"):
    """One peer that publishes to a stream, and what it has counted.

    G6: accepted = processed + pending + dead-lettered + expired.
    """

    peer: PeerId
    epoch: Millis
    backup: PeerId | None
    accepted: int
    processed: int
    pending: int
    dead_lettered: int
    expired: int
    statistics: StreamStatistics | None


class StreamShown(Answer, frozen=True, kw_only=True, tag="STREAM"):
    """One stream, its publishers and how many subscriptions read it."""

    definition: StreamDefinition
    publishers: tuple[PublisherShown, ...]
    subscriptions: int
