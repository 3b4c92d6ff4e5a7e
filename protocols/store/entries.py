"""One entry of the replicated store, and how two versions of it become one.

An entry is only added, or superseded by a newer stamp. So all owners end with the same entries, in whatever order these
arrive and whatever a partition kept apart.
"""

from __future__ import annotations

from typing import Final

import msgspec

from protocols.clock import Stamp
from protocols.errors import RemoteProtocolError
from protocols.ids import Key, Millis, PeerId
from protocols.store.limits import ITEM_CHARS_MAX, VALUE_BYTES_MAX

Order = tuple[Stamp, bytes]
"""Stamp, then writer: of two versions the higher is the newer. Two peers may give the same stamp."""
OLDEST: Final[Order] = (-1, b"")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A named value under a key; without a value it is a tombstone."""

    key: Key
    item: str
    stamp: Stamp
    writer: PeerId
    value: bytes | None
    expires_at: Millis  # 0: never.

    @property
    def order(self) -> Order:
        return (self.stamp, self.writer)

    def check(self) -> None:
        """What holds of every entry, whoever sends it; see Message.check."""
        if len(self.item) > ITEM_CHARS_MAX:
            raise RemoteProtocolError(f"an entry whose name has {len(self.item)} characters")
        if self.value is not None and len(self.value) > VALUE_BYTES_MAX:
            raise RemoteProtocolError(f"an entry of {len(self.value)} bytes")

    def supersedes(self, other: Entry) -> bool:
        return (self.stamp, self.writer, self.value or b"") > (other.stamp, other.writer, other.value or b"")
