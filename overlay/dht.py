"""The Kademlia DHT of the network: who is there, who is alive, and who is nearest to a key.

The `kademlia` package is the frame (server, protocol, table, node). We subclass the parts that proved wrong in tests:
the table (table.py), the lookup (lookup.py), the transport (rpc.py). This file is the peer that uses them: it joins,
keeps its neighbourhood fresh, notices dead peers, forgives slow ones, and recovers after a partition.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
from kademlia.network import Server

from overlay.clocks import Clocks
from overlay.coordinates import Coordinate, Vivaldi
from overlay.crawl import crawl
from overlay.datagrams import (
    HINTS_MAX,
    Answer,
    FindNode,
    Found,
    Hint,
    ListPeers,
    Message,
    Obituary,
    Ping,
    Pong,
    same_place,
)
from overlay.identity import Address, Identity, PeerRecord, format_address
from overlay.liveness import Liveness
from overlay.lookup import PARALLEL, Lookup
from overlay.members import Gone, Member
from overlay.membership import Membership
from overlay.now import steady_ms, wall_ms
from overlay.own_record import OwnRecord
from overlay.resolve import resolve
from overlay.room import Room
from overlay.rpc import Reply, SealedProtocol
from overlay.shaping import Shaper
from overlay.table import Candidate, Contact, Table
from overlay.tasks import Tasks
from overlay.understanding import Understanding
from protocols.events import ClockCompared
from protocols.ids import Key, PeerId

PROBE_S: Final = 1.0  # Between two probes of each of the nearest neighbours.
PROBED: Final = 8  # How many are probed; whoever finds one dead tells the others.
REFRESH_SELF_S: Final = 10.0
REFRESH_LEVEL_S: Final = 3.0
SEEK_ALONE_S: Final = 2.0  # Between two tries at the seeds while we know nobody,
SEEK_S: Final = 30.0  # and otherwise: networks that grew apart meet again at a seed.
FAREWELL_S: Final = 1.5
SETTLE_TRIES: Final = 5  # Questions to a neighbour until it has us in its table.
RETRIES_PER_PROBE: Final = 3
STALEST_PER_PROBE: Final = 2
HEARSAY_PER_PROBE: Final = 8
OWNER_WIDTH: Final = 4
FIRST_PEERS: Final = 16  # A lookup begins with so many: the nearest few may have died together, or be cut off.

log = structlog.get_logger("overlay.dht")


class Dht(Server):
    """One peer's part of the DHT."""

    def __init__(
        self,
        identity: Identity,
        membership: Membership,
        *,
        has_engine: bool = False,
        understanding: Understanding | None = None,
        seeds: Sequence[Address] = (),
        shaper: Shaper | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.table = Table(identity.peer_id)
        super().__init__(ksize=self.table.ksize, alpha=PARALLEL, node_id=identity.peer_id)
        self.peer_id = identity.peer_id
        self.seeds = list(seeds)
        self.on_up: list[Callable[[PeerRecord], None]] = []
        self.on_down: list[Callable[[PeerRecord, str], None]] = []
        self.gone = Gone()
        self.understanding = understanding or Understanding()
        self.vivaldi = Vivaldi(rng or random.Random())
        self._clocks = Clocks()
        self.protocol: SealedProtocol
        self.shaper = shaper
        self._own: OwnRecord
        self._identity = identity
        self.membership = membership
        self._able = has_engine, Room()
        self._rng = rng or random.Random()
        self._since_at = time.time()
        self._tasks = Tasks("DHT")
        self._liveness = Liveness(self.table, self.gone, self, self._went_down, self._rng, shaper)
        self._asked: set[PeerId] = set()  # Peers heard of that are being asked whether they are there.
        self._hearsay_left = HEARSAY_PER_PROBE
        self._twin_reported = False
        self._stopping = False

    @property
    def record(self) -> PeerRecord:
        """What this peer currently says of itself."""
        return self._own.record

    # The life of a peer.

    async def listen(self, port: int, interface: str = "127.0.0.1", advertise: str | None = None) -> None:
        """Open the socket and sign a first record. `advertise` is the host for others, if it is not the interface."""
        self._loop = asyncio.get_running_loop()
        found = await self._loop.getaddrinfo(interface, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
        family, _, _, _, bind_address = found[0]
        endpoint = socket.socket(family, socket.SOCK_DGRAM)
        try:
            endpoint.setblocking(False)
            endpoint.bind(bind_address)
            # Set up before the first datagram, which may arrive before this coroutine continues.
            self._own = OwnRecord(
                self._identity,
                self.understanding.release,
                endpoint.getsockname()[:2],
                advertise,
                time.time(),
                able=self._able,
                versions=self.understanding.versions,
                ring=self.membership.ring,
            )
            self.protocol = SealedProtocol(self.membership.spoken(), self.table, self, self.shaper)
            self.transport, _ = await self._loop.create_datagram_endpoint(lambda: self.protocol, sock=endpoint)
        except BaseException:
            endpoint.close()
            raise

    def start(self) -> None:
        """Begin to watch the neighbourhood."""
        self._tasks.spawn(self._maintain())

    async def bootstrap(self, addrs: Sequence[Address] | None = None) -> int:
        """Join through the given addresses, or the seeds; returns how many of them answered."""
        addresses = await resolve(self.seeds if addrs is None else addrs)
        replies = await asyncio.gather(*(self._hello(address) for address in addresses))
        answered = sum(replies)
        if answered:
            await self._settle_in()
        return answered

    async def leave(self) -> None:
        """Say goodbye to every contact, and wait briefly until they have heard it."""
        self._stopping = True
        self._own.say_goodbye(time.time())
        farewells = [asyncio.ensure_future(self.ask(peer.candidate, Ping())) for peer in self.table.contacts()]
        if farewells:
            _, unheard = await asyncio.wait(farewells, timeout=FAREWELL_S)
            for farewell in unheard:
                farewell.cancel()

    def stop(self) -> None:
        """Stop without telling anybody."""
        self._stopping = True
        self._tasks.cancel()
        self._liveness.stop()
        if self.transport is not None:
            self.protocol.abandon_calls()
        super().stop()

    # What others use it for.

    async def closest(self, key: Key, count: int = 8) -> list[PeerRecord]:
        """The live peers nearest to a key, nearest first, this one included; each answered during this call."""
        return await self._search(key, count, max(count, OWNER_WIDTH))

    async def owner(self, key: Key) -> PeerRecord:
        """The live peer nearest to a key."""
        return (await self._search(key, 2, OWNER_WIDTH))[0]

    def neighbours(self) -> list[PeerRecord]:
        """The peers nearest to this one."""
        return [contact.record for contact in self.table.leaves()]

    def find(self, peer: PeerId) -> PeerRecord | None:
        """The record of a peer in our table, or our own."""
        if peer == self.peer_id:
            return self.record
        contact = self.table.get(peer)
        return contact.record if contact else None

    def say(self, has_engine: bool | None = None, room: Room | None = None) -> None:
        """Sign a new record if one of these has changed; whoever hears from us next learns of it."""
        before = self._able
        self._able = (before[0] if has_engine is None else has_engine, before[1] if room is None else room)
        if self._able != before and self.transport is not None:
            self._own.say(*self._able, time.time())

    def suspect(self, peer: PeerId) -> None:
        """Something hints that a peer may be gone (its link broke): check at once."""
        contact = self.table.get(peer)
        if contact and not self._stopping:
            self._liveness.judge(contact, self._loop.time())

    def members(self) -> list[Member]:
        """Everybody this peer knows of, itself first."""
        own = replace(Member.of(self.record, "alive", self._since_at), is_self=True)
        known = [
            Member.of(contact.record, "suspect" if contact.is_suspect else "alive", contact.since_at, contact.rtt_ms)
            for contact in self.table.contacts()
        ]
        refused = [
            Member(peer, apart.address, apart.release, "incompatible", apart.since_at, None, versions=apart.versions)
            for peer, apart in self.understanding.refused()
        ]
        expelled = self.membership.ring.expelled_members()
        return [own, *known, *refused, *expelled, *self.gone.members()]

    def dead(self) -> list[Address]:
        """Where the peers were that died, or were cut off."""
        return [member.address for member in self.gone.members() if member.status == "dead"]

    async def crawl(self, limit: int = 10_000) -> list[Member]:
        """All peers of the network, found by asking from peer to peer."""
        return await crawl(self, limit)

    async def force_leave(self, peer: PeerId) -> None:
        """List a dead peer as left, everywhere: it will not come back."""
        record = self.gone.record(peer)
        if record is None:
            raise ValueError("it is not dead")
        self._liveness.force_leave(record)

    async def ping(self, peer: PeerId) -> float:
        """Measure one round trip, in milliseconds; ConnectionError if the peer does not answer."""
        if peer == self.peer_id:
            return 0.0
        known = self.find(peer) or self.gone.record(peer)
        if known is None:
            known = next((record for record in await self.closest(peer, 2) if record.peer_id == peer), None)
        started = time.perf_counter()
        if known is None or await self.ask(Candidate(peer, known.address, known.incarnation), Ping()) is None:
            raise ConnectionError(f"peer {peer.short} does not answer")
        return (time.perf_counter() - started) * 1000

    def clock(self) -> ClockCompared:
        """How far our wall clock is from those of the peers that answer us."""
        told = [contact.clock.ahead_of_steady_ms for contact in self.table.contacts() if not contact.is_suspect]
        others_ms = [ahead_ms for ahead_ms in told if ahead_ms is not None]
        return self._clocks.compare(wall_ms() - steady_ms(), others_ms)

    def stats(self) -> dict[str, float]:
        """Counters of datagrams and calls, the size of the table, and how far our clock is off."""
        contacts = self.table.contacts()
        suspects = sum(contact.is_suspect for contact in contacts)
        clock = self.clock()
        return {
            **self.protocol.counters,
            "table_peers": len(contacts),
            "table_suspects": suspects,
            "clock_offset_ms": clock.offset_ms,
            "clock_peers": clock.peers,
        }

    # Called by the protocol (rpc.RpcHandler).

    def own_record(self) -> PeerRecord:
        return self.record

    def belongs(self, record: PeerRecord, tag: bytes) -> bool:
        """Whether the sender of a datagram, sealed under the key of this tag, is a member."""
        if self.membership.refusal(record.peer_id, tag):
            return False
        if record.peer_id != self.peer_id:
            self.membership.heard_record(record)
        return True

    def own_coordinate(self) -> Coordinate:
        return self.vivaldi.coordinate

    def admits(self, record: PeerRecord) -> bool:
        """Whether a peer speaks what a member must; one that no longer does, after an upgrade, loses its place."""
        is_admitted = self.understanding.admits(record)
        if not is_admitted and not self._stopping:
            self._lose(record.peer_id, "it speaks other versions now")
        return is_admitted

    def heard(self, record: PeerRecord, source: Address, message: Message) -> Answer | None:
        """Somebody asks or tells us something."""
        peer = record.peer_id
        if peer == self.peer_id:
            self._report_twin(source)
            return None
        if self._stopping:  # We still answer, so that peers that leave together need not wait for each other.
            return self._pong(record, source) if isinstance(message, Ping) else None
        self._meet(record)
        match message:
            case Ping():
                return self._pong(record, source)
            case FindNode():
                near = self.table.nearest(Key(message.target), message.count, exclude=peer)
                return Found([Hint.of(contact.candidate) for contact in near if not contact.is_suspect])
            case ListPeers():
                page = self.table.page(PeerId(message.after), HINTS_MAX)
                return Found([Hint.of(contact.candidate) for contact in page])
            case Obituary() if message.peer_id == self.peer_id:
                # We are said to be dead; a newer record proves otherwise.
                if message.incarnation >= self.record.incarnation:
                    self._own.renew(time.time(), at_least=message.incarnation + 1)
            case Obituary():
                self._liveness.read(message, peer)
        return None

    def answered(self, record: PeerRecord, called: Address, coordinate: Coordinate, rtt_ms: float | None) -> None:
        """A peer has answered a question to this address: it is alive, there, now."""
        if record.peer_id == self.peer_id or record.left or self._has_left(record):
            return
        contact = self.table.get(record.peer_id)
        proven = same_place(record.address, called)
        if contact is None:
            if not proven:  # A seed reached by another name: check whether it is where it says.
                self._verify(Candidate(record.peer_id, record.address, record.incarnation))
                return
            contact = Contact(record, self._loop.time(), time.time())
            if not self.table.add_contact(contact):
                self.gone.rise(record.peer_id)
                return
            self._came_up(contact)
        elif record.incarnation > contact.record.incarnation and proven:
            contact.renew(record)
        contact.answered_at = self._loop.time()
        if contact.silent_since is not None:
            contact.silent_since = None
            contact.since_at = time.time()
        if coordinate.is_sane():
            contact.coordinate = coordinate
        if rtt_ms is not None:
            contact.observe(rtt_ms)
            self.vivaldi.observe(record.peer_id, coordinate, rtt_ms)

    def told_time(self, peer: PeerId, clock_ms: float, rtt_ms: float) -> None:
        """A peer has told its wall clock, exact to half a round trip."""
        contact = self.table.get(peer)
        if contact is not None:
            contact.clock.add(rtt_ms, clock_ms - steady_ms())

    def silent(self, peer: PeerId, since: float, *, given_up: bool) -> None:
        """A question to a peer is overdue, or has been given up."""
        contact = self.table.get(peer)
        if contact is None or contact.answered_at > since or self._stopping:
            return  # It has answered something else in the meantime.
        if given_up:
            self._liveness.judge(contact, since)
        else:
            self._liveness.suspect(contact, since)

    def _meet(self, record: PeerRecord) -> None:
        """Note who speaks to us. A peer that is new, or at a new address, is asked back before it enters the table."""
        contact = self.table.get(record.peer_id)
        if record.left:
            self._liveness.farewell(record)
        elif contact is None or record.incarnation > contact.record.incarnation:
            if contact is not None and same_place(contact.record.address, record.address):
                contact.renew(record)
            elif self.table.has_room_for(record.peer_id) and not self._has_left(record):
                self._verify(Candidate(record.peer_id, record.address, record.incarnation))

    # Joining and keeping fresh.

    async def _hello(self, address: Address) -> bool:
        reply: Reply | None = await self.protocol.ask(None, address, Ping())
        self._read_pong(reply)
        if reply is None or reply.record.peer_id == self.peer_id:
            return False
        if self.table.get(reply.record.peer_id) is None:
            await self.ask(Candidate(reply.record.peer_id, reply.record.address, reply.record.incarnation), Ping())
        return True

    async def _settle_in(self) -> None:
        """Know and be known: find our neighbours, fill every level, and wait until the neighbours have us."""
        own_key = Key(self.peer_id)
        await self.closest(own_key, self.table.leaf_peers + 1)
        levels = range(self.table.depth() + 1)
        await asyncio.gather(*(self.closest(self.table.random_key(level, self._rng), PARALLEL) for level in levels))
        await asyncio.gather(*(self._settle_with(contact) for contact in self.table.leaves()))

    async def _settle_with(self, contact: Contact) -> None:
        for _ in range(SETTLE_TRIES):
            reply = await self.ask(contact.candidate, Ping())
            if reply is None or (isinstance(reply.message, Pong) and reply.message.settled):
                return

    async def _maintain(self) -> None:
        now = self._loop.time()
        refresh_self_at = now + REFRESH_SELF_S * self._rng.uniform(0.1, 1)
        refresh_level_at = now + REFRESH_LEVEL_S * self._rng.uniform(0.1, 1)
        seek_at = now + SEEK_S * self._rng.uniform(0.5, 1)
        seeking = self._tasks.spawn(asyncio.sleep(PROBE_S * self._rng.random()))
        await seeking
        while True:
            now = self._loop.time()
            self._hearsay_left = HEARSAY_PER_PROBE
            self._probe(now)
            for record in self.gone.due(time.time(), RETRIES_PER_PROBE):
                self._verify(Candidate(record.peer_id, record.address, record.incarnation))
            self._own.renew_if_due(time.time())
            if now > seek_at and seeking.done():
                seek_at = now + (SEEK_S if len(self.table) else SEEK_ALONE_S) * self._rng.uniform(0.7, 1.3)
                seeking = self._tasks.spawn(self._seek())
            elif not len(self.table):
                seek_at = min(seek_at, now + SEEK_ALONE_S)
            if now > refresh_self_at:
                refresh_self_at = now + REFRESH_SELF_S * self._rng.uniform(0.7, 1.3)
                await self.closest(Key(self.peer_id), self.table.leaf_peers + 1)
            elif now > refresh_level_at:
                refresh_level_at = now + REFRESH_LEVEL_S * self._rng.uniform(0.7, 1.3)
                level = self._rng.randint(0, self.table.depth() + 1)
                await self.closest(self.table.random_key(level, self._rng), PARALLEL)
            await asyncio.sleep(PROBE_S * self._rng.uniform(0.8, 1.2))

    def _probe(self, now: float) -> None:
        """Probe the nearest neighbours, and the contacts not heard of for longest."""
        stalest = heapq.nsmallest(STALEST_PER_PROBE, self.table.contacts(), key=lambda contact: contact.answered_at)
        for contact in {contact.peer_id: contact for contact in [*self.table.leaves()[:PROBED], *stalest]}.values():
            if now - contact.answered_at > PROBE_S and not self._liveness.is_judging(contact.peer_id):
                self.protocol.call(contact.peer_id, contact.record.address, Ping(), self._read_pong)

    async def _seek(self) -> None:
        """Contact the seeds: all of them when alone, otherwise one, so that networks grown apart meet."""
        if not self.seeds:
            return
        alone = not len(self.table)
        reached = await self.bootstrap(self.seeds if alone else [self._rng.choice(self.seeds)])
        if alone and reached:
            log.info("rejoined", peers=len(self.table))

    def _verify(self, candidate: Candidate) -> None:
        """Ask a peer known by hearsay whether it is there; its answer gives it a place in the table."""
        peer = candidate.peer_id
        if peer not in self._asked and peer != self.peer_id and not self.membership.is_expelled(peer):
            self._asked.add(peer)

            def done(reply: Reply | None) -> None:
                self._asked.discard(peer)
                self._read_pong(reply)

            self.protocol.call(peer, candidate.address, Ping(), done)

    # Life and death.

    def _came_up(self, contact: Contact) -> None:
        self.membership.met(contact.peer_id, self.protocol.opened_under)
        was = self.gone.status(contact.peer_id)
        self.gone.rise(contact.peer_id)
        log.info(
            "peer up", peer=contact.peer_id.short, address=format_address(contact.record.address), was=was or "new"
        )
        if was == "dead":  # Perhaps a whole part of the network is back: ask it whom it knows.
            self._tasks.spawn(self._revisit())
        for callback in self.on_up:
            callback(contact.record)

    async def _revisit(self) -> None:
        await self.closest(Key(self.peer_id), self.table.leaf_peers + 1)

    def expel(self, peer: PeerId) -> None:
        """Treat a peer as dead, and do not believe it any more."""
        self._lose(peer, "expelled")

    def _lose(self, peer: PeerId, why: str) -> None:
        """Forget a peer that is no member any more."""
        self.gone.rise(peer)
        if (contact := self.table.get(peer)) is not None:
            self.table.remove_contact(contact)
            self._went_down(contact, why)

    def say_ring(self) -> None:
        """Speak under the keys that count now, and sign a record that says which ring we have."""
        if self.transport is not None:
            self.protocol.accept(self.membership.spoken())
            self._own.say_ring(self.membership.ring, time.time())

    def _went_down(self, contact: Contact, why: str) -> None:
        self.membership.went_down(contact.peer_id)
        log.info("peer down", peer=contact.peer_id.short, address=format_address(contact.record.address), why=why)
        spare = self.table.spare_for(contact.peer_id)
        if spare:
            self._verify(spare)
        for callback in self.on_down:
            callback(contact.record, why)

    def is_outdated(self, candidate: Candidate) -> bool:
        """Whether a hint is no newer than the end of that peer, or than its refusal."""
        refused = self.understanding.refuses(candidate.peer_id, candidate.incarnation)
        return refused or self.gone.knows(candidate) or self.membership.is_expelled(candidate.peer_id)

    def _has_left(self, record: PeerRecord) -> bool:
        gone = self.gone.record(record.peer_id)
        has_left = gone is not None and self.gone.status(record.peer_id) == "left"
        return has_left and gone is not None and record.incarnation <= gone.incarnation

    # Our own address.

    def _pong(self, record: PeerRecord, source: Address) -> Pong:
        contact, gone = self.table.get(record.peer_id), self.gone.record(record.peer_id)
        known = [known.incarnation for known in (contact and contact.record, gone) if known]
        # It was forced to leave and is back: only a newer record counts.
        if self._has_left(record) and not record.left:
            known.append(record.incarnation + 1)
        settled = contact is not None and same_place(contact.record.address, record.address)
        is_settled = settled or not self.table.has_room_for(record.peer_id)
        return Pong(source[0], is_settled, max(known, default=0), int(wall_ms()))

    def _read_pong(self, reply: Reply | None) -> None:
        """Learn from an answer how others see us: a newer record than ours, or another address."""
        if reply is None or not isinstance(reply.message, Pong) or self._stopping:
            return
        pong, now_s = reply.message, time.time()
        if pong.incarnation > self.record.incarnation:
            self._own.renew(now_s, at_least=pong.incarnation + 1)
        if self._own.seen_at(pong.host, reply.record.peer_id, len(self.table), now_s):
            log.info("own address changed", now=format_address(self.record.address))

    def _report_twin(self, source: Address) -> None:
        if not self._twin_reported and not same_place(source, self.record.address):
            self._twin_reported = True
            log.warning(
                "another peer uses this peer's key",
                address=format_address(source),
                hint="was the data directory copied?",
            )

    # Small things.

    async def _search(self, target: Key, count: int, width: int) -> list[PeerRecord]:
        lookup = Lookup(target, count)
        records = {self.peer_id: self.record}
        lookup.learn(Candidate(self.peer_id, self.record.address, self.record.incarnation), answered=True)
        for contact in self.table.nearest(target, max(count, FIRST_PEERS)):
            lookup.learn(contact.candidate)
        finished: asyncio.Future[None] = self._loop.create_future()
        question = FindNode(bytes(target), min(width, HINTS_MAX))

        def step() -> None:
            if finished.done():  # Or whoever waited for it has given up.
                return
            for candidate in lookup.ask():
                peer = candidate.peer_id
                self.protocol.call(peer, candidate.address, question, partial(replied, peer), partial(slow, peer))
            if lookup.finished:
                finished.set_result(None)

        def replied(peer: PeerId, reply: Reply | None) -> None:
            if reply is None or not isinstance(reply.message, Found):
                lookup.failed(peer)
            else:
                records[peer] = reply.record
                lookup.answered(peer)
                for hint in reply.message.hints:
                    candidate = hint.candidate()
                    if not self.is_outdated(candidate):
                        lookup.learn(candidate)
                        self._hearsay(candidate)
            step()

        def slow(peer: PeerId) -> None:
            lookup.slow(peer)
            step()

        step()
        await finished
        return [records[peer] for peer in lookup.result()]

    def _hearsay(self, candidate: Candidate) -> None:
        """A peer known by hearsay and a free place for it: ask it, within a budget, so that tables fill."""
        peer = candidate.peer_id
        if self._hearsay_left and self.table.get(peer) is None and self.table.has_room_for(peer):
            self._hearsay_left -= 1
            self._verify(candidate)

    async def ask(self, candidate: Candidate, message: Message) -> Reply | None:
        """Put a question to a peer; None if it does not answer."""
        reply: Reply | None = await self.protocol.ask(candidate.peer_id, candidate.address, message)
        self._read_pong(reply)
        return reply

    def tell(self, address: Address, message: Message) -> None:
        """Send a notice."""
        self.protocol.tell(address, message)
