"""One link: control messages and channels over one connection to one peer.

Both sides greet with HELLO, which states the versions they speak; without a common one the link ends there. Control
messages need no credit and overtake queued data; channels carry bulk. GOODBYE promises that its sender starts nothing
new here. Once both have said it and no channel is left, the link closes without loss. Anything malformed or out of turn
is a RemoteProtocolError: it is counted, and ends only this link.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from overlay.channel import Channel, ChannelClosed
from overlay.frames import (
    BODY_BYTES,
    CHANNELS_MAX,
    CLOSE,
    CONTROL,
    CONTROL_BYTES_MAX,
    CREDIT,
    DATA,
    GOODBYE,
    HEADER,
    HELLO,
    OPEN,
    PING,
    PONG,
    RING,
    U32,
    U64,
    WINDOW_BYTES,
    Hello,
    OpenChannel,
    RemoteProtocolError,
    decode_hello,
    decode_open,
    encode,
)
from overlay.identity import Address
from overlay.outbox import LinkCounters, LinkError, Outbox
from overlay.pace import Pace, Paces
from overlay.shaping import Shaper
from overlay.tls import NotAMember, Proof
from protocols.ids import PeerId

_BUFFER_BYTES: Final = 32 << 10  # A process may hold thousands of links, most of them idle.
# Bytes handed to the transport precede any later control frame, so that stretch is kept short.
_WRITE_HIGH_BYTES: Final = 64 << 10
_WRITE_LOW_BYTES: Final = 16 << 10
_PACED_BUFFER_BYTES: Final = 64 << 10
_CLOSE_S: Final = 3.0
# The limit for the sum of all channel windows of one link at this side, whoever opened them.
CHANNEL_BYTES_MAX: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Callbacks for what happens to a link."""

    identify: Callable[[asyncio.BaseTransport], Proof]  # Who is at the other end; raises NotAMember.
    greeted: Callable[[Link, Hello], str]  # Why a peer that greets like this gets no link; empty if it does.
    ready: Callable[[Link], None]
    control: Callable[[Link, bytes], None]
    channel: Callable[[Channel], None]
    round_trip: Callable[[Link, float], None]  # In ms.
    goodbye: Callable[[Link], None]  # The other side starts nothing new here; answer with goodbye().
    lost: Callable[[Link], None]
    ring: Callable[[Link, bytes], None]  # A message about the network key.


