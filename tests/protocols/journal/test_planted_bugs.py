"""The properties find what they are there to find: each of these bugs, planted into the journal, makes them fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from overlay.sim.disk import SimDisk
from protocols.events import StoredBatch
from protocols.journal import compaction, recovery
from protocols.journal import journal as journal_module
from protocols.journal.compaction import FoundPiece, Piece
from protocols.journal.disk import Disk
from protocols.journal.format import JournalCorrupt
from protocols.journal.index import FoundBatches, LogIndex
from protocols.journal.journal import Journal
from protocols.journal.pending import Pending, Remove, Replace, Step, Write, segment_name
from protocols.journal.recovery import Scanner
from protocols.journal.segments import Segments
from tests.protocols.journal.faulty_disk import FaultyDiskMachine

Plant = Callable[[pytest.MonkeyPatch], None]


def acks_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Write, "perform", lambda self, disk: disk.append(self.name, b"".join(self.entries)))


def counts_as_synced_what_came_after_the_take(patch: pytest.MonkeyPatch) -> None:
    def done(self: Journal, pending: Pending) -> None:
        pending.appended = self.appended
        true_done(self, pending)

    true_done = Journal.done
    patch.setattr(Journal, "done", done)


def relies_on_what_a_killed_process_left_unsynced(patch: pytest.MonkeyPatch) -> None:
    class Unsynced(Scanner):
        def _load_segment(self, number: int, is_newest: bool) -> None:
            disk, self.disk = self.disk, _without_sync(self.disk)
            super()._load_segment(number, is_newest)
            self.disk = disk

    patch.setattr(journal_module, "Scanner", Unsynced)


def _without_sync(disk: Disk) -> Disk:
    class Deaf:
        names, read, append = disk.names, disk.read, disk.append
        replace, truncate, remove = disk.replace, disk.truncate, disk.remove

        def sync(self, name: str) -> None:
            """Say that it is done."""

    return Deaf()


def leaves_the_torn_end_in_the_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimDisk, "truncate", lambda self, name, size: None)


def takes_a_torn_end_for_damage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "find_mark", lambda data, segment, start: start)


def writes_the_snapshot_before_what_it_covers(patch: pytest.MonkeyPatch) -> None:
    _reorder(patch, lambda step: not isinstance(step, Replace))


def removes_before_it_has_written(patch: pytest.MonkeyPatch) -> None:
    _reorder(patch, lambda step: not isinstance(step, Remove))


def _reorder(patch: pytest.MonkeyPatch, order: Callable[[Step], bool]) -> None:
    true_init = Pending.__init__
    patch.setattr(
        Pending,
        "__init__",
        lambda self, steps, *rest: true_init(self, sorted(steps, key=order), *rest),
    )


def forgets_releases_in_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    true_snapshot = Journal.snapshot

    def snapshot(self: Journal, records: list[object]) -> None:
        patched = {log: index.released for log, index in self._logs.items()}
        for index in self._logs.values():
            index.released = 0
        true_snapshot(self, records)
        for log, index in self._logs.items():
            index.released = patched[log]

    patch.setattr(Journal, "snapshot", snapshot)


def keeps_releases_to_itself(patch: pytest.MonkeyPatch) -> None:
    def release(self: Journal, log: str, below: int) -> None:
        self._free(self._logs.setdefault(log, LogIndex()), below)

    patch.setattr(Journal, "release", release)


def replays_records_that_the_snapshot_covers(patch: pytest.MonkeyPatch) -> None:
    class Eager(Scanner):
        @property
        def snapshot(self) -> int:
            return 1

        def _check_all_there(self, segments: list[int]) -> None:
            """Older segments may be gone."""

    patch.setattr(journal_module, "Scanner", Eager)


def removes_segments_with_live_batches(patch: pytest.MonkeyPatch) -> None:
    true_removals = Journal._removals

    def removals(self: Journal) -> list[Step]:
        covered = range(1, self._segments.covered)
        return true_removals(self) + [Remove(segment_name(each)) for each in covered if self._segments.kept(each)]

    patch.setattr(Journal, "_removals", removals)


def removes_a_segment_when_one_piece_of_it_is_moved(patch: pytest.MonkeyPatch) -> None:
    true_move = Journal.move

    def move(self: Journal, piece: Piece, found: FoundPiece | None) -> None:
        true_move(self, piece, found)
        self._segments.unneeded.append(piece.segment)

    patch.setattr(compaction, "_PIECE_ENTRIES_MAX", 2)
    patch.setattr(Journal, "move", move)


def compacts_what_is_not_yet_written(patch: pytest.MonkeyPatch) -> None:
    true_victim = Segments.victim
    patch.setattr(Segments, "victim", lambda self, _below: true_victim(self, 1 << 60))


def moves_what_was_released_meanwhile(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogIndex, "has", lambda self, first, place: True)


def reads_a_moved_batch_where_it_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogIndex, "move", lambda self, first, to: None)


def does_not_find_what_was_moved_and_is_not_written(patch: pytest.MonkeyPatch) -> None:
    true_move = Journal.move

    def move(self: Journal, piece: Piece, found: FoundPiece | None) -> None:
        unwritten = dict(self._unwritten)
        true_move(self, piece, found)
        self._unwritten = unwritten

    patch.setattr(Journal, "move", move)


def takes_a_moved_batch_for_a_hole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FoundBatches, "_order", lambda self: range(len(self._firsts)))


def forgets_that_a_log_is_gone_in_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    true_snapshot = Journal.snapshot

    def snapshot(self: Journal, records: list[object]) -> None:
        kept, self._gone = self._gone, {}
        true_snapshot(self, records)
        self._gone = kept

    patch.setattr(Journal, "snapshot", snapshot)


def skips_a_step_that_the_full_disk_refused(patch: pytest.MonkeyPatch) -> None:
    def write(self: Pending, disk: Disk) -> None:
        while self._steps:
            self._steps.popleft().perform(disk)

    patch.setattr(Pending, "write", write)


def writes_again_what_the_full_disk_had_accepted(patch: pytest.MonkeyPatch) -> None:
    def write(self: Pending, disk: Disk) -> None:
        for step in self._steps:
            step.perform(disk)

    patch.setattr(Pending, "write", write)


def does_not_find_what_is_being_written(patch: pytest.MonkeyPatch) -> None:
    true_take = Journal.take

    def take(self: Journal) -> Pending | None:
        pending = true_take(self)
        if pending is not None:
            pending.batches = {}
        return pending

    patch.setattr(Journal, "take", take)


def lets_go_of_a_batch_that_is_released_in_part(patch: pytest.MonkeyPatch) -> None:
    true_release = LogIndex.release
    patch.setattr(LogIndex, "release", lambda self, below: true_release(self, below + 1))


def lets_a_log_go_on_where_it_began(patch: pytest.MonkeyPatch) -> None:
    true_snapshot = Journal.snapshot

    def snapshot(self: Journal, records: list[object]) -> None:
        kept = self._logs
        self._logs = {log: index for log, index in kept.items() if len(index) > 0}
        true_snapshot(self, records)
        self._logs = kept

    patch.setattr(Journal, "snapshot", snapshot)


def mixes_up_the_rows_of_batches(patch: pytest.MonkeyPatch) -> None:
    true_batch = journal_module.seal_batch

    def seal_batch(log: str, batch: StoredBatch, *, is_moved: bool = False) -> bytes:
        mixed = StoredBatch(batch.first, batch.count, batch.published_at, batch.rows[::-1])
        return true_batch(log, mixed, is_moved=is_moved)

    patch.setattr(journal_module, "seal_batch", seal_batch)


PLANTS: list[Plant] = [
    acks_before_the_sync,
    counts_as_synced_what_came_after_the_take,
    relies_on_what_a_killed_process_left_unsynced,
    leaves_the_torn_end_in_the_file,
    takes_a_torn_end_for_damage,
    writes_the_snapshot_before_what_it_covers,
    removes_before_it_has_written,
    forgets_releases_in_the_snapshot,
    keeps_releases_to_itself,
    replays_records_that_the_snapshot_covers,
    removes_segments_with_live_batches,
    removes_a_segment_when_one_piece_of_it_is_moved,
    compacts_what_is_not_yet_written,
    moves_what_was_released_meanwhile,
    reads_a_moved_batch_where_it_was,
    does_not_find_what_was_moved_and_is_not_written,
    takes_a_moved_batch_for_a_hole,
    forgets_that_a_log_is_gone_in_the_snapshot,
    skips_a_step_that_the_full_disk_refused,
    writes_again_what_the_full_disk_had_accepted,
    does_not_find_what_is_being_written,
    lets_go_of_a_batch_that_is_released_in_part,
    lets_a_log_go_on_where_it_began,
    mixes_up_the_rows_of_batches,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    searching = settings(
        max_examples=2000,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    with pytest.raises((AssertionError, JournalCorrupt, FileNotFoundError)):
        run_state_machine_as_test(FaultyDiskMachine, settings=searching)
