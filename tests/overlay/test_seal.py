"""Sealed datagrams: accepted once, from members, now; everything else vanishes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.identity import Network
from overlay.seal import BODY_BYTES_MAX, DATAGRAM_BYTES_MAX, Opener, Sealer

NETWORK = Network("plant", b"k" * 32)
NOW = 1_800_000_000.0


def test_a_sealed_body_opens_once() -> None:
    datagram = Sealer(NETWORK).seal(b"hello", NOW)
    opener = Opener(NETWORK)
    assert [opener.open(datagram, NOW) for _ in range(3)] == [b"hello", None, None]


def test_a_datagram_of_another_network_does_not_open() -> None:
    assert Opener(NETWORK).open(Sealer(Network("plant", b"x" * 32)).seal(b"hello", NOW), NOW) is None


def test_any_altered_bit_is_noticed() -> None:
    datagram = Sealer(NETWORK).seal(b"hello", NOW)
    opener = Opener(NETWORK)
    for bit in range(len(datagram) * 8):
        altered = bytearray(datagram)
        altered[bit // 8] ^= 1 << bit % 8
        assert opener.open(bytes(altered), NOW) is None
    assert opener.open(datagram, NOW) == b"hello"


@given(st.binary(max_size=2000))
def test_rubbish_opens_to_nothing(rubbish: bytes) -> None:
    assert Opener(NETWORK).open(rubbish, NOW) is None


@given(st.lists(st.integers(min_value=0, max_value=1999), max_size=300), st.randoms(use_true_random=False))
def test_in_any_order_each_datagram_within_the_window_is_accepted_exactly_once(
    order: list[int], luck: random.Random
) -> None:
    sealer, opener = Sealer(NETWORK), Opener(NETWORK)
    datagrams = [sealer.seal(str(number).encode(), NOW) for number in range(2000)]
    opened: dict[int, int] = {}
    highest = -1
    for number in order:
        body = opener.open(datagrams[number], NOW)
        fresh = number > highest - 1024 and number not in opened
        assert body == (str(number).encode() if fresh else None)
        if fresh:
            opened[number] = 1
        highest = max(highest, number)


def test_a_recording_from_before_we_started_is_too_old() -> None:
    recorded = Sealer(NETWORK).seal(b"hello", NOW - 61)
    assert Opener(NETWORK).open(recorded, NOW) is None


def test_a_boot_we_already_hear_may_have_any_clock() -> None:
    sealer, opener = Sealer(NETWORK), Opener(NETWORK)
    assert opener.open(sealer.seal(b"one", NOW), NOW) == b"one"
    assert opener.open(sealer.seal(b"two", NOW), NOW + 300) == b"two"


def test_no_datagram_is_longer_than_the_cap() -> None:
    sealer = Sealer(NETWORK)
    assert len(sealer.seal(bytes(BODY_BYTES_MAX), NOW)) == DATAGRAM_BYTES_MAX
    with pytest.raises(ValueError, match="may have"):
        sealer.seal(bytes(BODY_BYTES_MAX + 1), NOW)
