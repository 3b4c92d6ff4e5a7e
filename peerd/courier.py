"""Sends a peer's messages to other peers and to keys; what gathers while frames are in flight travels together.

Each destination has a lane with a few frames in flight, and the next frame takes everything that waits. So a quiet peer
answers at once, and a busy one sends few large frames. A failed message comes back as an event. Lanes are bounded: a
message that does not fit has failed. So has one of a protocol family that its receiver does not share: it is not sent,
or, as the first to a peer that nobody knew yet, not read there. One that fits no frame is lost, as the network may lose
any: what makes it so large may be another peer's.

Messages with rows are bulk, and have a lane of their own: they may take long on a thin link, and leases, words of life
and acknowledgements must not wait behind them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from overlay.router import FRAME_ITEMS_MAX, MESSAGE_BYTES_MAX, Router
from overlay.router import Unreachable as NotDelivered
from overlay.tasks import Tasks
from overlay.understanding import Understanding
from protocols.delivery.messages import Backup, BatchMessage
from protocols.events import Event, Unreachable, Unroutable
from protocols.ids import Key, PeerId
from protocols.join_index.messages import JoinResults, Parcel
from protocols.messages import Message
from protocols.subgraphs import Flow
from protocols.wire import FAMILY_OF, MESSAGES

BULK: Final = (BatchMessage, Backup, Flow, JoinResults, Parcel)
FRAMES_IN_FLIGHT_MAX: Final = 8  # To one peer.
LANE_MESSAGES_MAX: Final = 10_000
LANE_BYTES_MAX: Final = 32 << 20
ROUTES_AT_ONCE: Final = 64
ROUTE_AGAIN_S: Final = 1.0  # A message that its owner cannot read fails after this: a machine may route it again.
TOO_LARGE_SAID_MAX: Final = 100

log = structlog.get_logger("peerd.courier")


_Place = tuple[PeerId, bool]  # Whom a lane leads to, and whether it is the one for bulk.


@dataclass(slots=True)
class _Lane:
    """What waits for one peer, and how many frames are in flight to it."""

    waiting: deque[tuple[Message, bytes]] = field(default_factory=deque)
    waiting_bytes: int = 0
    in_flight: int = 0

    def take(self, bytes_max: int) -> list[tuple[Message, bytes]]:
        """The messages of the next frame."""
        taken: list[tuple[Message, bytes]] = []
        size = 0
        while self.waiting and len(taken) < FRAME_ITEMS_MAX:
            size += len(self.waiting[0][1])
            if taken and size > bytes_max:
                break
            taken.append(self.waiting.popleft())
        self.waiting_bytes -= sum(len(payload) for _, payload in taken)
        return taken


class Courier:
    """Sends for one peer."""

    def __init__(
        self,
        router: Router,
        understanding: Understanding,
        on_failure: Callable[[Event], None],
        bulk_bytes_max: int | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._router = router
        self._apart = understanding.apart  # Empty in a network of one release.
        self._on_failure = on_failure
        self._bulk_bytes_max = bulk_bytes_max or MESSAGE_BYTES_MAX  # In one frame: it holds up what comes behind it.
        self._lanes: dict[_Place, _Lane] = {}
        self._ready: dict[_Place, None] = {}  # Lanes with something new.
        self._routed: list[tuple[Key, Message, bytes]] = []
        self._route_turns = asyncio.Semaphore(ROUTES_AT_ONCE)
        self._flush_is_due = False
        self._tasks = Tasks("courier")

    def send(self, peer: PeerId, message: Message) -> None:
        """Send a message to a peer, together with everything sent to it in this turn of the event loop."""
        if peer in self._apart and not self._is_shared(peer, message):
            self._on_failure(Unreachable(peer, message))
            return
        payload = self._encoded(message)
        if payload is None:
            return
        place = peer, isinstance(message, BULK)
        lane = self._lanes.setdefault(place, _Lane())
        if len(lane.waiting) >= LANE_MESSAGES_MAX or lane.waiting_bytes + len(payload) > LANE_BYTES_MAX:
            self.counters["messages_unsent_total"] += 1
            self._on_failure(Unreachable(peer, message))
            return
        lane.waiting.append((message, payload))
        lane.waiting_bytes += len(payload)
        self._ready[place] = None
        self._flush_soon()

    def route(self, key: Key, message: Message) -> None:
        """Send a message to the owner of a key."""
        payload = self._encoded(message)
        if payload is not None:
            self._routed.append((key, message, payload))
            self._flush_soon()

    def _encoded(self, message: Message) -> bytes | None:
        """None for what fits no frame, or has a number that nobody can read."""
        try:
            payload = MESSAGES.encode(message)
            problem = f"{len(payload)} bytes" if len(payload) > MESSAGE_BYTES_MAX else ""
        except OverflowError as error:
            problem = str(error)
        if not problem:
            return payload
        self.counters["messages_too_large_total"] += 1
        if self.counters["messages_too_large_total"] <= TOO_LARGE_SAID_MAX:
            log.error("a message that is too large is not sent", kind=type(message).__name__, problem=problem)
        return None

    def _is_shared(self, peer: PeerId, message: Message) -> bool:
        apart = self._apart.get(peer)
        is_shared = apart is None or FAMILY_OF[type(message)] not in apart.unshared
        self.counters["messages_not_shared_total"] += not is_shared
        return is_shared

    async def stop(self) -> None:
        await self._tasks.finish()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        ready, self._ready = self._ready, {}
        for place in ready:
            self._fill(place, self._lanes[place])
        if self._routed:
            routed, self._routed = self._routed, []
            self._tasks.spawn(self._carry_routed(routed))

    def _fill(self, place: _Place, lane: _Lane) -> None:
        bytes_max = self._bulk_bytes_max if place[1] else MESSAGE_BYTES_MAX
        while lane.waiting and lane.in_flight < FRAMES_IN_FLIGHT_MAX:
            lane.in_flight += 1
            self._tasks.spawn(self._carry(place, lane, lane.take(bytes_max)))
        if not lane.waiting and not lane.in_flight:
            del self._lanes[place]

    async def _carry(self, place: _Place, lane: _Lane, taken: list[tuple[Message, bytes]]) -> None:
        peer, is_bulk = place
        self.counters["messages_out_total"] += len(taken)
        try:
            await self._router.send(peer, *(payload for _, payload in taken), is_bulk=is_bulk)
        except NotDelivered:
            self.counters["messages_failed_total"] += len(taken)
            for message, _ in taken:
                self._on_failure(Unreachable(peer, message))
        else:
            if peer in self._apart:  # It may have said so only now, with the link that was made for this frame.
                for message, _ in taken:
                    if not self._is_shared(peer, message):
                        self._on_failure(Unreachable(peer, message))
        lane.in_flight -= 1
        self._fill(place, lane)

    async def _carry_routed(self, routed: list[tuple[Key, Message, bytes]]) -> None:
        self.counters["messages_out_total"] += len(routed)
        async with self._route_turns:
            outcomes = await self._router.multisend([(key, payload) for key, _, payload in routed])
        for (key, message, _), outcome in zip(routed, outcomes, strict=True):
            if isinstance(outcome, NotDelivered):
                self.counters["messages_failed_total"] += 1
                self._on_failure(Unroutable(key, message))
            elif outcome.owner in self._apart and not self._is_shared(outcome.owner, message):
                asyncio.get_running_loop().call_later(ROUTE_AGAIN_S, self._on_failure, Unroutable(key, message))
