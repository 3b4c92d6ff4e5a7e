"""The base of everything that travels or is stored: frozen, typed, and encoded by position.

Messages go from peer to peer, records go to the journal, commands and answers go between a peer and its clients. Each
kind has a name on the wire (`tag`), the paper's where it gives one. Frozen to the bottom (tuples, not lists): the
simulator hands them on by reference.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one peer sends another."""


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a peer writes to its journal so that it survives a crash."""


class Command(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a client asks of its peer."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a peer tells its client: once for most commands, again and again for a subscription."""
