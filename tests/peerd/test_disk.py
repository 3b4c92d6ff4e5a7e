"""The files under the journal, and the journal on them: full disks, kills, and a million tuples read back in time."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from peerd.disk import FileDisk
from protocols.journal.disk import DiskFull
from tests.protocols.journal.journals import batch, commit, new_journal, recovered_journal
from tests.protocols.journal.model import JournalMachine


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    with FileDisk(tmp_path / "journal") as disk:
        yield disk


class FileDiskMachine(JournalMachine):
    """On real files: the process dies at any moment, the machine does not."""

    disk: FileDisk

    def new_disk(self, luck: random.Random) -> FileDisk:
        self.folder = Path(tempfile.mkdtemp(prefix="journal-"))
        return FileDisk(self.folder)

    def reopened_disk(self) -> FileDisk:
        self.disk.close()
        return FileDisk(self.folder)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.disk.close()
            shutil.rmtree(self.folder)


TestFileDisk = FileDiskMachine.TestCase
TestFileDisk.settings = settings(max_examples=15, stateful_step_count=25)


def test_files_grow_are_read_in_parts_cut_and_removed(disk: FileDisk):
    disk.append("a", b"01234")
    disk.append("b", b"other")
    disk.append("a", b"56789")
    disk.sync("a")
    assert disk.names() == ["a", "b"]
    assert disk.read("a", 2, 3) == b"234"
    assert disk.read("a", 8, 10) == b"89"
    disk.truncate("a", 4)
    disk.append("a", b"x")
    assert disk.read("a") == b"0123x"
    disk.remove("a")
    disk.remove("a")
    assert disk.names() == ["b"]
    disk.append("a", b"anew")
    assert disk.read("a") == b"anew"


@pytest.mark.parametrize("touch", [FileDisk.read, FileDisk.sync])
def test_what_is_not_there_is_not_made(disk: FileDisk, touch):
    with pytest.raises(FileNotFoundError):
        touch(disk, "a")
    assert disk.names() == []


def test_a_file_that_is_open_can_be_replaced(disk: FileDisk):
    disk.append("a", b"old")
    disk.replace("a", b"new")
    disk.append("a", b"er")
    assert disk.read("a") == b"newer"


def test_what_a_process_left_of_a_replacement_is_cleaned_away(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"whole")
    (tmp_path / "a.new").write_bytes(b"ha")
    with FileDisk(tmp_path) as disk:
        assert disk.names() == ["a"]


def test_files_are_ours_alone(tmp_path: Path):
    with FileDisk(tmp_path / "journal") as disk:
        disk.append("a", b"1")
        disk.replace("b", b"1")
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "journal").iterdir()} == {0o600}


def test_a_new_name_is_synced_with_its_folder_once(disk: FileDisk, monkeypatch: pytest.MonkeyPatch):
    synced = []
    true_fsync = os.fsync

    def fsync(file: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        true_fsync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(3):
        disk.append("a", b"1")
        disk.sync("a")
    assert synced == ["folder"]
    disk.replace("b", b"1")
    assert synced == ["folder", "file", "folder"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_finds_the_disk_full_leaves_nothing_behind(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch, number: int
):
    disk.append("a", b"before")
    disk.replace("b", b"old")
    true_write = os.write
    rooms = iter([3, 0, 3, 0])

    def write(file: int, data: memoryview) -> int:
        if room := next(rooms):
            return true_write(file, data[:room])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(DiskFull, match='no room for "a"'):
        disk.append("a", b" and after")
    with pytest.raises(DiskFull, match='no room for "b"'):
        disk.replace("b", b"newer")
    monkeypatch.undo()
    assert disk.names() == ["a", "b"]
    assert disk.read("a") == b"before"
    assert disk.read("b") == b"old"
    disk.append("a", b" it")
    assert disk.read("a") == b"before it"


def test_a_file_that_may_not_grow_is_an_error_of_its_own(disk: FileDisk):
    """Not every failed write is a full disk: this one is the system's limit on the size of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    disk.append("a", b"before")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            disk.append("a", b" and after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert disk.read("a") == b"before"


def test_the_share_in_use_is_that_of_the_file_system(disk: FileDisk, tmp_path: Path):
    usage = shutil.disk_usage(tmp_path)
    assert disk.used_share == pytest.approx(1 - usage.free / usage.total, abs=0.05)


@pytest.mark.alone
@pytest.mark.parametrize("rows_per_batch", [100, 1])
def test_a_million_tuples_are_recovered_in_seconds(disk: FileDisk, rows_per_batch: int):
    journal = new_journal(disk, segment_bytes=16 << 20)
    journal.recover()
    rows = bytes(58) * rows_per_batch
    for first in range(0, 1_000_000, rows_per_batch):
        journal.append_batch("out/flights", batch(first, rows_per_batch, rows))
        if first % 100_000 == 0:
            commit(journal, disk)
    commit(journal, disk)
    started_at = time.perf_counter()
    again = recovered_journal(disk, segment_bytes=16 << 20)
    took_s = time.perf_counter() - started_at
    print(f"1,000,000 tuples in batches of {rows_per_batch}: recovered in {took_s:.2f} s")
    bounds = again.logs()["out/flights"]
    assert (bounds.first, bounds.next, len(bounds.stamps)) == (0, 1_000_000, 1_000_000 // rows_per_batch)
    assert took_s < 10
