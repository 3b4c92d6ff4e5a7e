"""How much room a peer says it has: what travels, also to and from other releases, and when it is news."""

from __future__ import annotations

import pytest

from overlay.room import UNLIMITED, Room


@pytest.mark.parametrize("told", [b"", b"\x00", b"\x01\x03", b"\x00\x00\x07\xff", b"\x01\x02\x03\x04\x05\x06"])
def test_what_another_release_tells_of_its_room_is_understood_as_far_as_it_goes(told: bytes):
    room = Room.stated(told)
    assert room.hosts_others == (told[:1] != b"\x01")
    assert room[1:] == (*told[1:4], *[UNLIMITED] * 3)[:3]


def test_others_hear_of_room_when_it_is_used_up_or_has_changed_by_much():
    before = Room(cpu=5, uplink=1)
    assert not Room(cpu=6, uplink=1).has_moved(before)
    assert Room(cpu=7, uplink=1).has_moved(before)
    assert Room(cpu=5, uplink=0).has_moved(before)
    assert before.has_moved(Room(cpu=5, uplink=0))
    assert Room(False, 5, 1).has_moved(before)
