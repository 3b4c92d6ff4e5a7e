"""The journal, one promise at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.sim.disk import SimDisk
from protocols.events import LogBounds
from protocols.journal.disk import DiskFull
from protocols.journal.format import JournalCorrupt, seal, seal_mark
from protocols.journal.journal import Recovered
from protocols.journal.pending import segment_name, snapshot_name
from tests.protocols.journal.journals import Noted, batch, commit, new_journal, recovered_journal, sim_disk
from tests.protocols.journal.model import stamps_of

ALL = 1 << 30


def test_what_was_committed_is_recovered_in_order():
    disk = sim_disk()
    journal = recovered_journal(disk)
    journal.append(Noted(number=1))
    journal.append_batch("flights", batch(0, count=3))
    journal.append(Noted(number=2))
    journal.append_batch("flights", batch(3, count=2))
    commit(journal, disk)
    again = new_journal(disk)
    logs = {"flights": LogBounds(0, 5, stamps_of([batch(0, count=3), batch(3, count=2)]))}
    assert again.recover() == Recovered([Noted(number=1), Noted(number=2)], logs, cut_bytes=0)
    assert again.read("flights", 0, ALL) == (batch(0, count=3), batch(3, count=2))


def test_synced_follows_appended_one_commit_behind():
    disk = sim_disk()
    journal = recovered_journal(disk)
    assert journal.take() is None
    journal.append(Noted(number=1))
    first = journal.take()
    journal.append(Noted(number=2))
    assert (journal.appended, journal.synced) == (2, 0)
    assert journal.take() is None, "the first is still being written"
    first.write(disk)
    journal.done(first)
    assert (journal.appended, journal.synced) == (2, 1)
    commit(journal, disk)
    assert (journal.appended, journal.synced) == (2, 2)


def test_one_commit_is_one_append_and_one_sync_for_all_logs():
    changes = []

    class Counting(SimDisk):
        def append(self, name: str, data: bytes) -> None:
            changes.append("append")
            super().append(name, data)

        def sync(self, name: str) -> None:
            changes.append("sync")
            super().sync(name)

    disk = Counting(sim_disk().rng)
    journal = recovered_journal(disk, segment_bytes=1 << 20)
    for number in range(50):
        journal.append_batch(f"log-{number}", batch(0))
        journal.append(Noted(number=number))
    commit(journal, disk)
    assert changes == ["append", "sync"]


def test_a_read_begins_with_the_batch_that_holds_the_place_and_stops_at_the_size():
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=300)
    batches = tuple(batch(first, count=10, rows=bytes([first]) * 100) for first in range(0, 100, 10))
    for each in batches:
        journal.append_batch("flights", each)
        journal.append_batch("trains", each)
    commit(journal, disk)
    assert journal.read("flights", 0, ALL) == batches
    assert journal.read("flights", 35, ALL) == batches[3:]
    assert journal.read("flights", 35, 0) == batches[3:4], "at least one"
    assert journal.read("flights", 35, 300) == batches[3:5]
    assert journal.read("flights", 100, ALL) == ()
    assert journal.read("ships", 0, ALL) == ()


def test_a_read_finds_what_is_written_being_written_and_not_yet_written():
    disk = sim_disk()
    journal = recovered_journal(disk)
    journal.append_batch("flights", batch(0))
    commit(journal, disk)
    journal.append_batch("flights", batch(1))
    assert journal.take() is not None
    journal.append_batch("flights", batch(2))
    assert journal.read("flights", 0, ALL) == (batch(0), batch(1), batch(2))


def test_a_reading_ends_where_files_were_removed_meanwhile():
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=1)
    for first in range(3):
        journal.append_batch("flights", batch(first))
    commit(journal, disk)
    reading = journal.find("flights", 0, ALL)
    journal.release("flights", 2)
    journal.snapshot([])
    commit(journal, disk)
    assert reading.read(disk) == ()
    assert journal.read("flights", 2, ALL) == (batch(2),)


def test_a_released_batch_is_not_read_and_does_not_come_back():
    disk = sim_disk()
    journal = recovered_journal(disk)
    for first in range(0, 40, 10):
        journal.append_batch("flights", batch(first, count=10))
    journal.release("flights", 25)
    journal.release("flights", 5)  # Late news changes nothing.
    commit(journal, disk)
    for each in (journal, recovered_journal(disk)):
        stamps = stamps_of([batch(20, count=10), batch(30, count=10)])
        assert each.logs() == {"flights": LogBounds(25, 40, stamps)}
        assert each.read("flights", 24, ALL) == ()
        assert each.read("flights", 25, ALL) == (batch(20, count=10), batch(30, count=10))


def test_a_log_that_holds_nothing_remembers_where_it_stands():
    disk = sim_disk()
    journal = recovered_journal(disk)
    journal.append_batch("flights", batch(0, count=10))
    journal.release("flights", 10)
    journal.snapshot([])
    commit(journal, disk)
    journal = recovered_journal(disk)
    assert journal.logs() == {"flights": LogBounds(10, 10)}
    journal.append_batch("flights", batch(10))
    commit(journal, disk)
    assert recovered_journal(disk).logs() == {"flights": LogBounds(10, 11, stamps_of([batch(10)]))}


def test_an_empty_log_may_begin_anywhere_ahead_but_a_log_has_no_holes():
    disk = sim_disk()
    journal = recovered_journal(disk)
    journal.append_batch("backup", batch(80, count=10))
    with pytest.raises(AssertionError, match="a batch begins at 95 where 90 comes next"):
        journal.append_batch("backup", batch(95))
    commit(journal, disk)
    stamps = stamps_of([batch(80, count=10)])
    assert recovered_journal(disk).logs() == journal.logs() == {"backup": LogBounds(80, 90, stamps)}


def test_a_snapshot_stands_for_the_records_before_it_and_frees_their_segments():
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=100)
    journal.append_batch("flights", batch(0))
    for number in range(20):
        journal.append(Noted(number=number))
    commit(journal, disk)
    segments = len(disk.names())
    assert segments > 3
    journal.snapshot([Noted(number=1000)])
    journal.append(Noted(number=20))
    commit(journal, disk)
    newest = f"{segments + 1:08}"
    assert disk.names() == [segment_name(1), f"segment-{newest}", f"snapshot-{newest}"], "a batch keeps the first"
    assert new_journal(disk).recover().records == [Noted(number=1000), Noted(number=20)]
    journal.release("flights", 1)
    commit(journal, disk)
    assert disk.names() == [f"segment-{newest}", f"snapshot-{newest}"]


def test_only_the_newest_snapshot_is_kept():
    disk = sim_disk()
    journal = recovered_journal(disk)
    for number in range(4):
        journal.append(Noted(number=number))
        journal.snapshot([Noted(number=number)])
        journal.snapshot([Noted(number=number)])  # Nothing was appended in between: it takes the place of the other.
        commit(journal, disk)
        assert len(disk.names()) == 1
    assert new_journal(disk).recover().records == [Noted(number=3)]


def test_a_snapshot_is_wanted_when_there_is_enough_to_gain():
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=1000)
    for first in range(100):
        journal.append_batch("flights", batch(first, rows=bytes(100)))
        commit(journal, disk)
    journal.append(Noted(number=1, padding=bytes(500)))
    marks = len(seal_mark(1, 0)) * 100
    assert marks > 2000, "the marks alone are worth it"
    assert journal.wants_snapshot
    journal.snapshot([])
    assert not journal.wants_snapshot
    journal.release("flights", 100)
    assert not journal.wants_snapshot, "what lies before the snapshot goes without another one"
    for first in range(100, 150):
        journal.append_batch("flights", batch(first, rows=bytes(100)))
    commit(journal, disk)
    assert not journal.wants_snapshot
    journal.release("flights", 150)
    assert journal.wants_snapshot
    commit(journal, disk)
    assert recovered_journal(disk, segment_bytes=1000).wants_snapshot


def test_a_large_snapshot_waits_for_as_much_to_gain():
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=100)
    journal.snapshot([Noted(number=0, padding=bytes(10_000))])
    journal.append(Noted(number=1, padding=bytes(7_000)))
    assert not journal.wants_snapshot
    journal.append(Noted(number=2, padding=bytes(1_000)))
    assert journal.wants_snapshot


def test_a_torn_end_is_cut_off_and_reported():
    disk = sim_disk()
    journal = recovered_journal(disk)
    journal.append(Noted(number=1))
    commit(journal, disk)
    size = len(disk.read(segment_name(1)))
    journal.append(Noted(number=2))
    commit(journal, disk)
    whole = len(disk.read(segment_name(1)))
    disk.truncate(segment_name(1), whole - 1)
    again = new_journal(disk)
    mark = len(seal_mark(1, 0))
    assert again.recover() == Recovered([Noted(number=1)], {}, cut_bytes=whole - 1 - size - mark)
    again.append(Noted(number=3))
    commit(again, disk)
    assert new_journal(disk).recover() == Recovered([Noted(number=1), Noted(number=3)], {}, cut_bytes=0)


@given(st.data())
def test_damage_is_reported_or_it_is_the_last_write_that_is_lost(data: st.DataObject):
    """Of one wrong bit, anywhere: never a wrong record, never the loss of more than the newest write."""
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=150)
    for number in range(6):
        journal.append(Noted(number=number))
        journal.append_batch("flights", batch(number))
        if number == 2:
            journal.snapshot([Noted(number=each) for each in range(3)])
        commit(journal, disk)
    name = data.draw(st.sampled_from(disk.names()))
    disk.damage(name, data.draw(st.integers(0, len(disk.read(name)) - 1)))
    again = new_journal(disk)
    reported: JournalCorrupt | None = None
    try:
        recovered = again.recover()
    except JournalCorrupt as error:
        reported = error
    if reported is not None:
        assert reported.name == name
        return
    assert recovered.cut_bytes > 0
    kept = len(recovered.records)
    assert recovered.records == [Noted(number=number) for number in range(kept)]
    assert kept >= 5
    assert again.read("flights", 0, ALL) == tuple(map(batch, range(recovered.logs["flights"].next)))
    assert recovered.logs["flights"].next >= 5


def test_damage_before_the_last_write_names_the_file_and_the_place():
    disk = sim_disk()
    journal = recovered_journal(disk)
    for number in range(3):
        journal.append(Noted(number=number))
        commit(journal, disk)
    place = len(seal_mark(1, 0))
    disk.damage(segment_name(1), place + 5)
    with pytest.raises(JournalCorrupt, match=f'"segment-00000001" is damaged at byte {place}: '):
        new_journal(disk).recover()


def test_a_batch_that_has_changed_is_not_handed_out():
    disk = sim_disk()
    journal = recovered_journal(disk)
    journal.append_batch("flights", batch(0))
    commit(journal, disk)
    place = len(seal_mark(1, 0))
    disk.damage(segment_name(1), place + 30)
    with pytest.raises(JournalCorrupt, match=f"at byte {place}: a batch has changed"):
        journal.read("flights", 0, ALL)


@pytest.mark.parametrize("missing", [segment_name(1), segment_name(2), segment_name(3)])
def test_a_missing_segment_is_noticed(missing: str):
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=1)
    for number in range(4):
        journal.append(Noted(number=number))
    commit(journal, disk)
    disk.remove(missing)
    with pytest.raises(JournalCorrupt, match=f'"{missing}" is damaged at byte 0: the file is missing'):
        new_journal(disk).recover()


def test_missing_batches_are_noticed_although_a_snapshot_covers_their_segment():
    disk = sim_disk()
    journal = recovered_journal(disk, segment_bytes=1)
    for first in range(3):
        journal.append_batch("flights", batch(first))
    journal.snapshot([])
    commit(journal, disk)
    disk.remove(segment_name(2))
    with pytest.raises(JournalCorrupt, match=r'"segment-00000003".*tuples of log "flights" before this batch'):
        new_journal(disk).recover()


def test_a_snapshot_that_is_not_whole_is_noticed():
    disk = sim_disk()
    journal = recovered_journal(disk)
    journal.append(Noted(number=1))
    journal.snapshot([Noted(number=1), Noted(number=2)])
    commit(journal, disk)
    name = snapshot_name(2)
    whole = disk.read(name)
    for size in range(len(whole)):
        disk.replace(name, whole[:size])
        with pytest.raises(JournalCorrupt, match=name):
            new_journal(disk).recover()


def test_a_file_of_another_version_is_refused_and_left_alone():
    disk = sim_disk()
    other = seal_mark(1, 0).replace(b"J1", b"J2")
    disk.replace(segment_name(1), seal(1, other[9:]) + seal(2, b"unknown to us"))
    before = disk.read(segment_name(1))
    with pytest.raises(JournalCorrupt, match="no mark of this file and this version"):
        new_journal(disk).recover()
    assert disk.read(segment_name(1)) == before


def test_a_record_that_cannot_be_decoded_says_where_it_stands():
    disk = sim_disk()
    disk.replace(segment_name(1), seal_mark(1, 0) + seal(2, b"\xc1"))
    with pytest.raises(ValueError, match=r".") as caught:
        new_journal(disk).recover()
    assert caught.value.__notes__ == [f'in journal file "segment-00000001" at byte {len(seal_mark(1, 0))}']


def test_a_full_disk_refuses_and_accepts_the_same_write_later():
    disk = sim_disk(capacity_bytes=2000)
    journal = recovered_journal(disk, segment_bytes=1)
    journal.append(Noted(number=1, padding=bytes(900)))
    journal.append(Noted(number=2, padding=bytes(900)))
    disk.fill(0.4)
    pending = journal.take()
    with pytest.raises(DiskFull):
        pending.write(disk)
    assert journal.synced == 0
    assert [record.number for record in new_journal(disk).recover().records] == [1]
    disk.fill(0)
    pending.write(disk)
    journal.done(pending)
    assert journal.synced == 2
    assert [record.number for record in new_journal(disk).recover().records] == [1, 2]


def test_files_that_are_not_ours_are_left_alone():
    disk = sim_disk()
    disk.append("notes-7", b"mine")
    disk.append("segment-7", b"mine")
    journal = recovered_journal(disk)
    journal.append(Noted(number=1))
    commit(journal, disk)
    assert disk.names() == ["notes-7", "segment-00000001", "segment-7"]
