"""Knocking at a peer's TCP port, to tell a dead process from a paused one.

A peer that answers no datagram may be dead, paused, or cut off. The kernel of its host knows: it refuses a connection
to a port that nobody listens on, and accepts one for a process that has only stalled. Nothing is sent over the
connection.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from overlay.identity import Address
from overlay.shaping import Shaper

_PATIENCE_S: Final = 0.75
_LATE_S: Final = 0.05


class Knock(Enum):
    OPEN = "stalled"
    REFUSED = "refused"
    SILENT = "silent"


async def knock(address: Address, rtt_ms: float | None, shaper: Shaper | None = None) -> Knock:
    """Connect and close. A verdict that our own busy loop delayed counts in the peer's favour."""
    loop = asyncio.get_running_loop()
    patience_s = max(_PATIENCE_S, 4 * (rtt_ms or 0) / 1000)
    due = loop.time() + patience_s
    try:
        async with asyncio.timeout_at(due):
            if shaper and shaper.is_cut(address):
                await asyncio.sleep(2 * patience_s)
            _, writer = await asyncio.open_connection(*address)
    except ConnectionRefusedError:
        return Knock.REFUSED
    except (TimeoutError, OSError):
        return Knock.OPEN if loop.time() > due + _LATE_S else Knock.SILENT
    writer.close()
    return Knock.OPEN
