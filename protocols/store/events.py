"""What the store answers to the other roles of its peer, after their read() and write()."""

from __future__ import annotations

from protocols.events import Event
from protocols.ids import Key
from protocols.store.entries import Entry

Token = tuple[str | int, ...]
"""Who asked, and what for; its first part is the name of the role."""


class StoreRead(Event, frozen=True):
    """The entries under a key, tombstones included, as at least two of its owners know them (or all owners
    there are).
    """

    token: Token
    key: Key
    entries: tuple[Entry, ...]


class StoreWritten(Event, frozen=True):
    """An entry is on the disks of so many owners: it will not be lost."""

    token: Token
    replicas: int


class StoreFailed(Event, frozen=True):
    """Too few owners answered in time; a write may have taken effect all the same."""

    token: Token
    reason: str
