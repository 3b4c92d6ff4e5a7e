"""A client's end of a subscription: rows in order, each once, across broken connections and restarts of the peer.

The client keeps its position in every origin. When the connection breaks, it forgets what it received and did not hand
out, comes back with its positions, and drops repetitions. It tells the peer what the program has processed (SEEN), and
the peer then forgets it.
"""

from __future__ import annotations

import asyncio
from collections import deque, namedtuple
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

from peerd.client.session import ConnectionLost, PeerRefused, Session
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import Stamp, wall_ms
from protocols.delivery.messages import (
    Batch,
    DeadLettered,
    Missed,
    Opened,
    OpenSubscription,
    Origin,
    Position,
    Refuse,
    Rows,
    Seen,
)
from protocols.ids import Millis, StreamName, SubscriptionId
from protocols.messages import Answer, Refused
from queries.schema import Schema

SEEN_EVERY_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """Consecutive rows of one origin; row i has the id (origin, first + i)."""

    origin: Origin
    first: int
    published_at: Stamp
    rows: list[Any]

    @property
    def published_at_ms(self) -> Millis:
        return wall_ms(self.published_at)


class Subscription:
    """What a stream brings, as rows (`async for row in subscription`) or as batches().

    A row counts as processed once the program asks for the next one, or closes the subscription without an error. The
    program may refuse() a row that it cannot process; leaving the `async with` by an exception refuses it too. A
    refused row comes again, three times in all, and then goes to the dead letters of the subscription.
    """

    def __init__(
        self,
        session: Session,
        stream: StreamName,
        schema: Schema | Callable[[StreamName], Awaitable[StreamDefinition]],
        *,
        name: SubscriptionId,
        since: Literal["now", "start"] | Stamp,
        keep: bool,
        positions: dict[Origin, int],
        known: tuple[Origin, ...] = (),
        witness: Callable[[Stamp], Stamp],
    ) -> None:
        self.name = name
        self.stream = stream
        self.missed = 0  # Tuples that expired before they were read.
        self.on_missed: Callable[[Missed], None] = lambda missed: None
        self.dead_lettered = 0  # Tuples in its dead letters.
        self.on_dead_lettered: Callable[[DeadLettered], None] = lambda letter: None
        self.opened_at: Stamp = 0
        self._session = session
        self._schema = schema
        self._created_at: Stamp = 0  # Of the stream that the schema belongs to.
        self._since = since
        self._keep = keep
        self._witness = witness
        self._known = known  # Publishers, until they have been asked once.
        self._positions = dict(positions)  # Below: processed by the program.
        self._arrived = dict(positions)  # Below: processed, in the program's hands, or waiting for it.
        self._waiting: deque[Batch | Missed] = deque()
        self._current: Batch | None = None  # In the program's hands, whole or row by row.
        self._handed_from = self._handed_to = 0  # The part of it that was handed out last.
        self._refused: dict[Origin, int] = {}  # Until it comes again, what follows is useless.
        self._unseen: dict[Origin, None] = {}
        self._unseen_bytes = 0
        self._request: int | None = None
        self._opened: asyncio.Future[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_closed = False
        self._decode: Callable[[bytes], list[Any]]

    @property
    def positions(self) -> dict[Origin, int]:
        """The program's position in each origin: everything below is processed. A later subscription can start here."""
        return dict(self._positions)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._current is not None:
            self.refuse(f"{type(error).__name__}: {error}")
        self.close(is_done=kind is None)

    async def open(self) -> None:
        """Open the subscription; once this returns, it misses nothing published later."""
        if self._opened is None:
            schema = self._schema
            if not isinstance(schema, Schema):
                definition = await schema(self.stream)
                schema, self._created_at = definition.current, definition.created_at
            self._decode = _row_maker(self.stream, schema)
            await self._ask()

    def refuse(self, reason: str) -> None:
        """The row, or batch, handed out last could not be processed; it comes again, or goes to the dead letters.

        A refused batch comes again in smaller ones, until it is clear which row is meant.
        """
        if self._current is None:
            raise ValueError("there is no row to refuse: none has been handed out, or the next one was asked for")
        origin, first, upto = self._current.origin, self._handed_from, self._handed_to
        self._put_down(is_done=False)
        self._say_seen()
        self._session.tell(Refuse(subscription=self.name, origin=origin, first=first, next=upto, reason=reason))
        self._refused[origin] = self._arrived[origin] = first
        self._waiting = deque(each for each in self._waiting if each.origin != origin)

    def close(self, *, is_done: bool = True) -> None:
        """Stop reading. With is_done, the row or batch handed out last counts as processed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._put_down(is_done=is_done)
        self._say_seen()
        if self._request is not None:
            self._session.take_back(self._request)
        self._wake()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._rows()

    async def _rows(self) -> AsyncIterator[Any]:
        async for batch in self._received():
            overlap = self._overlap(batch)
            for place, row in enumerate(self._decode(batch.rows)[overlap:], start=batch.first + overlap):
                self._handed_from, self._handed_to = place, place + 1
                yield row
                if self._current is not batch:  # Refused: it comes again, and the rest with it.
                    break

    async def batches(self) -> AsyncIterator[ReceivedBatch]:
        """The same in batches, as they come, with the ids and the times of publication."""
        async for batch in self._received():
            overlap = self._overlap(batch)
            first = batch.first + overlap
            self._handed_from, self._handed_to = first, batch.next
            yield ReceivedBatch(batch.origin, first, batch.published_at, self._decode(batch.rows)[overlap:])

    # What arrives, in order.

    async def _received(self) -> AsyncIterator[Batch]:
        await self.open()
        while not self._is_closed:
            if self._waiting:
                arrived = self._waiting.popleft()
                if isinstance(arrived, Missed):
                    self._skip(arrived)
                else:
                    self._current = arrived
                    yield arrived
                    self._put_down(is_done=True)
                    self._unseen_bytes += len(arrived.rows)
                if not self._waiting or self._unseen_bytes >= SEEN_EVERY_BYTES:
                    self._say_seen()
            elif self._error is not None:
                raise self._error
            else:
                self._news = asyncio.get_running_loop().create_future()
                await self._news
                self._news = None

    def _overlap(self, batch: Batch) -> int:
        """How many rows at the beginning of a batch are already processed."""
        return max(0, self._positions.get(batch.origin, 0) - batch.first)

    def _put_down(self, *, is_done: bool) -> None:
        """The program is done with what it held: record its position."""
        if self._current is not None:
            self._positions[self._current.origin] = self._handed_to if is_done else self._handed_from
            self._unseen[self._current.origin] = None
            self._current = None

    def _skip(self, missed: Missed) -> None:
        before = max(missed.first, self._positions.get(missed.origin, 0))
        self._positions[missed.origin] = missed.next
        self._unseen[missed.origin] = None
        self.missed += missed.next - before
        self.on_missed(missed)

    def _say_seen(self) -> None:
        if self._unseen:
            positions = tuple(Position(origin, self._positions[origin]) for origin in self._unseen)
            self._session.tell(Seen(subscription=self.name, positions=positions))
            self._unseen.clear()
            self._unseen_bytes = 0

    # Between us and the peer.

    async def _ask(self) -> None:
        """Open the subscription at the peer, with retries while the peer says that they may help."""
        while True:
            self._opened = asyncio.get_running_loop().create_future()
            command = OpenSubscription(
                stream=self.stream,
                subscription=self.name,
                since=self._since,
                positions=tuple(Position(origin, place) for origin, place in self._positions.items()),
                keep=self._keep,
                witness=self._witness(0),
                known=self._known,
                created_at=self._created_at,
            )
            self._known = ()
            self._request = await self._session.post(command, self._receive)
            try:
                return await self._opened
            except PeerRefused as error:
                if not error.retry_after_s or self._is_closed:
                    raise
                await asyncio.sleep(error.retry_after_s)
            except ConnectionLost:
                if self._is_closed:
                    raise

    async def _come_back(self) -> None:
        """The connection broke: go on from the program's position."""
        try:
            await self._ask()
        except Exception as error:  # noqa: BLE001 - Whatever it is, it belongs to whoever reads.
            self._error = error
            self._wake()

    def _receive(self, answer: Answer | ConnectionLost, last: bool) -> None:
        match answer:
            case Rows(batches=batches):
                for batch in batches:
                    self._take(batch)
            case Missed():
                self._take(answer)
            case DeadLettered():
                self._put_aside(answer)
            case Opened(stamp=stamp, dead=dead):
                self.dead_lettered = dead
                self._has_opened(stamp)
            case Refused():
                self._fail(PeerRefused(answer))
            case ConnectionLost():
                self._connection_lost(answer)
            case _ if last:  # Another client has ended it.
                self._is_closed = True
        self._wake()

    def _take(self, arrived: Batch | Missed) -> None:
        """Queue what arrived for the program, unless it has arrived before."""
        if arrived.first > self._refused.get(arrived.origin, arrived.first):
            return
        self._refused.pop(arrived.origin, None)
        if arrived.next > self._arrived.get(arrived.origin, 0):
            self._arrived[arrived.origin] = arrived.next
            self._waiting.append(arrived)

    def _put_aside(self, letter: DeadLettered) -> None:
        """A tuple has become a dead letter: go on behind it."""
        origin, upto = letter.origin, letter.sequence + 1
        self._refused.pop(origin, None)
        self._positions[origin] = max(upto, self._positions.get(origin, 0))
        self._arrived[origin] = max(upto, self._arrived.get(origin, 0))
        self.dead_lettered += 1
        self.on_dead_lettered(letter)

    def _has_opened(self, stamp: Stamp) -> None:
        assert self._opened is not None
        self._witness(stamp)
        if not self.opened_at:
            self.opened_at = stamp
            if self._since == "now":  # If the peer forgets us, this is where we began.
                self._since = stamp
        if not self._opened.done():
            self._opened.set_result(None)

    def _fail(self, error: PeerRefused) -> None:
        assert self._opened is not None
        if self._opened.done():
            self._error = error
        else:
            self._opened.set_exception(error)

    def _connection_lost(self, error: ConnectionLost) -> None:
        assert self._opened is not None
        self._request = None
        self._waiting.clear()
        self._refused.clear()
        self._arrived = dict(self._positions)
        if self._current is not None:
            self._arrived[self._current.origin] = self._current.next
        if not self._opened.done():
            self._opened.set_exception(error)
        elif not self._is_closed:
            self._returning = asyncio.create_task(self._come_back())

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _row_maker(stream: StreamName, schema: Schema) -> Callable[[bytes], list[Any]]:
    """Rows as named tuples; a field whose name Python does not allow is reached by its index."""
    kind = namedtuple("Row", [field.name for field in schema.fields], rename=True)  # type: ignore[misc]
    decode = schema.decode
    return lambda rows: list(map(kind._make, decode(rows)))
