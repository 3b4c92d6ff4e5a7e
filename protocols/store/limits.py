"""The bounds and waits of the store."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.events import NEIGHBOURS_MAX
from protocols.ids import Millis


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How many copies there are, how long to wait, and how much one peer holds for others."""

    owners: int = 3  # R: so many peers hold a key.
    quorum: int = 2  # W: so many have an entry on disk before it is acknowledged, and answer a read.
    neighbours_max: int = NEIGHBOURS_MAX  # The overlay tells us of so many: those nearest to us by identifier.

    retry_ms: Millis = 500
    retry_ms_max: Millis = 2_000
    deadline_ms: Millis = 15_000  # Of a read or a write.
    compare_ms: Millis = 5_000  # Between two comparisons of owners, give or take a quarter.
    linger_ms: Millis = 30_000  # A key is kept that long after it went to others: they may be gone again soon.
    heard_ms: Millis = 15_000  # A peer counts as a neighbour that long after it compared its entries with ours.
    settle_ms: Millis = 1_000  # After the start, neighbours are still coming in.
    ghost_ms: Millis = 60_000  # Then a peer that went away is taken for gone, and a peer without others for alone.
    drain_ms: Millis = 30_000  # A peer that leaves waits so long for others to take what it holds.
    tombstone_ms: Millis = 7 * 24 * 3600 * 1000

    value_bytes_max: int = 64 << 10
    item_chars_max: int = 512
    key_bytes_max: int = 768 << 10  # All entries of a key travel in one message.
    entries_max: int = 200_000
    bytes_max: int = 256 << 20
    operations_max: int = 10_000  # Reads and writes under way, asked by this peer or coordinated by it.
    versions_max: int = 2_000  # In one offer.
    message_bytes: int = 256 << 10  # Of entries in one message.
