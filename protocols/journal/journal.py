"""The journal of a peer: records and the batches of all its logs, in one sequence, so that one sync commits all.

Entries go to numbered segments. snapshot-N replaces the records before segment-N and says how far each log is released;
it is written once everything before it is safe. A segment is removed when a snapshot covers its records and each of its
batches is released or moved. Only recover() and read() touch the disk here. Writes are taken out as a Pending, and
pieces of old segments as a Piece; the driver may write the one and read the other in any thread.

append() …  ──▶  take() ──▶ Pending.write(disk) ──▶  done()         appended counts on the left, synced on the right
                 compact() ──▶ Piece.read(disk) ──▶  move()         appends what is kept of an old segment once more
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protocols.events import LogBounds, StoredBatch
from protocols.ids import LogId
from protocols.journal.compaction import FoundPiece, Piece
from protocols.journal.disk import Disk
from protocols.journal.format import GONE, RECORD, seal, seal_batch, seal_end, seal_mark, seal_release
from protocols.journal.index import LogIndex, place_of, segment_of
from protocols.journal.pending import Pending, Reading, Remove, Replace, Step, Write, segment_name, snapshot_name
from protocols.journal.recovery import Decoder, Scanner
from protocols.journal.segments import Segments
from protocols.messages import Record

SEGMENT_BYTES: Final = 16 * 1024 * 1024
_SEGMENT_BYTES_MAX: Final = 1 << 31
_WASTE_SHARE: Final = 0.75  # Of what is kept and one segment: so much waste leads to a snapshot, or to compaction.
_MOVED_BYTES_MAX: Final = 1 << 20  # Moved and not yet safe: what compaction adds to one commit.
_NOTHING: Final = LogIndex()  # A log that does not exist.

Encoder = Callable[[Record], bytes]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery found on the disk."""

    records: list[Record]
    logs: Mapping[LogId, LogBounds]
    cut_bytes: int  # The tail of a last write that a crash cut short: never synced, so never promised.


