"""The entries one peer holds: the newest version of each, within its quotas, with checksums to compare them by."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from protocols.ids import Key, Millis
from protocols.store.entries import Entry
from protocols.store.limits import BUCKETS, StoreLimits
from protocols.store.messages import ItemName, Version

_ENTRY_BYTES: Final = 72  # Key, stamp, writer and the rest at their longest, without item and value.


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """One entry in the table."""

    entry: Entry
    digest: int  # Hash of its version.
    bucket: int  # Of its name, so that two versions of one entry meet in one bucket.

    @classmethod
    def of(cls, entry: Entry) -> Held:
        name = entry.key + entry.item.encode()
        version = entry.stamp.to_bytes(9, "big", signed=True) + entry.writer + name
        digest = int.from_bytes(hashlib.blake2b(version, digest_size=8).digest(), "big")
        return cls(entry, digest, _bucket_of(name))

    @property
    def version(self) -> Version:
        return version_of(self.entry)


@dataclass(slots=True)
class EntryTable:
    """What a peer holds, by key and item."""

    limits: StoreLimits
    _keys: dict[Key, dict[str, Held]] = field(default_factory=dict)
    _key_bytes: dict[Key, int] = field(default_factory=dict)
    _bucket_bytes: list[int] = field(default_factory=lambda: [0] * BUCKETS)  # Of the versions in each.
    _buckets: list[dict[Held, None]] = field(default_factory=lambda: [{} for _ in range(BUCKETS)])
    _count: int = 0
    _bytes: int = 0
    _is_valid: bool = False  # Nothing has changed since validate() last looked.

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(self._keys)

    def count(self, key: Key) -> int:
        return len(self._keys.get(key, ()))

    def held(self, key: Key) -> list[Held]:
        return list(self._keys.get(key, {}).values())

    def entries(self, key: Key) -> tuple[Entry, ...]:
        return tuple(held.entry for held in self.held(key))

    def get(self, name: ItemName) -> Held | None:
        return self._keys.get(name.key, {}).get(name.item)

    def lacks(self, version: Version) -> bool:
        held = self._keys.get(version.key, {}).get(version.item)
        return held is None or held.entry.order < version.order

    def has_room_for(self, entry: Entry) -> bool:
        """Whether an entry can be taken. A newer version of one we hold always can, within the key's own bound."""
        limits, before = self.limits, self.get(ItemName(entry.key, entry.item))
        grown = size_of(entry) - (size_of(before.entry) if before else 0)
        if grown > 0 and self._key_bytes.get(entry.key, 0) + grown > limits.key_bytes_max:
            return False
        if before is not None:
            return True
        in_bucket = self._bucket_bytes[_bucket_of(entry.key + entry.item.encode())]
        has_room = self._count < limits.entries_max and self._bytes + grown <= limits.bytes_max
        return has_room and in_bucket + version_size(entry.item) <= limits.bucket_bytes_max

    def put(self, entry: Entry) -> bool:
        """Take an entry unless ours is as new. Tells whether anything changed."""
        items = self._keys.setdefault(entry.key, {})
        before = items.get(entry.item)
        if before is not None and not entry.supersedes(before.entry):
            return False
        held = items[entry.item] = Held.of(entry)
        if before is not None:
            del self._buckets[before.bucket][before]
        self._buckets[held.bucket][held] = None
        self._account(entry.key, size_of(entry) - (size_of(before.entry) if before else 0), 0 if before else 1)
        if before is None:
            self._bucket_bytes[held.bucket] += version_size(entry.item)
        return True

    def drop(self, key: Key) -> None:
        gone = self._keys.pop(key)
        self._count -= len(gone)
        self._bytes -= self._key_bytes.pop(key)
        for held in gone.values():
            del self._buckets[held.bucket][held]
            self._bucket_bytes[held.bucket] -= version_size(held.entry.item)
        self._is_valid = False

    def expire(self, key: Key, now: Millis) -> bool:
        """Forget expired entries of a key; tells whether there are others. Every owner does so by its own clock, and
        nobody takes them up again.
        """
        items = self._keys[key]
        for held in [held for held in items.values() if has_expired(held.entry, now)]:
            del items[held.entry.item], self._buckets[held.bucket][held]
            self._account(key, -size_of(held.entry), -1)
            self._bucket_bytes[held.bucket] -= version_size(held.entry.item)
        if not items:
            del self._keys[key], self._key_bytes[key]
        return bool(items)

    def meant(self, is_meant: Callable[[Key], bool], buckets: Iterable[int]) -> list[Held]:
        """The entries of the selected keys in these buckets."""
        known: dict[Key, bool] = {}
        found: list[Held] = []
        for bucket in buckets:
            for held in self._buckets[bucket]:
                key = held.entry.key
                if (wanted := known.get(key)) is None:
                    wanted = known[key] = is_meant(key)
                if wanted:
                    found.append(held)
        return found

    def portion(self, start: int) -> range:
        """The buckets from `start` on that one event may look at; one at least."""
        count = 0
        for bucket in range(start, BUCKETS):
            count += len(self._buckets[bucket])
            if count > self.limits.entries_per_event and bucket > start:
                return range(start, bucket)
        return range(start, BUCKETS)

    def __iter__(self) -> Iterator[Held]:
        for items in self._keys.values():
            yield from items.values()

    def validate(self) -> None:
        if self._is_valid:
            return
        assert self._count == sum(map(len, self._keys.values()))
        assert self._bytes == sum(self._key_bytes.values()) == sum(size_of(held.entry) for held in self)
        assert sum(self._bucket_bytes) == sum(version_size(held.entry.item) for held in self)
        assert all(self._keys.values()), "a key without entries"
        assert all(held in self._buckets[held.bucket] for held in self)
        assert self._count == sum(map(len, self._buckets))
        assert list(self._keys) == list(self._key_bytes)
        for key, items in self._keys.items():
            assert all(held.entry.key == key and held.entry.item == item for item, held in items.items())
        self._is_valid = True

    def _account(self, key: Key, grown: int, added: int) -> None:
        self._key_bytes[key] = self._key_bytes.get(key, 0) + grown
        self._bytes += grown
        self._count += added
        self._is_valid = False


def digests_of(entries: Iterable[Held]) -> dict[int, int]:
    """A checksum over the versions in each bucket."""
    digests: dict[int, int] = {}
    for held in entries:
        digests[held.bucket] = digests.get(held.bucket, 0) ^ held.digest
    return digests


def versions_in(entries: Iterable[Held], buckets: Iterable[int]) -> dict[int, list[Version]]:
    """The versions in each of these buckets."""
    found: dict[int, list[Version]] = {bucket: [] for bucket in buckets}
    for held in entries:
        if held.bucket in found:
            found[held.bucket].append(held.version)
    return found


def version_of(entry: Entry) -> Version:
    return Version(entry.key, entry.item, entry.stamp, entry.writer, size_of(entry))


def size_of(entry: Entry) -> int:
    """How many bytes an entry takes in a message at most."""
    return version_size(entry.item) + len(entry.value or b"")


def version_size(item: str) -> int:
    """The same of a version of an entry of that name."""
    return _ENTRY_BYTES + (len(item) if item.isascii() else len(item.encode()))


def _bucket_of(name: bytes) -> int:
    return zlib.crc32(name) % BUCKETS


def has_expired(entry: Entry, now: Millis) -> bool:
    return 0 < entry.expires_at <= now
