"""Records, commands and answers of queries: what their proxy writes to its journal and says to clients.

client ── SUBMIT ──▶ proxy ── STARTING, ACCEPTED | REFUSED ──▶ client
peer of a client ── ASK_PROXY ──▶ proxy ── PROXY_ANSWER ──▶ peer of the client

`protocols/subgraphs.py` has what proxies and hosts say to each other.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from protocols.clock import Stamp
from protocols.delivery.messages import Origin
from protocols.errors import expect
from protocols.events import Event
from protocols.ids import COUNT_MAX, MILLIS_MAX, NAME_MAX, Count, Millis, PeerId, RequestId, StreamName
from protocols.messages import Answer, Command, Done, Message, Record, Refused
from protocols.subgraphs import Algorithm, Progress, Subgraph, SubgraphStatus
from queries.schema import Schema

QueryId = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
EngineName = Literal["auto", "inline", "spark", Algorithm]
"""What a client may ask for; the algorithms are those of the join index."""
PlacementName = Literal["auto", "baseline", "edge", "edge+", "in-network", "exact"]

ResultsDurability = Literal["auto", "disk", "replicated"]
"""Where the results are before anybody reads them; auto: as the text says, else on the proxy's disk."""


# In the journal.


class StreamVersion(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a stream that a query was planned with; it keeps them, whatever is added."""

    stream: StreamName
    created_at: Stamp
    version: int


class QueryInstalled(Record, frozen=True, kw_only=True, tag="QUERY"):
    """A query submitted here; written before anything is made for it, when it is acknowledged, and when it is gone."""

    query: QueryId
    text: str
    engine: str
    inserted_at: Stamp
    stream: StreamName
    state: Literal["begun", "acknowledged", "ended"]
    placement: PlacementName = "auto"
    within_ms: float | None = None
    statistics: str = ""
    since: Stamp | None = None  # It reads what was published from then on; None: from its insertion on.
    owner: str = ""  # Who submitted it, and with whose right it reads; empty for the peer's own user.
    versions: tuple[StreamVersion, ...] | None = None  # Of its streams; None: written by 0.2, which knew no other.
    takeover_ms: Millis = 0  # Its backup takes it over once its proxy has been gone for so long; 0: only when asked to.
    term: Count = 1  # Which of its proxies this is, counted from the first.
    before: Count = 0  # Results that earlier proxies have published.
    base: ResultsNoted | None = None  # What those cover, until a note of this proxy says more.


class ResultsNoted(Record, frozen=True, kw_only=True, tag="RESULTS"):
    """A checkpoint: what the first `next` results of a query's stream cover. Written before them; void without them."""

    query: QueryId
    next: int
    progress: Progress
    beyond: tuple[bytes, ...] = ()  # Digests of those results that `progress` does not cover.
    adds_to: int | None = None  # If set, `beyond` only adds to that of the note with this `next`.
    number: Stamp = 0  # Later notes have higher numbers.


# Between a client and its peer.


class SubmitQuery(Command, frozen=True, kw_only=True, tag="SUBMIT"):
    """Run a continuous query. Answered with QueryAccepted once no tuple can be missed."""

    text: str
    name: QueryId = ""
    engine: EngineName = "auto"
    witness: Stamp = 0
    placement: PlacementName = "auto"  # How its operators are placed; auto: as its text says, else the optimum.
    within_ms: float | None = None  # The bound on the delay of a tuple to the subscriber's peer.
    statistics: str = ""  # Of its streams, as queries/statistics.py writes them. Publishers' own override them.
    since: Literal["now", "start"] | Stamp = "now"  # It reads what its streams have kept from then on, then all new.
    durability: ResultsDurability = "auto"
    takeover_ms: Millis | None = None  # As in QueryInstalled; None: as the text says.


class QueryStarting(Answer, frozen=True, kw_only=True, tag="STARTING"):
    """The query is being deployed; says what it waits for."""

    query: QueryId
    waits_for: str


class QueryAccepted(Answer, frozen=True, kw_only=True, tag="ACCEPTED"):
    """The query runs; its results are the tuples of a stream of their own."""

    query: QueryId
    stream: StreamName
    stamp: Stamp
    schema: Schema
    envelope: tuple[str, ...] = ()  # XML elements around the results of a WXQuery.
    known: tuple[Origin, ...] = ()  # Who publishes the results: a reader at this peer need not look it up.


class StopQuery(Command, frozen=True, kw_only=True, tag="STOP"):
    """End a query and drop its results. Answered with Done."""

    query: QueryId  # The name of one of this peer, else of another; or NAME@PEER, with the beginning of a peer's id.


class AdoptQuery(Command, frozen=True, kw_only=True, tag="ADOPT"):
    """Have a query go on at the backup of its results, because its proxy is gone. Answered with Done."""

    query: QueryId  # As in StopQuery.


class ListQueries(Command, frozen=True, kw_only=True, tag="LIST_QUERIES"):
    """Which queries were submitted at this peer, or everywhere?"""

    everywhere: bool = False


class QueryListed(msgspec.Struct, frozen=True, array_like=True):
    """One query in a list."""

    query: QueryId
    stream: StreamName  # Of its results.
    text: str
    state: str  # starting | running | waiting | ending; of another peer also: proxy is down | not asked
    attempt: int
    rows_out: int
    inserted_at: Stamp
    proxy: PeerId | None = None


class QueriesListed(Answer, frozen=True, kw_only=True, tag="QUERIES"):
    """The queries of this peer or of all, oldest first."""

    queries: tuple[QueryListed, ...]
    is_whole: bool = True  # Otherwise these are the oldest of them, as many as fit into one message between peers.


class ShowQuery(Command, frozen=True, kw_only=True, tag="SHOW_QUERY"):
    """Tell all about one query."""

    query: QueryId  # As in StopQuery.


class SubgraphShown(msgspec.Struct, frozen=True, array_like=True):
    """One subgraph of a query: what it runs, where, and how it is doing."""

    subgraph: Subgraph
    host: PeerId
    status: SubgraphStatus | None


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A query moved a part from one peer to another, or gave the move up."""

    at: Millis
    before: PeerId
    after: PeerId
    why: str
    is_given_up: bool = False


class QueryPlanned(Answer, frozen=True, kw_only=True, tag="PLANNED"):
    """Which peers would run the subgraphs of a query if it were submitted now, and why."""

    subgraphs: tuple[SubgraphShown, ...]
    why: str


class QueryShown(Answer, frozen=True, kw_only=True, tag="QUERY_SHOWN"):
    """One query, its subgraphs, and what happened to it."""

    query: QueryId
    stream: StreamName
    text: str
    state: str
    attempt: int
    reason: str  # Why the last attempt ended; empty for the first.
    inserted_at: Stamp
    results: int
    subgraphs: tuple[SubgraphShown, ...]
    envelope: tuple[str, ...] = ()
    dropped: int = 0  # Results that no stream takes, and why the last of them was dropped.
    dropped_for: str = ""
    placement: PlacementName = "auto"
    why: str = ""  # Why it runs where it does.
    moves: tuple[Move, ...] = ()
    preparing: tuple[PeerId, ...] = ()  # Whose engines it waits for, to move there.
    story: tuple[tuple[Millis, str], ...] = ()  # What happened to it lately, and when.
    since: Stamp = 0  # It reads what was published from then on.
    proxy: PeerId | None = None
    durability: str = "disk"  # Of the stream of the results.
    takeover_ms: Millis = 0
    term: Count = 1  # Which of its proxies this is, counted from the first.


class PlanQuery(Command, frozen=True, kw_only=True, tag="PLAN_QUERY"):
    """Who would run this query, submitted now? Nothing is run."""

    text: str
    engine: EngineName = "auto"


class WeighQuery(Command, frozen=True, kw_only=True, tag="WEIGH_QUERY"):
    """Where would this query run, and what would each placement cost? Nothing is run."""

    text: str
    within_ms: float | None = None


class PartPlaced(msgspec.Struct, frozen=True, array_like=True):
    """A part of a query and its host."""

    part: str
    host: PeerId


class Weighed(msgspec.Struct, frozen=True, array_like=True):
    """What one algorithm would do. Without parts: it finds no placement within the bound."""

    algorithm: str
    cost: float | None  # Bytes in transit between peers at any moment.
    delay_ms: float | None
    stretch: float | None
    parts: tuple[PartPlaced, ...]


class QueryWeighed(Answer, frozen=True, kw_only=True, tag="QUERY_WEIGHED"):
    """The placements of a query on this network."""

    placement: PlacementName
    chosen: tuple[PartPlaced, ...]
    why: str
    peers: int  # In the view of the network.
    engines: int  # Peers among them that run Spark.
    betas: tuple[tuple[str, float], ...]  # What flows out of each part, in bytes per second.
    options: tuple[Weighed, ...]
    crowded: tuple[tuple[PeerId, str], ...] = ()  # Peers in the view that say they have no room, and in what.


# Between the peer of a client and the proxy of a query that the client asks about.

NAME_CHARS_MAX: Final = 256


class AskProxy(Message, frozen=True, kw_only=True, tag="ASK_PROXY"):
    """A client of mine asks this of your queries. Repeated until it is answered."""

    number: Stamp  # Given once by the peer that asks.
    command: ShowQuery | StopQuery | ListQueries | AdoptQuery

    def check(self) -> None:
        if isinstance(self.command, ListQueries):
            expect(not self.command.everywhere, "a proxy lists its own queries alone")
        else:
            expect(len(self.command.query) <= NAME_CHARS_MAX, "no query has so long a name")


class ProxyAnswer(Message, frozen=True, kw_only=True, tag="PROXY_ANSWER"):
    """The answer of a proxy, for the client."""

    number: Stamp
    answer: QueryShown | QueriesListed | Done | Refused

    def check(self) -> None:
        match self.answer:
            case QueryShown(attempt=attempt, results=results, dropped=dropped, inserted_at=inserted_at, since=since):
                _expect_counts(attempt, results, dropped, inserted_at, since)
            case QueriesListed(queries=queries):
                for each in queries:
                    _expect_counts(each.attempt, each.rows_out, each.inserted_at)
            case Done(stamp=stamp, replicas=replicas):
                _expect_counts(stamp, replicas)
            case Refused(retry_after_ms=retry_after_ms):
                expect(0 <= retry_after_ms <= MILLIS_MAX, "a refusal until no time")


def _expect_counts(*counts: int) -> None:
    expect(all(0 <= each <= COUNT_MAX for each in counts), "impossible counts")


class NotHere(Event, frozen=True):
    """A client asks about a query that this peer does not have, or about those of all peers."""

    request: RequestId
    command: ShowQuery | StopQuery | ListQueries | AdoptQuery
    known: tuple[QueryId, ...]  # The queries of this peer.
