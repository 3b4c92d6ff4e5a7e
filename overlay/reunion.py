"""Finding members again by TCP, where datagrams fail because one side has a newer network key than the other.

A member that was away while the key was replaced seals with a key that nobody opens any more. Its certificates are
still believed for a week (keyring.py), so either side dials: the one that was away its old addresses, once it has been
alone for a moment; the others those that they take for dead. The first exchange over the link hands over the new key.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final, Protocol

import structlog

from overlay.identity import Address, format_address
from overlay.keyring import REMEMBERED_MS
from overlay.links import Links
from overlay.membership import Membership
from overlay.resolve import resolve
from overlay.table import Table

LOOK_S: Final = 1.0
ALONE_S: Final = 2.0  # Between two rounds of dials while we know nobody,
TOGETHER_S: Final = 10.0  # and otherwise.
DIALS_AT_ONCE: Final = 4
NOT_A_MEMBER: Final = "it is not a member of this network"

log = structlog.get_logger("overlay.membership")


class _Dht(Protocol):
    """What the search needs of the DHT."""

    table: Table
    seeds: list[Address]

    def dead(self) -> list[Address]: ...


class Reunion:
    """One peer's search for members that it cannot reach by datagram."""

    def __init__(self, dht: _Dht, links: Links, membership: Membership, rng: random.Random) -> None:
        self._dht = dht
        self._links = links
        self._membership = membership
        self._rng = rng
        self._due_at = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        alone_since: float | None = None
        while True:
            await asyncio.sleep(LOOK_S * self._rng.uniform(0.8, 1.2))
            if self._membership.cast_out is not None:
                return
            alone_since = (alone_since or loop.time()) if not len(self._dht.table) else None
            if loop.time() < self._due_at:
                continue
            is_alone = alone_since is not None and loop.time() - alone_since >= ALONE_S
            if is_alone:
                self._due_at = loop.time() + ALONE_S
                await self._dial(await resolve(self._dht.seeds) + self._dht.dead())
            elif self._has_rolled_over() and (dead := self._dht.dead()):
                self._due_at = loop.time() + TOGETHER_S
                await self._dial(dead)

    async def _dial(self, addresses: list[Address]) -> None:
        distinct = list(dict.fromkeys(addresses))
        chosen = self._rng.sample(distinct, min(DIALS_AT_ONCE, len(distinct)))
        reasons = await asyncio.gather(*(self._links.meet(address) for address in chosen))
        strange = [address for address, why in zip(chosen, reasons, strict=True) if why == NOT_A_MEMBER]
        if strange and not any(why == "" for why in reasons) and not len(self._dht.table):
            self._membership.not_known_at([format_address(address) for address in strange])

    def _has_rolled_over(self) -> bool:
        """Whether a key was replaced so lately that somebody may come back with it."""
        statements = self._membership.ring.statements.values()
        newest = max((statement.body.at_ms for statement in statements), default=0)
        return time.time() * 1000 - newest < REMEMBERED_MS
