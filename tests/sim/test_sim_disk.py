"""The simulated disk is as bad as a disk may be, and no worse."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.sim.disk import SECTOR_BYTES, SimDisk
from protocols.journal.disk import DiskFull

SEEDS = st.integers(0, 1 << 32)


def crashed(seed: int, synced: bytes, unsynced: bytes, **options: float) -> bytes:
    disk = SimDisk(random.Random(seed), **options)
    disk.append("a", synced)
    disk.sync("a")
    disk.append("a", unsynced)
    disk.crash()
    return disk.read("a")


@given(SEEDS, st.binary(max_size=2000), st.binary(max_size=2000))
def test_a_crash_keeps_what_was_synced_and_invents_no_bytes_but_blank_ones(seed: int, synced: bytes, unsynced: bytes):
    left = crashed(seed, synced, unsynced)
    assert left.startswith(synced)
    rest = left[len(synced) :]
    assert len(rest) <= len(unsynced)
    assert all(got in (0, written) for got, written in zip(rest, unsynced, strict=False))


def test_each_fate_of_an_unsynced_write_happens():
    synced, unsynced = b"s" * 100, b"u" * 10 * SECTOR_BYTES
    left = [crashed(seed, synced, unsynced) for seed in range(100)]
    lost, kept = left.count(synced), left.count(synced + unsynced)
    assert lost > 10
    assert kept > 10
    torn = [each for each in left if each not in (synced, synced + unsynced)]
    assert sum(0 in each for each in torn) > 10, "sectors that were never written"
    assert sum(0 not in each for each in torn) > 0, "a beginning"


def test_the_shares_decide():
    assert {crashed(seed, b"s", b"u" * 99, lost_share=1.0, torn_share=0.0) for seed in range(20)} == {b"s"}
    assert {crashed(seed, b"s", b"u", lost_share=0.0, torn_share=0.0) for seed in range(20)} == {b"su"}
    assert all(len(crashed(seed, b"s", b"u" * 99, lost_share=0.0, torn_share=1.0)) < 100 for seed in range(20))


def test_the_same_seed_gives_the_same_crash():
    assert len({crashed(7, b"s", b"u" * 5000) for _ in range(5)}) == 1


def test_a_second_crash_changes_nothing_more():
    disk = SimDisk(random.Random(3), lost_share=0.0)
    disk.append("a", b"a" * 5000)
    disk.crash()
    left = disk.names(), [disk.read(name) for name in disk.names()]
    for _ in range(10):
        disk.crash()
    assert (disk.names(), [disk.read(name) for name in disk.names()]) == left


def test_a_name_may_vanish_until_it_is_synced_and_come_back_until_the_folder_is():
    made, removed, removed_for_good = [], [], []
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        disk.append("a", b"new")
        disk.crash()
        made.append(disk.names())
        disk.replace("b", b"safe")
        disk.remove("b")
        disk.crash()
        removed.append("b" in disk.names())
        disk.replace("c", b"safe")
        disk.remove("c")
        disk.replace("d", b"safe")
        disk.crash()
        removed_for_good.append("c" in disk.names())
    assert [] in made
    assert ["a"] in made
    assert set(removed) == {True, False}
    assert set(removed_for_good) == {False}


def test_replacing_is_all_or_nothing_and_survives():
    disk = SimDisk(random.Random(1), capacity_bytes=100)
    disk.replace("a", b"old")
    with pytest.raises(DiskFull):
        disk.replace("a", bytes(101))
    disk.crash()
    assert disk.read("a") == b"old"
    disk.replace("a", b"new")
    disk.crash()
    assert disk.read("a") == b"new"


def test_a_full_disk_refuses_and_has_room_again_when_files_go():
    disk = SimDisk(random.Random(1), capacity_bytes=1000)
    disk.append("a", bytes(400))
    disk.fill(0.5)
    assert disk.used_share == 0.9
    with pytest.raises(DiskFull):
        disk.append("b", bytes(101))
    assert disk.names() == ["a"]
    disk.truncate("a", 300)
    disk.append("b", bytes(101))
    disk.remove("a")
    assert disk.used_share == 0.601
    disk.fill(0)
    assert disk.used_share == 0.101


def test_a_lost_disk_is_empty_and_stays_so():
    disk = SimDisk(random.Random(1))
    disk.replace("a", b"safe")
    disk.remove("a")
    disk.replace("b", b"safe")
    disk.lose()
    disk.crash()
    assert disk.names() == []
    assert disk.used_share == 0


def test_reading_a_part_and_what_is_not_there():
    disk = SimDisk(random.Random(1))
    disk.append("a", b"0123456789")
    assert disk.read("a", 2, 3) == b"234"
    assert disk.read("a", 8, 10) == b"89"
    for touch in (disk.read, disk.sync):
        with pytest.raises(FileNotFoundError):
            touch("b")
    disk.remove("b")
