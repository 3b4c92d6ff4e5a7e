"""One peer's whole overlay behind one interface: the DHT, the links, the router and the coordinates."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from overlay.coordinates import UNKNOWN, Coordinate, Distance, estimate
from overlay.dht import Dht
from overlay.identity import Address, Identity, Network, PeerRecord, format_address
from overlay.links import LinkError, Links
from overlay.members import Member
from overlay.router import Router, Unreachable
from overlay.shaping import Shaper
from overlay.tls import LinkCredentials
from overlay.understanding import Understanding
from protocols.events import ClockCompared
from protocols.ids import Key, PeerId
from protocols.versions import VERSIONS, Versions

_PORT_TRIES: Final = 20
_JOIN_RETRY_S: Final = 0.3
KEPT_LINKS: Final = 16  # To the nearest neighbours.


class JoinError(ConnectionError):
    """No seed let us in; says what to look at."""

    def __init__(self, seeds: Sequence[Address], timeout_s: float, trouble: str) -> None:
        places = ", ".join(format_address(seed) for seed in seeds)
        super().__init__(f"could not join: {trouble or f'no seed answered within {timeout_s:g} s'}")
        self.detail = f"Asked {places}."
        self.hint = (
            "check that a seed runs, that its UDP and TCP port is open to this machine, that the token is of that "
            "network, and that both clocks agree within 60 s"
        )


class Overlay:
    """Everything a peer needs to find and reach others."""

    def __init__(
        self,
        identity: Identity,
        network: Network,
        *,
        host: str = "127.0.0.1",
        port: int = 7400,
        advertise: str | None = None,
        version: str = "0",
        has_engine: bool = False,
        versions: Versions = VERSIONS,
        seeds: Sequence[Address] = (),
        shaper: Shaper | None = None,
    ) -> None:
        self.network = network
        self.peer_id = identity.peer_id
        self.understanding = understanding = Understanding(versions, version)
        self.dht = Dht(
            identity, network, has_engine=has_engine, understanding=understanding, seeds=seeds, shaper=shaper
        )
        self.links = Links(LinkCredentials(identity, network), understanding, shaper=shaper)
        self.router = Router(self.dht, self.links)
        self.on_up = self.dht.on_up
        self.on_down = self.dht.on_down
        self._host, self._port, self._advertise = host, port, advertise
        self.links.on_lost = self.dht.suspect
        self.links.on_round_trip = self._round_trip
        self.on_down.append(lambda record, why: self.links.close_peer(record.peer_id))

    @property
    def address(self) -> Address:
        """Where others reach this peer."""
        return self.dht.record.address

    async def start(self) -> None:
        """Open TCP and UDP on one port number; OSError if it is taken. Port 0 takes any."""
        for _ in range(_PORT_TRIES):
            # TCP first: a peer that answers datagrams but refuses connections would count as dead.
            port = await self.links.listen(self._host, self._port)
            try:
                await self.dht.listen(port, self._host, self._advertise)
                break
            except OSError as error:
                await self.links.close()
                if self._port != 0 or not _is_taken(error):
                    raise
        else:
            raise OSError(errno.EADDRINUSE, "found no port free for both TCP and UDP")
        self.dht.start()

    async def join(self, *, timeout_s: float = 10.0) -> int:
        """Enter the network through the seeds; returns how many peers it knows then. Without seeds, found one."""
        if not self.dht.seeds:
            return 0
        try:
            async with asyncio.timeout(timeout_s):
                while not await self.dht.bootstrap():
                    await asyncio.sleep(_JOIN_RETRY_S)
        except TimeoutError:
            raise JoinError(self.dht.seeds, timeout_s, self.understanding.trouble()) from None
        return len(self.dht.table)

    async def leave(self) -> None:
        """Finish what is being sent and received, tell everyone, stop."""
        await self.router.finish()
        await self.links.drain()
        await self.dht.leave()
        await self.stop()

    async def stop(self) -> None:
        """Stop without telling anybody."""
        self.dht.stop()
        await self.router.stop()
        await self.links.close()

    async def closest(self, key: Key, k: int = 8) -> list[PeerRecord]:
        """The live peers nearest to a key, nearest first."""
        return await self.dht.closest(key, k)

    async def owner(self, key: Key) -> PeerRecord:
        """The live peer nearest to a key."""
        return await self.dht.owner(key)

    def neighbours(self) -> list[PeerRecord]:
        """The peers nearest to this one."""
        return self.dht.neighbours()

    async def keep_links(self) -> None:
        """Keep links to the nearest neighbours before they are needed; of each two peers, one dials."""
        for record in self.neighbours()[:KEPT_LINKS]:
            if record.peer_id < self.peer_id:
                with suppress(LinkError):
                    await self.links.link(record.peer_id, record.address)

    def members(self) -> list[Member]:
        """Everybody this peer knows of, itself first."""
        return self.dht.members()

    async def crawl(self, limit: int = 10_000) -> list[Member]:
        """All peers of the network, found by asking from peer to peer."""
        return await self.dht.crawl(limit)

    async def force_leave(self, peer: PeerId) -> None:
        """List a dead peer as left, everywhere."""
        await self.dht.force_leave(peer)

    async def ping(self, peer: PeerId) -> float:
        """Measure one round trip by datagram, in milliseconds."""
        return await self.dht.ping(peer)

    def distance(self, a: PeerId, b: PeerId) -> Distance:
        """The round-trip time between two peers: measured if possible, otherwise estimated from coordinates."""
        if a == b:
            return Distance(0.0, 0.0, "measured")
        if b == self.peer_id:
            a, b = b, a
        contact = self.dht.table.get(b)
        if a == self.peer_id and contact is not None and contact.rtt_ms is not None:
            return Distance(contact.rtt_ms, contact.rtt_deviation_ms, "measured")
        here, there = self._coordinate(a), self._coordinate(b)
        return estimate(here, there) if here and there else UNKNOWN

    def say_engine(self, has_engine: bool) -> None:
        """Announce whether this peer can run operators with state."""
        self.dht.say_engine(has_engine)

    def clock(self) -> ClockCompared:
        """How far this peer's wall clock is from those of the others."""
        return self.dht.clock()

    def stats(self) -> dict[str, float]:
        """Flat counters for metrics."""
        return {**self.dht.stats(), **self.router.counters, **self.links.stats()}

    def _coordinate(self, peer: PeerId) -> Coordinate | None:
        if peer == self.peer_id:
            return self.dht.vivaldi.coordinate
        contact = self.dht.table.get(peer)
        return contact.coordinate if contact else None

    def _round_trip(self, peer: PeerId, rtt_ms: float) -> None:
        contact = self.dht.table.get(peer)
        if contact is not None:
            contact.observe(rtt_ms)
            self.dht.vivaldi.observe(peer, contact.coordinate, rtt_ms)


def _is_taken(error: BaseException | None) -> bool:
    """Whether a port is taken; uvloop hides the error number in its cause."""
    return error is not None and (getattr(error, "errno", None) == errno.EADDRINUSE or _is_taken(error.__cause__))


__all__ = ["JoinError", "Member", "Overlay", "Unreachable"]
