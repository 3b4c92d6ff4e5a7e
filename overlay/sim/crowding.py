"""Simulated peers that have little room: what their owners let them use, and what they are measured to use.

Real costs are not simulated. A peer takes so many µs for each event, and what it sends and gets has its true size.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from overlay.sim.surroundings import Machine
from protocols.demand import ResourceName
from protocols.effects import Send
from protocols.events import Event, Received
from protocols.execution.admission import UseMeasured
from protocols.ids import Millis, PeerId
from protocols.messages import Message
from protocols.peer import Peer
from protocols.sharing.capacity import Capacities, Capacity, Use
from protocols.sight import NetworkSeen
from protocols.wire import MESSAGES

if TYPE_CHECKING:
    from overlay.sim.peer import SimPeer

MEASURE_MS: Final[Millis] = 1000
ROOMY_SHARE: Final = 0.25  # Of the peers has no limits,
CLOSED_SHARE: Final = 0.15  # and so much hosts nothing for others.
US_FOR_EVENT: Final = 20.0


def capacities_of(seed: int, peer: PeerId, *, is_needed: bool) -> Capacities:
    """What a peer may use, the same in each of its lives. One that is needed hosts others, with an engine."""
    luck = random.Random(f"{seed}/room/{peer.hex()}")
    hosts_others = luck.random() >= CLOSED_SHARE or is_needed
    if luck.random() < ROOMY_SHARE:
        return Capacities(hosts_others=hosts_others)
    return Capacities(
        cpu_share=luck.uniform(0.002, 0.01),
        uplink=luck.uniform(1_000, 15_000),
        downlink=luck.uniform(2_000, 30_000),
        hosts_others=hosts_others,
    )


@dataclass(slots=True)
class SimMeter:
    """What one peer has used since it was last read."""

    events: int = 0
    out: int = 0
    in_: int = 0

    def took(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, Received):
            self.in_ += _size(event.message)

    def sent(self, effect: Send) -> None:
        self.out += _size(effect.message)

    def read(self) -> UseMeasured:
        seconds = MEASURE_MS / 1000
        use = Use(self.events * US_FOR_EVENT / seconds, 0.0, self.out / seconds, self.in_ / seconds)
        measured = UseMeasured(use, self.events / seconds)
        self.events = self.out = self.in_ = 0
        return measured


def _size(message: Message) -> int:
    return len(MESSAGES.encode(message))


def told(seen: NetworkSeen, peers: Iterable[SimPeer]) -> NetworkSeen:
    """What a peer sees of the network, with what the others say of their room."""
    capacities = {
        each.peer_id: capacity for each in peers if (capacity := _capacity(each.machine)) and each.peer_id in seen.peers
    }
    closed = tuple(peer for peer, each in capacities.items() if not each.allowed.hosts_others)
    full = tuple((peer, lacks) for peer, each in capacities.items() if (lacks := _lacks(each)))
    return msgspec.structs.replace(seen, closed=closed, full=full)


def _capacity(machine: Machine | None) -> Capacity | None:
    return machine.executor.admission.capacity if isinstance(machine, Peer) else None


def _lacks(capacity: Capacity) -> ResourceName | None:
    full = (name for name, each in capacity.resources.items() if each.is_limited and each.free < each.limit / 10)
    return next(full, None)
