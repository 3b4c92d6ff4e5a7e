"""What a simulated peer stands in: the machine it runs, and the world that it shares with the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from overlay.sim.agenda import Agenda
from overlay.sim.membership import Membership
from overlay.sim.network import Network
from overlay.sim.topology import Topology
from overlay.sim.trace import Trace
from protocols.effects import Effect
from protocols.events import Event, LogBounds
from protocols.execution.engine import RunId
from protocols.ids import LogId, Millis, PeerId
from protocols.messages import Answer, Record

if TYPE_CHECKING:
    from overlay.sim.peer import SimPeer

OnAnswer = Callable[[Answer | None, bool], None]
"""Hears the answers of one request; None when the peer has crashed and the connection with it."""


OnCrash = Callable[["SimPeer", bool], None]
"""Hears of every crash, and again when the disk is lost with it."""


class Machine(Protocol):
    """What runs on a simulated peer: `protocols.peer.Peer`, or another machine of its shape."""

    def handle(self, event: Event, now: Millis) -> list[Effect]: ...
    def restore(self, records: Sequence[Record], logs: Mapping[LogId, LogBounds], now: Millis) -> None: ...
    def snapshot(self) -> list[Record]: ...
    def validate(self) -> None: ...


class PeerFailed(Exception):
    """A machine broke one of its own rules: our mistake."""


@dataclass(slots=True)
class Surroundings:
    """What all peers of a simulation share."""

    seed: int
    agenda: Agenda
    membership: Membership
    network: Network
    topology: Topology
    trace: Trace
    make: Callable[[PeerId, random.Random], Machine]
    encode_record: Callable[[Record], bytes]
    decode_record: Callable[[bytes], Record]
    disk_rng: random.Random
    rng: random.Random  # Draws how long disks take, whom a peer measures, and the like.
    validate_every: int = 1
    segment_bytes: int = 1 << 20
    sync_ms_max: Millis = 6
    has_engine: Callable[[PeerId], bool] = lambda _: True
    is_stuck: Callable[[RunId], bool] = lambda _: False  # Whether the engine takes rows of a run and never answers.
    is_crowded: bool = False  # Peers have little room, and are measured (crowding.py).
    requests: int = 0
    contacts: list[int] = field(default_factory=list)  # Whom a peer may measure: everybody.
    peers: list[SimPeer] = field(default_factory=list)
    on_crash: OnCrash = lambda peer, with_disk: None
