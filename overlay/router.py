"""Messages to keys and to peers: resolve, deliver, retry, and count hops.

`route` delivers to the live peer nearest to a key. That takes one frame if the cache knows the owner (for value-level
keys the cache is CQ-DHT's join fingers routing table), or if the key lies where we know everybody. Otherwise the DHT
looks the owner up first. The receiver checks that it is the owner; if it knows a nearer live peer, it answers with that
address. `multisend` puts all messages for one peer in one frame. A frame is repeated until its receipt arrives, and a
receiver hands each frame on once.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

import msgspec
import structlog

from overlay.datagrams import Hint
from overlay.dht import Dht
from overlay.identity import PeerRecord
from overlay.links import Link, LinkError, Links
from overlay.table import Candidate
from overlay.tasks import Tasks
from protocols.ids import Key, PeerId

MESSAGE_BYTES_MAX: Final = (1 << 20) + (16 << 10)  # A publish of 1 MiB, and its overhead.
FRAME_ITEMS_MAX: Final = 1024
CACHE_KEYS_MAX: Final = 65_536
HOPS_MAX: Final = 8
TIMEOUT_S: Final = 8.0
RECEIPT_WAIT_S: Final = 2.0
BULK_WAIT_S: Final = 30.0  # For the receipt of bulk, before it is sent again.
LAST_RECEIPTS_S: Final = 1.0  # How long a leaving peer takes for its last receipts.
LOOKUPS_AT_ONCE: Final = 32
FRAMES_IN_FLIGHT_MAX: Final = 256  # To one peer; far fewer than a receiver remembers.
_BUSY_MAX: Final = 2 * FRAMES_IN_FLIGHT_MAX
_RECEIPTS_KEPT: Final = 1024
_SENDERS_MAX: Final = 4096
_RETRY_S: Final = 0.1
_HEARD_WITHIN_S: Final = 5.0  # A link is pinged every two seconds, from both ends.

_T = TypeVar("_T")

log = structlog.get_logger("overlay.router")


class Unreachable(ConnectionError):
    """A message could not be handed to its peer in time. It may or may not have arrived."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a message reached its owner."""

    owner: PeerId
    hops: int  # Frames it took: 1 if the first peer tried was the owner, 0 if that is ourselves.
    looked_up: bool  # Whether the DHT was asked; False if the cache knew.


