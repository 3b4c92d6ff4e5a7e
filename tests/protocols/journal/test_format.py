"""The bytes of the journal: what is written comes back, and one wrong bit is noticed wherever it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocols.events import StoredBatch
from protocols.journal.format import (
    BATCH,
    GONE,
    MARK,
    MOVED,
    RECORD,
    RELEASE,
    body,
    find_mark,
    is_batch,
    is_mark,
    open_batch,
    open_batch_header,
    open_release,
    scan,
    seal,
    seal_batch,
    seal_end,
    seal_mark,
    seal_release,
    size_of_entry,
)

SEQUENCES = st.integers(0, (1 << 63) - 1)
BATCHES = st.builds(StoredBatch, SEQUENCES, st.integers(1, (1 << 32) - 1), SEQUENCES, st.binary(max_size=200))
LOGS = st.text(max_size=20)
ENTRIES = st.one_of(
    st.builds(lambda data: seal(RECORD, data), st.binary(max_size=60)),
    st.builds(seal_batch, LOGS, BATCHES),
    st.builds(seal_release, LOGS, SEQUENCES),
    st.builds(seal_mark, st.integers(1, 9), st.integers(0, 1 << 31)),
)


def test_the_format_on_the_disk_stays_as_it_is():
    """A change of these bytes needs a new version in the magic, and code that reads the old one."""
    batch = StoredBatch(first=7, count=2, published_at=1_700_000_000_000, rows=b"\x92\x91\x01\x91\x02")
    golden = {
        seal_mark(3, 4096): "150c18e0 18000000 01 7065657264ff4a3103000000000000000010000000000000",
        seal(RECORD, b"abc"): "d188c18b 03000000 02 616263",
        seal_batch(
            "out/é", batch
        ): "9aa29df2 21000000 03 0700000000000000020000000068e5cf8b01000006006f75742fc3a99291019102",
        seal_batch(
            "out/é", batch, is_moved=True
        ): "74b71644 21000000 06 0700000000000000020000000068e5cf8b01000006006f75742fc3a99291019102",
        seal_release("out/é", GONE): "ccd039a6 0e000000 04 ffffffffffffffff6f75742fc3a9",
        seal_release("out/é", 9): "3d3e5e3a 0e000000 04 09000000000000006f75742fc3a9",
        seal_end(2, 1): "161e44b5 10000000 05 02000000000000000100000000000000",
    }
    for entry, expected in golden.items():
        assert entry.hex() == expected.replace(" ", "")


@given(LOGS, BATCHES, st.booleans())
def test_a_batch_comes_back_whole(log: str, batch: StoredBatch, is_moved: bool):
    entry = seal_batch(log, batch, is_moved=is_moved)
    assert [(MOVED if is_moved else BATCH, 0, len(entry))] == list(scan(entry))
    assert is_batch(entry)
    assert size_of_entry(entry[:20]) == len(entry)
    assert open_batch(b"before" + entry + b"behind", 6, 6 + len(entry)) == (log, batch)
    assert open_batch_header(b"before" + entry, 6) == (log, batch.first, batch.count, batch.published_at)


@given(LOGS, SEQUENCES)
def test_a_release_comes_back(log: str, below: int):
    entry = seal_release(log, below)
    assert open_release(entry, 0, len(entry)) == (log, below)


@given(st.lists(ENTRIES), st.binary(max_size=40))
def test_a_scan_finds_each_entry_and_stops_where_there_is_none(entries: list[bytes], rest: bytes):
    found = list(scan(b"".join(entries)))
    assert [end - offset for _, offset, end in found] == list(map(len, entries))
    torn = seal(RECORD, rest + b".")[:-1]
    assert list(scan(b"".join([*entries, torn]))) == found


@given(st.lists(ENTRIES, min_size=1, max_size=4), st.data())
def test_one_wrong_bit_ends_the_scan_at_its_entry(entries: list[bytes], data: st.DataObject):
    written = bytearray(b"".join(entries))
    bit = data.draw(st.integers(0, len(written) * 8 - 1))
    before = [(kind, offset, end) for kind, offset, end in scan(bytes(written)) if end <= bit // 8]
    written[bit // 8] ^= 1 << bit % 8
    assert list(scan(bytes(written))) == before


def test_blank_sectors_are_no_entries():
    assert list(scan(bytes(4096))) == []


def test_kinds_and_bodies():
    data = (
        seal_mark(1, 0)
        + seal(RECORD, b"one", b"two")
        + seal_release("log", 5)
        + seal_batch("log", StoredBatch(1, 1, 1, b""))
    )
    found = list(scan(data))
    assert [kind for kind, _, _ in found] == [MARK, RECORD, RELEASE, BATCH]
    assert body(data, *found[1][1:]) == b"onetwo"


def test_a_mark_counts_only_in_its_place_and_its_segment():
    mark = seal_mark(4, 100)
    data = bytes(100) + mark
    assert is_mark(data, segment=4, offset=100)
    assert find_mark(data, segment=4, start=0) == 100
    assert find_mark(data, segment=4, start=100) == 100
    assert find_mark(data, segment=4, start=101) is None
    assert find_mark(data, segment=5, start=0) is None
    assert find_mark(b"." + data, segment=4, start=0) is None


def test_a_mark_is_found_behind_one_that_belongs_elsewhere():
    misplaced = seal_mark(4, 1)
    data = bytes(10) + misplaced + seal_mark(4, 10 + len(misplaced))
    assert find_mark(data, segment=4, start=0) == 10 + len(misplaced)
