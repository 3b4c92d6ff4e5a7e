"""The lookup, driven without a network: the true nearest live peers, never one that has not answered."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.lookup import Lookup
from overlay.table import Candidate, Table
from protocols.ids import ID_BITS, Key, PeerId
from tests.overlay.networks import contact, peer_id


def candidate(peer: PeerId) -> Candidate:
    return Candidate(peer, ("127.0.0.1", 7400), 1)


def network(luck: random.Random, count: int) -> dict[PeerId, Table]:
    """Peers that have met in random order, as far as their tables have room."""
    everybody = [peer_id(luck.getrandbits(ID_BITS)) for _ in range(count)]
    tables = {peer: Table(peer) for peer in everybody}
    for peer, table in tables.items():
        for other in luck.sample(everybody, count):
            if other != peer:
                table.add_contact(contact(other))
    return tables


def search(
    tables: dict[PeerId, Table], start: PeerId, target: Key, count: int, dead: list[PeerId], luck: random.Random
) -> list[PeerId]:
    """Run a lookup to its end; answers, delays and failures come in random order."""
    lookup = Lookup(target, count)
    lookup.learn(candidate(start), answered=True)
    for near in tables[start].nearest(target, max(count, 3)):
        lookup.learn(near.candidate)
    waiting = lookup.ask()
    named = list(waiting)
    while not lookup.finished:
        peer = waiting.pop(luck.randrange(len(waiting))).peer_id
        if luck.random() < 0.2:
            lookup.slow(peer)
            waiting += (more := lookup.ask())
            named += more
        if peer in dead:
            lookup.failed(peer)
        else:
            lookup.answered(peer)
            for near in tables[peer].nearest(target, 8, exclude=start):
                lookup.learn(near.candidate)
        waiting += (more := lookup.ask())
        named += more
    assert len({each.peer_id for each in named}) == len(named), "nobody is asked twice"
    return lookup.result()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(min_value=2, max_value=80),
    st.integers(min_value=1, max_value=8),
    st.sampled_from([0.0, 0.2]),
)
def test_a_lookup_finds_the_nearest_peers_and_never_names_a_dead_one(
    luck: random.Random, size: int, count: int, dead_share: float
) -> None:
    tables = network(luck, size)
    start, *others = tables
    dead = luck.sample(others, int(dead_share * len(others)))
    target = Key(peer_id(luck.getrandbits(ID_BITS)))
    result = search(tables, start, target, count, dead, luck)
    assert not [peer for peer in result if peer in dead]
    alive = sorted((peer for peer in tables if peer not in dead), key=lambda peer: peer.number ^ target.number)
    if not dead:  # With a fifth gone and nobody the wiser yet, a live one may be missed; a dead one is never named.
        assert result == alive[:count]


def test_a_slow_peer_gives_up_its_turn_but_is_waited_for() -> None:
    lookup = Lookup(Key(peer_id(0)), 2, parallel=1)
    for number in (1, 2, 3):
        lookup.learn(candidate(peer_id(number)))
    assert lookup.ask() == [candidate(peer_id(1))]
    assert lookup.ask() == []
    lookup.slow(peer_id(1))
    assert lookup.ask() == [candidate(peer_id(2))]
    lookup.answered(peer_id(2))
    assert not lookup.finished
    lookup.answered(peer_id(1))
    assert lookup.finished
    assert lookup.result() == [peer_id(1), peer_id(2)]


def test_a_lookup_with_nobody_to_ask_finds_ourselves() -> None:
    lookup = Lookup(Key(peer_id(5)), 3)
    lookup.learn(candidate(peer_id(1)), answered=True)
    assert lookup.ask() == []
    assert lookup.finished
    assert lookup.result() == [peer_id(1)]
