"""Messages, records, commands and answers of queries in execution.

client ── SUBMIT ──▶ proxy ── DEPLOY ──▶ host ── DEPLOYED | DEPLOY_REFUSED ──▶ proxy
                     host ── FLOW ──▶ host of the next subgraph ── FLOWED ──▶ host
                     proxy ── LEASE, UNDEPLOY ──▶ host ── SUBGRAPH_STATUS ──▶ proxy
                     proxy ── PREPARE ──▶ host to be ── PREPARED ──▶ proxy

The proxy is the peer a query was submitted at. What hosts keep is soft: everything between the streams a query reads
and the stream of its results can be computed again, so a query that loses a host starts its next attempt.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from protocols.clock import Stamp
from protocols.delivery.messages import Origin
from protocols.ids import Millis, PeerId, StreamName
from protocols.messages import Answer, Command, Message, Record
from queries.plan import Operator
from queries.schema import Schema

QueryId = str
Skew = Literal["auto", "split", "whole"]  # Values of a join that bring much: spread where it matters, always, never.
SKEWS: Final[tuple[Skew, ...]] = get_args(Skew)
Engine = Literal["inline", "spark", "sai", "dai-q", "dai-t", "dai-v"]  # The last four are the join index's.
PlacementName = Literal["auto", "baseline", "edge", "edge+", "in-network", "exact"]


class Reach(msgspec.Struct, frozen=True, array_like=True):
    """A place in what a source of a query reads of one origin. Two sources of one stream have each their own."""

    alias: str
    origin: Origin
    next: int


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far the streams at the bottom of a query have gone into what was handed on."""

    covers: tuple[Reach, ...] = ()  # Everything below has had its effect.
    lows: tuple[Reach, ...] = ()  # Nothing below has any effect on what is still to come.
    watermark_us: int | None = None  # No row before this time is to come, but for late ones.
    floor_us: int | None = None  # As the watermark, but held back by silent streams, too.
    is_idle: bool = False  # The streams are silent: they hold nobody's watermark back.


class StreamInput(msgspec.Struct, frozen=True, array_like=True, tag="stream", tag_field="node"):
    """A source of a subgraph that is a stream of the network."""

    alias: str
    stream: StreamName
    since: Stamp
    event_time: str | None
    lateness_ms: Millis
    known: tuple[Origin, ...] = ()  # Who publishes to it, if it is on disk.


class FlowInput(msgspec.Struct, frozen=True, array_like=True, tag="flow", tag_field="node"):
    """A source of a subgraph that is the result of another subgraph of the same query."""

    alias: str
    subgraph: int
    is_mixed: bool = False  # The last field of its rows says which are new.


Input = StreamInput | FlowInput


class Subgraph(msgspec.Struct, frozen=True, array_like=True):
    """The operators of a query that sit together on one peer; without a consumer they make the query's results."""

    number: int
    plan: Operator
    inputs: tuple[Input, ...]
    engine: Engine
    consumer: int | None = None  # The subgraph that reads it.
    consumer_alias: str = ""
    derived: StreamName = ""  # The name of what it makes for its consumer, whichever query wants it.
    tells_old: bool = False  # What comes of old rows alone, too; the last field of its rows says which are new.
    skew: Skew = "auto"  # In the join index.
    is_open: bool = False  # There it may run by another algorithm than `engine`, which nobody asked for.
    replicas: int = 0  # Rewriters of each of its attributes there; 0: as many as the streams need.


# From peer to peer.


class Deploy(Message, frozen=True, kw_only=True, tag="DEPLOY"):
    """Run a subgraph, in this attempt of its query; earlier attempts are over."""

    query: StreamName  # Here and in all that hosts hear: of its results, as two peers may have queries of one name.
    attempt: int
    subgraph: Subgraph
    consumer_host: PeerId | None
    resume: Progress  # Rows below its covers are for state only; results made of them alone are known already.


class Deployed(Message, frozen=True, kw_only=True, tag="DEPLOYED"):
    """The subgraph runs: from now on no row is missed."""

    query: StreamName
    attempt: int
    number: int
    life: Millis  # When it was taken in: a host that forgot it, and took it in again, is not where it was.


