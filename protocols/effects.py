"""What a peer can do to the world: the outputs of its machines, in the imperative.

An effect returns nothing: its outcome is a later event. The driver performs the effects of one event in order.
"""

from __future__ import annotations

import msgspec

from protocols.events import Event, StoredBatch
from protocols.ids import Key, LogId, Millis, PeerId, RequestId, TimerName
from protocols.messages import Answer, Message, Record


class Effect(msgspec.Struct, frozen=True):
    """One thing to do."""


class Send(Effect, frozen=True):
    """Send a message to a peer; Unreachable tells if that failed."""

    peer: PeerId
    message: Message


class Route(Effect, frozen=True):
    """Send a message to the live peer nearest to a key; Unroutable tells if that failed."""

    key: Key
    message: Message


class SetTimer(Effect, frozen=True):
    """Ask for TimerFired(name) after the delay. Setting the same name again replaces the timer."""

    name: TimerName
    after_ms: Millis


class Append(Effect, frozen=True):
    """Write a record to the journal, to be restored after a crash."""

    record: Record


class AppendBatch(Effect, frozen=True):
    """Write tuples to a log of the journal."""

    log: LogId
    batch: StoredBatch


class ReleaseLog(Effect, frozen=True):
    """Nobody needs what a log holds below this sequence."""

    log: LogId
    below: int


class ForgetLog(Effect, frozen=True):
    """Nobody will use a log again."""

    log: LogId


class ReadLog(Effect, frozen=True):
    """Ask for LogRead: the batches of a log from the one that holds `first`, as many as fit, at least one."""

    log: LogId
    first: int
    bytes_max: int


class AfterSync(Effect, frozen=True):
    """Perform these once everything appended so far is on disk; never, if the peer crashes before that."""

    effects: tuple[Effect, ...]


class Reply(Effect, frozen=True):
    """Tell a client; `last` ends the request."""

    request: RequestId
    answer: Answer
    last: bool = True


class Blame(Effect, frozen=True):
    """Count a message of another peer that no peer of ours would send; nothing else came of it."""

    peer: PeerId
    reason: str


class Tell(Effect, frozen=True):
    """Hand an event to another role of this same peer, before anything else happens to it.

    The peer does that itself. Inside AfterSync the driver hands the event back, once the disk has synced.
    """

    event: Event
