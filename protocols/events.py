"""What can happen to a peer: the inputs of its machines, in the past tense."""

from __future__ import annotations

from typing import Final

import msgspec

from protocols.clock import Stamp
from protocols.ids import Key, LogId, PeerId, RequestId, TimerName
from protocols.messages import Answer, Command, Message


class Event(msgspec.Struct, frozen=True):
    """One thing that happened."""


class Started(Event, frozen=True):
    """Recovery is over; the peer is in the network."""


class Received(Event, frozen=True):
    """A message arrived. It may arrive twice, late, or out of order."""

    sender: PeerId
    message: Message


class Unreachable(Event, frozen=True):
    """A message for a peer could not be delivered in time. It may still have arrived."""

    peer: PeerId
    message: Message


class Unroutable(Event, frozen=True):
    """A message for a key could not be delivered in time. It may still have arrived."""

    key: Key
    message: Message


NEIGHBOURS_MAX: Final = 64
"""How many peers a neighbourhood has, the nearest by identifier, if there are so many: in most networks, everybody."""


class PeerUp(Event, frozen=True):
    """A peer entered our neighbourhood, or came back to it."""

    peer: PeerId


class PeerDown(Event, frozen=True):
    """A peer of our neighbourhood died or left."""

    peer: PeerId


class NearestPeers(Event, frozen=True):
    """The peers we know, nearest in the network first (round-trip time, not identifier)."""

    peers: tuple[PeerId, ...]


class ClockCompared(Event, frozen=True):
    """Our wall clock was compared with those of other peers."""

    offset_ms: int  # How far it is ahead of them; below 0, behind.
    peers: int  # How many peers it was compared with.


class TimerFired(Event, frozen=True):
    """A timer that we set has run down."""

    name: TimerName


class Requested(Event, frozen=True):
    """A client asks something."""

    request: RequestId
    command: Command
    connection: int = 0  # The client's; 0 for the peer's own user, who has no token to present.
    asker: str = ""  # For whom it is asked, once the door has let it in (protocols/rights).


class Disconnected(Event, frozen=True):
    """A connection is over; its number will not come again."""

    connection: int


class Abandoned(Event, frozen=True):
    """The client that asked has gone away."""

    request: RequestId
    is_broken: bool = False  # It went without a word: perhaps it died of what it was holding.


class Answered(Event, frozen=True):
    """One role of this peer asked another, as a client would, and this is the answer."""

    request: RequestId
    answer: Answer
    last: bool


class StoredBatch(msgspec.Struct, frozen=True):
    """One batch of a log: the sequence of its first tuple, how many there are, when it was published, its rows."""

    first: int
    count: int
    published_at: Stamp
    rows: bytes

    @property
    def next(self) -> int:
        return self.first + self.count


class LogBounds(msgspec.Struct, frozen=True):
    """What a log holds: the sequences from `first` up to, not including, `next`, and when they were published."""

    first: int
    next: int
    stamps: tuple[tuple[int, Stamp], ...] = ()  # First sequence and stamp of each batch, in order.


class LogRead(Event, frozen=True):
    """What a log holds from a place on; nothing if that place is not written yet or no longer kept."""

    log: LogId
    first: int
    batches: tuple[StoredBatch, ...]


class DiskSpace(Event, frozen=True):
    """The disk is almost full, or has room again."""

    is_low: bool