class Journal:
    """One peer's memory across crashes. Call recover() first.

    Keeps:     where each unreleased batch lies; what is not yet written
    Invariant: after a crash at any moment recovery finds a beginning of what was appended, at least all that was
               synced; a log holds the sequences from its release on, without a hole; compaction changes neither
    """

    def __init__(self, disk: Disk, encode: Encoder, decode: Decoder, segment_bytes: int = SEGMENT_BYTES) -> None:
        assert 0 < segment_bytes <= _SEGMENT_BYTES_MAX
        self.appended = 0  # How many entries were appended since recovery,
        self.synced = 0  # and how many of them are safe on the disk.
        self._disk = disk
        self._encode = encode
        self._decode = decode
        self._segment_bytes = segment_bytes
        self._logs: dict[LogId, LogIndex] = {}
        # Logs that never come back; for each the newest segment that may still hold some of it, in rising order.
        self._gone: dict[LogId, int] = {}
        self._segments = Segments()
        self._segment = 0  # The one being written; 0 before recovery.
        self._offset = 0  # Where its next entry goes.
        self._written = 0  # Everything before this segment is on the disk.
        self._snapshot_bytes = 0
        self._stale_snapshots: list[int] = []
        self._piece: Piece | None = None  # Being read, to be moved.
        self._next_piece = (0, 0)  # Segment and offset where compaction goes on.
        self._moved_bytes = 0  # Moved since the last take().
        self._steps: list[Step] = []
        self._unwritten: dict[int, StoredBatch] = {}  # By place.
        self._in_flight: Pending | None = None

    def recover(self) -> Recovered:
        """Read the disk, cut off a torn tail, and get ready to append behind it."""
        assert self._segment == 0, "a journal is recovered once"
        found = Scanner(self._disk, self._decode)
        found.run()
        self._logs = found.logs
        self._snapshot_bytes = found.snapshot_bytes
        self._stale_snapshots = found.snapshots[:-1]
        self._segment = self._written = max([found.snapshot, *found.sizes])
        self._offset = found.sizes.get(self._segment, 0)
        self._gone = dict.fromkeys(found.gone, self._segment)
        self._segments.covered = found.snapshot
        for number, size in (found.sizes | {self._segment: self._offset}).items():
            self._segments.begin(number, size)
        for index in self._logs.values():
            for place, size in index.entries():
                self._segments.keep(segment_of(place), size)
        self._segments.drop_unneeded()
        return Recovered(found.records, self.logs(), found.cut_bytes)

    def append(self, record: Record) -> None:
        self._append(seal(RECORD, self._encode(record)))

    def append_batch(self, log: LogId, batch: StoredBatch) -> None:
        """Append the next batch of a log; if the log holds nothing, it may begin at any later sequence."""
        assert log not in self._gone, f'log "{log}" is gone for good'
        index = self._logs.setdefault(log, LogIndex())
        if len(index) == 0 and batch.first > index.next:
            self.release(log, batch.first)
        # Checked before the append: a hole that reached the disk would make every later recovery fail.
        assert batch.first == index.next, f"a batch begins at {batch.first} where {index.next} comes next"
        assert batch.count > 0, "a batch without tuples"
        entry = seal_batch(log, batch)
        place = self._append_kept(entry, batch)
        index.add(batch.first, batch.count, place, len(entry), batch.published_at)

    def release(self, log: LogId, below: int) -> None:
        """Nobody needs what a log holds below this sequence: it will not be read again, nor come back."""
        if below <= self._logs.get(log, _NOTHING).released:
            return
        self._append(seal_release(log, below))
        self._free(self._logs.setdefault(log, LogIndex()), below)

    def forget(self, log: LogId) -> None:
        """Nobody will use a log again: it need not even be remembered where it stood."""
        index = self._logs.pop(log, None)
        if index is not None:
            self._append(seal_release(log, GONE))
            self._free(index, GONE)
            self._gone[log] = self._segment

    def logs(self) -> dict[LogId, LogBounds]:
        return {log: index.bounds for log, index in self._logs.items()}

    def find(self, log: LogId, first: int, bytes_max: int) -> Reading:
        """Find the batches of a log from the one that holds `first` on: as many as fit, at least one if
        there is any.
        """
        places = self._logs.get(log, _NOTHING).locate(first, bytes_max)
        in_flight = self._in_flight.batches if self._in_flight else {}
        unwritten = {
            place: batch
            for place, _ in places
            if (batch := self._unwritten.get(place) or in_flight.get(place)) is not None
        }
        return Reading(places, unwritten)

    def read(self, log: LogId, first: int, bytes_max: int) -> tuple[StoredBatch, ...]:
        """Find and fetch at once."""
        return self.find(log, first, bytes_max).read(self._disk)

    @property
    def bytes_on_disk(self) -> int:
        """The size of all files that are still needed, once everything is written."""
        return self._segments.bytes + self._snapshot_bytes

    @property
    def bytes_kept(self) -> int:
        """How much of that is batches that are not released, and the newest snapshot."""
        return self._segments.kept_bytes + self._snapshot_bytes

    @property
    def wants_snapshot(self) -> bool:
        """Whether a snapshot would pay for itself now, in space or in recovery time."""
        stale = self._segments.uncovered_waste
        is_long = stale >= 2 * max(self._segment_bytes, self._snapshot_bytes)
        return is_long or (self._is_wasteful and 2 * stale >= self._segments.waste)

    def snapshot(self, records: Iterable[Record]) -> None:
        """From now on these records replace all records appended so far."""
        if self._offset > 0:
            self._begin_segment()
        sealed = [seal(RECORD, self._encode(record)) for record in records]
        releases = [seal_release(log, index.released) for log, index in self._logs.items() if index.released > 0]
        releases += [seal_release(log, GONE) for log in self._gone]
        end = seal_end(len(sealed), len(releases))
        data = b"".join((seal_mark(self._segment, 0), *sealed, *releases, end))
        self._steps.append(Replace(snapshot_name(self._segment), data))
        if self._segments.covered != self._segment:
            self._stale_snapshots.append(self._segments.covered)
        self._snapshot_bytes = len(data)
        self._segments.cover(self._segment)

    def compact(self) -> Piece | None:
        """The next piece of an old segment to read, so that move() can move what is kept of it; None if there is
        little to gain, or if enough is on its way to the disk.
        """
        if self._piece is not None or self._moved_bytes >= _MOVED_BYTES_MAX:
            return None
        segment, offset = self._next_piece
        if self._segments.size(segment) == 0:  # The last one is done.
            victim = self._segments.victim(self._written) if self._is_wasteful and not self.wants_snapshot else None
            if victim is None:
                return None
            segment, offset = victim, 0
        room_bytes = self._segments.kept(segment) + self._segment_bytes
        self._piece = Piece(segment, offset, room_bytes)
        return self._piece

    def move(self, piece: Piece, found: FoundPiece | None) -> None:
        """Append what is kept of a piece once more; None gives it up for now."""
        assert piece is self._piece
        self._piece = None
        if found is None:
            return
        for place, log, batch in found.batches:
            if self._logs.get(log, _NOTHING).has(batch.first, place):
                entry = seal_batch(log, batch, is_moved=True)
                self._logs[log].move(batch.first, self._append_kept(entry, batch))
                self._segments.free(piece.segment, len(entry))
                self._moved_bytes += len(entry)
        self._next_piece = piece.segment, found.end

    def take(self) -> Pending | None:
        """The next work for the disk; None if there is none, or if the last Pending is not done yet."""
        if self._in_flight is not None:
            return None
        steps = self._steps + self._removals()
        if not steps:
            return None
        self._in_flight = Pending(steps, self.appended, self._unwritten, self._segment)
        self._steps, self._unwritten, self._moved_bytes = [], {}, 0
        return self._in_flight

    def done(self, pending: Pending) -> None:
        """The disk has finished: everything appended before its take() is safe."""
        assert pending is self._in_flight
        self.synced = pending.appended
        self._written = pending.segment
        self._in_flight = None
        oldest = self._segments.oldest
        while self._gone and self._gone[log := next(iter(self._gone))] < oldest:
            del self._gone[log]

    def validate(self) -> None:
        assert self.synced <= self.appended
        assert self._segments.covered <= self._segment
        self._segments.validate()
        kept: Counter[int] = Counter()
        for index in self._logs.values():
            index.validate()
            for place, size in index.entries():
                kept[segment_of(place)] += size
        assert kept == Counter({segment: self._segments.kept(segment) for segment in kept})
        assert kept.total() == self._segments.kept_bytes
        assert not self._logs.keys() & self._gone.keys()

    @property
    def _is_wasteful(self) -> bool:
        return self._segments.waste >= _WASTE_SHARE * (self._segment_bytes + self.bytes_kept)

    def _append(self, entry: bytes) -> int:
        """Append an entry; returns its place."""
        assert self._segment > 0, "recover() comes first"
        if self._offset >= self._segment_bytes:
            self._begin_segment()
        write = self._open_write()
        place = place_of(self._segment, self._offset)
        write.entries.append(entry)
        self._grow(len(entry))
        self.appended += 1
        return place

    def _append_kept(self, entry: bytes, batch: StoredBatch) -> int:
        """Append a batch; returns its place."""
        place = self._append(entry)
        self._segments.keep(self._segment, len(entry))
        self._unwritten[place] = batch
        return place

    def _open_write(self) -> Write:
        """The write that the next entry is part of; a new one begins with a mark."""
        name = segment_name(self._segment)
        last = self._steps[-1] if self._steps else None
        if isinstance(last, Write) and last.name == name:
            return last
        mark = seal_mark(self._segment, self._offset)
        self._grow(len(mark))
        write = Write(name, [mark])
        self._steps.append(write)
        return write

    def _begin_segment(self) -> None:
        self._segment += 1
        self._offset = 0
        self._segments.begin(self._segment)

    def _grow(self, size: int) -> None:
        self._offset += size
        self._segments.grow(self._segment, size)

    def _free(self, index: LogIndex, below: int) -> None:
        for place, size in index.release(below):
            self._segments.free(segment_of(place), size)

    def _removals(self) -> list[Step]:
        """Remove the files that nothing needs once everything appended so far is safe."""
        names = [snapshot_name(number) for number in self._stale_snapshots]
        names += [segment_name(number) for number in self._segments.unneeded]
        self._stale_snapshots, self._segments.unneeded = [], []
        return [Remove(name) for name in names]
