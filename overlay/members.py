"""Who belongs to the network, as one peer sees it: those in its table, and those it remembers as gone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from overlay.identity import Address, PeerRecord
from overlay.room import Room
from overlay.table import Candidate
from protocols.ids import PeerId
from protocols.versions import Versions

Status = Literal["alive", "suspect", "incompatible", "left", "dead", "expelled"]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)

GONE_MAX: Final = 1024
GONE_LIFE_S: Final = 24 * 3600
RETRY_MIN_S: Final = 2.0
RETRY_MAX_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """One row of `peer members`; an incompatible or expelled peer is none, but would like to be."""

    peer_id: PeerId
    address: Address
    version: str
    status: Status
    since_at: float  # Unix seconds.
    rtt_ms: float | None
    has_engine: bool = False  # It can run operators with state.
    is_self: bool = False
    versions: Versions = field(default_factory=dict)  # That it speaks, by protocol family.
    room: Room = Room()

    @classmethod
    def of(cls, record: PeerRecord, status: Status, since_at: float, rtt_ms: float | None = None) -> Member:
        """What a peer's record says, and what we know of it beyond that."""
        stated = (record.peer_id, record.address, record.version)
        return cls(*stated, status, since_at, rtt_ms, record.has_engine, versions=record.versions, room=record.room)


@dataclass(slots=True)
class _Gone:
    record: PeerRecord
    status: Literal["left", "dead"]
    since_at: float
    retry_at: float
    retry_wait_s: float = RETRY_MIN_S


class Gone:
    """The peers that left or died. The dead are asked again now and then, because a partition may heal."""

    def __init__(self) -> None:
        self._gone: OrderedDict[PeerId, _Gone] = OrderedDict()  # Oldest first.

    def bury(self, record: PeerRecord, status: Literal["left", "dead"], now_s: float) -> None:
        self._gone.pop(record.peer_id, None)
        self._gone[record.peer_id] = _Gone(record, status, now_s, now_s + RETRY_MIN_S)
        if len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)

    def rise(self, peer: PeerId) -> None:
        self._gone.pop(peer, None)

    def status(self, peer: PeerId) -> Literal["left", "dead"] | None:
        gone = self._gone.get(peer)
        return gone.status if gone else None

    def record(self, peer: PeerId) -> PeerRecord | None:
        gone = self._gone.get(peer)
        return gone.record if gone else None

    def knows(self, candidate: Candidate) -> bool:
        """Whether this word of a peer is no newer than its end."""
        gone = self._gone.get(candidate.peer_id)
        return gone is not None and candidate.incarnation <= gone.record.incarnation

    def due(self, now_s: float, count: int) -> list[PeerRecord]:
        """The dead whose turn it is to be asked again, at most `count`; forgets those that are long gone."""
        while self._gone and next(iter(self._gone.values())).since_at < now_s - GONE_LIFE_S:
            self._gone.popitem(last=False)
        chosen = []
        for gone in self._gone.values():
            if gone.status == "dead" and gone.retry_at <= now_s:
                gone.retry_wait_s = min(gone.retry_wait_s * 2, RETRY_MAX_S)
                gone.retry_at = now_s + gone.retry_wait_s
                chosen.append(gone.record)
                if len(chosen) == count:
                    break
        return chosen

    def members(self) -> list[Member]:
        return [Member.of(gone.record, gone.status, gone.since_at) for gone in self._gone.values()]