class DeployRefused(Message, frozen=True, kw_only=True, tag="DEPLOY_REFUSED"):
    """The subgraph does not run here, or no longer."""

    query: StreamName
    attempt: int
    number: int
    reason: str


class Undeploy(Message, frozen=True, kw_only=True, tag="UNDEPLOY"):
    """Attempts up to this one of a query are over."""

    query: StreamName
    attempt: int


class Prepare(Message, frozen=True, kw_only=True, tag="PREPARE"):
    """Have your engine ready: a part of the query is to move to you. Asked until it is answered."""

    query: StreamName
    attempt: int  # That runs on elsewhere meanwhile.


class Prepared(Message, frozen=True, kw_only=True, tag="PREPARED"):
    """The engine is ready; or it cannot be, for a reason."""

    query: StreamName
    attempt: int
    reason: str = ""


class Lease(Message, frozen=True, kw_only=True, tag="LEASE"):
    """The query is wanted still; a host that hears nothing for a while gives up its subgraphs."""

    query: StreamName
    attempt: int


class Flow(Message, frozen=True, kw_only=True, tag="FLOW"):
    """Rows from one subgraph to the next, in order, and how far its inputs have gone into them."""

    query: StreamName
    attempt: int
    subgraph: int  # The one that made them,
    life: Millis  # in this life.
    sequence: int
    rows: bytes
    count: int
    is_new: bool  # Else the consumer needs them for its state only.
    progress: Progress
    is_whole: bool  # Else more is to come of what `progress` covers, or it is a part of what a later one says.


class Flowed(Message, frozen=True, kw_only=True, tag="FLOWED"):
    """Everything below `sequence` has had its effect at the consumer."""

    query: StreamName
    attempt: int
    subgraph: int
    sequence: int


class InputStatus(msgspec.Struct, frozen=True, array_like=True):
    """One input of a running subgraph, for people to look at."""

    alias: str
    rows: int
    late: int
    watermark_us: int | None
    is_idle: bool
    missed: int = 0  # Tuples that came and went before they could be read.


class RewriterStatus(msgspec.Struct, frozen=True, array_like=True):
    """One of the peers that rewrite a query in the join index, or only read for it."""

    alias: str
    attribute: str
    peer: PeerId
    rewrites: bool
    replica: int = 0  # Of so many that share the tuples of this side.
    replicas: int = 1
    tuples: int = 0  # Read there.


class IndexStatus(msgspec.Struct, frozen=True, array_like=True):
    """A query in the join index, for people to look at."""

    rewriters: tuple[RewriterStatus, ...]
    evaluators: tuple[PeerId, ...]  # That may have something of it,
    used: int  # and how many have.
    parts: int  # That tuples have become: JOIN and VL_INDEX.
    algorithm: str = ""
    why: str = ""  # By that one.
    heavy: tuple[tuple[str, int], ...] = ()  # Values that have several evaluators, and how many.


class SubgraphStatus(Message, frozen=True, kw_only=True, tag="SUBGRAPH_STATUS"):
    """What a host tells the proxy now and then: that it lives, and how its subgraph is doing."""

    query: StreamName
    attempt: int
    number: int
    life: Millis
    rows_in: int
    rows_out: int
    waiting: int  # Inputs taken whose results are not handed on yet.
    inputs: tuple[InputStatus, ...]
    progress: Progress
    state_rows: int | None = 0  # What its engine keeps; None: it has not said yet.
    index: IndexStatus | None = None


# In the journal.


class QueryInstalled(Record, frozen=True, kw_only=True, tag="QUERY"):
    """A query submitted here: before anything is made for it, once it is acknowledged, when nothing is left of it."""

    query: QueryId
    text: str
    engine: str
    inserted_at: Stamp
    stream: StreamName
    state: Literal["begun", "acknowledged", "ended"]
    placement: PlacementName = "auto"
    within_ms: float | None = None
    statistics: str = ""


