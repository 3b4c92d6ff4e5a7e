"""A client's conversation with its peer over the data socket: requests, answers, and coming back after a break.

When the connection breaks, every open request hears of it. Its owner decides what to do, because only the owner knows
whether asking again is safe. Meanwhile the session reconnects to the peer until its patience ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, cast

from peerd.control_client import ControlClient
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError
from peerd.exchange import GREETING, RESPONSE_BYTES_MAX, FrameReader, MalformedFrame, Request, Response, frame
from protocols.errors import RemoteProtocolError
from protocols.messages import Answer, Command, Refused
from protocols.rights.messages import Authenticate
from protocols.wire import ANSWERS, COMMANDS

_RETRY_MIN_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0
_GREETING_WAIT_S: Final = 5.0
_EXIT_CODES: Final = {"unknown": Exit.NOT_FOUND, "invalid": Exit.MISUSE}


class PeerRefused(PeerError):
    """The peer understood and said no; `code` tells programs why."""

    def __init__(self, refused: Refused) -> None:
        exit_code = _EXIT_CODES.get(refused.code, Exit.FAILED)
        super().__init__(refused.error, detail=refused.detail or None, hint=refused.hint or None, exit_code=exit_code)
        self.code = refused.code
        self.retry_after_s = refused.retry_after_ms / 1000


class ConnectionLost(PeerError):
    """The connection broke before the answer came: the command took effect once, or not at all."""

    def __init__(self, what: str = "the connection to the peer broke before it answered") -> None:
        super().__init__(
            what,
            detail="What was asked has been done once, or not at all.",
            hint='"peer status" shows whether the peer is there again.',
            exit_code=Exit.UNREACHABLE,
        )


Repeat = Literal["never", "same life", "always"]
"""Whether to ask again when the connection broke before the answer: only of a peer that has not lost its memory?"""

Receiver = Callable[[Answer | ConnectionLost, bool], None]
"""Is handed each answer to a request, and whether it is the last; or that the connection broke, which is the last."""


class Session:
    """One connection to one peer, made anew when it breaks."""

    def __init__(self, data: DataDir, socket_path: Path, *, patience_s: float, token: str = "") -> None:
        self.patience_s = patience_s  # For an answer, and for a lost peer to come back.
        self._token = token  # Presented on every connection, before anything is asked.
        self._data = data
        self._path = socket_path
        self._numbers = itertools.count(1)
        self._line: asyncio.Future[_Line] | None = None
        self._returning: asyncio.Task[None] | None = None
        self._is_closed = False

    async def open(self) -> None:
        """Connect for the first time; a missing peer is an error at once."""
        loop = asyncio.get_running_loop()
        try:
            line = await self._dial()
        except PermissionError as error:
            raise PeerError(
                f'not allowed to talk to the peer at "{self._path}"',
                hint="It belongs to another user: run this as that user.",
                exit_code=Exit.UNREACHABLE,
            ) from error
        except OSError as error:
            raise ControlClient(self._data).unreachable() from error
        self._line = loop.create_future()
        self._line.set_result(line)

    async def close(self) -> None:
        """Send what has been written, and hang up."""
        self._is_closed = True
        if self._returning is not None:
            self._returning.cancel()
        line, self._line = self._line, None
        if line is not None and line.done() and not line.cancelled() and line.exception() is None:
            await line.result().hang_up()

    async def ask(
        self, command: Command, repeat: Repeat = "never", on_news: Callable[[Answer], None] | None = None
    ) -> Answer:
        """Ask for one answer. A refusal is raised, after retries as long as the peer says that retrying may help.

        A long command may bring news before its answer; then the peer decides how long it takes.
        """
        life: bytes | None = None
        try:
            async with asyncio.timeout(self.patience_s) as limit:
                while True:
                    line = await self._connected()
                    if repeat == "same life" and life not in (None, line.life):
                        raise ConnectionLost("the peer came back without its memory before it had answered")
                    life = line.life

                    def hear(news: Answer) -> None:
                        limit.reschedule(None)
                        if on_news is not None:
                            on_news(news)

                    try:
                        answer = await self._ask_once(line, command, hear)
                    except ConnectionLost:
                        if repeat == "never" or self._is_closed:
                            raise
                        continue
                    if not isinstance(answer, Refused):
                        return answer
                    wait_s = answer.retry_after_ms / 1000
                    if not wait_s or asyncio.get_running_loop().time() + wait_s > (limit.when() or 0.0):
                        raise PeerRefused(answer)
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            raise PeerError(
                f"the peer did not answer within {self.patience_s:g} s",
                detail=f"Asked {type(command).__name__}; it may still be done, once.",
                hint='"peer status" and "peer members" show how the network is doing.',
                exit_code=Exit.TIMEOUT,
            ) from None

    async def _ask_once(self, line: _Line, command: Command, hear: Callable[[Answer], None]) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def receive(answer: Answer | ConnectionLost, last: bool) -> None:
            if answered.done():
                return
            if isinstance(answer, ConnectionLost):
                answered.set_exception(answer)
            elif last:
                answered.set_result(answer)
            else:
                hear(answer)

        number = self._post(line, command, receive)
        try:
            return await answered
        except asyncio.CancelledError:  # The caller is gone, or has waited long enough.
            line.take_back(number)
            raise

    async def post(self, command: Command, receive: Receiver) -> int:
        """Send a command once there is a connection with room for it; returns the number of the request."""
        return self._post(await self._connected(), command, receive)

    def _post(self, line: _Line, command: Command, receive: Receiver | None) -> int:
        number = next(self._numbers)
        line.post(Request(number, COMMANDS.encode(command)), receive)
        return number

    def tell(self, command: Command) -> None:
        """Send a command that has no answer; it is lost if the connection is down."""
        if (line := self._current()) is not None:
            self._post(line, command, None)

    def take_back(self, number: int) -> None:
        """Ignore further answers to a request."""
        if (line := self._current()) is not None:
            line.take_back(number)

    def _current(self) -> _Line | None:
        line = self._line
        if line is None or not line.done() or line.cancelled() or line.exception() is not None:
            return None
        return line.result()

    async def _connected(self) -> _Line:
        while True:
            if self._line is None:
                raise ConnectionLost("this client is closed" if self._is_closed else "this client is not open")
            line = await asyncio.shield(self._line)
            await line.room.wait()
            if not line.is_lost:
                return line

    async def _dial(self) -> _Line:
        loop = asyncio.get_running_loop()
        transport, line = await loop.create_unix_connection(lambda: _Line(self._lost), str(self._path))
        try:
            async with asyncio.timeout(_GREETING_WAIT_S):
                await line.greeted
            if self._token:
                await self._present_token(line)
        except BaseException:
            transport.abort()
            raise
        return line

    async def _present_token(self, line: _Line) -> None:
        """Act for the client of our token; what is asked before this would be asked as the peer."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.patience_s
        while True:
            answer = await self._ask_once(line, Authenticate(token=self._token), lambda _news: None)
            if not isinstance(answer, Refused):
                return
            wait_s = answer.retry_after_ms / 1000
            if not wait_s or loop.time() + wait_s > give_up_at:
                raise PeerRefused(answer)
            await asyncio.sleep(wait_s)

    def _lost(self, line: _Line) -> None:
        if self._current() is line and not self._is_closed:
            self._line = asyncio.get_running_loop().create_future()
            self._returning = asyncio.create_task(self._return(self._line))

    async def _return(self, returned: asyncio.Future[_Line]) -> None:
        """Dial until the peer is there again."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.patience_s
        wait_s = _RETRY_MIN_S
        while True:
            try:
                line = await self._dial()
            except PeerRefused as error:  # Our token is no longer good.
                returned.set_exception(error)
                returned.exception()
                return
            except (OSError, ConnectionLost):
                if loop.time() > give_up_at:
                    returned.set_exception(ControlClient(self._data).unreachable())
                    returned.exception()  # Perhaps nobody waits; that is no error.
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_MAX_S)
            else:
                returned.set_result(line)
                return


class _Line(asyncio.Protocol):
    """One connection, from dialling to its end."""

    def __init__(self, on_lost: Callable[[_Line], None]) -> None:
        self.life = b""
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        self.room = asyncio.Event()  # Set while the peer takes more, and when the line is lost, so that nobody waits.
        self.room.set()
        self._on_lost = on_lost
        self._reader = FrameReader(Response, RESPONSE_BYTES_MAX)
        self._receivers: dict[int, Receiver] = {}
        self._transport: asyncio.Transport
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsent: list[bytes] = []

    def post(self, request: Request, receive: Receiver | None) -> None:
        if receive is not None:
            self._receivers[request.id] = receive
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame(request))

    def take_back(self, number: int) -> None:
        if self._receivers.pop(number, None) is not None:
            self.post(Request(number, b""), None)

    async def hang_up(self) -> None:
        self._flush()
        self._transport.close()
        with suppress(asyncio.CancelledError):
            await self._gone

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.room.set()
        if not self._gone.done():  # Whoever hung up may not have waited for it.
            self._gone.set_result(None)
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("the peer hung up at once"))
        self._on_lost(self)
        receivers, self._receivers = self._receivers, {}
        for receive in receivers.values():
            receive(ConnectionLost(), True)

    def pause_writing(self) -> None:
        self.room.clear()

    def resume_writing(self) -> None:
        self.room.set()

    def data_received(self, data: bytes) -> None:
        try:
            for response in self._reader.feed(data):
                if response.id == GREETING and not self.greeted.done():
                    self.life = response.answer
                    self.greeted.set_result(None)
                receive = self._receivers.get(response.id)
                if receive is not None:
                    if response.last:
                        del self._receivers[response.id]
                    receive(ANSWERS.decode(response.answer), response.last)
        except (MalformedFrame, RemoteProtocolError):  # Not a peer of our version; the next dial will tell.
            self._transport.abort()

    def _flush(self) -> None:
        """Write all requests of one turn of the event loop together."""
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent = []
