"""What this peer has room for: measured every second, told to its machines and, coarsely, to other peers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NoReturn

from overlay.overlay import Overlay
from overlay.room import UNLIMITED, Room
from peerd.engines import Engines
from protocols.demand import ResourceName
from protocols.events import Event
from protocols.execution.admission import UseMeasured
from protocols.limits import Limits
from protocols.sharing.capacity import Capacities, Capacity, Resource, Use

EVERY_S: Final = 1.0
SAY_AGAIN_S: Final = 5.0  # A new record is signed, and spreads, no more often than this.
LEAST_MESSAGE: Final = 16 << 10
_TENTHS: Final = 10
_SHOWN: Final[tuple[ResourceName, ...]] = ("cpu", "uplink", "downlink")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def fitted(limits: Limits, allowed: Capacities) -> tuple[Limits, int | None]:
    """Smaller messages and less credit for thin links, and how large a frame of rows may be.

    What urgent messages wait behind shall take a quarter of a second, and what is in flight a second.
    """
    changes: dict[str, Any] = {}
    bulk_bytes = None
    if allowed.uplink is not None:
        bulk_bytes = max(LEAST_MESSAGE, int(allowed.uplink / 4))
        changes["message_bytes"] = min(limits.message_bytes, bulk_bytes)
    if allowed.downlink is not None:
        changes["credit_bytes"] = min(limits.credit_bytes, max(4 * LEAST_MESSAGE, int(allowed.downlink)))
    return replace(limits, **changes), bulk_bytes


class Meter:
    """Measures one peer."""

    def __init__(
        self,
        overlay: Overlay,
        engines: Engines,
        capacity: Capacity,
        submit: Callable[[Event], None],
        events: Callable[[], float],
    ) -> None:
        self._overlay = overlay
        self._engines = engines
        self._capacity = capacity
        self._submit = submit
        self._events = events
        self._said = Room()
        self._said_at = 0.0
        self._before = self._read()

    def _read(self) -> tuple[float, float, float, float, float, float]:
        links = self._overlay.links.stats()
        return (
            time.monotonic(),
            time.process_time(),
            self._engines.processor_s(),
            links["link_bytes_out_total"],
            links["link_bytes_in_total"],
            self._events(),
        )

    async def watch(self) -> NoReturn:
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """Tell the machines what was used since the last look, and other peers what is free if that has changed."""
        now = self._read()
        passed_s, *used = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        # Less than before is used where a worker has ended.
        daemon_s, worker_s, out, in_, events = (max(0.0, each) / passed_s for each in used)
        self._submit(UseMeasured(Use(daemon_s * 1e6, worker_s * 1e6, out, in_), events))
        room = room_of(self._capacity)
        if room.has_moved(self._said) and now[0] - self._said_at >= SAY_AGAIN_S:
            self.say(room)

    def say(self, room: Room) -> None:
        self._said, self._said_at = room, time.monotonic()
        self._overlay.say_room(room)


def room_of(capacity: Capacity) -> Room:
    """What other peers hear."""
    free = (_tenths(capacity.resources[name]) for name in _SHOWN)
    return Room(capacity.allowed.hosts_others, *free)


def _tenths(resource: Resource) -> int:
    return int(_TENTHS * resource.free / resource.limit) if resource.is_limited else UNLIMITED


def shown(capacity: Capacity) -> dict[str, Any]:
    """For display: limits, use and reservations. CPU in shares of all cores, links in bytes a second."""
    units = {"cpu": capacity.whole_us, "uplink": 1.0, "downlink": 1.0}
    amounts: dict[str, Any] = {
        name: {
            "limit": each.limit / units[name] if each.is_limited else None,
            "used": each.used / units[name],
            "reserved": each.reserved / units[name],
        }
        for name in _SHOWN
        for each in (capacity.resources[name],)
    }
    return {"hosts_others": capacity.allowed.hosts_others, "cores": capacity.allowed.cores, **amounts}


def counters(capacity: Capacity) -> dict[str, float]:
    """For metrics; a limit that nobody has set is left out."""
    found: dict[str, float] = {"capacity_hosts_others": float(capacity.allowed.hosts_others)}
    for name in _SHOWN:
        each = capacity.resources[name]
        unit, scale = ("cpu_cores", 1e-6) if name == "cpu" else (f"{name}_bytes_per_second", 1.0)
        found[f"capacity_{unit}_used"] = each.used * scale
        found[f"capacity_{unit}_reserved"] = each.reserved * scale
        if each.is_limited:
            found[f"capacity_{unit}_limit"] = each.limit * scale
    return found