class ResultsNoted(Record, frozen=True, kw_only=True, tag="RESULTS"):
    """What the results of a query up to `next` of its stream are made of. Written before them; void without them."""

    query: QueryId
    next: int
    progress: Progress
    beyond: tuple[bytes, ...] = ()  # Digests of results told beyond that, of a group too large for one batch.


# Between a client and its peer.


class SubmitQuery(Command, frozen=True, kw_only=True, tag="SUBMIT"):
    """Run a continuous query. Answered with QueryAccepted once no tuple can be missed."""

    text: str
    name: QueryId = ""
    engine: Literal["auto"] | Engine = "auto"
    witness: Stamp = 0
    placement: PlacementName = "auto"  # Who decides where its operators run; auto: what its text says, or the optimum.
    within_ms: float | None = None  # No tuple may be longer under way to the subscriber's peer.
    only_plan: bool = False  # Do not run it; answered with QueryPlanned: who would.
    statistics: str = ""  # Of its streams, as queries/statistics.py writes them: for those that say nothing themselves.


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
    known: tuple[Origin, ...] = ()  # Who publishes them: whoever reads them at this peer need not look it up.


class StopQuery(Command, frozen=True, kw_only=True, tag="STOP"):
    """End a query of this peer and drop its results. Answered with Done."""

    query: QueryId


class ListQueries(Command, frozen=True, kw_only=True, tag="LIST_QUERIES"):
    """Which queries were submitted at this peer?"""


class QueryListed(msgspec.Struct, frozen=True, array_like=True):
    """One query in a list."""

    query: QueryId
    stream: StreamName  # Of its results.
    text: str
    state: str  # starting | running | waiting
    attempt: int
    rows_out: int
    inserted_at: Stamp


class QueriesListed(Answer, frozen=True, kw_only=True, tag="QUERIES"):
    """The queries of this peer, oldest first."""

    queries: tuple[QueryListed, ...]


class ShowQuery(Command, frozen=True, kw_only=True, tag="SHOW_QUERY"):
    """Tell all about one query."""

    query: QueryId


class SubgraphShown(msgspec.Struct, frozen=True, array_like=True):
    """One subgraph of a query: what it runs, where, and how it is doing."""

    subgraph: Subgraph
    host: PeerId
    status: SubgraphStatus | None


class Move(msgspec.Struct, frozen=True, array_like=True):
    """What has state went from one peer to another, or what narrows a source did; or it was to, and did not."""

    at: Millis
    before: PeerId
    after: PeerId
    why: str
    is_given_up: bool = False


class QueryPlanned(Answer, frozen=True, kw_only=True, tag="PLANNED"):
    """Who would run the subgraphs of a query, submitted now, and why they."""

    subgraphs: tuple[SubgraphShown, ...]
    why: str


class QueryShown(Answer, frozen=True, kw_only=True, tag="QUERY_SHOWN"):
    """One query, its subgraphs and why it is in the attempt it is in."""

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
    why: str = ""  # It runs where it does.
    moves: tuple[Move, ...] = ()
    preparing: tuple[PeerId, ...] = ()  # Whose engines it waits for, to move there.


class WeighQuery(Command, frozen=True, kw_only=True, tag="WEIGH_QUERY"):
    """Where would this query run, and what would each placement cost? Nothing is run."""

    text: str
    within_ms: float | None = None


class PartPlaced(msgspec.Struct, frozen=True, array_like=True):
    """A part of a query and its host."""

    part: str
    host: PeerId


class Weighed(msgspec.Struct, frozen=True, array_like=True):
    """What one algorithm would do; without parts, it finds no placement within the bound."""

    algorithm: str
    cost: float | None  # Bytes under way between peers.
    delay_ms: float | None
    stretch: float | None
    parts: tuple[PartPlaced, ...]


class QueryWeighed(Answer, frozen=True, kw_only=True, tag="QUERY_WEIGHED"):
    """The placements of a query on this network."""

    placement: PlacementName
    chosen: tuple[PartPlaced, ...]
    why: str
    peers: int  # That were looked at,
    engines: int  # and those of them that can run what has state.
    betas: tuple[tuple[str, float], ...]  # What flows out of each part, in bytes per second.
    options: tuple[Weighed, ...]
