"""The peer's side of its data socket: clients' commands go in to the machines, their answers come back out.

exchange.py has the wire format. The peer stops reading from a client that asks faster than it is answered
(back-pressure), so the memory that one client can occupy is bounded. The socket file is 0600, like the control socket.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import structlog

from peerd.exchange import GREETING, REQUEST_BYTES_MAX, FrameReader, MalformedFrame, Request, Response, frame
from protocols.delivery.messages import Refuse, Seen
from protocols.errors import RemoteProtocolError
from protocols.events import Abandoned, Disconnected, Event, Requested
from protocols.ids import RequestId
from protocols.messages import Answer, Command, Refused
from protocols.rights.messages import Authenticate
from protocols.wire import ANSWERS, COMMANDS

UNANSWERED_BYTES_MAX: Final = 4 << 20  # Of one client's commands.
UNANSWERED_MAX: Final = 4096
_WRITE_HIGH_BYTES: Final = 1 << 20

log = structlog.get_logger("peerd.gateway")

_NOT_YET: Final = Refused(
    code="unavailable",
    error="this peer is not a member of its network yet",
    hint='"peer status" tells why; the command will work once it is.',
    retry_after_ms=500,
)


def _not_understood(error: RemoteProtocolError) -> Refused:
    """The answer to a command that no client of this release sends."""
    hint = "Has the client another version than the peer? Restart the older one."
    return Refused(code="invalid", error="this peer does not understand the command", detail=f"{error}.", hint=hint)


class Gateway:
    """Serves the clients of one peer."""

    def __init__(self, submit: Callable[[Event], None], is_running: Callable[[], bool]) -> None:
        self.life = b""  # Told to every client; set before open().
        self._submit = submit
        self._is_running = is_running
        self.connection_numbers = itertools.count(1)
        self._numbers = itertools.count(1)
        self._askers: dict[RequestId, tuple[_Connection, int]] = {}
        self._connections: dict[_Connection, None] = {}
        self._server: asyncio.Server | None = None
        self._is_closed = False

    @property
    def clients(self) -> int:
        return len(self._connections)

    async def open(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        previous = os.umask(0o177)
        try:
            self._server = await loop.create_unix_server(lambda: _Connection(self), str(path))
        finally:
            os.umask(previous)

    def close(self) -> None:
        """Take no more requests; answers that exist are still sent."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()

    def reply(self, request: RequestId, answer: Answer, last: bool) -> None:
        """Hand an answer to its client, if it is still there."""
        asker = self._askers.get(request)
        if asker is not None:
            connection, number = asker
            connection.respond(number, answer, last)
            if last:
                del self._askers[request]

    # Called by connections.

    def connected(self, connection: _Connection) -> None:
        self._connections[connection] = None
        if self._is_closed:  # It connected while we were closing.
            connection.close()

    def disconnected(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        if connection.has_token:
            self._submit(Disconnected(connection.number))

    def requested(self, connection: _Connection, number: int, command: Command, size: int) -> None:
        """Hand a command to the machines, or answer in their place while they do not run."""
        if not self._is_running():
            connection.respond(number, _NOT_YET, last=True)
            return
        request = next(self._numbers)
        if not isinstance(command, Seen | Refuse):  # These two have no answer.
            self._askers[request] = (connection, number)
            connection.expect(number, request, size)
        connection.has_token = connection.has_token or isinstance(command, Authenticate)
        self._submit(Requested(request, command, connection.number))

    def abandoned(self, request: RequestId, *, is_broken: bool) -> None:
        if self._askers.pop(request, None) is not None:
            self._submit(Abandoned(request, is_broken))


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.number = next(gateway.connection_numbers)
        self.has_token = False  # It has presented one.
        self._reader = FrameReader(Request, REQUEST_BYTES_MAX)
        self._transport: asyncio.Transport
        self._open: dict[int, tuple[RequestId, int]] = {}  # The client's number -> ours, and the size of the command.
        self._open_bytes = 0
        self._is_reading = True
        self._is_full = False  # The client does not read what we send.
        self._unsent: list[bytes] = []

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._transport.write(frame(Response(GREETING, self._gateway.life, True)))
        self._gateway.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gateway.disconnected(self)
        for request, _ in self._open.values():
            self._gateway.abandoned(request, is_broken=True)
        self._open.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for request in self._reader.feed(data):
                self._ask(request)
        except MalformedFrame as error:
            log.warning("a client was cut off", reason=str(error))
            self._transport.abort()
            return
        self._look_for_room()

    def pause_writing(self) -> None:
        self._is_full = True
        self._look_for_room()

    def resume_writing(self) -> None:
        self._is_full = False
        self._look_for_room()

    # Called by the gateway.

    def expect(self, number: int, request: RequestId, size: int) -> None:
        """One of this client's requests will be answered."""
        self._open[number] = (request, size)
        self._open_bytes += size

    def respond(self, number: int, answer: Answer, last: bool) -> None:
        if last and number in self._open:
            self._forget(number)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame(Response(number, ANSWERS.encode(answer), last)))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _ask(self, request: Request) -> None:
        if not request.command:
            if request.id in self._open:
                self._gateway.abandoned(self._forget(request.id), is_broken=False)
            return
        if request.id in self._open or request.id == GREETING:
            raise MalformedFrame(f"request {request.id} is still open")
        try:
            command = COMMANDS.decode(request.command)
        except RemoteProtocolError as error:
            self.respond(request.id, _not_understood(error), last=True)
            return
        self._gateway.requested(self, request.id, command, len(request.command))

    def _forget(self, number: int) -> RequestId:
        request, size = self._open.pop(number)
        self._open_bytes -= size
        self._look_for_room()
        return request

    def _look_for_room(self) -> None:
        """Read on only while the client has neither too much unanswered nor too much unread."""
        may_read = not self._is_full and self._open_bytes < UNANSWERED_BYTES_MAX and len(self._open) < UNANSWERED_MAX
        if may_read != self._is_reading and not self._transport.is_closing():
            self._is_reading = may_read
            if may_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _flush(self) -> None:
        """Write all answers of one turn of the event loop together."""
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent = []
