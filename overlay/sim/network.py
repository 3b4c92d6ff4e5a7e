"""The network between simulated peers: delays, loss, duplicates, cuts, and the retries of the router above it.

It keeps the promise of `overlay/router.py`: a message is repeated until it arrives or its time is up. Then the sender
gets Unreachable or Unroutable, although the message may have arrived. A routed message goes to the nearest peer that
the sender sees, and a receiver that sees a nearer one passes it on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from overlay.sim.agenda import Agenda
from overlay.sim.membership import Membership
from overlay.sim.topology import Topology
from protocols.events import Event, Received, Unreachable, Unroutable
from protocols.ids import Key, Millis, PeerId
from protocols.messages import Message
from protocols.versions import Versions, differences
from protocols.wire import FAMILY_OF

TIMEOUT_MS: Final = 8_000
REPEAT_MS: Final = 2_000  # A frame without a receipt is sent again after this.
REFUSED_MS: Final = 400  # A peer that is down refuses; the sender tries again this much later.
HOPS_MAX: Final = 8
DELAY_MS_MAX: Final = 5_000
REORDER_MS_MAX: Final = 50
CODEC_SHARE: Final = 0.02
_LOST: Final = -1_000_000

Codec = Callable[[Message], Message]
"""Encodes a message as for a real network and decodes it again."""


class Endpoint(Protocol):
    """What the network needs to know of a peer."""

    index: int
    peer_id: PeerId
    life: int  # Counts its restarts.
    is_up: bool
    slow_ms: Millis

    def take(self, event: Event, life: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Conditions:
    """How bad the network is for everybody; shares are of all messages."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0  # Held back so long that time-outs fire and answers come when nobody waits any more.
    reorder: float = 0.0  # Held back just long enough for the next ones to overtake.

    @property
    def are_good(self) -> bool:
        return not (self.loss or self.duplicate or self.delay or self.reorder)


@dataclass(slots=True)
class _Envelope:
    """One message on its way."""

    sender: Endpoint
    sender_life: int
    target: Endpoint
    key: Key | None
    message: Message
    deadline: Millis
    hops: int = 0


class Network:
    """Carries messages between the peers of one simulation."""

    def __init__(
        self,
        agenda: Agenda,
        membership: Membership,
        topology: Topology,
        rng: random.Random,
        codec: Codec | None = None,
    ) -> None:
        self.counters = dict.fromkeys(("messages", "lost", "duplicated", "delayed", "reordered", "undelivered"), 0)
        self._conditions = Conditions()
        self._is_good = True  # Conditions are good, so nothing is drawn.
        self._agenda = agenda
        self._membership = membership
        self._separations = membership.separations
        self._delay_ms = topology.delay_ms
        self._random = rng.random
        self._codec = codec
        self.versions: Callable[[PeerId], Versions] | None = None  # What each peer speaks; None: all speak the same.
        self._endpoints: list[Endpoint] = []
        self._by_id: dict[PeerId, Endpoint] = {}

    @property
    def conditions(self) -> Conditions:
        return self._conditions

    @conditions.setter
    def conditions(self, conditions: Conditions) -> None:
        self._conditions, self._is_good = conditions, conditions.are_good

    def add(self, endpoint: Endpoint) -> None:
        self._endpoints.append(endpoint)
        self._by_id[endpoint.peer_id] = endpoint

    def send(self, sender: Endpoint, peer: PeerId, message: Message) -> None:
        target = self._by_id.get(peer)
        if self.versions is not None and not self._is_read(sender.peer_id, peer, message):
            self._agenda.after(0, sender.take, Unreachable(peer, message), sender.life)
        elif target is None:
            self._agenda.after(REFUSED_MS, sender.take, Unreachable(peer, message), sender.life)
        else:
            self._post(sender, target, None, message)

    def shares(self, one: PeerId, other: PeerId, family: str) -> bool:
        """Whether two peers understand each other's messages of a family."""
        if self.versions is None or one == other:
            return True
        return all(each.family != family for each in differences(self.versions(one), self.versions(other)))

    def _is_read(self, sender: PeerId, peer: PeerId, message: Message) -> bool:
        return self.shares(sender, peer, FAMILY_OF[type(message)])

    def route(self, sender: Endpoint, key: Key, message: Message) -> None:
        target = self._endpoints[self._membership.owner(key, sender.index)]
        self._post(sender, target, key, message)

    def _post(self, sender: Endpoint, target: Endpoint, key: Key | None, message: Message) -> None:
        self.counters["messages"] += 1
        if self._codec is not None and self._random() < CODEC_SHARE:
            message = self._codec(message)
        self._launch(_Envelope(sender, sender.life, target, key, message, self._agenda.now + TIMEOUT_MS))

    def _launch(self, envelope: _Envelope) -> None:
        sender, target = envelope.sender, envelope.target
        if sender is target:
            self._agenda.after(0, self._arrive, envelope)
            return
        delay_ms = self._delay_ms(sender.index, target.index) + sender.slow_ms + target.slow_ms
        if not self._is_good:
            delay_ms += self._trouble_ms(envelope, delay_ms)
        if delay_ms < 0 or (self._separations and self._membership.is_cut(sender.index, target.index)):
            self.counters["lost"] += 1
            self._agenda.after(REPEAT_MS, self._repeat, envelope)
        else:
            self._agenda.after(delay_ms, self._arrive, envelope)

    def _trouble_ms(self, envelope: _Envelope, delay_ms: Millis) -> Millis:
        """How much longer a message takes than it should; far below zero if it is lost."""
        conditions, luck = self._conditions, self._random()
        if luck < conditions.loss:
            return _LOST
        luck -= conditions.loss
        if luck < conditions.duplicate:
            self.counters["duplicated"] += 1
            self._agenda.after(delay_ms + int(self._random() * REPEAT_MS), self._arrive_again, envelope)
            return 0
        luck -= conditions.duplicate
        if luck < conditions.delay:
            self.counters["delayed"] += 1
            return int(self._random() * DELAY_MS_MAX)
        if luck - conditions.delay < conditions.reorder:
            self.counters["reordered"] += 1
            return int(self._random() * REORDER_MS_MAX)
        return 0

    def _arrive(self, envelope: _Envelope) -> None:
        target = envelope.target
        if not target.is_up:
            self._agenda.after(REFUSED_MS, self._repeat, envelope)
            return
        if envelope.key is not None and envelope.hops < HOPS_MAX:
            owner = self._membership.owner(envelope.key, target.index)
            if owner != target.index:
                envelope.target = self._endpoints[owner]
                envelope.hops += 1
                self._launch(envelope)
                return
        if self.versions is not None and not self._is_read(envelope.sender.peer_id, target.peer_id, envelope.message):
            self._agenda.after(REPEAT_MS, self._fail, envelope)
            return
        target.take(Received(envelope.sender.peer_id, envelope.message), target.life)
        if self._receipt_is_lost(envelope):
            self._agenda.at(max(envelope.deadline, self._agenda.now), self._fail, envelope)

    def _arrive_again(self, envelope: _Envelope) -> None:
        """The network may deliver a message twice."""
        target = envelope.target
        if target.is_up:
            target.take(Received(envelope.sender.peer_id, envelope.message), target.life)

    def _receipt_is_lost(self, envelope: _Envelope) -> bool:
        """Whether every receipt is lost until the time is up, so that the sender believes the message lost."""
        if not self._is_good and self._random() < self._conditions.loss**3:
            return True
        return bool(self._separations) and self._membership.is_cut(envelope.target.index, envelope.sender.index)

    def _repeat(self, envelope: _Envelope) -> None:
        sender = envelope.sender
        if sender.life != envelope.sender_life or not sender.is_up:
            return  # Nobody is left to repeat it.
        gave_up = envelope.key is None and not self._membership.sees(sender.index, envelope.target.index)
        if gave_up or self._agenda.now >= envelope.deadline:
            self._fail(envelope)
            return
        if envelope.key is not None:
            envelope.target = self._endpoints[self._membership.owner(envelope.key, sender.index)]
            envelope.hops = 0
        self._launch(envelope)

    def _fail(self, envelope: _Envelope) -> None:
        self.counters["undelivered"] += 1
        sender = envelope.sender
        event: Event
        if envelope.key is None:
            event = Unreachable(envelope.target.peer_id, envelope.message)
        else:
            event = Unroutable(envelope.key, envelope.message)
        sender.take(event, envelope.sender_life)
