"""A stream as the network knows it: a name, a typed schema, what has been altered of it, and the promises made for its
tuples.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, Literal

import msgspec

from protocols.clock import Stamp
from protocols.ids import Count, Key, Millis, PeerId, StreamName
from queries.catalogue import DAY_MS, Stream
from queries.schema import Field, Schema

Durability = Literal["memory", "disk", "replicated"]
Policy = Literal["block", "drop-oldest"]


class Alteration(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One column added to a stream, or dropped from it. When and where it was asked for tells it from all others."""

    asked_at: Stamp
    asked_by: PeerId
    adds: Field | None = None
    drops: str = ""

    def __str__(self) -> str:
        return f"ADD COLUMN {self.adds}" if self.adds is not None else f"DROP COLUMN {self.drops}"


class Reads(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What of a stream's columns a reader needs."""

    columns: tuple[str, ...] | None = None  # None: all, or it does not say.
    version: Count = 0  # Of the stream it was planned for; 0: whichever there is.
    reader: str = ""  # What people know it by: a query.


READS_ALL: Final = Reads()


class StreamDefinition(msgspec.Struct, frozen=True, kw_only=True, array_like=True, dict=True):
    """What `peer stream create` decides, and what `peer stream alter` has changed since."""

    name: StreamName
    schema: Schema  # As it was created. It stays what older peers and clients know; `current` is what it is now.
    event_time: str | None = None
    lateness_ms: Millis = 0
    retention_ms: Millis = DAY_MS
    durability: Durability = "disk"
    policy: Policy = "block"
    created_at: Stamp = 0
    query: str = ""  # The query whose results it holds; only that query's proxy publishes to it.
    idle_ms: Millis = 0  # A publisher that is silent for so long counts as finished until its next tuple; 0: never.
    alterations: tuple[Alteration, ...] = ()  # In order; the n-th leads to version n + 1.

    def __post_init__(self) -> None:
        if self.alterations:
            self.as_of(1 + len(self.alterations))  # Raises ValueError if they do not follow from each other.

    @cached_property
    def current(self) -> Schema:
        """Its columns now."""
        return self.as_of(1 + len(self.alterations))

    @property
    def version(self) -> int:
        return self.current.version

    def as_of(self, version: int) -> Schema:
        """Its columns in an earlier version. Rows of any version are read with it."""
        schema = self.schema
        for alteration in self.alterations[: version - 1]:
            schema = schema.altered(alteration.adds, alteration.drops)
        return schema

    def dropped_since(self, version: int) -> tuple[str, ...]:
        """The columns of an earlier version that are there no more."""
        earlier, now = self.as_of(version), {each.place for each in self.current.gone}
        return tuple(field.name for place, field in zip(earlier.places, earlier.fields, strict=True) if place in now)

    def stream(self, version: int | None = None) -> Stream:
        """The stream as queries see it, now or in an earlier version."""
        schema = self.current if version is None else self.as_of(version)
        return Stream(self.name, schema, self.event_time, self.lateness_ms, self.retention_ms)


def stream_key(name: StreamName) -> Key:
    """Where a stream's definition, publishers and subscribers are kept."""
    return Key.of("stream", name)
