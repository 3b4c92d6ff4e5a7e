"""The table of entries: whatever comes in whatever order, the newest stays, and the checksums tell."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from protocols.ids import Key, PeerId
from protocols.store.entries import Entry
from protocols.store.limits import BUCKETS, StoreLimits
from protocols.store.messages import ItemName
from protocols.store.table import EntryTable, digests_of, size_of, versions_in

ENTRIES = st.builds(
    Entry,
    key=st.integers(0, 2).map(lambda number: Key.of(str(number))),
    item=st.sampled_from(["a", "b", "c"]),
    stamp=st.integers(0, 4),
    writer=st.integers(0, 1).map(lambda number: PeerId(bytes([number]) * 20)),
    value=st.none() | st.binary(max_size=3),
    expires_at=st.integers(0, 5),
)


def filled(entries: list[Entry]) -> EntryTable:
    table = EntryTable(StoreLimits())
    for each in entries:
        table.put(each)
        table.validate()
    return table


def contents(table: EntryTable) -> list[Entry]:
    return sorted((held.entry for held in table), key=lambda each: (each.key, each.item))


@given(st.lists(ENTRIES, max_size=20), st.randoms(use_true_random=False))
def test_any_order_and_any_repetition_ends_with_the_same(entries: list[Entry], rng: random.Random):
    shuffled = entries * 2
    rng.shuffle(shuffled)
    one, other = filled(entries), filled(shuffled)
    names = {(each.key, each.item): [] for each in entries}
    for each in entries:
        names[each.key, each.item].append(each)
    newest = [
        max(versions, key=lambda each: (each.stamp, each.writer, each.value or b"")) for versions in names.values()
    ]
    assert [(each.key, each.item, each.stamp, each.writer, each.value or b"") for each in contents(one)] == sorted(
        (each.key, each.item, each.stamp, each.writer, each.value or b"") for each in newest
    )
    assert digests_of(one) == digests_of(other)


@given(st.lists(ENTRIES, max_size=10), st.lists(ENTRIES, max_size=10))
def test_checksums_are_equal_exactly_where_the_versions_are(left: list[Entry], right: list[Entry]):
    one, other = filled(left), filled(right)
    ours, theirs = versions_in(one, range(BUCKETS)), versions_in(other, range(BUCKETS))
    digests, other_digests = digests_of(one), digests_of(other)
    for bucket in sorted(ours | theirs):
        one_side = sorted(
            (each.key, each.item, each.stamp, one.get(ItemName(each.key, each.item)).entry.writer)
            for each in ours.get(bucket, [])
        )
        other_side = sorted(
            (each.key, each.item, each.stamp, other.get(ItemName(each.key, each.item)).entry.writer)
            for each in theirs.get(bucket, [])
        )
        assert (digests.get(bucket) == other_digests.get(bucket)) == (one_side == other_side)


@given(st.lists(ENTRIES, max_size=20), st.integers(1, 6))
def test_what_runs_out_is_forgotten_by_everybody_alike(entries: list[Entry], now: int):
    table = filled(entries)
    expected = [each for each in contents(table) if each.expires_at == 0 or each.expires_at > now]
    for key in table.keys:
        is_left = table.expire(key, now)
        assert is_left == (key in table)
    table.validate()
    assert contents(table) == expected


@given(st.lists(ENTRIES, max_size=20))
def test_a_dropped_key_leaves_nothing_behind(entries: list[Entry]):
    table = filled(entries)
    for key in table.keys:
        table.drop(key)
        table.validate()
    assert len(table) == 0


def test_a_key_has_room_for_what_fits_one_message():
    key, writer = Key.of("k"), PeerId(bytes(20))
    first = Entry(key, "a", 1, writer, b"x", 0)
    table = EntryTable(StoreLimits(key_bytes_max=2 * size_of(first)))
    table.put(first)
    assert table.has_room_for(Entry(key, "b", 1, writer, b"x", 0))
    table.put(Entry(key, "b", 1, writer, b"x", 0))
    assert not table.has_room_for(Entry(key, "c", 1, writer, b"", 0))
    assert not table.has_room_for(Entry(key, "a", 2, writer, b"xx", 0))
    assert table.has_room_for(Entry(key, "a", 2, writer, None, 0))
