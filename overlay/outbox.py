"""The sending side of a link: two bounded queues, written out together once per turn of the event loop.

Control frames, and the small frames that keep a link going, go first. Bulk follows: control frames with rows in them,
and frames that open, fill or close a channel, in order. If there is no room, senders of control wait in line, those of
bulk in another, and channels take turns, one body each. Bulk also waits for the pace of the peer's uplink.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from overlay.frames import CHANNELS_MAX, CONTROL, HEADER, RemoteProtocolError
from overlay.identity import Address
from overlay.pace import Pace
from overlay.shaping import ShapedWriter, Shaper

_FIRST_BYTES_MAX: Final = 256 << 10
_LAST_BYTES_MAX: Final = (
    64 << 10
)  # A quarter of a window: with writes of half a window or more both sides wait in lockstep.
_REPLIES_MAX: Final = 4 * CHANNELS_MAX  # With more unsent answers than this, the other side asks without reading.


class LinkError(ConnectionError):
    """A peer that cannot be reached, or a link that broke; the message is meant for people."""

    def __init__(self, message: str, *, retry_in_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_in_s = retry_in_s  # A retry sooner than this fails at once.

    def again(self) -> LinkError:
        """A fresh copy: an exception raised in several tasks would collect the tracebacks of all."""
        return type(self)(*self.args, retry_in_s=self.retry_in_s)


@dataclass(slots=True)
class LinkCounters:
    """What went over links, and what went wrong; one set serves all links of a peer."""

    bytes_in: int = 0
    bytes_out: int = 0
    control_in: int = 0
    control_out: int = 0
    protocol_errors: int = 0
    channels_refused: int = 0


class WaitingLine:
    """Bodies that wait for room or for credit, in order."""

    def __init__(self) -> None:
        self._entries: deque[tuple[bytes, asyncio.Future[None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._entries)

    async def wait(self, body: bytes, on_queued: Callable[[], None]) -> None:
        """Wait in line until the body is taken. A sender that gives up before has sent nothing."""
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = body, taken
        self._entries.append(entry)
        on_queued()
        try:
            await taken
        except asyncio.CancelledError:
            if entry in self._entries:
                self._entries.remove(entry)
            raise

    def take(self) -> bytes | None:
        """The body of the first sender that still waits."""
        while self._entries:
            body, taken = self._entries.popleft()
            if not taken.done():
                taken.set_result(None)
                return body
        return None

    def dismiss(self, error: LinkError) -> None:
        while self._entries:
            _, taken = self._entries.popleft()
            if not taken.done():
                taken.set_exception(error.again())


class TakesTurns(Protocol):
    """The outbox's view of a channel."""

    def use_turn(self) -> None:
        """Queue one body, and ask for another turn if there is more."""

    def pay(self) -> None:
        """Queue the credit that is owed to the other side."""


