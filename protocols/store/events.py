"""What the store tells the other roles of its peer, about what they asked it with read() and write()."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.events import Event
from protocols.ids import Key
from protocols.store.entries import Entry

Token = tuple[str | int, ...]
"""Who asked, and what for; its first part is the name of the role."""


@dataclass(frozen=True, slots=True)
class StoreRead(Event):
    """The entries under a key, tombstones included, as at least two of its owners know them (or all there are)."""

    token: Token
    key: Key
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class StoreWritten(Event):
    """An entry is on the disks of so many owners: it will not be lost."""

    token: Token
    replicas: int


@dataclass(frozen=True, slots=True)
class StoreFailed(Event):
    """Too few owners answered in time; a write may have taken effect all the same."""

    token: Token
    reason: str
