"""Peers are named by the beginning of their id."""

from __future__ import annotations

import pytest

from overlay.members import Member
from peerd.control import find_member
from peerd.errors import Exit, PeerError
from protocols.ids import PeerId


def member(digits: str) -> Member:
    return Member(PeerId(bytes.fromhex(digits.ljust(40, "0"))), ("127.0.0.1", 7400), "0.1.0", "alive", 0.0, None)


MEMBERS = [member("3f9a77"), member("3f9b"), member("c0")]


@pytest.mark.parametrize(("text", "found"), [("3f9a", 0), ("3F9B", 1), ("c", 2), (" c0 ", 2), ("c0" + "0" * 38, 2)])
def test_a_unique_beginning_is_enough(text: str, found: int):
    assert find_member(text, MEMBERS) is MEMBERS[found]


@pytest.mark.parametrize(
    ("text", "exit_code", "told"),
    [
        ("3f9", Exit.NOT_FOUND, "is the beginning of 2 peer ids"),
        ("3f9c", Exit.NOT_FOUND, "The nearest is 3f9a7700."),
        ("7", Exit.NOT_FOUND, '"peer members" lists them.'),
        ("", Exit.MISUSE, "is not the beginning of a peer id"),
        ("peer1", Exit.MISUSE, "is not the beginning of a peer id"),
        ("0" * 41, Exit.MISUSE, "is not the beginning of a peer id"),
    ],
)
def test_anything_else_is_answered_with_what_comes_nearest(text: str, exit_code: Exit, told: str):
    with pytest.raises(PeerError) as caught:
        find_member(text, MEMBERS)
    assert caught.value.exit_code == exit_code
    assert told in str(caught.value)
