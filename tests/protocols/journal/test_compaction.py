"""Compaction: the disk follows what is kept, in small steps, and a crash at any of them changes nothing."""

from __future__ import annotations

import pytest

from overlay.sim.disk import SimDisk
from protocols.journal.compaction import PIECE_BYTES, Piece
from protocols.journal.disk import Disk
from protocols.journal.format import JournalCorrupt
from protocols.journal.journal import Journal
from protocols.journal.pending import segment_name
from tests.protocols.journal.journals import (
    Died,
    DyingDisk,
    Noted,
    batch,
    commit,
    new_journal,
    recovered_journal,
    sim_disk,
)

ALL = 1 << 30
SEGMENT_BYTES = 16 << 10


def bytes_on(disk: Disk) -> int:
    return sum(len(disk.read(name)) for name in disk.names())


def look_after(journal: Journal, disk: Disk) -> int:
    """What a driver does after each commit, until there is nothing more to do; returns how many pieces that took."""
    pieces = 0
    commit(journal, disk)
    while True:
        if journal.wants_snapshot:
            journal.snapshot([Noted(number=0)])
        elif (piece := journal.compact()) is not None:
            journal.move(piece, piece.read(disk))
            pieces += 1
        else:
            return pieces
        commit(journal, disk)


def wasteful_journal(disk: Disk, *, rows: int = 100) -> Journal:
    """One slow batch in each of a few segments that are otherwise released, and covered by a snapshot."""
    journal = recovered_journal(disk)
    for first in range(6):
        journal.append_batch("slow", batch(first, rows=bytes([first]) * rows))
        for sequence in range(first * 8, first * 8 + 8):
            journal.append_batch("fast", batch(sequence, rows=bytes(100)))
    journal.release("fast", 48)
    journal.snapshot([Noted(number=1)])
    commit(journal, disk)
    return journal


def slow_batches(rows: int = 100) -> tuple[object, ...]:
    return tuple(batch(first, rows=bytes([first]) * rows) for first in range(6))


def next_piece(journal: Journal) -> Piece:
    piece = journal.compact()
    assert piece is not None
    return piece