class Deliver(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A frame of messages, each for a key or for the peer itself."""

    # Identifies one run of the sender; its numbers begin anew with each run.
    boot: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    number: Annotated[int, msgspec.Meta(ge=0)]
    items: Annotated[list[tuple[bytes, bytes]], msgspec.Meta(max_length=FRAME_ITEMS_MAX)]  # Key (or empty), payload.


class Receipt(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """What became of one frame of messages."""

    boot: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    number: Annotated[int, msgspec.Meta(ge=0)]
    nearer: list[Hint | None]  # For each item None if it was accepted, else who should have it.


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Deliver | Receipt).decode


@dataclass(slots=True)
class _Outgoing:
    """One message on its way."""

    index: int
    key: Key
    payload: bytes
    target: Candidate | None = None
    hops: int = 0
    looked_up: bool = False
    is_astray: bool = False  # Our own table named the target, and it was wrong.


@dataclass(slots=True)
class _Remote:
    """A peer that we are sending to."""

    waiting: dict[int, asyncio.Future[list[Hint | None]]] = field(default_factory=dict)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FRAMES_IN_FLIGHT_MAX))


class Router:
    """Delivers messages for one peer."""

    def __init__(self, dht: Dht, links: Links) -> None:
        self.on_message: Callable[[PeerId, Key | None, bytes], None] = _nobody_listens
        # Whether more messages of a peer can be taken. What cannot be taken is not receipted, so its sender repeats it.
        self.has_room: Callable[[PeerId], bool] = lambda _: True
        self.counters: Counter[str] = Counter()
        self._dht = dht
        self._links = links
        self._boot = os.urandom(8)
        self._next_number = 0
        self._cache: OrderedDict[Key, PeerRecord | Candidate] = OrderedDict()
        self._keys_of: dict[PeerId, dict[Key, None]] = {}
        self._remotes: dict[PeerId, _Remote] = {}
        # (sender, its boot) -> number -> receipt; None while the frame is being processed.
        self._received: OrderedDict[tuple[PeerId, bytes], OrderedDict[int, bytes | None]] = OrderedDict()
        self._busy: Counter[PeerId] = Counter()  # Frames of each peer that are being processed or answered.
        self._is_leaving = False
        self._tasks = Tasks("router")
        links.on_control = self._read
        dht.on_down.append(self._peer_down)

    # Sending.

    async def send(self, peer: PeerId, *payloads: bytes, timeout_s: float = TIMEOUT_S, is_bulk: bool = False) -> None:
        """Hand messages to one peer, whatever keys it owns, in this order.

        They take as many frames as they need, one after the other. If all fit into one frame (1 MiB, 1024 messages),
        all arrive or none; otherwise the first frames may have arrived when this raises Unreachable. Bulk gives way to
        other frames, and has as much time as a link needs whose other end is heard.
        """
        for payload in payloads:
            _check_size(payload)
        if peer == self._dht.peer_id:
            for payload in payloads:
                self.on_message(peer, None, payload)
            return
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                target = await self._whereabouts(peer)
        except TimeoutError:
            raise Unreachable(f"peer {peer.short} was not found in time") from None
        for frame in _split(payloads, len):
            await self._frame(target, [(b"", payload) for payload in frame], deadline, is_bulk=is_bulk)

    async def route(self, key: Key, payload: bytes, timeout_s: float = TIMEOUT_S) -> Delivery:
        """Hand a message to the owner of a key."""
        (outcome,) = await self.multisend([(key, payload)], timeout_s)
        if isinstance(outcome, Unreachable):
            raise outcome
        return outcome

    async def multisend(
        self, messages: Sequence[tuple[Key, bytes]], timeout_s: float = TIMEOUT_S
    ) -> list[Delivery | Unreachable]:
        """Hand many messages to the owners of their keys: one frame to each peer, however many keys it owns.

        Messages beyond the limits of one frame take several concurrent frames, so no order is promised.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        outcomes: list[Delivery | Unreachable] = [Unreachable("not delivered in time") for _ in messages]
        pending = [_Outgoing(index, key, payload) for index, (key, payload) in enumerate(messages)]
        for item in pending:
            _check_size(item.payload)
        while pending and loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._resolve(pending)
            except TimeoutError:
                break
            groups: dict[PeerId, list[_Outgoing]] = {}
            for item in pending:
                assert item.target is not None
                groups.setdefault(item.target.peer_id, []).append(item)
            frames = [frame for group in groups.values() for frame in _split(group, lambda item: len(item.payload))]
            settled = await asyncio.gather(*(self._hand_over(frame, outcomes, deadline) for frame in frames))
            if not all(settled):  # A peer failed us: give the overlay a moment to notice.
                self.counters["route_retries_total"] += 1
                await asyncio.sleep(0.05)
            pending = [item for item in pending if isinstance(outcomes[item.index], Unreachable)]
        return outcomes

    async def _resolve(self, pending: list[_Outgoing]) -> None:
        """Find a target for each message without one: in the cache, in our table, or by one lookup a key."""
        unknown: dict[Key, list[_Outgoing]] = {}
        for item in pending:
            if item.target is None and (cached := self._cache.get(item.key)) is not None:
                self._cache.move_to_end(item.key)
                self.counters["cache_hits_total"] += 1
                item.target = _candidate(cached)
            elif item.target is None and not item.is_astray and self._dht.table.is_home(item.key):
                nearer = self._dht.table.nearer(item.key)
                item.target = nearer.candidate if nearer else _candidate(self._dht.record)
            elif item.target is None:
                unknown.setdefault(item.key, []).append(item)
        turns = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def look_up(key: Key, items: list[_Outgoing]) -> None:
            async with turns:
                owner = await self._dht.owner(key)
            self.counters["lookups_total"] += 1
            for item in items:
                item.target, item.looked_up = _candidate(owner), True

        await asyncio.gather(*(look_up(key, items) for key, items in unknown.items()))

    async def _hand_over(self, group: list[_Outgoing], outcomes: list[Delivery | Unreachable], deadline: float) -> bool:
        """Send one group to its common target and note each outcome; False if the peer did not answer."""
        target = group[0].target
        assert target is not None
        if target.peer_id == self._dht.peer_id:
            verdicts: list[Hint | None] = [None] * len(group)
            for item in group:
                self.on_message(target.peer_id, item.key, item.payload)
        else:
            try:
                verdicts = await self._frame(target, [(bytes(item.key), item.payload) for item in group], deadline)
            except Unreachable as error:
                self._forget_peer(target.peer_id)
                for item in group:
                    item.target, item.is_astray, outcomes[item.index] = None, True, error
                return False
        for item, nearer in zip(group, verdicts, strict=True):
            item.hops += target.peer_id != self._dht.peer_id
            if nearer is None:
                outcomes[item.index] = Delivery(target.peer_id, item.hops, item.looked_up)
                if target.peer_id != self._dht.peer_id:
                    self._remember(item.key, target)
                continue
            self.counters["redirects_total"] += 1
            self._forget_key(item.key)
            candidate = nearer.candidate()
            too_far = item.hops >= HOPS_MAX or self._dht.is_outdated(candidate)
            item.target, item.is_astray = None if too_far else candidate, too_far
        return True

    async def _frame(
        self, target: Candidate, items: list[tuple[bytes, bytes]], deadline: float, *, is_bulk: bool = False
    ) -> list[Hint | None]:
        """Send one frame until its receipt arrives; the peer hands it on once, however often it comes."""
        loop = asyncio.get_running_loop()
        peer = target.peer_id
        remote = self._remotes.setdefault(peer, _Remote())
        number, self._next_number = self._next_number, self._next_number + 1
        body = _encode(Deliver(self._boot, number, items))
        receipt: asyncio.Future[list[Hint | None]] = loop.create_future()
        remote.waiting[number] = receipt
        why = "no receipt in time"
        try:
            async with asyncio.timeout_at(deadline) as patience, remote.turns:
                while True:
                    known = self._dht.find(peer)
                    address = known.address if known else target.address
                    try:
                        link = await self._links.link(peer, address)
                        if is_bulk:
                            await _send_slowly(link, body, patience)
                        else:
                            await link.control(body)
                        self.counters["frames_out_total"] += 1
                        await _arrival(receipt, link)
                        if is_bulk:
                            await _arrival_on_thin_link(receipt, link, patience)
                        if receipt.done() and len(receipt.result()) != len(items):
                            self.counters["frames_malformed_total"] += 1
                            raise Unreachable(f"peer {peer.short} sent a receipt of another frame")
                        if receipt.done():
                            return receipt.result()
                    except LinkError as error:
                        why = str(error)
                        if error.retry_in_s and self._dht.find(peer) is None:  # It cannot be dialled.
                            raise Unreachable(f"peer {peer.short} is not reachable: {why}") from error
                        self._dht.suspect(peer)
                        await asyncio.sleep(_RETRY_S)
                    self.counters["frames_repeated_total"] += 1
        except TimeoutError:
            raise Unreachable(f"peer {peer.short} is not reachable: {why}") from None
        finally:
            del remote.waiting[number]
            if not remote.waiting:
                del self._remotes[peer]
            receipt.cancel()

    async def _whereabouts(self, peer: PeerId) -> Candidate:
        known = self._dht.find(peer)
        if known is None and (linked := self._links.address_of(peer)) is not None:
            return Candidate(peer, linked, 0)
        if known is None:
            nearest = await self._dht.closest(peer, 2)
            known = next((record for record in nearest if record.peer_id == peer), None)
        if known is None:
            raise Unreachable(f"peer {peer.short} is not in the network")
        return _candidate(known)

    # Receiving.

    def _read(self, peer: PeerId, body: bytes) -> None:
        try:
            message = _decode(body)
        except (msgspec.DecodeError, RecursionError):
            self.counters["frames_malformed_total"] += 1
            return
        if isinstance(message, Receipt):
            remote = self._remotes.get(peer)
            receipt = remote.waiting.get(message.number) if remote and message.boot == self._boot else None
            if receipt is not None and not receipt.done():
                receipt.set_result(message.nearer)
        else:
            self._receive(peer, message)

    def _receive(self, peer: PeerId, message: Deliver) -> None:
        # It does not read our receipts, or sends more than it should.
        if self._busy[peer] >= _BUSY_MAX or not self.has_room(peer):
            self.counters["frames_refused_total"] += 1
            return
        receipts = self._received.setdefault((peer, message.boot), OrderedDict())
        self._received.move_to_end((peer, message.boot))
        if message.number in receipts:
            self.counters["frames_duplicate_total"] += 1
            if (receipt := receipts[message.number]) is not None:
                self._reply(peer, receipt)
            return
        if self._is_leaving:  # There would be no receipt, and our heir would get the message too.
            self.counters["frames_refused_total"] += 1
            return
        receipts[message.number] = None
        if len(receipts) > _RECEIPTS_KEPT:
            receipts.popitem(last=False)
        if len(self._received) > _SENDERS_MAX:
            self._received.popitem(last=False)
        keys = [Key(key) for key, _ in message.items if len(key) == len(peer)]
        table = self._dht.table
        strange = [key for key in keys if table.nearer(key) is None and not table.is_home(key)]
        if strange:  # Far from home our table may be wrong: look the owner up before we accept.
            self._spawn_for(peer, self._receive_after_lookup(peer, message, strange))
        else:
            self._accept(peer, message, {})

    async def _receive_after_lookup(self, peer: PeerId, message: Deliver, strange: list[Key]) -> None:
        distinct = list(dict.fromkeys(strange))
        owners = await asyncio.gather(*(self._dht.owner(key) for key in distinct))
        self._accept(peer, message, dict(zip(distinct, owners, strict=True)))

    def _accept(self, peer: PeerId, message: Deliver, looked_up: dict[Key, PeerRecord]) -> None:
        verdicts: list[Hint | None] = []
        for raw, payload in message.items:
            if not raw:
                verdicts.append(None)
                self.on_message(peer, None, payload)
                continue
            if len(raw) != len(peer):
                self.counters["frames_malformed_total"] += 1
                verdicts.append(None)
                continue
            key = Key(raw)
            nearer = self._nearer(key, looked_up.get(key))
            verdicts.append(nearer)
            if nearer is None:
                self.on_message(peer, key, payload)
        receipt = _encode(Receipt(message.boot, message.number, verdicts))
        receipts = self._received.get((peer, message.boot))
        if receipts is not None:  # Otherwise many others sent us something meanwhile, and the entry is gone.
            receipts[message.number] = receipt
        self._reply(peer, receipt)

    def _nearer(self, key: Key, owner: PeerRecord | None) -> Hint | None:
        if owner is not None:
            return None if owner.peer_id == self._dht.peer_id else Hint.of(_candidate(owner))
        contact = self._dht.table.nearer(key)
        return Hint.of(contact.candidate) if contact else None

    def _reply(self, peer: PeerId, receipt: bytes) -> None:
        async def reply() -> None:
            try:
                target = await self._whereabouts(peer)
                await self._links.send(peer, target.address, receipt)
            except (LinkError, Unreachable):
                self.counters["receipts_unsent_total"] += 1  # The sender repeats the frame over a new link.

        self._spawn_for(peer, reply())

    def _spawn_for(self, peer: PeerId, work: Coroutine[Any, Any, None]) -> None:
        """Process a frame of a peer, and count how many of its frames are in process."""

        def done(_: asyncio.Task[None]) -> None:
            self._busy[peer] -= 1
            if not self._busy[peer]:
                del self._busy[peer]

        self._busy[peer] += 1
        self._tasks.spawn(work).add_done_callback(done)

    # The cache.

    def _remember(self, key: Key, owner: Candidate) -> None:
        self._forget_key(key)
        self._cache[key] = owner
        self._keys_of.setdefault(owner.peer_id, {})[key] = None
        if len(self._cache) > CACHE_KEYS_MAX:
            self._forget_key(next(iter(self._cache)))

    def _forget_key(self, key: Key) -> None:
        owner = self._cache.pop(key, None)
        if owner is not None:
            keys = self._keys_of[owner.peer_id]
            del keys[key]
            if not keys:
                del self._keys_of[owner.peer_id]

    def _forget_peer(self, peer: PeerId) -> None:
        for key in self._keys_of.pop(peer, {}):
            self._cache.pop(key, None)

    def _peer_down(self, record: PeerRecord, why: str) -> None:
        self._forget_peer(record.peer_id)

    # The end.

    async def finish(self) -> None:
        """Take nothing more, and send receipts for what was taken; after this the links may say goodbye."""
        self._is_leaving = True
        await self._tasks.settle(LAST_RECEIPTS_S)
        await self._tasks.finish()

    async def stop(self) -> None:
        """Cancel everything in progress."""
        await self._tasks.finish()


def _candidate(where: PeerRecord | Candidate) -> Candidate:
    if isinstance(where, Candidate):
        return where
    return Candidate(where.peer_id, where.address, where.incarnation)


async def _arrival(receipt: asyncio.Future[list[Hint | None]], link: Link) -> None:
    """Wait for a receipt while it may come; after the link has ended, only another link could bring it."""
    either: list[asyncio.Future[Any]] = [receipt, link.gone]
    await asyncio.wait(either, timeout=RECEIPT_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    if not receipt.done() and link.gone.done():
        await asyncio.wait([receipt], timeout=_RETRY_S)


async def _send_slowly(link: Link, body: bytes, patience: asyncio.Timeout) -> None:
    """Send bulk, however long a link takes it that is thin and not dead."""
    _be_patient(link, patience)
    if link.has_room_for_bulk:
        return await link.control(body, is_bulk=True)
    sending = asyncio.ensure_future(link.control(body, is_bulk=True))
    try:
        while not sending.done():
            await asyncio.wait([sending], timeout=_HEARD_WITHIN_S / 2)
            _be_patient(link, patience)
        return sending.result()
    finally:
        sending.cancel()


async def _arrival_on_thin_link(
    receipt: asyncio.Future[list[Hint | None]], link: Link, patience: asyncio.Timeout
) -> None:
    """Wait on: what was sent over a thin link is still on its way, and sent again it would take as long again."""
    ends_at = asyncio.get_running_loop().time() + BULK_WAIT_S
    while not receipt.done() and _be_patient(link, patience) and asyncio.get_running_loop().time() < ends_at:
        await _arrival(receipt, link)


def _be_patient(link: Link, patience: asyncio.Timeout) -> bool:
    """Whether the other end of a link was heard lately; then there is more time."""
    now = asyncio.get_running_loop().time()
    is_heard = not link.closed and now - link.heard_at < _HEARD_WITHIN_S
    if is_heard and not patience.expired():
        patience.reschedule(now + TIMEOUT_S)
    return is_heard


def _split(items: Sequence[_T], bytes_of: Callable[[_T], int]) -> list[list[_T]]:
    """Split messages into frames, in order, each within the limits of count and bytes."""
    frames: list[list[_T]] = []
    size = 0
    for item in items:
        size += bytes_of(item)
        if not frames or len(frames[-1]) == FRAME_ITEMS_MAX or size > MESSAGE_BYTES_MAX:
            frames.append([])
            size = bytes_of(item)
        frames[-1].append(item)
    return frames


def _check_size(payload: bytes) -> None:
    if len(payload) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message may have {MESSAGE_BYTES_MAX} bytes, this one has {len(payload)}")


def _nobody_listens(peer: PeerId, key: Key | None, payload: bytes) -> None:
    log.warning("a message arrived before anybody listens", sender=peer.short)
