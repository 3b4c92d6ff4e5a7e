"""The client itself: one program's way into the network, through the peer of a data directory."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack

from peerd.client.options import QueryEngine, QueryOptions
from peerd.client.publisher import Publisher
from peerd.client.running_query import RunningQuery
from peerd.client.session import PeerRefused, Repeat, Session
from peerd.client.subscription import Subscription
from peerd.datadir import DataDir, default_data_dir
from peerd.errors import Exit, PeerError
from peerd.parameters import filled
from peerd.rows import PUBLISH_BYTES_MAX, PUBLISH_ROWS_MAX, Row, encode_rows, parse_schema
from protocols.catalogue.events import DerivedEntry
from protocols.catalogue.messages import (
    AlterStream,
    CreateStream,
    DerivedListed,
    DropStream,
    ListDerived,
    ListStreams,
    ShowStream,
    StreamShown,
    StreamsListed,
)
from protocols.catalogue.streams import Durability, Policy, StreamDefinition
from protocols.clock import Stamp
from protocols.delivery.messages import (
    FINISHED_US,
    CloseSubscription,
    DeadLettersListed,
    ListDeadLetters,
    Origin,
    Publish,
    Published,
    Punctuate,
    SubscriptionLetters,
)
from protocols.execution.messages import (
    AdoptQuery,
    ListQueries,
    PlanQuery,
    QueriesListed,
    QueryAccepted,
    QueryId,
    QueryListed,
    QueryPlanned,
    QueryShown,
    QueryStarting,
    QueryWeighed,
    ShowQuery,
    StopQuery,
    SubmitQuery,
    WeighQuery,
)
from protocols.ids import Millis, StreamName, SubscriptionId
from protocols.messages import Answer, Command, Done
from protocols.rights.messages import (
    AuditEvent,
    AuditListed,
    CreateToken,
    Grant,
    ListAudit,
    NetworkPolicy,
    Principal,
    RemoveToken,
    Revoke,
    RightsShown,
    SetPolicy,
    ShowRights,
    Verb,
)
from protocols.sharing.messages import ListShared, SharedListed, SharedShown
from queries.catalogue import DAY_MS
from queries.expressions import EPOCH, MICROSECOND
from queries.schema import Field, Schema

PATIENCE_S: Final = 30.0
PUBLISHES_IN_FLIGHT_MAX: Final = 100  # Fewer than a peer remembers of one client.

_Answer = TypeVar("_Answer", bound=Answer)


class Client:
    """One program's way into the network, through the peer of a data directory.

    `patience_s` is how long it waits for an answer, and for a lost peer to come back. With a `token` (or
    PEER_CLIENT_TOKEN) it acts for the client of that token, otherwise for the peer's own user.
    """

    def __init__(
        self, where: Path | str | None = None, *, patience_s: float = PATIENCE_S, token: str | None = None
    ) -> None:
        path = Path(where) if where is not None else default_data_dir(os.environ)
        if path.is_socket():
            data, socket_path = DataDir(path.parent), path
        else:
            data = _with_a_peer(DataDir(path))
            socket_path = data.data_socket_path
        presented = os.environ.get("PEER_CLIENT_TOKEN", "") if token is None else token
        self._session = Session(data, socket_path, patience_s=patience_s, token=presented)
        self._definitions: dict[StreamName, StreamDefinition] = {}
        self._lookups: defaultdict[StreamName, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._name = secrets.token_bytes(8)
        self._publishes = itertools.count(1)
        self._turns = asyncio.Semaphore(PUBLISHES_IN_FLIGHT_MAX)
        self._subscriptions: dict[Subscription, None] = {}
        self._latest: Stamp = 0  # The highest stamp seen; our next tuples get a higher one.

    async def __aenter__(self) -> Self:
        await self._session.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        await self._session.close()

    # Streams.

    async def create_stream(
        self,
        name: StreamName,
        schema: Schema | str,
        *,
        durability: Durability = "disk",
        retention_ms: Millis = DAY_MS,
        event_time: str | None = None,
        lateness_ms: Millis = 0,
        idle_ms: Millis = 0,
        policy: Policy = "block",
    ) -> Done:
        """Create a stream; the answer tells how many peers keep its definition."""
        definition = StreamDefinition(
            name=name,
            schema=parse_schema(schema) if isinstance(schema, str) else schema,
            durability=durability,
            retention_ms=retention_ms,
            event_time=event_time,
            lateness_ms=lateness_ms,
            idle_ms=idle_ms,
            policy=policy,
        )
        done = await self._ask(CreateStream(definition=definition), Done)
        self._definitions.pop(name, None)  # Of an earlier stream of the name.
        return done

    async def alter_stream(self, name: StreamName, *, add: Field | str | None = None, drop: str = "") -> Done:
        """Add a column, as `delay float null`, or drop one that nobody reads.

        Rows from before have null in a column that was added. Running queries go on with the columns they had.
        """
        if (add is None) == (not drop):
            raise PeerError("either a column to add or one to drop", exit_code=Exit.MISUSE)
        fields = parse_schema(add).fields if isinstance(add, str) else (add,)
        if len(fields) > 1:
            raise PeerError(f'"{add}" is more than one column', hint="Add one at a time.", exit_code=Exit.MISUSE)
        done = await self._ask(AlterStream(name=name, adds=fields[0], drops=drop), Done)
        self._definitions.pop(name, None)
        return done

    async def drop_stream(self, name: StreamName, *, force: bool = False) -> None:
        """Remove a stream, with its tuples. Refused while queries or kept subscriptions read it, unless forced."""
        await self._ask(DropStream(name=name, force=force), Done)
        self._definitions.pop(name, None)

    async def streams(self) -> list[StreamDefinition]:
        """All streams of the network, by name."""
        return list((await self._ask(ListStreams(), StreamsListed, "always")).streams)

    async def shared_streams(self) -> list[SharedShown]:
        """The streams that this peer reads for queries, each once for all of them."""
        return list((await self._ask(ListShared(), SharedListed, "always")).streams)

    async def derived_streams(self) -> list[DerivedEntry]:
        """The derived streams: what parts of running queries make for each other, at any peer."""
        return list((await self._ask(ListDerived(), DerivedListed, "always")).streams)

    async def stream(self, name: StreamName) -> StreamShown:
        """One stream: its definition, who publishes to it and how many read it."""
        shown = await self._ask(ShowStream(name=name), StreamShown, "always")
        self._definitions[name] = shown.definition
        return shown

    async def schema(self, name: StreamName) -> Schema:
        """The schema of a stream, cached after the first question; read it anew with `stream()`."""
        return (await self._definition(name)).current

    async def encoded(self, stream: StreamName, rows: Sequence[Row]) -> bytes:
        """Rows by the schema of a stream. If they do not fit, it may have been altered: the schema is read anew."""
        known = await self.schema(stream)
        try:
            return encode_rows(known, rows)
        except PeerError:
            now = (await self.stream(stream)).definition.current
            if now == known:
                raise
            return encode_rows(now, rows)

    # Publishing.

    async def publish(self, stream: StreamName, rows: Iterable[Row]) -> Published:
        """Publish rows, all together; once this returns, none of them will be lost.

        If the peer goes away meanwhile, the client asks again when it is back, and the rows are published once.
        ConnectionLost means that the outcome is unknown: all of them were published, or none.
        """
        rows = list(rows)
        return await self.publish_encoded(stream, await self.encoded(stream, rows), len(rows))

    async def publish_encoded(self, stream: StreamName, rows: bytes, count: int) -> Published:
        """Publish rows that Schema.encode has encoded."""
        definition = await self._definition(stream)
        # A `memory` stream forgets its tuples with the process, and with them that it was asked before.
        repeat: Repeat = "never" if definition.durability == "memory" else "same life"
        async with self._turns:
            try:
                command = self._publish_command(definition, rows, count)
                return await self._ask(command, Published, repeat)
            except PeerRefused as error:
                if error.code in ("invalid", "unknown"):  # Perhaps another stream has this name by now.
                    self._definitions.pop(stream, None)
                raise

    async def publish_unacknowledged(self, stream: StreamName, rows: Sequence[Row]) -> None:
        """Hand rows to the peer without waiting for the outcome."""
        encoded, definition = await self.encoded(stream, rows), await self._definition(stream)
        await self._session.post(self._publish_command(definition, encoded, len(rows)), lambda answer, last: None)

    def _publish_command(self, definition: StreamDefinition, rows: bytes, count: int) -> Publish:
        if len(rows) > PUBLISH_BYTES_MAX or count > PUBLISH_ROWS_MAX:
            raise PeerError(
                f"{count} rows of {len(rows):,} bytes are too many to be published at once",
                hint=f"Publish at most {PUBLISH_BYTES_MAX:,} bytes and {PUBLISH_ROWS_MAX:,} rows at a time.",
                exit_code=Exit.MISUSE,
            )
        return Publish(
            stream=definition.name,
            rows=rows,
            count=count,
            witness=self._latest,
            session=self._name,
            number=next(self._publishes),
            version=definition.version,
            created_at=definition.created_at,
        )

    async def finish(self, stream: StreamName, *, before: datetime | None = None) -> None:
        """Say that no more tuples come through this peer, or none with an event time before this one.

        Windows up to there then close without waiting for this peer. Whoever publishes here again after `finish()`
        without a time is waited for again.
        """
        if not (await self._definition(stream)).event_time:
            raise PeerError(
                f'stream "{stream}" has no event time',
                detail="Its windows close by the time of publication, also while nobody publishes.",
                exit_code=Exit.MISUSE,
            )
        await self.publish(stream, [])  # The peer publishes to the stream now, if it did not before.
        before_us = FINISHED_US if before is None else (before - EPOCH) // MICROSECOND
        await self._ask(Punctuate(stream=stream, before_us=before_us), Done, "always")

    def publisher(self, stream: StreamName, *, batch_rows: int = 100, linger_s: float = 0.005) -> Publisher:
        """For rows that come one by one: `async with client.publisher("flights") as flights: await flights.send(row)`.

        Rows travel in batches of up to `batch_rows`; an incomplete one leaves after `linger_s`.
        """
        return Publisher(self, stream, batch_rows=batch_rows, linger_s=linger_s)

    # Subscribing.

    def subscribe(
        self,
        stream: StreamName,
        *,
        name: SubscriptionId | None = None,
        since: Literal["now", "start"] | Stamp = "now",
        positions: Mapping[Origin, int] | None = None,
        schema: Schema | None = None,
        known: tuple[Origin, ...] = (),
    ) -> Subscription:
        """Read a stream. With a name the network keeps the position, and the next subscription of that name goes on
        there.

        A caller that knows the schema or the publishers can pass them and save the lookup.
        """
        subscription = Subscription(
            self._session,
            stream,
            self._definition_now if schema is None else schema,
            name=name or f"{stream}-{secrets.token_hex(8)}",
            since=since,
            keep=name is not None,
            positions=dict(positions or {}),
            known=known,
            witness=self._witness,
        )
        self._subscriptions[subscription] = None
        return subscription

    async def unsubscribe(self, name: SubscriptionId) -> None:
        """Forget a named subscription, and the tuples kept for it."""
        await self._ask(CloseSubscription(subscription=name), Done)

    async def dead_letters(self, stream: StreamName, name: SubscriptionId = "") -> tuple[SubscriptionLetters, ...]:
        """The tuples that clients of this peer could not process: of one subscription of a stream, or of all."""
        command = ListDeadLetters(stream=stream, subscription=name)
        return (await self._ask(command, DeadLettersListed, "always")).subscriptions

    # Rights.

    async def rights(self) -> RightsShown:
        """Who may do what in this network, as this peer knows it."""
        return await self._ask(ShowRights(), RightsShown, "always")

    async def set_policy(self, policy: NetworkPolicy) -> Done:
        """Open: every member may do everything. Closed: only what is granted, from the acknowledgement on here."""
        return await self._ask(SetPolicy(policy=policy), Done, "always")

    async def grant(self, principal: Principal, verbs: Sequence[Verb], pattern: str = "*") -> Done:
        """Let `client:NAME` or `peer:ID` publish, read, create or stop what a pattern matches, or change rights."""
        return await self._ask(Grant(principal=principal, verbs=tuple(verbs), pattern=pattern), Done, "always")

    async def revoke(self, principal: Principal, verbs: Sequence[Verb] = (), pattern: str = "*") -> Done:
        """Take a grant back: some verbs of it, or all."""
        return await self._ask(Revoke(principal=principal, verbs=tuple(verbs), pattern=pattern), Done)

    async def create_token(self, name: str, *, expires_at: Millis = 0) -> str:
        """Make a token for a client, NAME.SECRET. The network keeps a digest of it; only the caller has the secret."""
        secret = secrets.token_urlsafe(32)
        digest = hashlib.sha256(secret.encode()).digest()
        await self._ask(CreateToken(client=name, digest=digest, expires_at=expires_at), Done)
        return f"{name}.{secret}"

    async def remove_token(self, name: str) -> Done:
        """Make a token worth nothing."""
        return await self._ask(RemoveToken(client=name), Done)

    async def audit(self) -> tuple[AuditEvent, ...]:
        """What was refused, changed or exhausted at this peer lately, oldest first."""
        return (await self._ask(ListAudit(), AuditListed, "always")).events

    # Queries.

    def query(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        detached: bool = False,
        on_starting: Callable[[QueryStarting], None] | None = None,
        **options: Unpack[QueryOptions],
    ) -> RunningQuery:
        """Run a continuous query in SQL or WXQuery and read its results: `async with client.query("SELECT …") as rows`.

        It misses no tuple published after it has begun. It ends with the block, unless it is detached: then it goes on
        at the peer, and attach() reads it. Parameters replace the question marks of SQL. `on_starting` hears what the
        query waits for before it runs. The other options (`name`, `engine`, `placement`, `within_ms`, `statistics`,
        `since`, `durability`, `takeover_ms`) are explained in QueryOptions.
        """
        return RunningQuery(
            self, lambda: self.submit(text, parameters, on_starting=on_starting, **options), ends=not detached
        )

    def attach(
        self,
        query: QueryId,
        *,
        name: SubscriptionId | None = None,
        since: Literal["now", "start"] | Stamp = "start",
    ) -> RunningQuery:
        """Read all kept results of a query of any peer. With a name, go on where that name stopped."""
        return RunningQuery(self, lambda: self.show_query(query), ends=False, name=name, since=since)

    async def submit(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        on_starting: Callable[[QueryStarting], None] | None = None,
        **options: Unpack[QueryOptions],
    ) -> QueryAccepted:
        """Start a query that runs until it is stopped; otherwise as query()."""

        def hear(news: Answer) -> None:
            if on_starting is not None and isinstance(news, QueryStarting):
                on_starting(news)

        takeover_ms = options.get("takeover_ms")
        command = SubmitQuery(
            text=filled(text, parameters),
            name=options.get("name", ""),
            engine=options.get("engine", "auto"),
            witness=self._latest,
            placement=options.get("placement", "auto"),
            within_ms=options.get("within_ms"),
            statistics=options.get("statistics", ""),
            since=options.get("since", "now"),
            durability=options.get("durability", "auto"),
            takeover_ms=None if takeover_ms is None else round(takeover_ms),
        )
        answer = await self._session.ask(command, "never", hear)
        assert isinstance(answer, QueryAccepted)
        self._witness(answer.stamp)
        return answer

    async def plan_query(
        self, text: str, parameters: Sequence[Any] = (), *, engine: QueryEngine = "auto"
    ) -> QueryPlanned:
        """Which peers would run the parts of a query if it were submitted here now; nothing is started."""
        command = PlanQuery(text=filled(text, parameters), engine=engine)
        return await self._ask(command, QueryPlanned, "always")

    async def queries(self, *, everywhere: bool = False) -> list[QueryListed]:
        """The queries submitted at this peer, or at all peers, oldest first.

        Of a query of another peer the list has the beginning of the text. If that peer does not answer, the state is
        "proxy is down".
        """
        return list((await self._ask(ListQueries(everywhere=everywhere), QueriesListed, "always")).queries)

    async def show_query(self, query: QueryId) -> QueryShown:
        """One query: its subgraphs, where they run, and how they are doing.

        A name means the query of this peer, else that of another. If several peers have one of that name,
        `NAME@PEER` says which, with the beginning of the peer's id.
        """
        return await self._ask(ShowQuery(query=query), QueryShown, "always")

    async def weigh(self, text: str, parameters: Sequence[Any] = (), *, within_ms: float | None = None) -> QueryWeighed:
        """What each placement of a query would cost on this network; nothing is run."""
        return await self._ask(WeighQuery(text=filled(text, parameters), within_ms=within_ms), QueryWeighed, "always")

    async def stop_query(self, query: QueryId) -> None:
        """End a query, and drop its results. The name is as in show_query()."""
        await self._ask(StopQuery(query=query), Done)

    async def adopt_query(self, query: QueryId) -> None:
        """Have the backup of its results go on with a query whose peer is gone. The name is as in show_query()."""
        await self._ask(AdoptQuery(query=query), Done)

    # Between us and the peer.

    async def _definition_now(self, name: StreamName) -> StreamDefinition:
        return (await self.stream(name)).definition

    async def _definition(self, name: StreamName) -> StreamDefinition:
        if name not in self._definitions:
            async with self._lookups[name]:  # Concurrent callers wait for one answer.
                if name not in self._definitions:
                    await self.stream(name)
        return self._definitions[name]

    async def _ask(self, command: Command, expected: type[_Answer], repeat: Repeat = "never") -> _Answer:
        answer = await self._session.ask(command, repeat)
        assert isinstance(answer, expected), f"{type(command).__name__} was answered with {answer}"
        self._witness(getattr(answer, "stamp", 0))
        return answer

    def _witness(self, stamp: Stamp) -> Stamp:
        self._latest = max(self._latest, stamp)
        return self._latest


def _with_a_peer(data: DataDir) -> DataDir:
    """The directory itself or, if it holds only embedded peers, the first one that runs."""
    if not data.network_file.exists() and (running := data.embedded_running()):
        return data.embedded(running[0])
    return data
