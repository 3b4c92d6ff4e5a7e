"""The bounds and waits of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocols.events import NEIGHBOURS_MAX
from protocols.ids import Millis

VALUE_BYTES_MAX: Final = 64 << 10
ITEM_CHARS_MAX: Final = 512
PEERS_MAX: Final = 1024  # In one message: more than are around any peer.
OFFERED_MAX: Final = 16_384  # Versions in one offer: more than any peer of ours offers at once.
CLOSER_MAX: Final = 256  # Owners of a key that are known by hearsay.
BUCKETS: Final = 256  # Into which peers sort their entries by name, to compare them.


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How many copies there are, how long to wait, and how much one peer holds for others."""

    owners: int = 3  # R: so many peers hold a key.
    # W: so many owners have an entry on disk before it is acknowledged, and so many must answer a read.
    quorum: int = 2
    neighbours_max: int = NEIGHBOURS_MAX  # The overlay reports so many neighbours: those nearest by identifier.

    retry_ms: Millis = 500
    retry_ms_max: Millis = 2_000
    deadline_ms: Millis = 15_000  # Of a read or a write.
    compare_ms: Millis = 5_000  # Between two comparisons of owners, plus or minus a quarter.
    linger_ms: Millis = 30_000  # Keep a key this long after its handover: its new owners may soon be gone again.
    heard_ms: Millis = 15_000  # A peer counts as a neighbour this long after it compared its entries with ours.
    settle_ms: Millis = 1_000  # After the start neighbours are still appearing.
    ghost_ms: Millis = 60_000  # After this a departed peer is given up, and a peer that sees no other counts as alone.
    drain_ms: Millis = 30_000  # A leaving peer waits so long for others to take what it holds.
    tombstone_ms: Millis = 7 * 24 * 3600 * 1000

    value_bytes_max: int = VALUE_BYTES_MAX
    item_chars_max: int = ITEM_CHARS_MAX
    key_bytes_max: int = 768 << 10  # All entries of a key travel in one message,
    bucket_bytes_max: int = 512 << 10  # and so do all versions of a bucket, without their values.
    entries_max: int = 200_000
    bytes_max: int = 256 << 20
    operations_max: int = 10_000  # Reads and writes in progress, asked or coordinated by this peer.
    versions_max: int = 2_000  # In one offer.
    message_bytes: int = 256 << 10  # Of entries, or versions, in one message.
    entries_per_event: int = 4_000  # Looked at; whatever looks at more goes on in another event.
