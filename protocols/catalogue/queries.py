"""The directory of queries: which there are in the whole network, at which peer, and what they read.

Under the key of a name lie all queries of that name, one item for each stream of results. A directory of a few keys
holds all queries, for lists and for whoever wants to remove a stream. The proxy of a query writes its entry, renews it
and removes it. An entry outlives its proxy by LIFE_MS at most, so a query whose proxy is down is found for that long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from protocols.catalogue.events import Advertised, AdvertiseFailed, QueriesFound, QueryEntry, QueryLookupFailed
from protocols.catalogue.shards import Read, Step, read_shards, shard_of
from protocols.effects import Effect, Tell
from protocols.events import Event
from protocols.ids import Key, Millis
from protocols.reading import read
from protocols.store.entries import Entry
from protocols.store.events import StoreFailed, StoreRead, StoreWritten, Token

LIFE_MS: Final = 7 * 24 * 3600 * 1000
TEXT_KEPT: Final = 8192  # Characters: an entry of the store has 64 KiB.
TEXT_LISTED: Final = 128  # A shard with a thousand queries travels in one message.
_SHARDS: Final = "queries"

Write = Callable[[Key, str, bytes | None, Millis, Step, Millis], list[Effect]]
"""How the catalogue writes to the store: key, item, value, life, what follows, now."""

_encode: Final = msgspec.msgpack.Encoder(enc_hook=bytes).encode
_decoder: Final = msgspec.msgpack.Decoder(QueryEntry, dec_hook=lambda wanted, raw: wanted(raw))


@dataclass(slots=True)
class QueryDirectory:
    """Queries by name, for the other roles of this peer.

    Keeps:     nothing; the store keeps the entries
    """

    read: Read
    write: Write

    def advertise(self, entry: QueryEntry, token: Token, now: Millis) -> list[Effect]:
        """State that a query runs; answered with Advertised or AdvertiseFailed."""
        kept = msgspec.structs.replace(entry, text=shortened(entry.text, TEXT_KEPT))
        listed = msgspec.structs.replace(entry, text=shortened(entry.text, TEXT_LISTED))
        return self._put(entry, _encode(kept), _encode(listed), token, now)

    def withdraw(self, entry: QueryEntry, token: Token, now: Millis) -> list[Effect]:
        """State that it has ended; answered likewise."""
        return self._put(entry, None, None, token, now)

    def _put(
        self, entry: QueryEntry, kept: bytes | None, listed: bytes | None, token: Token, now: Millis
    ) -> list[Effect]:
        replicas: list[int] = []

        def written(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return [Tell(AdvertiseFailed(token, event.reason))]
            assert isinstance(event, StoreWritten)
            replicas.append(event.replicas)
            return [Tell(Advertised(token, min(replicas)))] if len(replicas) == 2 else []

        effects = self.write(query_key(entry.name), entry.stream, kept, LIFE_MS, written, now)
        return effects + self.write(shard_of(_SHARDS, entry.stream), entry.stream, listed, LIFE_MS, written, now)

    def named(self, name: str, token: Token, now: Millis) -> list[Effect]:
        """The queries of a name; answered with QueriesFound or QueryLookupFailed."""

        def found(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreRead):
                return [Tell(QueriesFound(token, tuple(each for each in _entries(event.entries) if each.name == name)))]
            assert isinstance(event, StoreFailed)
            return [Tell(QueryLookupFailed(token, event.reason))]

        return self.read(query_key(name), found, now)

    def all(self, token: Token, now: Millis) -> list[Effect]:
        """All queries of the network, with the beginnings of their texts; answered likewise."""

        def found(entries: tuple[QueryEntry, ...] | None, now: Millis) -> list[Effect]:
            if entries is None:
                return [Tell(QueryLookupFailed(token, "Part of the directory did not answer."))]
            return [Tell(QueriesFound(token, entries))]

        return self.each(found, now)

    def each(self, then: Callable[[tuple[QueryEntry, ...] | None, Millis], list[Effect]], now: Millis) -> list[Effect]:
        """The same for the catalogue itself; None if part of the directory did not answer."""
        return read_shards(
            self.read, _SHARDS, lambda found, now: then(None if found is None else _entries(found), now), now
        )


def query_key(name: str) -> Key:
    """Where the entries of all queries of one name are kept."""
    return Key.of("query", name)


def shortened(text: str, characters: int) -> str:
    """
    >>> shortened("SELECT a FROM b", 8), shortened("SELECT", 8), shortened("SELECT", 0)
    ('SELECT …', 'SELECT', '')
    """
    return text if len(text) <= characters else f"{text[: characters - 1]}…" if characters else ""


def _entries(entries: tuple[Entry, ...]) -> tuple[QueryEntry, ...]:
    """The queries among entries of the store, oldest first; what cannot be decoded counts as absent."""
    found = [query for entry in entries if (query := _decoded(entry)) is not None]
    return tuple(sorted(found, key=lambda each: (each.inserted_at, each.stream)))


def _decoded(entry: Entry) -> QueryEntry | None:
    query = read(_decoder, entry.value)
    return query if query is not None and query.stream == entry.item else None