class Outbox:
    """Everything that one link has yet to send."""

    def __init__(self, transport: asyncio.Transport, counters: LinkCounters, pace: Pace | None = None) -> None:
        self._transport = transport
        self._pace = pace
        self._counters = counters
        self.bytes_out = 0
        self._loop = asyncio.get_running_loop()
        self._shaped: ShapedWriter | None = None
        self._first: list[bytes] = []
        self._first_bytes = 0
        self._last: list[bytes] = []
        self._last_bytes = 0
        self._replies = 0
        self._control = WaitingLine()
        self._bulk = WaitingLine()
        self._awaits_pace = False
        self._turns: deque[TakesTurns] = deque()
        self._debtors: dict[TakesTurns, None] = {}
        self._farewell: Callable[[], None] | None = None
        self._transport_is_full = False
        self._is_blocked = False
        self._is_closed = False
        self._flush_is_due = False
        self._is_pumping = False

    @property
    def is_blocked(self) -> bool:
        """Whether the network takes nothing at the moment."""
        return self._is_blocked

    def shape(self, shaper: Shaper, address: Address) -> None:
        self._shaped = ShapedWriter(shaper, address, self._transport, self._look_for_room)

    # Queueing.

    def put_first(self, kind: int, body: bytes, channel: int = 0) -> None:
        self._first += (HEADER.pack(len(body), kind, 0, channel), body)
        self._first_bytes += self._count(body)
        self._flush_soon()

    def put_last(self, kind: int, body: bytes = b"", channel: int = 0) -> None:
        self._last += (HEADER.pack(len(body), kind, 0, channel), body)
        self._last_bytes += self._count(body)
        self._flush_soon()

    def _count(self, body: bytes) -> int:
        size = HEADER.size + len(body)
        if self._pace is not None:
            self._pace.use(size)
        return size

    def count_reply(self) -> None:
        """Called for each frame that the other side makes us send by sending one itself."""
        self._replies += 1
        if self._replies > _REPLIES_MAX:
            raise RemoteProtocolError(f"over {_REPLIES_MAX} answers wait for the other side to read them")

    async def send_control(self, body: bytes) -> None:
        if not self._control and self._has_room_for_control():
            self._put_control(body)
        else:
            await self._control.wait(body, self._pump)

    async def send_bulk(self, body: bytes) -> None:
        """Send a control message behind those of `send_control`: it has rows, of which there may be many."""
        if not self._bulk and self.has_room_for_data():
            self._put_bulk(body)
        else:
            await self._bulk.wait(body, self._pump)

    def has_room_for_data(self) -> bool:
        is_full = self._is_blocked or self._last_bytes >= _LAST_BYTES_MAX
        return not is_full and (self._pace is None or self._pace.is_open)

    def give_turn(self, channel: TakesTurns) -> None:
        """Let a channel send once there is room for data, after the others that wait."""
        self._turns.append(channel)
        if not self._is_pumping:
            self._pump()

    def owe(self, channel: TakesTurns) -> None:
        """Let a channel return credit at the next write: at most one frame, however often it asks until then.

        The other side cannot send more than its credit, so for one that never reads nothing is queued here.
        """
        self._debtors[channel] = None
        self._flush_soon()

    def when_control_is_queued(self, farewell: Callable[[], None]) -> None:
        """Call back once nobody waits to send control, which may be now."""
        self._farewell = farewell
        self._pump()

    # Writing.

    def pause(self) -> None:
        self._transport_is_full = self._is_blocked = True

    def resume(self) -> None:
        self._transport_is_full = False
        self._look_for_room()

    def close(self) -> None:
        """Write out what is queued, whether there is room or not, and close."""
        self._write()
        self._is_closed = True
        if self._shaped is not None:
            self._shaped.close()
        else:
            self._transport.close()

    def stop(self, error: LinkError) -> None:
        """Send nothing more; the connection is gone."""
        self._is_closed = True
        self._control.dismiss(error)
        self._bulk.dismiss(error)
        self._turns.clear()
        self._debtors.clear()
        if self._shaped is not None:
            self._shaped.stop()

    def _flush_soon(self) -> None:
        if not self._flush_is_due and not self._is_blocked:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._is_blocked or self._is_closed:
            self._flush_is_due = False
            return
        debtors, self._debtors = self._debtors, {}
        for channel in debtors:
            channel.pay()
        self._flush_is_due = False  # From here on, whatever is queued needs another flush.
        self._write()
        self._pump()

    def _write(self) -> None:
        """Hand everything over in one write, because every write to TLS makes at least one record."""
        data = b"".join(self._first + self._last)
        self._first, self._last = [], []
        self._first_bytes = self._last_bytes = self._replies = 0
        if not data or self._transport.is_closing():
            return
        self._counters.bytes_out += len(data)
        self.bytes_out += len(data)
        if self._shaped is None:
            self._transport.write(data)
        else:
            self._shaped.write(data)
            self._is_blocked = self._transport_is_full or self._shaped.full

    def _look_for_room(self) -> None:
        self._is_blocked = self._transport_is_full or (self._shaped is not None and self._shaped.full)
        self._flush_soon()

    def _pump(self) -> None:
        """Move what waits into the queues, as far as there is room."""
        while self._control and self._has_room_for_control():
            body = self._control.take()
            if body is not None:
                self._put_control(body)
        while self._bulk and self.has_room_for_data():
            body = self._bulk.take()
            if body is not None:
                self._put_bulk(body)
        if self._farewell is not None and not self._control and not self._bulk:
            farewell, self._farewell = self._farewell, None
            farewell()
        self._is_pumping = True
        while self._turns and self.has_room_for_data():
            self._turns.popleft().use_turn()
        self._is_pumping = False
        if self._pace is not None and (self._control or self._bulk or self._turns) and not self._pace.is_open:
            self._await_pace(self._pace)

    def _await_pace(self, pace: Pace) -> None:
        if not self._awaits_pace and not self._is_closed:
            self._awaits_pace = True
            pace.when_open(self._go_on)

    def _go_on(self) -> None:
        self._awaits_pace = False
        if not self._is_closed:
            self._pump()

    def _has_room_for_control(self) -> bool:
        is_full = self._is_blocked or self._first_bytes >= _FIRST_BYTES_MAX
        return not is_full and (self._pace is None or not self._pace.is_exhausted)

    def _put_control(self, body: bytes) -> None:
        self._counters.control_out += 1
        self.put_first(CONTROL, body)

    def _put_bulk(self, body: bytes) -> None:
        self._counters.control_out += 1
        self.put_last(CONTROL, body)
