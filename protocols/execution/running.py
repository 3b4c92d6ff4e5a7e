"""A query as the peer it was submitted at knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from protocols.catalogue.streams import StreamDefinition, stream_key
from protocols.clock import Stamp
from protocols.delivery.messages import Origin
from protocols.execution.cut import Cut
from protocols.execution.messages import (
    QueryAccepted,
    QueryId,
    QueryInstalled,
    QueryListed,
    QueryPlanned,
    QueryShown,
    SubgraphShown,
)
from protocols.execution.moving import Moving
from protocols.execution.placing import Choice, Placing
from protocols.execution.results import QueryResults
from protocols.ids import Key, Millis, PeerId, RequestId, StreamName
from protocols.messages import Record, Refused
from protocols.subgraphs import Deploy, Progress, SubgraphStatus
from queries.catalogue import Stream
from queries.plan import Restructure, Union
from queries.query import Query

RETRY_MIN_MS: Final = 500
NAMES_TRIED: Final = 64  # Each peer of a small network has one of them; some milliseconds.


@dataclass(slots=True)
class Running:
    """A query of this peer."""

    query: QueryId
    text: str
    engine: str
    inserted_at: Stamp
    stream: StreamName  # Of its results.
    results: QueryResults = field(init=False)
    state: str = "starting"  # Then running; waiting after a loss, until the next attempt; ending; ended.
    request: RequestId | None = None  # The client that waits for the acknowledgement.
    only_plan: bool = False  # Nobody wants it run.
    is_begun: bool = False  # The journal knows of it: something may have been made for it.
    is_creating: bool = False  # The stream of its results may be made any moment.
    is_installed: bool = False  # Acknowledged.
    ending_for: RequestId | None = None  # The client that wants it stopped.
    parsed: Query | None = None
    is_join_open: bool = False  # Nobody asked for its algorithm: the join index may take another.
    cut: Cut | None = None
    placing: Placing = field(default_factory=Placing)
    moving: Moving | None = None  # To where it is better placed, once engines are ready there.
    attempt: int = 0
    attempted_at: Millis = 0
    sent_at: Millis = 0
    leased_at: Millis = 0
    reason: str = ""
    retry_at: Millis = 0
    retry_ms: Millis = RETRY_MIN_MS
    is_hasty: bool = False  # The next attempt begins with what was known of its streams in this one.
    deployed: dict[int, Millis] = field(default_factory=dict)  # When each subgraph was last heard of.
    lives: dict[int, Millis] = field(default_factory=dict)
    status: dict[int, SubgraphStatus] = field(default_factory=dict)
    looking_for: dict[str, None] = field(default_factory=dict)  # Streams whose publishers are being looked up.
    likely: int = 0  # Streams that its text seems to name, and that are not looked up yet.
    resumed_from: Progress = field(default_factory=Progress)  # By this attempt.
    publish_at: Millis = 0  # Not before.

    def __post_init__(self) -> None:
        self.results = QueryResults(self.query)

    @property
    def is_refused(self) -> bool:
        """Whoever asked for it was told that it does not run, or went before that; it only has to end."""
        is_wanted = self.is_installed or self.request is not None or self.ending_for is not None
        return self.is_begun and not is_wanted

    @property
    def envelope(self) -> tuple[str, ...]:
        plan = self.parsed.plan if self.parsed is not None else None
        if isinstance(plan, Union):  # Of XML, all branches are in the same elements.
            plan = plan.branches[0]
        return plan.envelope if isinstance(plan, Restructure) else ()

    def deploys(self) -> list[tuple[PeerId, Deploy]]:
        """What its hosts are sent in this attempt. Who reads comes first: rows find it there."""
        assert self.cut is not None
        hosts = dict(zip((each.number for each in self.cut.subgraphs), self.cut.hosts, strict=True))
        return [
            (
                hosts[subgraph.number],
                Deploy(
                    query=self.stream,
                    attempt=self.attempt,
                    subgraph=subgraph,
                    consumer_host=hosts[subgraph.consumer] if subgraph.consumer is not None else None,
                    resume=self.cut.share_of(subgraph, self.resumed_from),
                ),
            )
            for subgraph in reversed(self.cut.subgraphs)
        ]

    def accepted(self, stamp: Stamp, known: tuple[Origin, ...]) -> QueryAccepted:
        assert self.results.schema is not None
        return QueryAccepted(
            query=self.query,
            stream=self.stream,
            stamp=stamp,
            schema=self.results.schema,
            envelope=self.envelope,
            known=known,
        )

    def record(self, state: Literal["begun", "acknowledged", "ended"]) -> QueryInstalled:
        return QueryInstalled(
            query=self.query,
            text=self.text,
            engine=self.engine,
            inserted_at=self.inserted_at,
            stream=self.stream,
            state=state,
            placement=self.placing.placement,
            within_ms=self.placing.within_ms,
            statistics=self.placing.statistics,
        )

    def records(self) -> list[Record]:
        """What a snapshot of the journal tells of it."""
        known = self.record("acknowledged" if self.is_installed else "begun")
        return [known, *self.results.notes] if self.is_begun else []

    def listed(self) -> QueryListed:
        return QueryListed(
            self.query, self.stream, self.text, self.state, self.attempt, self.results.count, self.inserted_at
        )

    def shown(self) -> QueryShown:
        subgraphs: tuple[SubgraphShown, ...] = ()
        if self.cut is not None:
            subgraphs = tuple(
                SubgraphShown(subgraph, host, self.status.get(subgraph.number))
                for subgraph, host in zip(self.cut.subgraphs, self.cut.hosts, strict=True)
            )
        return QueryShown(
            query=self.query,
            stream=self.stream,
            text=self.text,
            state=self.state,
            attempt=self.attempt,
            reason=self.reason,
            inserted_at=self.inserted_at,
            results=self.results.count,
            subgraphs=subgraphs,
            envelope=self.envelope,
            dropped=self.results.dropped,
            dropped_for=self.results.dropped_for,
            placement=self.placing.placement,
            why=self.placing.choice.why if self.placing.choice is not None else "",
            moves=tuple(self.placing.moves),
            preparing=tuple(self.moving.awaited) if self.moving is not None else (),
        )


def planned(made: Cut, choice: Choice) -> QueryPlanned:
    """Who would run what of it."""
    parts = zip(made.subgraphs, made.hosts, strict=True)
    subgraphs = tuple(SubgraphShown(subgraph, host, None) for subgraph, host in parts)
    return QueryPlanned(subgraphs=subgraphs, why=choice.why)


def results_stream(query: QueryId, inserted_at: Stamp, proxy: PeerId, is_nearest: Callable[[Key], bool]) -> StreamName:
    """A name that no other query has, earlier or of another peer; one whose key is ours, if that is soon found.

    Then all that is said of the stream has only to reach the other owners of its key.
    """
    names = [f"{query}.{inserted_at:x}-{proxy.short}-{turn:x}" for turn in range(NAMES_TRIED)]
    return next((name for name in names if is_nearest(stream_key(name))), names[0])


def stream_of(definition: StreamDefinition) -> Stream:
    return Stream(
        definition.name,
        definition.schema,
        definition.event_time,
        definition.lateness_ms,
        definition.retention_ms,
    )


def unknown_query(name: QueryId, known: list[QueryId]) -> Refused:
    there = ", ".join(known[:8]) if known else "none"
    error = f'query "{name}" is not known at this peer'
    return Refused(code="unknown", error=error, detail=f"Queries here: {there}.", hint="peer query ls lists them.")
