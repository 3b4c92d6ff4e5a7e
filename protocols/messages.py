"""The base of everything that travels or is stored: frozen, typed, and encoded by position.

Messages go from peer to peer, records go to the journal, commands and answers go between a peer and its clients. Each
kind has a name on the wire (`tag`), the paper's where it gives one. Frozen to the bottom (tuples, not lists): the
simulator hands them on by reference.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one peer sends another."""

    def check(self) -> None:
        """Raise RemoteProtocolError if fields contradict each other, or say nothing.

        The decoder has checked each field by itself. What only a machine can know is up to the machine.
        """


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a peer writes to its journal so that it survives a crash."""


class Command(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a client asks of its peer."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a peer tells its client: once for most commands, repeatedly for a subscription."""


class Refused(Answer, frozen=True, kw_only=True, tag="REFUSED"):
    """The command was understood and refused: names the object, the facts, and a next step."""

    code: str  # unknown | exists | invalid | in use | busy | full | unavailable | forbidden | quota
    error: str
    detail: str = ""
    hint: str = ""
    retry_after_ms: int = 0  # Above 0: the same command may succeed then.


class Done(Answer, frozen=True, kw_only=True, tag="DONE"):
    """It is done, and promised."""

    # Of the peer that did it; the client passes it with its next command, so that time never runs backwards.
    stamp: int
    replicas: int = 1  # How many peers hold it on disk; 1 in a network of one peer.
