"""Whom a peer must know to tell exactly what it owns, against all peers of random networks."""

from __future__ import annotations

import random

import pytest

from protocols.events import NEIGHBOURS_MAX
from protocols.ids import ID_BITS, Key, PeerId
from protocols.store.limits import StoreLimits
from protocols.store.neighbourhood import Neighbourhood

LIMITS = StoreLimits()
START = 1_000_000


def identifiers(rng: random.Random, count: int, crowd_bits: int) -> list[PeerId]:
    """Random ones; some of them crowd where so many leading bits are those of another, and leave other parts sparse."""
    numbers: dict[int, None] = {}
    while len(numbers) < count:
        number = rng.getrandbits(ID_BITS)
        if numbers and crowd_bits:
            free = ID_BITS - rng.randrange(crowd_bits + 1)
            number = rng.choice(list(numbers)) >> free << free | number & ((1 << free) - 1)
        numbers[number] = None
    return [PeerId(number.to_bytes(ID_BITS // 8, "big")) for number in numbers]


def key_near(rng: random.Random, peers: list[PeerId]) -> Key:
    """A key anywhere, or one that begins like a peer and then turns away from it."""
    number = rng.getrandbits(ID_BITS)
    if rng.random() < 0.7:
        free = ID_BITS - rng.randrange(16)
        number = rng.choice(peers).number >> free << free | number & ((1 << free) - 1)
    return Key(number.to_bytes(ID_BITS // 8, "big"))


def nearest(peers: list[PeerId], key: Key, count: int) -> list[PeerId]:
    return sorted(peers, key=lambda peer: peer.number ^ key.number)[:count]


def around(me: PeerId, peers: list[PeerId]) -> Neighbourhood:
    neighbourhood = Neighbourhood(me, LIMITS)
    neighbourhood.start(START)
    for peer in peers:
        neighbourhood.up(peer, START)
    neighbourhood.validate()
    return neighbourhood


@pytest.mark.parametrize("crowd_bits", [0, 3, 8])
@pytest.mark.parametrize("seed", range(1, 5))
def test_witnesses_tell_exactly_what_a_peer_owns_and_kin_with_whom(seed: int, crowd_bits: int):
    print(f"seed {seed}")
    rng = random.Random(f"{seed}/{crowd_bits}")
    for count in (1, 2, 3, 4, 5, 7, 9, 13, 20, 40):
        peers = identifiers(rng, count, crowd_bits)
        neighbourhoods = {peer: around(peer, peers) for peer in peers}
        for _ in range(40):
            key = key_near(rng, peers)
            owners = nearest(peers, key, LIMITS.owners)
            next_to = nearest(peers, key, LIMITS.owners + 1)
            for peer, neighbourhood in neighbourhoods.items():
                assert neighbourhood.owners(key) == owners
                assert neighbourhood.is_owner(key) == (peer in owners)
                if peer in next_to:
                    assert all(each in neighbourhood.near for each in next_to if each != peer)


@pytest.mark.parametrize("seed", range(1, 4))
def test_only_kin_can_share_a_key(seed: int):
    """That kin are no more than it takes: for each there is a key that both are among the four nearest to."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for count in (6, 13, 30):
        peers = identifiers(rng, count, 3)
        for me in peers:
            neighbourhood = around(me, peers)
            for other in neighbourhood.near:
                level_bit = 1 << (me.number ^ other.number).bit_length() - 1
                points = (other.number ^ level_bit, me.number ^ level_bit)
                keys = [Key(point.to_bytes(ID_BITS // 8, "big")) for point in points]
                assert any({me, other} <= set(nearest(peers, key, LIMITS.owners + 1)) for key in keys)


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_nearest_64_are_enough_in_larger_networks(seed: int):
    print(f"seed {seed}")
    rng = random.Random(seed)
    peers = identifiers(rng, 400, 0)
    keys = [key_near(rng, peers) for _ in range(100)]
    owners = {key: nearest(peers, key, LIMITS.owners) for key in keys}
    for me in rng.sample(peers, 60):
        others = [peer for peer in nearest(peers, me, NEIGHBOURS_MAX + 1) if peer != me]
        neighbourhood = around(me, others)
        for key in keys:
            assert neighbourhood.is_owner(key) == (me in owners[key])
            if me in owners[key]:
                assert neighbourhood.owners(key) == owners[key]


def test_kin_follow_who_comes_and_goes():
    rng = random.Random(1)
    peers = identifiers(rng, 30, 3)
    me, others = peers[0], peers[1:]
    neighbourhood = around(me, others)
    for _ in range(300):
        peer = rng.choice(others)
        if neighbourhood.is_present(peer):
            neighbourhood.down(peer, START)
        else:
            neighbourhood.up(peer, START)
        neighbourhood.validate()
        here = [peer for peer in others if neighbourhood.is_present(peer)]
        anew = around(me, here)
        assert sorted(neighbourhood.near) == sorted(anew.near)
        key = key_near(rng, peers)
        assert neighbourhood.is_owner(key) == anew.is_owner(key)
