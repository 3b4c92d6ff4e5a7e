"""What can happen to a peer: the inputs of its machines, in the past tense."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.clock import Stamp
from protocols.ids import Key, LogId, PeerId, RequestId, TimerName
from protocols.messages import Command, Message


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """Recovery is over; the peer is in the network."""


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A message arrived. It may arrive twice, late, or out of order."""

    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Unreachable(Event):
    """A message for a peer could not be delivered in time. It may have arrived all the same."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Unroutable(Event):
    """A message for a key could not be delivered in time. It may have arrived all the same."""

    key: Key
    message: Message


@dataclass(frozen=True, slots=True)
class PeerUp(Event):
    """A peer entered our neighbourhood, or came back to it."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerDown(Event):
    """A peer of our neighbourhood died or left."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class NearestPeers(Event):
    """The peers we know, nearest in the network first (round-trip time, not identifier)."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class ClockCompared(Event):
    """Our wall clock was compared with those of other peers."""

    offset_ms: int  # How far it is ahead of them; below 0, behind.
    peers: int  # How many there were to compare with.


@dataclass(frozen=True, slots=True)
class TimerFired(Event):
    """A timer we set has run down."""

    name: TimerName


@dataclass(frozen=True, slots=True)
class Requested(Event):
    """A client asks something."""

    request: RequestId
    command: Command


@dataclass(frozen=True, slots=True)
class Abandoned(Event):
    """The client that asked has gone away."""

    request: RequestId
    is_broken: bool = False  # Without a word: it may have died of what it was holding.


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch of a log: the sequence of its first tuple, how many there are, when it was published, its rows."""

    first: int
    count: int
    published_at: Stamp
    rows: bytes

    @property
    def next(self) -> int:
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What a log holds: the sequences from `first` up to, not including, `next`, and when they were published."""

    first: int
    next: int
    stamps: tuple[tuple[int, Stamp], ...] = ()  # First sequence and stamp of each batch, in order.


@dataclass(frozen=True, slots=True)
class LogRead(Event):
    """What a log holds from a place on; nothing where that place has not been written or is no longer kept."""

    log: LogId
    first: int
    batches: tuple[StoredBatch, ...]


@dataclass(frozen=True, slots=True)
class DiskSpace(Event):
    """Whether the disk has come close to its end, or has room again."""

    is_low: bool
