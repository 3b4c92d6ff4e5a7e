"""One peer's whole overlay behind one interface: the DHT, the links, the router and the coordinates."""

from __future__ import annotations

import asyncio
import errno
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from overlay.coordinates import UNKNOWN, Coordinate, Distance, estimate
from overlay.dht import Dht
from overlay.identity import NETWORK_KEY_BYTES, Address, Identity, Network, PeerRecord, format_address
from overlay.keyring import OVERLAP_MS, Keyring, Outcast, Statement
from overlay.links import LinkError, Links
from overlay.members import Member
from overlay.membership import Membership
from overlay.pace import Paces
from overlay.reunion import Reunion
from overlay.room import Room
from overlay.router import Router, Unreachable
from overlay.shaping import Shaper
from overlay.tasks import Tasks
from overlay.tls import LinkCredentials
from overlay.understanding import Understanding
from protocols.events import ClockCompared
from protocols.ids import Key, Millis, PeerId
from protocols.versions import VERSIONS, Versions

_PORT_TRIES: Final = 20
_JOIN_RETRY_S: Final = 0.3
_LAST_WORD_S: Final = 1.0
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
        paces: Paces = Paces(),
        ring: Keyring | None = None,
        save_ring: Callable[[Keyring], None] | None = None,
        overlap_ms: Millis = OVERLAP_MS,
    ) -> None:
        self.peer_id = identity.peer_id
        self._identity = identity
        self.understanding = understanding = Understanding(versions, version)
        self.membership = membership = Membership(
            identity,
            ring or Keyring.of(network),
            new_key=partial(secrets.token_bytes, NETWORK_KEY_BYTES),
            rng=random.Random(),
            save=save_ring,
            overlap_ms=overlap_ms,
        )
        self.dht = Dht(
            identity, membership, has_engine=has_engine, understanding=understanding, seeds=seeds, shaper=shaper
        )
        self.links = Links(LinkCredentials(identity, *membership.trusted()), understanding, shaper=shaper, paces=paces)
        self._tasks = Tasks("overlay")
        self._reunion = Reunion(self.dht, self.links, membership, random.Random())
        self._follow_membership()
        self.router = Router(self.dht, self.links)
        self.on_up = self.dht.on_up
        self.on_down = self.dht.on_down
        self._host, self._port, self._advertise = host, port, advertise
        self.links.on_lost = self.dht.suspect
        self.links.on_round_trip = self._round_trip
        self.on_down.append(lambda record, why: self.links.close_peer(record.peer_id))

    def _follow_membership(self) -> None:
        """Let the links and the DHT go by the keys and the expulsions that count."""
        membership, links = self.membership, self.links
        links.stated = membership.ring.stated
        links.refuse = self._refuse
        links.tags_for = self._tags_for
        links.on_ring = membership.read
        links.on_linked = lambda link: membership.linked(link.peer, link.tag, link.stated)
        links.on_unlinked = membership.unlinked
        membership.tell = links.tell_ring
        membership.shut = links.shut
        membership.dial = self._link_soon
        membership.on_adopt.append(self._adopt)
        membership.on_keys.append(self.dht.say_ring)
        membership.on_cast_out.append(lambda _statement: self.fall_silent())

    def _refuse(self, peer: PeerId, tag: bytes) -> tuple[str, bytes] | None:
        if self.membership.cast_out is not None:
            return "this peer was expelled from the network", self.membership.refusal_for(peer, tag)
        reason = self.membership.refusal(peer, tag)
        return (reason, self.membership.refusal_for(peer, tag)) if reason else None

    def _tags_for(self, peer: PeerId) -> list[bytes]:
        """Under which keys to dial a peer: first the one that it has said it has."""
        tags, said = self.links.credentials.tags, self.membership.tag_for(peer)
        return sorted(tags, key=lambda tag: tag != said)

    def _link_soon(self, peer: PeerId) -> None:
        self._tasks.spawn(self._link_to(peer))

    async def _link_to(self, peer: PeerId) -> None:
        known = self.dht.find(peer)
        if known is None:
            known = next((each for each in await self.dht.closest(peer, 2) if each.peer_id == peer), None)
        if known is not None:
            with suppress(LinkError):
                await self.links.link(peer, known.address)

    def _adopt(self, expelled: Mapping[PeerId, Statement]) -> None:
        self.links.credentials = LinkCredentials(self._identity, *self.membership.trusted())
        self.links.stated = self.membership.ring.stated
        for peer in expelled:
            self.links.shut(peer, self.membership.refusal_for(peer, b""))
            self.dht.expel(peer)

    @property
    def network(self) -> Network:
        """The network with its present key."""
        return self.membership.network

    async def expel(self, peer: Member) -> None:
        """Replace the network key, and hand the new one to every member but this peer; ValueError says why not."""
        members = await self.crawl()
        live = [each.peer_id for each in members if each.status in ("alive", "suspect") and not each.is_self]
        known = [each.peer_id for each in members if each.status not in ("incompatible", "expelled")]
        outcast = Outcast(bytes(peer.peer_id), *peer.address)
        if peer.peer_id in live:
            with suppress(OSError):  # Over a link it hears at once that it is out.
                await asyncio.wait_for(self.links.link(peer.peer_id, peer.address), _LAST_WORD_S)
        self.membership.expel([outcast], known, [each for each in live if each != peer.peer_id])

    def fall_silent(self) -> None:
        """Take no part any more, and answer nobody."""
        self.dht.stop()
        for peer in self.links.peers():
            self.links.close_peer(peer)

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
        self.membership.start()
        self._tasks.spawn(self._reunion.run())

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
        await self._tasks.finish()
        await self.membership.stop()
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
        self.dht.say(has_engine=has_engine)

    def say_room(self, room: Room) -> None:
        """Announce how much room this peer has for parts of queries."""
        self.dht.say(room=room)

    def clock(self) -> ClockCompared:
        """How far this peer's wall clock is from those of the others."""
        return self.dht.clock()

    def stats(self) -> dict[str, float]:
        """Flat counters for metrics."""
        return {**self.dht.stats(), **self.router.counters, **self.links.stats(), **self.membership.counters}

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
