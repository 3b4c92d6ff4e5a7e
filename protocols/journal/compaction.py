"""Compaction: what is still kept of an old segment is written again at the end of the journal, piece by piece.

A piece is read from the disk without the journal, so a driver may do that in another thread. The journal then moves
those of its batches that are kept. Once it has moved them all, the segment goes as if they had been released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from protocols.events import StoredBatch
from protocols.ids import LogId
from protocols.journal.disk import Disk
from protocols.journal.format import BATCH, HEADER_BYTES, MOVED, JournalCorrupt, open_batch, scan, size_of_entry
from protocols.journal.index import place_of
from protocols.journal.pending import segment_name

PIECE_BYTES: Final = 128 << 10
_PIECE_ENTRIES_MAX: Final = 1000  # So the loop is not held for long, however small the batches are.


@dataclass(frozen=True, slots=True)
class FoundPiece:
    """The batches of a piece, kept or not."""

    end: int  # Where the next piece begins.
    batches: Sequence[tuple[int, LogId, StoredBatch]]  # Each with its place and its log.


@dataclass(frozen=True, slots=True)
class Piece:
    """The next part of a segment that is being compacted."""

    segment: int
    offset: int
    room_bytes: int  # What the disk must have room for, or compaction would add to the trouble.

    def read(self, disk: Disk) -> FoundPiece | None:
        """Fetch it; None if the disk is too full, or if the segment was released and removed meanwhile."""
        if disk.room_bytes < self.room_bytes:
            return None
        try:
            data, entries = self._entries(disk)
        except FileNotFoundError:
            return None
        found = [
            (place_of(self.segment, self.offset + offset), *open_batch(data, offset, end))
            for kind, offset, end in entries
            if kind in (BATCH, MOVED)
        ]
        return FoundPiece(self.offset + entries[-1][2], found)

    def _entries(self, disk: Disk) -> tuple[bytes, list[tuple[int, int, int]]]:
        name, size = segment_name(self.segment), PIECE_BYTES
        while True:
            data = disk.read(name, self.offset, size)
            entries = list(islice(scan(data), _PIECE_ENTRIES_MAX))
            if entries:
                return data, entries
            # The entry is longer than a piece, or not what was written.
            if len(data) < HEADER_BYTES or size_of_entry(data) <= size:
                raise JournalCorrupt(name, self.offset, "an entry has changed since it was written")
            size = size_of_entry(data)
