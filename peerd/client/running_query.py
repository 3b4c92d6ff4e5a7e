"""A client's end of a continuous query: submitted or found at its peer, then its results, each once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from peerd.client.session import PeerRefused
from peerd.client.subscription import ReceivedBatch, Subscription
from peerd.errors import Exit, PeerError
from protocols.clock import Stamp
from protocols.execution.messages import QueryAccepted, QueryId, QueryShown
from protocols.ids import StreamName, SubscriptionId
from protocols.messages import Refused
from queries.schema import Schema

if TYPE_CHECKING:
    from peerd.client.client import Client

STOP_S: Final = 15.0
_Arriving = TypeVar("_Arriving")


class RunningQuery:
    """The results of one query, as rows (`async for row in query`) or as batches()."""

    query: QueryId
    stream: StreamName  # The stream of its results.
    schema: Schema
    envelope: tuple[str, ...]  # XML elements around all results of a WXQuery.
    results: Subscription

    def __init__(
        self,
        client: Client,
        find: Callable[[], Awaitable[QueryAccepted | QueryShown]],
        *,
        ends: bool,
        name: SubscriptionId | None = None,
        since: Literal["now", "start"] | Stamp = "start",
    ) -> None:
        self._client = client
        self._find = find
        self._ends = ends
        self._name = name
        self._since = since

    async def __aenter__(self) -> Self:
        found = await self._find()
        self.query, self.stream, self.envelope = found.query, found.stream, found.envelope
        try:
            self.schema = found.schema if isinstance(found, QueryAccepted) else await self._client.schema(found.stream)
            known = found.known if isinstance(found, QueryAccepted) else ()
            self.results = self._client.subscribe(
                self.stream, name=self._name, since=self._since, schema=self.schema, known=known
            )
            await self.results.open()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.results.__aexit__(kind, error, trace)
        await self._end()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._until_stopped(aiter(self.results))

    def batches(self) -> AsyncIterator[ReceivedBatch]:
        return self._until_stopped(self.results.batches())

    async def _until_stopped(self, arriving: AsyncIterator[_Arriving]) -> AsyncIterator[_Arriving]:
        try:
            async for each in arriving:
                yield each
        except PeerRefused as error:
            if error.code != "unknown":
                raise
            raise PeerRefused(Refused(code="unknown", error=f'query "{self.query}" was stopped')) from error

    async def _end(self) -> None:
        if not self._ends:
            return
        try:
            async with asyncio.timeout(STOP_S):
                await self._client.stop_query(self.query)
        except TimeoutError:
            raise PeerError(
                f'query "{self.query}" could not be stopped within {STOP_S:g} s',
                hint=f'"peer query stop {self.query}" ends it once its peer is back.',
                exit_code=Exit.TIMEOUT,
            ) from None
        except PeerRefused as error:
            if error.code != "unknown":  # Unknown: somebody else has stopped it.
                raise