class Link(asyncio.BufferedProtocol):
    """One connection to one peer. Its creator hands it to a transport and awaits `ready`."""

    peer: PeerId  # Known once identified.
    tag: bytes  # Names the network key under which it proved to be a member, likewise.

    def __init__(
        self,
        events: LinkEvents,
        counters: LinkCounters,
        hello: Hello,
        *,
        dialled: Address | None,
        shaper: Shaper | None = None,
        paces: Paces = Paces(),
        channel_bytes_max: int = CHANNEL_BYTES_MAX,
    ) -> None:
        self.dialled = dialled is not None
        self.address = dialled  # Where the peer listens; an accepted link learns it from HELLO.
        self.closed = False
        self.is_identified = False
        self.is_leaving = False  # We start nothing new here.
        self.stated = b""  # The ring that the other side has, as its HELLO says.
        self.heard_at = 0.0
        self.ping_due_at = 0.0
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._events = events
        self._counters = counters
        self._hello = hello
        self._shaper = shaper
        self._paces = paces
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox
        self._reason = ""
        self._is_greeted = False
        self._said_goodbye = False
        self._heard_goodbye = False
        self._ping = 0
        self._ping_sent_at: float | None = None
        self._view = memoryview(bytearray())
        self._filled = 0
        self._is_resting = False  # Reads nothing for a moment, to keep the pace.
        # The dialler numbers its channels 1, 3, 5…, the acceptor 2, 4, 6…
        self._channels: dict[int, Channel] = {}
        self._channel_bytes_left = channel_bytes_max
        self._next_number = 1 if self.dialled else 2
        self._free_numbers: list[int] = []

    def __repr__(self) -> str:
        peer = self.peer.short if self.is_identified else "unknown"
        return f"Link({'to' if self.dialled else 'from'} {peer})"

    @property
    def channels_open(self) -> int:
        return len(self._channels)

    @property
    def has_room_for_bulk(self) -> bool:
        """Whether bulk would be sent at once."""
        return self._outbox.has_room_for_data()

    @property
    def bytes_out(self) -> int:
        return self._outbox.bytes_out

    # Called by the owner of the link.

    def open(self, service: str, window: int = WINDOW_BYTES) -> Channel:
        """Open a channel, usable at once. The window, in bytes, holds for both directions.

        The other side closes a channel whose window is more than it can spare.
        """
        self._check_usable()
        request = encode(OpenChannel(service, window))
        try:
            decode_open(request)
        except RemoteProtocolError as error:
            raise ValueError(f"no channel can be opened for service {service!r} with window {window}") from error
        if window > self._channel_bytes_left:
            left = self._channel_bytes_left
            raise LinkError(f"a window of {window} bytes to peer {self.peer.short} is over the {left} left on its link")
        if self._free_numbers:
            number = self._free_numbers.pop()
        elif self._next_number <= 2 * CHANNELS_MAX:
            number = self._next_number
            self._next_number += 2
        else:
            raise LinkError(f"the link to peer {self.peer.short} already has {CHANNELS_MAX} channels of ours")
        channel = self._add_channel(number, service, window)
        self._outbox.put_last(OPEN, request, number)
        return channel

    async def control(self, body: bytes, *, is_bulk: bool = False) -> None:
        """Send a control message; waits for room. If cancelled while waiting, it has sent nothing.

        Bulk gives way to all others.
        """
        self._check_usable()
        if len(body) > CONTROL_BYTES_MAX:
            raise ValueError(f"a control message of {len(body)} bytes is over the {CONTROL_BYTES_MAX} allowed")
        await (self._outbox.send_bulk(body) if is_bulk else self._outbox.send_control(body))

    def ping(self) -> None:
        """Measure a round trip, unless a measurement is running or our own queues would distort it."""
        if self._ping_sent_at is None and not self._outbox.is_blocked and not self._awaits_goodbye_only():
            self._ping += 1
            self._ping_sent_at = time.perf_counter()  # The loop's own clock may stand still for a whole turn.
            self._outbox.put_first(PING, U64.pack(self._ping))

    def tell_ring(self, body: bytes) -> None:
        """Send a message about the network key, if the other side can read one."""
        if self.stated and not self.closed:
            self._outbox.put_first(RING, body)

    def goodbye(self) -> None:
        """Start nothing new here; what was started goes on, and then the link closes."""
        if not self.is_leaving:
            self.is_leaving = True
            self._outbox.when_control_is_queued(self._say_goodbye)

    def close(self) -> None:
        """Close once everything accepted for sending has reached the kernel, or after 3 s."""
        if not self.closed and self._transport is not None:
            self.closed = True
            self._reason = self._reason or "closed on this side"
            self._outbox.close()
            closer = self._loop.call_later(_CLOSE_S, self._transport.abort)
            self.gone.add_done_callback(lambda _: closer.cancel())

    def abort(self, reason: str) -> None:
        """Drop the connection now, with whatever was queued."""
        self.closed = True
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._outbox = Outbox(self._transport, self._counters, self._paces.up)
        self.heard_at = self._loop.time()
        if self.closed:  # Given up while it was still connecting.
            self._transport.abort()
            return
        try:
            self.peer, self.tag = self._events.identify(transport)
        except NotAMember as error:
            self.abort(str(error))
            return
        self.is_identified = True
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES, low=_WRITE_LOW_BYTES)
        connection = transport.get_extra_info("socket")
        # We write once per turn of the loop, so Nagle's algorithm gains nothing.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Without it, control waits behind more of the kernel's buffer.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _WRITE_HIGH_BYTES)
        if self._paces.down is not None:  # What waits to be read shall wait at its sender, where the urgent goes first.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PACED_BUFFER_BYTES)
            self._transport.set_read_buffer_limits(high=_PACED_BUFFER_BYTES)  # type: ignore[attr-defined]  # Of TLS.
        self._resize_buffer(_BUFFER_BYTES, 0)
        if self.dialled:
            self._greet()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._reason = self._reason or (str(exc) if exc else "closed by the other side")
        error = LinkError(f"{self!r} has ended: {self._reason}")
        if not self.ready.done():
            self.ready.set_exception(LinkError(self._reason))
            self.ready.exception()  # The dialler may have stopped waiting; that is no error.
        if not self.gone.done():
            self.gone.set_result(None)
        self._outbox.stop(error)
        for channel in self._channels.values():
            channel.finish(error)
        self._channels.clear()
        self._view, self._filled = memoryview(bytearray()), 0
        self._events.lost(self)

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        self.heard_at = self._loop.time()
        self._counters.bytes_in += nbytes
        if self._paces.down is not None:
            self._keep_pace(self._paces.down, nbytes)
        self._filled += nbytes
        try:
            self._parse()
        except RemoteProtocolError as error:
            self._counters.protocol_errors += 1
            self.abort(f"protocol error: {error}")

    # Receiving.

    def _keep_pace(self, pace: Pace, nbytes: int) -> None:
        """Read no faster than the downlink allows: TCP lets the other side wait."""
        pace.use(nbytes)
        if not pace.is_open and self._transport is not None and not self._is_resting:
            self._is_resting = True
            self._transport.pause_reading()
            pace.when_open(self._read_on)

    def _read_on(self) -> None:
        self._is_resting = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _parse(self) -> None:
        view, start, filled = self._view, 0, self._filled
        wanted = HEADER.size
        while filled - start >= HEADER.size:
            length, kind, flags, number = HEADER.unpack_from(view, start)
            if not 0 < kind < len(BODY_BYTES) or flags:
                raise RemoteProtocolError(f"unknown frame type {kind} with flags {flags}")
            shortest, longest = BODY_BYTES[kind]
            if not shortest <= length <= longest:
                raise RemoteProtocolError(f"a frame of type {kind} with {length} bytes")
            end = start + HEADER.size + length
            if end > filled:
                wanted = HEADER.size + length
                break
            self._handle(kind, number, view[start + HEADER.size : end])
            if self.closed:
                return
            start = end
        # The rest is the beginning of a frame: move it to the front of a buffer that holds the whole frame.
        size = max(_BUFFER_BYTES, 1 << (wanted - 1).bit_length())
        if size != len(view):
            self._resize_buffer(size, start)
        elif start:
            view[: filled - start] = view[start:filled]
            self._filled = filled - start

    def _resize_buffer(self, size: int, start: int) -> None:
        left = self._view[start : self._filled]
        self._view = memoryview(bytearray(size))  # A new one, because the transport may still use the old.
        self._view[: len(left)] = left
        self._filled = len(left)

    def _handle(self, kind: int, number: int, body: memoryview) -> None:
        if not self._is_greeted:
            self._handle_hello(kind, number, body)
        elif kind == DATA:
            self._channel(number).deliver(body)
        elif kind == CREDIT:
            self._channel(number).credit(U32.unpack(body)[0])
        elif kind == OPEN:
            self._handle_open(number, body)
        elif kind == CLOSE:
            self._handle_close(number)
        elif number == 0:
            self._handle_link_frame(kind, body)
        else:
            raise RemoteProtocolError(f"a frame of type {kind} for channel {number}")

    def _handle_hello(self, kind: int, number: int, body: memoryview) -> None:
        if kind != HELLO or number != 0:
            raise RemoteProtocolError("the first frame is not HELLO")
        hello = decode_hello(body)
        self._is_greeted = True
        if not self.dialled:
            assert self._transport is not None
            self.address = (hello.host or str(self._transport.get_extra_info("peername")[0]), hello.port)
            self._greet()  # Whatever the other side said: it shall know what we speak.
        self.stated = hello.ring
        refusal = self._events.greeted(self, hello)
        if refusal:
            self._reason = refusal
            self.close()
        elif not self.ready.done():
            self.ready.set_result(None)
            self._events.ready(self)

    def _handle_link_frame(self, kind: int, body: memoryview) -> None:
        if kind == CONTROL and not self._heard_goodbye:
            self._counters.control_in += 1
            self._events.control(self, bytes(body))
        elif kind == PING:
            if not self._awaits_goodbye_only():
                self._outbox.count_reply()
                self._outbox.put_first(PONG, bytes(body))
        elif kind == PONG:
            if self._ping_sent_at is not None and U64.unpack(body)[0] == self._ping:
                round_trip_ms = (time.perf_counter() - self._ping_sent_at) * 1000
                self._ping_sent_at = None
                self._events.round_trip(self, round_trip_ms)
        elif kind == RING:
            self._events.ring(self, bytes(body))
        elif kind == GOODBYE and not self._heard_goodbye:
            self._heard_goodbye = True
            self._events.goodbye(self)
            self._close_if_over()
        else:
            raise RemoteProtocolError(f"a frame of type {kind} out of turn")

    def _handle_open(self, number: int, body: memoryview) -> None:
        theirs = 2 if self.dialled else 1
        if number == 0 or number % 2 != theirs % 2 or number > 2 * CHANNELS_MAX:
            raise RemoteProtocolError(f"channel number {number} is not the other side's to use")
        if number in self._channels or self._heard_goodbye:
            raise RemoteProtocolError(f"channel {number} opened out of turn")
        request = decode_open(body)
        self._outbox.count_reply()  # We may close it at once.
        fits = request.window <= self._channel_bytes_left
        channel = self._add_channel(number, request.service, request.window)
        if fits:
            self._events.channel(channel)
        else:
            self._counters.channels_refused += 1
            channel.close()

    def _handle_close(self, number: int) -> None:
        channel = self._channel(number)
        del self._channels[number]
        if number % 2 == self._next_number % 2:
            self._free_numbers.append(number)
        if not channel.closed:
            self._outbox.count_reply()
            self._outbox.put_last(CLOSE, channel=number)
            channel.finish(ChannelClosed(f"channel {channel.service!r} was closed by the other side"))
        self._close_if_over()

    def _add_channel(self, number: int, service: str, window: int) -> Channel:
        """Its window counts until the channel has ended and is empty: a closed one may not have been read yet."""

        def emptied() -> None:
            self._channel_bytes_left += window

        self._channel_bytes_left -= window
        channel = self._channels[number] = Channel(self, self._outbox, number, service, window, emptied)
        return channel

    def _channel(self, number: int) -> Channel:
        channel = self._channels.get(number)
        if channel is None:
            raise RemoteProtocolError(f"channel {number} is not open")
        return channel

    # Greeting and leaving.

    def _greet(self) -> None:
        if self._shaper is not None:
            assert self.address is not None
            self._outbox.shape(self._shaper, self.address)
        self._outbox.put_first(HELLO, encode(self._hello))

    def _say_goodbye(self) -> None:
        self._said_goodbye = True
        self._outbox.put_last(GOODBYE)  # Behind the channels that we have opened.
        self._close_if_over()

    def _awaits_goodbye_only(self) -> bool:
        """Whether nothing follows our GOODBYE, so that the other side can close without missing a byte."""
        return self.is_leaving and not self._channels

    def _close_if_over(self) -> None:
        if self._said_goodbye and self._heard_goodbye and not self._channels:
            self.close()

    def _check_usable(self) -> None:
        if self.closed or self.is_leaving:
            raise LinkError(f"{self!r} is closed{': ' + self._reason if self._reason else ''}")