def test_the_disk_follows_what_is_kept():
    """A stream that keeps a minute of tuples beside two that keep a day, and say something now and then."""
    disk = sim_disk()
    journal = recovered_journal(disk, SEGMENT_BYTES)
    row, written = bytes(400), 0
    for second in range(1000):
        journal.append_batch("fast", batch(second, rows=row))
        written += len(row)
        if second % 7 == 0:
            for slow in ("slow", "slower"):
                journal.append_batch(slow, batch(second // 7, rows=bytes(60)))
        journal.release("fast", second - 60)
        look_after(journal, disk)
        assert bytes_on(disk) == journal.bytes_on_disk
        assert journal.bytes_on_disk <= 2 * journal.bytes_kept + SEGMENT_BYTES
    again = recovered_journal(disk, SEGMENT_BYTES)
    assert again.logs() == journal.logs()
    assert (again.bytes_on_disk, again.bytes_kept) == (journal.bytes_on_disk, journal.bytes_kept)
    print(f"{written:,} bytes appended, {journal.bytes_kept:,} kept, {journal.bytes_on_disk:,} on disk")


def test_only_what_is_kept_is_moved_and_then_the_segment_goes():
    disk = sim_disk()
    journal = wasteful_journal(disk)
    before = disk.names()
    piece = next_piece(journal)
    journal.move(piece, piece.read(disk))
    assert segment_name(piece.segment) in disk.names(), "the copies are not safe yet"
    appended = journal.appended
    commit(journal, disk)
    assert segment_name(piece.segment) in before
    assert segment_name(piece.segment) not in disk.names()
    assert journal.synced == appended
    assert journal.read("slow", 0, ALL) == recovered_journal(disk).read("slow", 0, ALL) == slow_batches()


def test_a_crash_at_any_change_of_the_disk_loses_nothing_and_brings_nothing_back():
    for changes in range(200):
        disk = SimDisk(sim_disk(changes).rng)
        journal = wasteful_journal(disk)
        try:
            look_after(journal, DyingDisk(disk, changes))
        except Died:
            disk.crash()
        else:
            break
        again = new_journal(disk)
        assert again.recover().records == [Noted(number=1)]
        again.validate()
        assert again.logs() == journal.logs()
        assert again.read("slow", 0, ALL) == slow_batches()
        look_after(again, disk)
        assert again.read("slow", 0, ALL) == slow_batches()
    assert 5 < changes < 199, "it was tried at every change"


def test_what_is_released_while_a_piece_is_read_is_not_moved():
    disk = sim_disk()
    journal = wasteful_journal(disk)
    piece = next_piece(journal)
    found = piece.read(disk)
    journal.release("slow", 6)
    appended = journal.appended
    journal.move(piece, found)
    assert journal.appended == appended
    commit(journal, disk)
    assert piece.read(disk) is None, "the segment is gone"
    assert recovered_journal(disk).read("slow", 0, ALL) == ()


def test_a_batch_is_read_while_it_moves():
    disk = sim_disk()
    journal = wasteful_journal(disk)
    piece = next_piece(journal)
    found = piece.read(disk)
    assert journal.read("slow", 0, ALL) == slow_batches()
    journal.move(piece, found)
    assert journal.read("slow", 0, ALL) == slow_batches(), "moved, not written"
    assert journal.take() is not None
    assert journal.read("slow", 0, ALL) == slow_batches(), "being written"


def test_compaction_waits_while_the_disk_has_no_room_for_it():
    disk = sim_disk()
    journal = wasteful_journal(disk)
    disk.fill(1 - disk.used_share - 900 / disk.capacity_bytes)
    piece = next_piece(journal)
    assert piece.room_bytes > disk.room_bytes
    journal.move(piece, piece.read(disk))
    assert journal.take() is None
    disk.fill(0)
    assert look_after(journal, disk) > 0


def test_one_step_is_small_however_small_or_large_the_batches_are():
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=1 << 20)
    for first in range(5000):
        journal.append_batch("slow", batch(first, rows=b""))
    journal.append_batch("large", batch(0, rows=bytes(3 * PIECE_BYTES)))
    journal.append_batch("fast", batch(0, rows=bytes(2 << 20)))
    journal.release("fast", 1)
    journal.snapshot([])
    commit(journal, disk)
    moved = []
    while (piece := journal.compact()) is not None:
        found = piece.read(disk)
        assert found is not None
        moved.append(len(found.batches))
        journal.move(piece, found)
    assert sum(moved) == 5001, "where nothing more is kept, nothing more is read"
    assert max(moved) <= 1000
    commit(journal, disk)
    assert journal.read("large", 0, ALL) == (batch(0, rows=bytes(3 * PIECE_BYTES)),)


def test_one_commit_takes_no_more_than_a_megabyte_of_moved_batches():
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=4 << 20)
    for first in range(40):
        journal.append_batch("slow", batch(first, rows=bytes(50_000)))
    journal.append_batch("fast", batch(0, rows=bytes(20 << 20)))
    journal.release("fast", 1)
    journal.snapshot([])
    commit(journal, disk)
    commits = 0
    while (piece := journal.compact()) is not None:
        appended = journal.appended
        while piece is not None:
            journal.move(piece, piece.read(disk))
            piece = journal.compact()
        assert (journal.appended - appended) * 50_000 <= (1 << 20) + PIECE_BYTES
        commit(journal, disk)
        commits += 1
    assert commits == 2
    assert len(disk.names()) == 2, "a snapshot, and the segment that everything is in"


def test_an_entry_that_has_changed_is_not_moved():
    disk = sim_disk()
    journal = wasteful_journal(disk)
    piece = next_piece(journal)
    disk.damage(segment_name(piece.segment), 3)
    with pytest.raises(JournalCorrupt, match="an entry has changed since it was written"):
        piece.read(disk)


def test_a_log_that_is_gone_is_remembered_as_long_as_a_file_may_bring_it_back():
    for changes in range(200):
        disk = SimDisk(sim_disk(changes).rng)
        journal = recovered_journal(disk, segment_bytes=300)
        for first in range(9):
            journal.append_batch("gone", batch(first, rows=bytes(100)))
            journal.append_batch("kept", batch(first, rows=bytes(20)))
        commit(journal, disk)
        journal.forget("gone")
        commit(journal, disk)
        assert journal.logs().keys() == {"kept"}
        dying = DyingDisk(disk, changes)
        try:
            for number in range(4):
                journal.snapshot([Noted(number=number)])
                journal.append(Noted(number=number))
                commit(journal, dying)
                while (piece := journal.compact()) is not None:
                    journal.move(piece, piece.read(disk))
                    commit(journal, dying)
        except Died:
            disk.crash()
        else:
            break
        assert recovered_journal(disk, segment_bytes=300).logs() == journal.logs()
    assert 5 < changes < 199, "it was tried at every change"
    journal.release("kept", 9)
    for _ in range(2):
        journal.snapshot([])
        commit(journal, disk)
    assert not any(b"gone" in disk.read(name) for name in disk.names()), "nothing speaks of it any more"
