"""How the catalogue lays itself out in the store: which keys and items there are, and the bytes of their values.

Key.of("stream", name)     definition, publisher/<peer>/<epoch>, subscriber/<subscription>
Key.of("streams", shard)   one item for each stream, named like it, with its definition: the directory
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from protocols.catalogue.events import PublisherEntry, SubscriberEntry
from protocols.catalogue.streams import StreamDefinition
from protocols.ids import Key, Millis, PeerId, StreamName, SubscriptionId
from protocols.store.entries import Entry

SHARDS: Final = 16
DEFINITION: Final = "definition"
PUBLISHER: Final = "publisher/"
SUBSCRIBER: Final = "subscriber/"
SHARD_KEYS: Final = tuple(Key.of("streams", str(shard)) for shard in range(SHARDS))

T = TypeVar("T")


def shard_key(name: StreamName) -> Key:
    """Where the directory lists a stream."""
    return SHARD_KEYS[zlib.crc32(name.encode()) % SHARDS]


def publisher_item(peer: PeerId, epoch: Millis) -> str:
    return f"{PUBLISHER}{peer.hex()}/{epoch}"


def subscriber_item(subscription: SubscriptionId) -> str:
    return f"{SUBSCRIBER}{subscription}"


def encode(value: StreamDefinition | PublisherEntry | SubscriberEntry) -> bytes:
    return _encoder.encode(value)


class StreamEntries:
    """What the store holds under a stream's key, taken apart."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        live = {entry.item: entry for entry in entries}
        definition = live.get(DEFINITION)
        self.is_dropped = definition is not None and definition.value is None
        self.definition = _decoded(definition, _definitions) if definition else None
        self.publishers = _all_decoded(live, PUBLISHER, _publishers)
        self.subscribers = _all_decoded(live, SUBSCRIBER, _subscribers)


def listed(entries: Iterable[Entry]) -> list[StreamDefinition]:
    """The streams of one shard of the directory."""
    decoded = (_decoded(entry, _definitions) for entry in entries)
    return [definition for definition in decoded if definition is not None]


def _all_decoded(entries: dict[str, Entry], prefix: str, decoder: msgspec.msgpack.Decoder[T]) -> tuple[T, ...]:
    decoded = (_decoded(entries[item], decoder) for item in sorted(entries) if item.startswith(prefix))
    return tuple(value for value in decoded if value is not None)


def _decoded(entry: Entry, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """The value of an entry; none for a tombstone, and for what a newer peer wrote and we cannot read."""
    if entry.value is None:
        return None
    try:
        return decoder.decode(entry.value)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _encode_hook(value: Any) -> bytes:
    assert isinstance(value, bytes)
    return bytes(value)


def _decode_hook(kind: type[Any], value: Any) -> Any:
    return kind(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_definitions = msgspec.msgpack.Decoder(StreamDefinition)
_publishers = msgspec.msgpack.Decoder(PublisherEntry, dec_hook=_decode_hook)
_subscribers = msgspec.msgpack.Decoder(SubscriberEntry, dec_hook=_decode_hook)
