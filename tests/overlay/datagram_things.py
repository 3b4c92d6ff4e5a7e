"""Datagrams for tests: a record, and every kind of message with everything in it that it can carry."""

from __future__ import annotations

from typing import get_args

from overlay.datagrams import HINTS_MAX, FindNode, Found, Hint, ListPeers, Message, Obituary, Ping, Pong
from overlay.identity import Identity, PeerRecord


def record_of(identity: Identity, now_s: float, *, left: bool = False) -> PeerRecord:
    return PeerRecord.sign(identity, ("127.0.0.1", 9), incarnation=1, now_s=now_s, version="x", left=left)


def one_of_each(now_s: float) -> list[Message]:
    """Every kind of message, with everything in it that it can carry."""
    goner = Identity.generate()
    hints = [Hint(bytes([number]) * 20, b"\x7f\0\0\1", 9, number) for number in range(1, HINTS_MAX)]
    messages = [
        Ping(),
        Pong("127.0.0.1", settled=True, incarnation=1, at_ms=0),
        FindNode(b"t" * 20, HINTS_MAX),
        ListPeers(bytes(20)),
        Found([*hints, Hint(b"6" * 20, bytes(15) + b"\1", 9, 1)]),
        Obituary(b"o" * 20, 1, b"", forced=True),
        Obituary(bytes(goner.peer_id), 1, record_of(goner, now_s, left=True).raw, forced=False),
    ]
    assert {type(message) for message in messages} == set(get_args(Message)), "a kind of message is left out"
    return messages
