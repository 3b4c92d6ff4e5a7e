"""The journal's work for the disk: the steps of one group commit, and reads of batches.

Neither touches the journal itself, so a driver may run them in another thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from protocols.events import StoredBatch
from protocols.journal.disk import Disk
from protocols.journal.format import JournalCorrupt, is_batch, open_batch
from protocols.journal.index import offset_of, segment_of

# Batches of one log that lie this close together are fetched with one read.
_GAP_BYTES_MAX: Final = 4096


def segment_name(number: int) -> str:
    return f"segment-{number:08}"


def snapshot_name(number: int) -> str:
    return f"snapshot-{number:08}"


@dataclass(frozen=True, slots=True)
class Write:
    """Add entries to a segment, and wait until they are safe."""

    name: str
    entries: list[bytes]

    def perform(self, disk: Disk) -> None:
        disk.append(self.name, b"".join(self.entries))
        disk.sync(self.name)


@dataclass(frozen=True, slots=True)
class Replace:
    """Put a snapshot in its place."""

    name: str
    data: bytes

    def perform(self, disk: Disk) -> None:
        disk.replace(self.name, self.data)


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file that nothing needs any more."""

    name: str

    def perform(self, disk: Disk) -> None:
        disk.remove(self.name)


Step = Write | Replace | Remove


class Pending:
    """One group commit: everything appended between two calls of take(), in the order in which it must be written.

    Each step is on disk before the next begins. So a crash keeps a prefix of what was appended, and only the newest
    segment can end in a torn write.
    """

    def __init__(self, steps: Sequence[Step], appended: int, batches: Mapping[int, StoredBatch], segment: int) -> None:
        self.appended = appended  # How far the journal is synced once this is done.
        self.segment = segment  # The one that it ends in: all before are complete then.
        self.batches = batches  # By place: batches that must be read from memory until then.
        self._steps = deque(steps)

    def write(self, disk: Disk) -> None:
        """Do all steps. This may block, so it may run in a thread.

        After DiskFull, or where a file could not be opened, it may be called again and goes on where it stopped. After
        any other error only a new recovery can tell what the disk holds.
        """
        while self._steps:
            self._steps[0].perform(disk)
            self._steps.popleft()


@dataclass(frozen=True, slots=True)
class Reading:
    """Batches of a log that were found: some still in memory, the others on disk."""

    places: Sequence[tuple[int, int]]  # Place and size of each batch, in the order of the log.
    unwritten: Mapping[int, StoredBatch]  # By place: those that are in memory.

    def read(self, disk: Disk) -> tuple[StoredBatch, ...]:
        """Fetch them; fewer if some are released or moved meanwhile, and their file removed. May run in a thread."""
        batches: list[StoredBatch] = []
        for piece in self._pieces():
            try:
                batches += self._read_piece(disk, piece)
            except FileNotFoundError:
                break
        return tuple(batches)

    def _pieces(self) -> list[list[tuple[int, int]]]:
        """The batches in groups, each of which takes one read."""
        pieces = [[each] for each in self.places[:1]]
        for (before, size), (place, place_size) in pairwise(self.places):
            is_near = 0 <= place - before - size <= _GAP_BYTES_MAX  # Places in different segments are far apart.
            if is_near and (before in self.unwritten) == (place in self.unwritten):
                pieces[-1].append((place, place_size))
            else:
                pieces.append([(place, place_size)])
        return pieces

    def _read_piece(self, disk: Disk, piece: list[tuple[int, int]]) -> list[StoredBatch]:
        start, (last, last_size) = piece[0][0], piece[-1]
        if start in self.unwritten:
            return [self.unwritten[place] for place, _ in piece]
        name = segment_name(segment_of(start))
        data = disk.read(name, offset_of(start), last + last_size - start)
        batches = []
        for place, size in piece:
            entry = data[place - start : place - start + size]
            if not is_batch(entry):
                raise JournalCorrupt(name, offset_of(place), "a batch has changed since it was written")
            batches.append(open_batch(entry, 0, size)[1])
        return batches
