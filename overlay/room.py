"""How much room a peer says it has: whether it hosts parts of others' queries, and what is free of its CPU and links.

It travels in the peer's signed record, so whoever knows a peer knows this, and no message is added. It is coarse, in
tenths, and a few seconds old: it guides plans, and the host decides.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec

ROOM_BYTES_MAX: Final = 16  # Later releases may say more.
UNLIMITED: Final = 255
_CLOSED: Final = 1

StatedRoom = Annotated[bytes, msgspec.Meta(max_length=ROOM_BYTES_MAX)]


class Room(NamedTuple):
    """What is free of each limited thing, in tenths of the limit.

    >>> Room.stated(Room(hosts_others=True, cpu=0, uplink=7).told()) == Room(cpu=0, uplink=7)
    True
    >>> Room().told(), Room.stated(b"")
    (b'', Room(hosts_others=True, cpu=255, uplink=255, downlink=255))
    """

    hosts_others: bool = True
    cpu: int = UNLIMITED
    uplink: int = UNLIMITED
    downlink: int = UNLIMITED

    def told(self) -> bytes:
        """As it travels. Who has no limits says nothing, like earlier releases."""
        if self == Room():
            return b""
        return bytes((0 if self.hosts_others else _CLOSED, self.cpu, self.uplink, self.downlink))

    @classmethod
    def stated(cls, told: bytes) -> Room:
        """What another peer has told; what it left out is not limited."""
        flags, cpu, uplink, downlink = (*told, *bytes([0, UNLIMITED, UNLIMITED, UNLIMITED])[len(told) :])[:4]
        return cls(not flags & _CLOSED, cpu, uplink, downlink)

    def has_moved(self, before: Room) -> bool:
        """Whether others should hear of it: something is used up, or free again, or has changed by two tenths."""
        if self.hosts_others != before.hosts_others:
            return True
        pairs = zip(self[1:], before[1:], strict=True)
        return any((new == 0) != (old == 0) or abs(new - old) >= 2 for new, old in pairs)
