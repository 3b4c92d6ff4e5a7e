"""The routing table: true neighbours, a place for every leaf, no empty answers."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from overlay.table import BUCKET_PEERS, Table
from protocols.events import NEIGHBOURS_MAX
from protocols.ids import ID_BITS, Key, PeerId
from tests.overlay.networks import contact, peer_id

ids = st.integers(min_value=0, max_value=2**ID_BITS - 1)


def filled(own: PeerId, others: list[PeerId], leaf_peers: int = NEIGHBOURS_MAX) -> Table:
    table = Table(own, leaf_peers=leaf_peers)
    for other in others:
        table.add_contact(contact(other))
    return table


@given(ids, st.lists(ids, unique=True, max_size=200), ids, st.integers(min_value=1, max_value=20))
def test_nearest_is_the_true_nearest_of_all_it_holds(own: int, others: list[int], target: int, count: int) -> None:
    table = filled(peer_id(own), [peer_id(other) for other in others if other != own])
    held = sorted(table.contacts(), key=lambda each: each.long_id ^ target)
    assert table.nearest(Key(peer_id(target)), count) == held[:count]


@given(
    ids,
    st.lists(ids, unique=True, min_size=1, max_size=300),
    st.randoms(use_true_random=False),
    st.sampled_from([8, NEIGHBOURS_MAX]),
)
def test_the_leaf_set_always_has_a_place_whatever_the_order_of_arrival(
    own: int, others: list[int], luck: random.Random, leaf_peers: int
) -> None:
    others = [other for other in others if other != own]
    luck.shuffle(others)
    table = filled(peer_id(own), [peer_id(other) for other in others], leaf_peers)
    expected = sorted(others, key=lambda other: other ^ own)[:leaf_peers]
    assert [leaf.peer_id.number for leaf in table.leaves()] == expected
    beyond = Counter(table.level_of(each.peer_id) for each in table.contacts() if each not in table.leaves())
    assert all(count <= BUCKET_PEERS for count in beyond.values())


def test_a_full_level_keeps_whom_it_has_and_names_a_spare_when_one_goes() -> None:
    luck = random.Random(4)
    own = peer_id(0)
    near = [peer_id(number) for number in range(1, 9)]  # Fill the leaf set first.
    far = [peer_id(1 << 159 | luck.getrandbits(150)) for _ in range(9)]
    table = filled(own, near + far, leaf_peers=8)
    kept = [other for other in far if table.get(other)]
    (spare,) = [other for other in far if not table.get(other)]
    assert len(kept) == 8
    lost = table.get(kept[0])
    assert lost is not None
    table.remove_contact(lost)
    promoted = table.spare_for(kept[0])
    assert promoted is not None
    assert promoted.peer_id == spare
    assert table.spare_for(kept[0]) is None


def test_a_peer_finds_every_other_in_a_network_of_512() -> None:
    """The library's table answered with nobody at all for 3.8 % of the pairs at this size."""
    luck = random.Random(512)
    everybody = [peer_id(luck.getrandbits(ID_BITS)) for _ in range(512)]
    table = filled(everybody[0], everybody[1:])
    assert all(len(table.nearest(Key(other), 8)) == 8 for other in everybody)


@given(ids, st.integers(min_value=0, max_value=ID_BITS - 1), st.randoms(use_true_random=False))
def test_a_random_key_of_a_level_shares_exactly_that_many_bits(own: int, level: int, luck: random.Random) -> None:
    table = Table(peer_id(own))
    assert table.level_of(table.random_key(level, luck)) == level


def test_home_is_where_the_leaves_are() -> None:
    own = peer_id(0)
    table = filled(own, [peer_id(number) for number in range(1, 8)], leaf_peers=8)
    assert table.is_home(Key(peer_id(1 << 159))), "with fewer peers than leaves, everything is home"
    table.add_contact(contact(peer_id(8)))
    assert table.is_home(Key(peer_id(8)))
    assert not table.is_home(Key(peer_id(16)))


def test_nearer_passes_over_those_who_do_not_answer() -> None:
    table = filled(peer_id(8), [peer_id(1), peer_id(3)])
    key = Key(peer_id(1))
    first = table.nearer(key)
    assert first is not None
    assert first.peer_id == peer_id(1)
    first.silent_since = 0.0
    second = table.nearer(key)
    assert second is not None
    assert second.peer_id == peer_id(3)
    second.silent_since = 0.0
    assert table.nearer(key) is None


def test_pages_walk_the_whole_table_in_order() -> None:
    luck = random.Random(7)
    table = filled(peer_id(0), [peer_id(luck.getrandbits(ID_BITS)) for _ in range(40)])
    walked: list[PeerId] = []
    after = peer_id(0)
    while page := table.page(after, 7):
        walked += [each.peer_id for each in page]
        after = walked[-1]
    assert walked == sorted(each.peer_id for each in table.contacts())
