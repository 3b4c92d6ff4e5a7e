"""The journal of a peer: records and the batches of all its logs, in one sequence, so that one sync commits all.

Entries go to numbered segments. snapshot-N replaces the records before segment-N and says how far each log is released;
it is written once everything before it is safe. A segment is removed when a snapshot covers its records and all its
batches are released. Only recover() and read() touch the disk here. Writes are taken out as a Pending, which the driver
may write in any thread.

append() …  ──▶  take() ──▶ Pending.write(disk) ──▶  done()         appended counts on the left, synced on the right
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protocols.events import LogBounds, StoredBatch
from protocols.ids import LogId
from protocols.journal.disk import Disk
from protocols.journal.format import RECORD, seal, seal_batch, seal_end, seal_mark, seal_release
from protocols.journal.index import LogIndex, place_of, segment_of
from protocols.journal.pending import Pending, Reading, Remove, Replace, Step, Write, segment_name, snapshot_name
from protocols.journal.recovery import Decoder, Scanner
from protocols.messages import Record

SEGMENT_BYTES: Final = 16 * 1024 * 1024
_SEGMENT_BYTES_MAX: Final = 1 << 31
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
               synced; a log holds the sequences from its release on, without a hole
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
        self._live: dict[int, int] = {}  # By segment, oldest first: how many of its batches are not wholly released.
        self._segment = 0  # The one being written; 0 before recovery.
        self._offset = 0  # Where its next entry goes.
        self._snapshot = 0  # The first segment that the newest snapshot does not cover.
        self._snapshot_bytes = 0
        self._stale_snapshots: list[int] = []
        # What a new snapshot would make removable: everything but live batches since the last one.
        self._stale_bytes = 0
        self._steps: list[Step] = []
        self._unwritten: dict[int, StoredBatch] = {}  # By place.
        self._in_flight: Pending | None = None

    def recover(self) -> Recovered:
        """Read the disk, cut off a torn tail, and get ready to append behind it."""
        assert self._segment == 0, "a journal is recovered once"
        found = Scanner(self._disk, self._decode)
        found.run()
        self._logs = found.logs
        self._snapshot, self._snapshot_bytes = found.snapshot, found.snapshot_bytes
        self._stale_snapshots = found.snapshots[:-1]
        self._segment = max([found.snapshot, *found.sizes])
        self._offset = found.sizes.get(self._segment, 0)
        self._live = dict.fromkeys([*found.sizes, self._segment], 0)
        self._stale_bytes = sum(size for number, size in found.sizes.items() if number >= self._snapshot)
        for index in self._logs.values():
            for place, size in index.entries():
                self._count_live(place, size, 1)
        return Recovered(found.records, self.logs(), found.cut_bytes)

    def append(self, record: Record) -> None:
        self._append_control(seal(RECORD, self._encode(record)))

    def append_batch(self, log: LogId, batch: StoredBatch) -> None:
        """Append the next batch of a log; if the log holds nothing, it may begin at any later sequence."""
        index = self._logs.setdefault(log, LogIndex())
        if len(index) == 0 and batch.first > index.next:
            self.release(log, batch.first)
        # Checked before the append: a hole that reached the disk would make every later recovery fail.
        assert batch.first == index.next, f"a batch begins at {batch.first} where {index.next} comes next"
        assert batch.count > 0, "a batch without tuples"
        entry = seal_batch(log, batch)
        place = self._append(entry)
        index.add(batch.first, batch.count, place, len(entry), batch.published_at)
        self._live[segment_of(place)] += 1
        self._unwritten[place] = batch

    def release(self, log: LogId, below: int) -> None:
        """Nobody needs what a log holds below this sequence: it will not be read again, nor come back."""
        if below <= self._logs.get(log, _NOTHING).released:
            return
        self._append_control(seal_release(log, below))
        for place, size in self._logs.setdefault(log, LogIndex()).release(below):
            self._count_live(place, size, -1)

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
    def wants_snapshot(self) -> bool:
        """Whether a snapshot would pay for itself now, in space and in recovery time."""
        return self._stale_bytes >= 2 * max(self._segment_bytes, self._snapshot_bytes)

    def snapshot(self, records: Iterable[Record]) -> None:
        """From now on these records replace all records appended so far."""
        if self._offset > 0:
            self._begin_segment()
        sealed = [seal(RECORD, self._encode(record)) for record in records]
        releases = [seal_release(log, index.released) for log, index in self._logs.items() if index.released > 0]
        end = seal_end(len(sealed), len(releases))
        data = b"".join((seal_mark(self._segment, 0), *sealed, *releases, end))
        self._steps.append(Replace(snapshot_name(self._segment), data))
        if self._snapshot != self._segment:
            self._stale_snapshots.append(self._snapshot)
        self._snapshot, self._snapshot_bytes = self._segment, len(data)
        self._stale_bytes = 0

    def take(self) -> Pending | None:
        """The next work for the disk; None if there is none, or if the last Pending is not done yet."""
        if self._in_flight is not None:
            return None
        steps = self._steps + self._removals()
        if not steps:
            return None
        self._in_flight = Pending(steps, self.appended, self._unwritten)
        self._steps, self._unwritten = [], {}
        return self._in_flight

    def done(self, pending: Pending) -> None:
        """The disk has finished: everything appended before its take() is safe."""
        assert pending is self._in_flight
        self.synced = pending.appended
        self._in_flight = None

    def validate(self) -> None:
        assert self.synced <= self.appended
        assert self._snapshot <= self._segment == max(self._live)
        live = dict.fromkeys(self._live, 0)
        for index in self._logs.values():
            index.validate()
            for place, _ in index.entries():
                live[segment_of(place)] += 1
        assert live == self._live

    def _append_control(self, entry: bytes) -> None:
        self._append(entry)
        self._stale_bytes += len(entry)

    def _append(self, entry: bytes) -> int:
        """Append an entry; returns its place."""
        assert self._segment > 0, "recover() comes first"
        if self._offset >= self._segment_bytes:
            self._begin_segment()
        write = self._open_write()
        place = place_of(self._segment, self._offset)
        write.entries.append(entry)
        self._offset += len(entry)
        self.appended += 1
        return place

    def _open_write(self) -> Write:
        """The write that the next entry is part of; a new one begins with a mark."""
        name = segment_name(self._segment)
        last = self._steps[-1] if self._steps else None
        if isinstance(last, Write) and last.name == name:
            return last
        mark = seal_mark(self._segment, self._offset)
        self._offset += len(mark)
        self._stale_bytes += len(mark)
        write = Write(name, [mark])
        self._steps.append(write)
        return write

    def _begin_segment(self) -> None:
        self._segment += 1
        self._offset = 0
        self._live[self._segment] = 0

    def _count_live(self, place: int, size: int, change: int) -> None:
        segment = segment_of(place)
        self._live[segment] += change
        if segment >= self._snapshot:
            self._stale_bytes -= change * size

    def _removals(self) -> list[Step]:
        """Remove the files that nothing needs once everything appended so far is safe."""
        names = [snapshot_name(number) for number in self._stale_snapshots]
        self._stale_snapshots = []
        dead = []
        for number, live in self._live.items():
            if number >= self._snapshot:
                break
            if live == 0:
                dead.append(number)
        for number in dead:
            del self._live[number]
            names.append(segment_name(number))
        return [Remove(name) for name in names]
