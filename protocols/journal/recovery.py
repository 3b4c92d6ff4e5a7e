"""What a disk holds of a journal: the last snapshot, then every segment, in the order in which they were written.

Files that nothing needs may still be there, or come back after a crash; they are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocols.ids import LogId
from protocols.journal.disk import Disk
from protocols.journal.format import (
    BATCH,
    END,
    GONE,
    MARK,
    MOVED,
    RECORD,
    RELEASE,
    JournalCorrupt,
    body,
    find_mark,
    is_mark,
    open_batch_header,
    open_release,
    scan,
    seal_end,
)
from protocols.journal.index import FoundBatches, LogIndex, offset_of, place_of, segment_of
from protocols.journal.pending import segment_name, snapshot_name
from protocols.messages import Record

Decoder = Callable[[bytes], Record]


@dataclass(slots=True)
class Scanner:
    """Reads a disk once, from the snapshot to the newest entry.

    Invariant: everything before the last MARK of the newest segment had been synced, so damage there is an error;
               damage behind it ends the journal.
    """

    disk: Disk
    decode: Decoder
    records: list[Record] = field(default_factory=list)
    logs: dict[LogId, LogIndex] = field(default_factory=dict)  # Known at the end.
    batches: dict[LogId, FoundBatches] = field(default_factory=dict)
    released: dict[LogId, int] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)  # Oldest first; the newest is the one that counts.
    snapshot_bytes: int = 0
    sizes: dict[int, int] = field(default_factory=dict)  # Of the segments, oldest first.
    cut_bytes: int = 0

    @property
    def snapshot(self) -> int:
        """The first segment that the newest snapshot does not cover."""
        return self.snapshots[-1] if self.snapshots else 1

    def run(self) -> None:
        names = self.disk.names()
        self.snapshots = _numbers(names, snapshot_name)
        if self.snapshots:
            self._load_snapshot(self.snapshots[-1])
        segments = _numbers(names, segment_name)
        self._check_all_there(segments)
        for number in segments:
            self._load_segment(number, is_newest=number == segments[-1])
        self._settle()

    def _load_snapshot(self, number: int) -> None:
        name = snapshot_name(number)
        # The process may have died after writing the snapshot and before making it durable.
        self.disk.sync(name)
        data = self.disk.read(name)
        self.snapshot_bytes = len(data)
        end_offset, end = self._load(data, name, number)
        if end < len(data) or data[end_offset:] != seal_end(len(self.records), len(self.released)):
            raise JournalCorrupt(name, end, "the snapshot is not whole")

    def _check_all_there(self, segments: list[int]) -> None:
        """Older segments may have been removed, but from the snapshot on each one is needed."""
        needed = [number for number in segments if number >= self.snapshot]
        for expected, number in enumerate(needed, start=self.snapshot):
            if number != expected:
                raise JournalCorrupt(segment_name(expected), 0, "the file is missing")

    def _load_segment(self, number: int, is_newest: bool) -> None:
        name = segment_name(number)
        # Everything older than the snapshot was synced before the snapshot was written.
        may_be_torn = is_newest and number >= self.snapshot
        if may_be_torn:
            # Sync what a killed process left unsynced, before anybody relies on it.
            self.disk.sync(name)
        data = self.disk.read(name)
        _, end = self._load(data, name, number)
        if end < max(len(data), 1):
            if not may_be_torn or find_mark(data, number, end) is not None:
                raise JournalCorrupt(name, end, "an entry that was safe on the disk has changed or gone")
            self.cut_bytes = len(data) - end
            self.disk.truncate(name, end)
        self.sizes[number] = end

    def _load(self, data: bytes, name: str, number: int) -> tuple[int, int]:
        """Load every valid entry of a file; returns where the last one begins and ends."""
        last = (0, 0)
        for kind, offset, end in scan(data):
            if (kind == MARK or offset == 0) and not is_mark(data, number, offset):
                raise JournalCorrupt(name, offset, "no mark of this file and this version of the format stands here")
            self._take(data, name, kind, offset, end, number)
            last = (offset, end)
        return last

    def _take(self, data: bytes, name: str, kind: int, offset: int, end: int, segment: int) -> None:
        if kind in (BATCH, MOVED):
            log, first, count, stamp = open_batch_header(data, offset)
            found = self.batches.get(log)
            if found is None:
                found = self.batches[log] = FoundBatches()
            found.add(first, count, place_of(segment, offset), end - offset, stamp)
        elif kind == RECORD:
            if segment >= self.snapshot:  # The snapshot replaces all records before it.
                self.records.append(self._decode(body(data, offset, end), name, offset))
        elif kind == RELEASE:
            log, below = open_release(data, offset, end)
            self.released[log] = max(below, self.released.get(log, 0))
        elif kind not in (MARK, END):
            raise JournalCorrupt(name, offset, f"entries of kind {kind} are not known to this version")

    def _decode(self, record: bytes, name: str, offset: int) -> Record:
        try:
            return self.decode(record)
        except Exception as error:
            error.add_note(f'in journal file "{name}" at byte {offset}')
            raise

    def _settle(self) -> None:
        """Forget what was released, now that all releases are known; the rest must have no holes."""
        for log in dict.fromkeys((*self.batches, *self.released)):
            released = self.released.get(log, 0)
            if released == GONE:
                continue
            self.logs[log], missing_before = self.batches.pop(log, FoundBatches()).settle(released)
            if missing_before is not None:
                name, offset = segment_name(segment_of(missing_before)), offset_of(missing_before)
                raise JournalCorrupt(name, offset, f'tuples of log "{log}" before this batch are missing')

    @property
    def gone(self) -> list[LogId]:
        """The logs that never come back, although segments may still hold batches of theirs."""
        return [log for log, below in self.released.items() if below == GONE]


def _numbers(names: list[str], name_of: Callable[[int], str]) -> list[int]:
    """The numbers of the files with such names; other files are not ours."""
    tails = (name.rpartition("-")[2] for name in names)
    numbers = sorted({int(tail) for tail in tails if tail.isdecimal()})
    return [number for number in numbers if name_of(number) in names]
