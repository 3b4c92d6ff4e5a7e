"""Publishing rows that come one by one: they travel in batches, several of them in flight at a time."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from peerd.rows import PUBLISH_BYTES_MAX, PUBLISH_ROWS_MAX, Row
from protocols.ids import StreamName

if TYPE_CHECKING:
    from peerd.client.client import Client

BATCHES_IN_FLIGHT_MAX: Final = 32


class Publisher:
    """Made by Client.publisher(). Leaving its `async with` block waits until everything sent is safe.

    The first error stops it: send() and flush() raise it from then on. Batches keep their order unless a busy peer asks
    for one again.
    """

    def __init__(self, client: Client, stream: StreamName, *, batch_rows: int, linger_s: float) -> None:
        self.accepted = 0  # Rows that are safe.
        self._client = client
        self._stream = stream
        self._batch_rows = batch_rows
        self._linger_s = linger_s
        self._rows: list[Row] = []
        self._linger: asyncio.TimerHandle | None = None
        self._in_flight: dict[asyncio.Task[None], None] = {}
        self._error: BaseException | None = None

    @property
    def in_flight(self) -> int:
        """How many batches are in flight."""
        return len(self._in_flight)

    async def __aenter__(self) -> Self:
        await self._client.schema(self._stream)  # So an unknown stream is reported at once.
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.flush()
        elif self._linger is not None:
            self._linger.cancel()

    async def send(self, row: Row) -> None:
        """Take a row; waits while too many batches are in flight."""
        self._rows.append(row)
        while len(self._rows) >= self._batch_rows and self._error is None:
            if not self._depart():
                await asyncio.wait(list(self._in_flight), return_when=asyncio.FIRST_COMPLETED)
        if self._error is not None:
            raise self._error
        if self._rows and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(self._linger_s, self._depart)

    async def flush(self) -> None:
        """Wait until everything sent so far is safe."""
        self._depart()
        while self._in_flight:
            await asyncio.wait(list(self._in_flight))
            self._depart()
        if self._error is not None:
            raise self._error

    def _depart(self) -> bool:
        """Send what has gathered, unless too many batches are in flight; then the first answer triggers it."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if len(self._in_flight) >= BATCHES_IN_FLIGHT_MAX:
            return False
        rows, self._rows = self._rows, []
        if rows and self._error is None:
            task = asyncio.create_task(self._publish(rows))
            self._in_flight[task] = None
            task.add_done_callback(self._arrived)
        return True

    async def _publish(self, rows: list[Row]) -> None:
        try:
            await self._publish_parts(rows)
        except Exception as error:  # noqa: BLE001 - It is raised by the next send() or flush().
            self._error = self._error or error

    async def _publish_parts(self, rows: list[Row]) -> None:
        """Publish rows, split in halves while they are too large for one publish."""
        encoded = await self._client.encoded(self._stream, rows)
        if len(rows) > PUBLISH_ROWS_MAX or (len(encoded) > PUBLISH_BYTES_MAX and len(rows) > 1):
            half = len(rows) // 2
            await self._publish_parts(rows[:half])
            await self._publish_parts(rows[half:])
        else:
            await self._client.publish_encoded(self._stream, encoded, len(rows))
            self.accepted += len(rows)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        del self._in_flight[task]
        if self._rows and self._linger is None:
            self._depart()
