"""A stream as the network knows it: a name, a typed schema, and the promises made for its tuples."""

from __future__ import annotations

from typing import Literal

import msgspec

from protocols.clock import Stamp
from protocols.ids import Key, Millis, StreamName
from queries.catalogue import DAY_MS
from queries.schema import Schema

Durability = Literal["memory", "disk", "replicated"]
Policy = Literal["block", "drop-oldest"]


class StreamDefinition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What `peer stream create` decides."""

    name: StreamName
    schema: Schema
    event_time: str | None = None
    lateness_ms: Millis = 0
    retention_ms: Millis = DAY_MS
    durability: Durability = "disk"
    policy: Policy = "block"
    created_at: Stamp = 0
    query: str = ""  # The query whose results it holds; only that query's proxy publishes to it.
    idle_ms: Millis = 0  # A publisher that is silent for so long counts as finished until its next tuple; 0: never.


def stream_key(name: StreamName) -> Key:
    """Where a stream's definition, publishers and subscribers are kept."""
    return Key.of("stream", name)
