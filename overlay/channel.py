"""A channel: one flow of byte strings each way over a link, each with its own credit.

The sender may have one window of bytes in flight. It gets credit back when the consumer at the other end calls done(),
not when the bytes arrive. So a slow consumer holds up its own channel, but neither its peer's memory nor other
channels. A body is no larger than the window, and the last one may begin anywhere within it, so no channel holds twice
its window.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from overlay.frames import CLOSE, CREDIT, DATA, DATA_BYTES_MAX, FRAME_OVERHEAD_BYTES, U32, RemoteProtocolError
from overlay.outbox import LinkError, Outbox, WaitingLine
from protocols.ids import PeerId

if TYPE_CHECKING:
    from overlay.link import Link


class ChannelClosed(LinkError):
    """The channel came to an orderly end: one of its two sides closed it."""


class Channel:
    """One end of a channel; Link.open() makes it here, and on_channel hands it over at the other side.

    Its owner closes it, or receives until it ends; until then it occupies its share of the link's windows.
    """

    def __init__(
        self, link: Link, outbox: Outbox, number: int, service: str, window: int, on_emptied: Callable[[], None]
    ) -> None:
        self.link = link
        self.service = service
        self._outbox = outbox
        self._number = number
        self._window = window
        self._end: LinkError | None = None
        self._on_emptied: Callable[[], None] | None = on_emptied  # Called once it is empty for good.
        # Sending.
        self._credit = window
        self._senders = WaitingLine()
        self._has_turn = False
        # Receiving.
        self._allowed = window  # What the other side may still send; the last body may make it negative.
        self._inbox: deque[bytes] = deque()
        self._undone = 0  # Received by the consumer, not yet done().
        self._owed = 0  # Done, not yet returned as credit.
        self._receiver: asyncio.Future[None] | None = None

    @property
    def peer(self) -> PeerId:
        return self.link.peer

    @property
    def closed(self) -> bool:
        """Whether the channel has ended; what came before the other side closed it can still be received."""
        return self._end is not None

    async def send(self, body: bytes) -> None:
        """Send one body; waits for credit and for room on the link. If cancelled while waiting, it has sent nothing."""
        if not self.try_send(body):
            await self._senders.wait(body, self._ask_for_turn)

    def try_send(self, body: bytes) -> bool:
        """Send one body if it need not wait; otherwise the caller may drop, merge or store it."""
        if self._end is not None:
            raise self._end.again()
        if len(body) > min(self._window, DATA_BYTES_MAX):
            limit = f"the window of {self._window} bytes" if len(body) > self._window else f"{DATA_BYTES_MAX} bytes"
            raise ValueError(f"a body of {len(body)} bytes on channel {self.service!r} is over {limit}")
        if self._credit <= 0 or self._senders or not self._outbox.has_room_for_data():
            return False
        self._transmit(body)
        return True

    async def recv(self) -> bytes:
        """The next body; ChannelClosed after the last one, LinkError if the link broke. One consumer at a time."""
        while not self._inbox:
            if self._end is not None:
                raise self._end.again()
            assert self._receiver is None, f"two consumers wait on channel {self.service!r}"
            self._receiver = asyncio.get_running_loop().create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        body = self._inbox.popleft()
        self._undone += len(body)
        self._give_back(FRAME_OVERHEAD_BYTES)
        self._tell_if_emptied()
        return body

    def done(self, n: int) -> None:
        """The consumer has processed n of the bytes it received; the other side may send as many more."""
        assert 0 <= n <= self._undone, f"done({n}) with {self._undone} bytes out on channel {self.service!r}"
        self._undone -= n
        self._give_back(n)

    def close(self) -> None:
        """End the channel both ways: what was sent still arrives; what was not yet received is dropped."""
        if self._end is None:
            self.finish(ChannelClosed(f"channel {self.service!r} was closed on this side"))
            self._outbox.put_last(CLOSE, channel=self._number)
        self._inbox.clear()
        self._tell_if_emptied()

    # Called by the link.

    def deliver(self, body: memoryview) -> None:
        if self._allowed <= 0:
            raise RemoteProtocolError(f"channel {self.service!r} was sent more than its window of {self._window} bytes")
        if len(body) > self._window:
            raise RemoteProtocolError(f"channel {self.service!r} was sent a body larger than its window")
        self._allowed -= len(body) + FRAME_OVERHEAD_BYTES
        if self._end is None:  # Else it crossed our CLOSE.
            self._inbox.append(bytes(body))
            self._wake_receiver()

    def credit(self, n: int) -> None:
        self._credit += n
        if self._credit > self._window:
            raise RemoteProtocolError(f"channel {self.service!r} was credited more than was sent on it")
        self._ask_for_turn()

    def finish(self, end: LinkError) -> None:
        """Nothing more will be sent or received."""
        if self._end is None:
            self._end = end
            self._senders.dismiss(end)
            self._wake_receiver()
            self._tell_if_emptied()

    # Called by the outbox.

    def pay(self) -> None:
        if self._end is None:
            self._outbox.put_first(CREDIT, U32.pack(self._owed), self._number)
            self._allowed += self._owed
            self._owed = 0

    def use_turn(self) -> None:
        self._has_turn = False
        body = self._senders.take()
        if body is not None:
            self._transmit(body)
            self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        if self._senders and self._credit > 0 and not self._has_turn:
            self._has_turn = True
            self._outbox.give_turn(self)

    def _transmit(self, body: bytes) -> None:
        # Any credit is enough for a whole body: credit comes by half windows, and a large body may need more.
        self._credit -= len(body) + FRAME_OVERHEAD_BYTES
        self._outbox.put_last(DATA, body, self._number)

    def _give_back(self, n: int) -> None:
        self._owed += n
        if 2 * self._owed >= self._window and self._end is None:
            self._outbox.owe(self)

    def _tell_if_emptied(self) -> None:
        if self._on_emptied is not None and self._end is not None and not self._inbox:
            on_emptied, self._on_emptied = self._on_emptied, None
            on_emptied()

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)
