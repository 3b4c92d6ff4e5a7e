"""Names of hosts to addresses, without waiting for the slow ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from overlay.identity import Address

RESOLVE_S: Final = 3.0  # A seed whose name takes longer must not hold up the others.


async def resolve(addresses: Sequence[Address]) -> list[Address]:
    """Resolve host names; a name that does not resolve now is left out and may resolve later."""
    loop = asyncio.get_running_loop()

    async def resolve_one(host: str, port: int) -> list[Address]:
        try:
            found = await asyncio.wait_for(loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM), RESOLVE_S)
        except OSError:
            return []
        return [(str(entry[4][0]), port) for entry in found]

    found = await asyncio.gather(*(resolve_one(host, port) for host, port in addresses))
    return list(dict.fromkeys(address for each in found for address in each))
