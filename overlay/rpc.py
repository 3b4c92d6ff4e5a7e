"""Questions and answers by sealed datagram: the library's RPC protocol with its transport made safe.

Every datagram is sealed, carries the sender's signed record, and is decoded into a typed message or dropped. Of a peer
that speaks other versions only the record is read. A question is sent up to three times, with waits that follow that
peer's round trips. A timer that fires late because our own loop was busy is not held against the peer. STORE and
FIND_VALUE of the library do not exist here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from kademlia.protocol import KademliaProtocol

from overlay import datagrams
from overlay.coordinates import Coordinate
from overlay.datagrams import Answer, Envelope, Found, Message, Ping, Pong, WireCoordinate, plain_host
from overlay.identity import TAG_BYTES, Address, IdentityError, Network, PeerRecord
from overlay.seal import BODY_BYTES_MAX, Seals
from overlay.shaping import Shaper
from overlay.table import Contact, Table
from protocols.ids import PeerId

TRIES: Final = 3
WAIT_MIN_S: Final = 0.1
WAIT_MAX_S: Final = 1.0
FIRST_WAIT_S: Final = 0.3  # For a peer whose round trip is not known yet.
LATE_S: Final = 0.05
_VERIFIED_MAX: Final = 8192


@dataclass(slots=True)
class Reply:
    """An answer, with the record of the peer that gave it."""

    record: PeerRecord
    message: Answer


@dataclass(slots=True)
class _Call:
    peer: PeerId | None  # The peer whose answer counts; None while we only know an address.
    address: Address
    body: bytes
    done: Callable[[Reply | None], None]
    slow: Callable[[], None] | None
    wait_s: float
    sent_at: float  # The loop's clock, which in some loops has millisecond ticks.
    sent_exactly_at: float  # A clock fine enough to measure a round trip.
    tries: int = 1
    timer: asyncio.TimerHandle | None = None


class RpcHandler(Protocol):
    """What the protocol asks of its owner, dht.py."""

    def own_record(self) -> PeerRecord: ...
    def own_coordinate(self) -> Coordinate: ...
    def belongs(self, record: PeerRecord, tag: bytes) -> bool: ...
    def admits(self, record: PeerRecord) -> bool: ...
    def heard(self, record: PeerRecord, source: Address, message: Message) -> Answer | None: ...
    def answered(self, record: PeerRecord, called: Address, coordinate: Coordinate, rtt_ms: float | None) -> None: ...
    def told_time(self, peer: PeerId, clock_ms: float, rtt_ms: float) -> None: ...
    def silent(self, peer: PeerId, since: float, *, given_up: bool) -> None: ...


class SealedProtocol(KademliaProtocol):
    """One UDP socket: questions out, answers in, and the reverse."""

    def __init__(self, networks: Sequence[Network], table: Table, handler: RpcHandler, shaper: Shaper | None) -> None:
        super().__init__(table.node, None, table.ksize)
        self.router = table
        self.counters: Counter[str] = Counter()
        self.transport: asyncio.DatagramTransport | None = None
        self._handler = handler
        self._shaper = shaper
        self._seals = Seals(networks)
        self.opened_under = b""  # The tag of the key of the datagram in work.
        # What those we hear have said of their key, while one key takes the place of another.
        self._tags: OrderedDict[Address, bytes] = OrderedDict()
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _Call] = {}
        self._next_call = 1
        self._is_abandoned = False
        self._verified: OrderedDict[bytes, PeerRecord] = OrderedDict()
        self._mapped = False  # An IPv6 socket reaches IPv4 peers by mapped addresses.

    def __getattr__(self, name: str) -> object:
        # The library turns every unknown name into a remote call; a typing error must stay an error.
        raise AttributeError(name)

    def accept(self, networks: Sequence[Network]) -> None:
        """Speak under these network keys, the present one first."""
        self._seals.accept(networks)
        if len(networks) == 1:
            self._tags.clear()

    # Sending.

    def call(
        self,
        peer: PeerId | None,
        address: Address,
        message: Message,
        done: Callable[[Reply | None], None],
        slow: Callable[[], None] | None = None,
    ) -> None:
        """Ask; `done` gets the reply or None, and `slow` is called once when the first answer is overdue."""
        if self._is_abandoned:
            self._loop.call_soon(done, None)
            return
        number = self._next_call
        self._next_call += 1
        contact = self.router.get(peer) if peer else None
        body = self._encode(number, message)
        now, exactly_now = self._loop.time(), time.perf_counter()
        call = _Call(peer, address, body, done, slow, _patience_s(contact), now, exactly_now)
        self._calls[number] = call
        self.counters["rpc_calls_total"] += 1
        self._arm(number, call)
        self._transmit(call.body, address)

    async def ask(self, peer: PeerId | None, address: Address, message: Message) -> Reply | None:
        """The same as a coroutine."""
        answer: asyncio.Future[Reply | None] = self._loop.create_future()
        self.call(peer, address, message, lambda reply: None if answer.done() else answer.set_result(reply))
        return await answer

    def tell(self, address: Address, message: Message) -> None:
        """Send a notice that wants no answer."""
        self._transmit(self._encode(0, message), address)

    def abandon_calls(self) -> None:
        """End every open and every later call without a reply: nobody may wait for a stopped peer."""
        self._is_abandoned = True
        for number in list(self._calls):
            self._end(number, None)

    def _encode(self, number: int, message: Message) -> bytes:
        handler = self._handler
        coordinate = WireCoordinate.of(handler.own_coordinate())
        body = datagrams.encode(Envelope(number, handler.own_record().raw, coordinate, message))
        assert len(body) <= BODY_BYTES_MAX, f"{type(message).__name__} does not fit a datagram: {len(body)} bytes"
        return body

    def _transmit(self, body: bytes, address: Address, tries: int = 1) -> None:
        hold_s = self._shaper.datagram_delay_s(address) if self._shaper else 0.0
        if hold_s is None:
            return
        if hold_s > 0:
            self._loop.call_later(hold_s, self._put, body, address, tries)
        else:
            self._put(body, address, tries)

    def _tag_for(self, address: Address, tries: int) -> bytes:
        """The key to seal with: the one that the other side has, or each in turn if we do not know, the old first."""
        tags = self._seals.tags
        said = self._tags.get(address)
        if said in tags:
            return tags[tags.index(said)]
        return [*tags[1:], tags[0]][(tries - 1) % len(tags)]

    def _put(self, body: bytes, address: Address, tries: int) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        datagram = self._seals.seal(body, time.time(), self._tag_for(address, tries))
        if self._mapped and ":" not in address[0]:
            address = ("::ffff:" + address[0], address[1])
        self.counters["datagrams_out_total"] += 1
        self.counters["datagram_bytes_out_total"] += len(datagram)
        try:
            self.transport.sendto(datagram, address)
        # No route, no interface, or the wrong address family: the datagram counts as lost.
        except (OSError, ValueError):
            self.counters["datagram_send_errors_total"] += 1

    def _arm(self, number: int, call: _Call) -> None:
        due = self._loop.time() + call.wait_s
        call.timer = self._loop.call_at(due, self._overdue, number, due)

    def _overdue(self, number: int, due: float) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        now = self._loop.time()
        if now - due > LATE_S:  # Our own loop was late; the answer may be waiting in the socket.
            self.counters["late_timers_total"] += 1
            call.timer = self._loop.call_at(now + LATE_S, self._overdue, number, now + LATE_S)
            return
        if call.tries == TRIES:
            del self._calls[number]
            self.counters["rpc_timeouts_total"] += 1
            if call.peer:
                self._handler.silent(call.peer, call.sent_at, given_up=True)
            call.done(None)
            return
        call.tries += 1
        call.wait_s = min(WAIT_MAX_S, call.wait_s * 2)
        self._arm(number, call)
        self._transmit(call.body, call.address, call.tries)
        if call.peer and call.tries == TRIES:
            self._handler.silent(call.peer, call.sent_at, given_up=False)
        if call.slow and call.tries == 2:
            call.slow()

    # Receiving.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport) or hasattr(transport, "sendto")
        self.transport = transport  # type: ignore[assignment]
        self._mapped = ":" in transport.get_extra_info("sockname")[0]

    def error_received(self, exc: OSError) -> None:
        self.counters["datagram_send_errors_total"] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.abandon_calls()

    def datagram_received(self, datagram: bytes, source: tuple[object, ...]) -> None:
        self.counters["datagrams_in_total"] += 1
        now_s = time.time()
        opened = self._seals.open(datagram, now_s)
        if opened is None:
            self.counters["datagrams_unsealed_total"] += 1
            return
        body, self.opened_under = opened
        try:
            outside = datagrams.decode_outside(body)
            record = self._record(outside.record, now_s)
            if not self._handler.belongs(record, self.opened_under):
                self.counters["datagrams_outside_total"] += 1
                return
            self._note_tag(_address(source), record)
            if not self._handler.admits(record):
                self._refuse(outside.call, source)
                return
            envelope = datagrams.decode(body)
        except (msgspec.DecodeError, IdentityError, RecursionError, ValueError):
            self.counters["datagrams_malformed_total"] += 1
            return
        if self._seals.has_sealed(datagram):
            # We called a seed that is ourselves, and nobody else will answer. A question to a known peer that comes
            # back says nothing about that peer, because any eavesdropper can send it back.
            call = self._calls.get(envelope.call)
            if call is not None and call.peer is None:
                self._end(envelope.call, None)
            return
        address = _address(source)
        message = envelope.message
        if isinstance(message, Pong | Found):
            self._settle(envelope.call, record, envelope.coordinate.coordinate(), message)
        else:
            answer = self._handler.heard(record, address, message)
            if answer is not None:
                self._transmit(self._encode(envelope.call, answer), address)

    def _note_tag(self, address: Address, record: PeerRecord) -> None:
        """Remember which key to seal with for whoever is there, while there are several."""
        if len(self._seals.tags) > 1 and record.ring:
            self._tags[address] = record.ring[:TAG_BYTES]
            self._tags.move_to_end(address)
            if len(self._tags) > _VERIFIED_MAX:
                self._tags.popitem(last=False)

    def _refuse(self, number: int, source: tuple[object, ...]) -> None:
        """Read nothing of a peer that speaks other versions. A question is answered by our record, in a notice."""
        self.counters["datagrams_refused_total"] += 1
        if number:
            self.tell(_address(source), Ping())

    def _settle(self, number: int, record: PeerRecord, coordinate: Coordinate, message: Answer) -> None:
        call = self._calls.get(number)
        if call is None or (call.peer is not None and call.peer != record.peer_id):
            self.counters["answers_unasked_total"] += 1  # Late, repeated, or a stranger on an old address.
            return
        # A repeated question may have two answers in flight, so its round trip says nothing (Karn).
        rtt_ms = (time.perf_counter() - call.sent_exactly_at) * 1000 if call.tries == 1 else None
        self._handler.answered(record, call.address, coordinate, rtt_ms)
        if rtt_ms is not None and isinstance(message, Pong):
            self._handler.told_time(record.peer_id, message.at_ms + rtt_ms / 2, rtt_ms)
        self._end(number, Reply(record, message))

    def _end(self, number: int, reply: Reply | None) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            if call.timer:
                call.timer.cancel()
            call.done(reply)

    def _record(self, raw: bytes, now_s: float) -> PeerRecord:
        """Verify a record once: the signature costs more than all the rest of a datagram."""
        known = self._verified.get(raw)
        if known is not None and known.expires_at > now_s:
            return known
        record = PeerRecord.verify(raw, now_s)
        self._verified[raw] = record
        if len(self._verified) > _VERIFIED_MAX:
            self._verified.popitem(last=False)
        return record


def _address(source: tuple[object, ...]) -> Address:
    return plain_host(str(source[0])), int(str(source[1]))


def _patience_s(contact: Contact | None) -> float:
    """How long to wait for a peer's first answer: its smoothed round trip and four deviations."""
    if contact is None or contact.rtt_ms is None:
        return FIRST_WAIT_S
    return min(WAIT_MAX_S, max(WAIT_MIN_S, (contact.rtt_ms + 4 * contact.rtt_deviation_ms) / 1000))
