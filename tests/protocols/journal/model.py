"""The journal as it should be, in plain lists, and a Hypothesis machine that holds the real one to it.

Whatever is appended, committed, compacted, cut short, killed, crashed and recovered: what recovery finds must be the
model's state after some beginning of what was appended, and that beginning must hold everything that was synced.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocols.events import LogBounds, StoredBatch
from protocols.journal.compaction import FoundPiece, Piece
from protocols.journal.disk import Disk, DiskFull
from protocols.journal.journal import Journal, Recovered
from protocols.journal.pending import Pending, Reading
from tests.protocols.journal.journals import Died, DyingDisk, Noted, new_journal

LOGS = ("out/flights", "out/Flüge", "backup/flights")
EVERYTHING = 1 << 40


@dataclass(frozen=True)
class Operation:
    """One thing given to the journal: a record, a batch for a log, a release of a log, or its end."""

    position: int  # What the journal's `appended` said behind it; 0 if it was recovered.
    record: Noted | None = None
    log: str = ""
    batch: StoredBatch | None = None
    below: int = 0
    is_end: bool = False


@dataclass
class State:
    """What the operations so far amount to."""

    records: list[Noted] = field(default_factory=list)
    logs: dict[str, LogBounds] = field(default_factory=dict)
    batches: dict[str, list[StoredBatch]] = field(default_factory=dict)

    def bounds(self, log: str) -> LogBounds:
        return self.logs.get(log, LogBounds(0, 0))

    def apply(self, operation: Operation) -> None:
        if operation.record is not None:
            self.records.append(operation.record)
            return
        if operation.is_end:
            del self.logs[operation.log], self.batches[operation.log]
            return
        log, bounds, kept = operation.log, self.bounds(operation.log), self.batches.setdefault(operation.log, [])
        if operation.batch is not None:
            kept.append(operation.batch)
            self.logs[log] = LogBounds(bounds.first, operation.batch.next, stamps_of(kept))
        else:
            below = max(bounds.first, operation.below)
            kept = self.batches[log] = [each for each in kept if each.next > below]
            self.logs[log] = LogBounds(below, max(bounds.next, below), stamps_of(kept))

    def read(self, log: str, first: int) -> tuple[StoredBatch, ...]:
        if not self.bounds(log).first <= first < self.bounds(log).next:
            return ()
        return tuple(each for each in self.batches[log] if each.first + each.count > first)

    def is_in(self, recovered: Recovered, journal: Journal) -> bool:
        return (
            self.records == recovered.records
            and self.logs == recovered.logs
            and all(self.read(log, b.first) == journal.read(log, b.first, EVERYTHING) for log, b in self.logs.items())
        )


def stamps_of(batches: list[StoredBatch]) -> tuple[tuple[int, int], ...]:
    return tuple((each.first, each.published_at) for each in batches)


def state_after(operations: list[Operation]) -> State:
    state = State()
    for operation in operations:
        state.apply(operation)
    return state


class JournalMachine(RuleBasedStateMachine):
    """Drives a journal on a disk that the subclass makes; fails where it does not behave as the model."""

    disk: Disk
    journal: Journal

    def new_disk(self, luck: random.Random) -> Disk:
        """An empty disk."""
        raise NotImplementedError

    def reopened_disk(self) -> Disk:
        """The disk as the next process finds it."""
        return self.disk

    def lose_power(self) -> None:
        """Have the disk lose what a crash of the machine may lose; nothing, if it cannot be made to."""

    def fill(self, room_bytes: int) -> None:
        """Leave no more room than this, if the disk can be made to."""

    def empty(self) -> None:
        """Give the room back."""

    @initialize(seed=st.integers(0, 1 << 32), segment_bytes=st.sampled_from([1, 300, 1000, 3000]))
    def start(self, seed: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.operations: list[Operation] = []
        self.state = State()  # After all of them.
        self.in_flight: Pending | None = None
        self.piece: tuple[Piece, FoundPiece | None] | None = None  # Read, and not yet moved.
        self.reading: tuple[Reading, tuple[StoredBatch, ...]] | None = None  # Found, and not yet read.
        self.numbers = 0
        self.ended = 0  # How many logs; each gives its place to another.
        self.disk = self.new_disk(random.Random(seed))
        self.journal = new_journal(self.disk, segment_bytes)
        assert self.journal.recover() == Recovered([], {}, 0)

    def log(self, place: str) -> str:
        """The log that has this place now."""
        return f"{place}/{self.ended}"

    def note(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.state.apply(operation)

    @rule(size=st.sampled_from([0, 10, 700]))
    def append_record(self, size: int) -> None:
        self.numbers += 1
        record = Noted(number=self.numbers, padding=bytes(size))
        self.journal.append(record)
        self.note(Operation(self.journal.appended, record=record))

    @rule(
        log=st.sampled_from(LOGS),
        count=st.integers(1, 5),
        size=st.sampled_from([0, 50, 600]),
        jump=st.sampled_from([0, 0, 7]),
    )
    def append_batch(self, log: str, count: int, size: int, jump: int) -> None:
        log = self.log(log)
        bounds = self.state.bounds(log)
        first = bounds.next
        if bounds.first == bounds.next and jump:  # An empty log may go on further ahead: that releases what it skips.
            first += jump
            self.note(Operation(self.journal.appended + 1, log=log, below=first))
        self.numbers += 1
        batch = StoredBatch(first, count, self.numbers, self.numbers.to_bytes(8, "little") * (size // 8 + 1))
        self.journal.append_batch(log, batch)
        self.note(Operation(self.journal.appended, log=log, batch=batch))

    @rule(logs=st.lists(st.sampled_from(LOGS), min_size=2, max_size=6), size=st.sampled_from([50, 600]))
    def append_several(self, logs: list[str], size: int) -> None:
        for log in logs:
            self.append_batch(log, count=2, size=size, jump=0)
            self.append_record(size=10)

    @rule(log=st.sampled_from(LOGS), share=st.sampled_from([0.0, 0.3, 0.5, 1.0]), more=st.sampled_from([0, 0, 0, 5]))
    def release(self, log: str, share: float, more: int) -> None:
        log = self.log(log)
        bounds = self.state.bounds(log)
        below = bounds.first + int(share * (bounds.next - bounds.first)) + more
        self.journal.release(log, below)
        if below > bounds.first:
            self.note(Operation(self.journal.appended, log=log, below=below))

    @rule(
        fast=st.sampled_from(LOGS),
        slow=st.sampled_from(LOGS),
        rounds=st.integers(2, 6),
        pieces=st.integers(0, 3),
        is_written=st.booleans(),
    )
    def outlive(self, fast: str, slow: str, rounds: int, pieces: int, is_written: bool) -> None:
        """A log whose batches are soon released, beside one that keeps them: there is something to compact."""
        for _ in range(rounds):
            for _ in range(4):
                self.append_batch(fast, count=1, size=600, jump=0)
            self.append_batch(slow, count=1, size=50, jump=0)
            if is_written:
                self.write()
            if fast != slow:
                self.release(fast, share=1.0, more=0)
        if self.journal.wants_snapshot:
            self.snapshot()
        if is_written:
            self.write()
        for _ in range(pieces):
            self.move()

    @rule(log=st.sampled_from(LOGS))
    def forget(self, log: str) -> None:
        log = self.log(log)
        self.journal.forget(log)
        if log in self.state.logs:
            self.note(Operation(self.journal.appended, log=log, is_end=True))
            self.ended += 1

    @rule()
    def snapshot(self) -> None:
        self.journal.snapshot(self.state.records)
        assert not self.journal.wants_snapshot

    @rule()
    def take(self) -> None:
        if self.in_flight is not None:
            assert self.journal.take() is None, "one write at a time"
            return
        self.in_flight = self.journal.take()
        assert self.in_flight is not None or self.journal.synced == self.journal.appended

    @rule()
    def write(self) -> None:
        self.take()
        if self.in_flight is not None:
            self.in_flight.write(self.disk)
            self.done()

    @rule(room_bytes=st.sampled_from([0, 200, 1500]))
    def write_to_full_disk(self, room_bytes: int) -> None:
        """The disk has no more room than this for a while: nothing is lost, nothing is written twice."""
        self.take()
        if self.in_flight is None:
            return
        self.fill(room_bytes)
        try:
            self.in_flight.write(self.disk)
        except DiskFull:
            pass
        else:
            self.done()
        self.empty()

    @rule(changes=st.integers(0, 6), is_power_lost=st.booleans())
    def die_while_writing(self, changes: int, is_power_lost: bool) -> None:
        self.take()
        if self.in_flight is None:
            return
        try:
            self.in_flight.write(DyingDisk(self.disk, changes))
        except Died:
            self.die(is_power_lost)
        else:
            self.done()

    @rule(room_bytes=st.sampled_from([0, EVERYTHING, EVERYTHING]))
    def read_piece(self, room_bytes: int) -> None:
        if self.piece is not None:
            assert self.journal.compact() is None, "one piece at a time"
        elif (piece := self.journal.compact()) is not None:
            if room_bytes == 0:
                self.fill(0)
            self.piece = piece, piece.read(self.disk)
            self.empty()

    @rule()
    def move(self) -> None:
        """Move what was read, whatever happened meanwhile."""
        self.read_piece(EVERYTHING)
        if self.piece is not None:
            self.journal.move(*self.piece)
            self.piece = None

    @rule()
    def settle(self) -> None:
        """Let the journal do all that it wants: then it is small, and the disk holds what it says."""
        self.write()
        self.move()  # A piece that could not be read is given up; the loop tries again.
        for _ in range(200):
            if self.journal.wants_snapshot:
                self.snapshot()
            self.move()
            self.take()
            if self.in_flight is None and self.piece is None and not self.journal.wants_snapshot:
                break
            self.write()
        else:
            # Where each entry has a segment of its own, it has a mark of its own: there is nothing to gain.
            assert self.segment_bytes == 1, "compaction never ends"
            return
        assert self.journal.bytes_on_disk == sum(len(self.disk.read(name)) for name in self.disk.names())
        assert self.journal.bytes_on_disk <= 2 * self.journal.bytes_kept + self.segment_bytes

    def done(self) -> None:
        assert self.in_flight is not None
        self.journal.done(self.in_flight)
        assert self.journal.synced == self.in_flight.appended
        self.in_flight = None

    @rule(
        log=st.sampled_from(LOGS),
        share=st.floats(-0.1, 1.1),
        bytes_max=st.sampled_from([0, 100, 1500, EVERYTHING]),
    )
    def read(self, log: str, share: float, bytes_max: int) -> None:
        log = self.log(log)
        bounds = self.state.bounds(log)
        first = max(0, bounds.first + round(share * (bounds.next - bounds.first)))
        expected, found = self.state.read(log, first), self.journal.read(log, first, bytes_max)
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        assert len(found) == len(expected) or bytes_max < EVERYTHING
        assert len(found) < 2 or sum(len(each.rows) for each in found) <= bytes_max

    @rule(log=st.sampled_from(LOGS), bytes_max=st.sampled_from([100, EVERYTHING]))
    def read_meanwhile(self, log: str, bytes_max: int) -> None:
        """A reading ends long after it began: it may find less by then, but nothing else."""
        log = self.log(log)
        if self.reading is not None:
            reading, expected = self.reading
            found = reading.read(self.disk)
            assert found == expected[: len(found)]
        first = self.state.bounds(log).first
        self.reading = self.journal.find(log, first, bytes_max), self.state.read(log, first)

    @rule(is_power_lost=st.booleans())
    def die(self, is_power_lost: bool) -> None:
        """The process dies and starts again; while the power stays, what was written is there, synced or not."""
        if is_power_lost:
            self.lose_power()
        self.recover()

    @rule(changes=st.integers(0, 3), is_power_lost=st.booleans())
    def die_while_recovering(self, changes: int, is_power_lost: bool) -> None:
        self.disk = self.reopened_disk()
        try:
            new_journal(DyingDisk(self.disk, changes), self.segment_bytes).recover()
        except Died:
            pass
        self.die(is_power_lost)

    def recover(self) -> None:
        """Recover, compare with the model, and go on from what was found."""
        synced = sum(operation.position <= self.journal.synced for operation in self.operations)
        self.disk = self.reopened_disk()
        self.journal = new_journal(self.disk, self.segment_bytes)
        self.in_flight = self.piece = self.reading = None
        recovered = self.journal.recover()
        for length in range(synced, len(self.operations) + 1):
            self.state = state_after(self.operations[:length])
            if self.state.is_in(recovered, self.journal):
                break
        else:
            raise AssertionError(f"{recovered} is no state after {synced} or more of {self.operations}")
        kept = self.operations[:length]
        self.operations = [replace(each, position=0) for each in kept]

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "journal"):
            self.journal.validate()
            assert self.journal.logs() == self.state.logs
