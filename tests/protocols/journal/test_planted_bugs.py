"""The properties find what they are there to find: each of these bugs, planted into the journal, makes them fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from overlay.sim.disk import SimDisk
from protocols.events import StoredBatch
from protocols.journal import journal as journal_module
from protocols.journal import recovery
from protocols.journal.disk import Disk
from protocols.journal.format import JournalCorrupt
from protocols.journal.index import LogIndex
from protocols.journal.journal import Journal
from protocols.journal.pending import Pending, Remove, Replace, Step, Write, segment_name
from protocols.journal.recovery import Scanner
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
        lambda self, steps, appended, batches: true_init(self, sorted(steps, key=order), appended, batches),
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
        for place, size in self._logs.setdefault(log, LogIndex()).release(below):
            self._count_live(place, size, -1)

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
        covered = [number for number in self._live if number < self._snapshot]
        steps = true_removals(self)
        return steps + [Remove(segment_name(number)) for number in covered if number in self._live]

    patch.setattr(Journal, "_removals", removals)


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

    def seal_batch(log: str, batch: StoredBatch) -> bytes:
        return true_batch(log, StoredBatch(batch.first, batch.count, batch.published_at, batch.rows[::-1]))

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
