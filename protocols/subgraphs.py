"""Subgraphs of queries: what they are, how far they have come, and what a proxy and its hosts say about them.

proxy ── DEPLOY ──▶ host ── DEPLOYED | DEPLOY_REFUSED ──▶ proxy
                    host ── FLOW ──▶ host of the next subgraph ── FLOWED ──▶ host
proxy ── LEASE, UNDEPLOY ──▶ host ── SUBGRAPH_STATUS ──▶ proxy
proxy ── PREPARE ──▶ host to be ── PREPARED ──▶ proxy

The proxy is the peer a query was submitted at. A host keeps soft state only: everything between the streams a query
reads and the stream of its results can be computed again, so a query that loses a host starts its next attempt.

Proxies (`execution/proxy.py`), hosts (`execution/executor.py`) and the join index import this module; it imports none
of them. In all of it `query` is the name of the stream of the query's results: two peers may each have a query "q".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal, get_args

import msgspec

from protocols.clock import Stamp
from protocols.delivery.messages import Origin, count_rows
from protocols.demand import Demand, Lack
from protocols.errors import expect
from protocols.events import Event
from protocols.ids import Count, Micros, Millis, PeerId, StreamName
from protocols.messages import Message
from queries.plan import Operator
from queries.schema import Row, Schema

Algorithm = Literal["sai", "dai-q", "dai-t", "dai-v"]
"""The algorithms of the join index, by the paper's names."""
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)
Skew = Literal["auto", "split", "whole"]
"""Whether a frequent value of a join gets several evaluators: where it pays (auto), always (split), never (whole)."""
SKEWS: Final[tuple[Skew, ...]] = get_args(Skew)
Sharing = Literal["auto", "off"]
"""Whether a host reads a stream for a query together with others (auto), or for it alone."""
PATIENCE_MS: Final = 60_000  # How long a query waits for a publisher that is not heard of, unless it says otherwise.
DIGEST_BYTES: Final = 16
_ONE_ROW: Final = msgspec.msgpack.encode([None])[:1]  # How a batch of one row begins.
_raw_rows: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


# Engines.


class Inline(msgspec.Struct, frozen=True, array_like=True, tag="inline"):
    """The daemon itself runs the subgraph, which has no state but windows of time."""

    @property
    def name(self) -> str:
        return "inline"


class Spark(msgspec.Struct, frozen=True, array_like=True, tag="spark"):
    """The Spark of the host runs the subgraph."""

    @property
    def name(self) -> str:
        return "spark"


class Indexed(msgspec.Struct, frozen=True, array_like=True, tag="indexed"):
    """The join index runs the subgraph, at the peers that its keys lead to."""

    algorithm: Algorithm
    skew: Skew = "auto"
    is_open: bool = False  # Nobody asked for the algorithm: the index may take a better one.
    replicas: Count = 0  # Rewriters of each attribute; 0: as many as the streams need.

    @property
    def name(self) -> str:
        return self.algorithm


Engine = Inline | Spark | Indexed


# How far inputs have come.


class Reach(msgspec.Struct, frozen=True, array_like=True):
    """How far one source of a query has read one origin: all below `next`. Two sources of one stream have one each."""

    alias: str
    origin: Origin
    next: Count


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Which rows of the query's streams are accounted for in what was handed on so far."""

    covers: tuple[Reach, ...] = ()  # Every row below has had its effect on the results.
    lows: tuple[Reach, ...] = ()  # Replay begins here: no row below can affect a result that is still to come.
    watermark_us: Micros | None = None  # No row before this time is to come, except late ones.
    floor_us: Micros | None = None  # Like the watermark, but silent streams hold it back, too.
    is_idle: bool = False  # The streams are silent: consumers leave this flow out of their watermark.
    has_finished: bool = False  # All publishers have finished: the last windows can close.


NOTHING: Final = Progress()


@dataclass(slots=True)
class Vector:
    """A position for each source and origin; it only moves forward."""

    next: dict[tuple[str, Origin], int] = field(default_factory=dict)

    @classmethod
    def of(cls, reaches: tuple[Reach, ...]) -> Vector:
        return cls({(reach.alias, reach.origin): reach.next for reach in reaches})

    def advance(self, reaches: tuple[Reach, ...]) -> None:
        for reach in reaches:
            if reach.next > self.next.get((reach.alias, reach.origin), 0):
                self.next[reach.alias, reach.origin] = reach.next

    def reaches(self) -> tuple[Reach, ...]:
        return tuple(Reach(alias, origin, upto) for (alias, origin), upto in self.next.items())


def merged(before: Progress, after: Progress) -> Progress:
    """Two reports of one flow made into one."""
    if before is NOTHING:
        return after
    covers, lows = Vector.of(before.covers), Vector.of(before.lows)
    covers.advance(after.covers)
    lows.advance(after.lows)
    watermark_us = later(before.watermark_us, after.watermark_us)
    floor_us = later(before.floor_us, after.floor_us)
    return Progress(covers.reaches(), lows.reaches(), watermark_us, floor_us, after.is_idle, after.has_finished)


def later(a: int | None, b: int | None) -> int | None:
    """The later of two times, each of which may be unknown."""
    return max((time for time in (a, b) if time is not None), default=None)


# What a host is to run.


class StreamInput(msgspec.Struct, frozen=True, array_like=True, tag="stream", tag_field="node"):
    """A source of a subgraph that is a stream of the network."""

    alias: str
    stream: StreamName
    since: Stamp
    event_time: str | None
    lateness_ms: Millis
    known: tuple[Origin, ...] = ()  # Its publishers, if they keep it on disk; otherwise empty.
    patience_ms: Millis = PATIENCE_MS  # How long to wait for a publisher that is not heard of.
    sharing: Sharing = "auto"


class FlowInput(msgspec.Struct, frozen=True, array_like=True, tag="flow", tag_field="node"):
    """A source of a subgraph that is the result of another subgraph of the same query."""

    alias: str
    subgraph: Count
    is_mixed: bool = False  # Its rows end with whether they are new.
    maker: PeerId | None = None  # The host of that subgraph. None: an older proxy sent it; whoever is first makes it.


Input = StreamInput | FlowInput


class Subgraph(msgspec.Struct, frozen=True, array_like=True):
    """The operators of a query that run together on one peer; without a consumer they make the query's results."""

    number: Count
    plan: Operator
    inputs: tuple[Input, ...]
    engine: Engine
    consumer: Count | None = None  # The subgraph that reads it.
    consumer_alias: str = ""
    derived: StreamName = ""  # The name of what it makes for its consumer: the same in every query that wants it.
    tells_old: bool = False  # It hands on results of old rows alone, too: its rows end with whether they are new.
    is_timed: bool = True  # It, or what it feeds, has state and goes by watermarks.


# From peer to peer.


class Deploy(Message, frozen=True, kw_only=True, tag="DEPLOY"):
    """Run a subgraph in this attempt of its query; earlier attempts are over."""

    query: StreamName
    attempt: Count
    subgraph: Subgraph
    consumer_host: PeerId | None
    resume: Progress  # Rows below its covers are old. They are for state only: results of old rows alone are known.
    demand: Demand | None = None  # None: an older proxy, or nobody knows; then it is admitted.
    is_accepted: bool = False  # Its client was told that the query runs: it is admitted first, and in any case.

    def check(self) -> None:
        subgraph = self.subgraph
        is_whole = self.demand is None or len(self.demand.inputs) == len(subgraph.inputs)
        expect(is_whole, "a demand for other inputs than the subgraph has")
        expect((subgraph.consumer is None) == (self.consumer_host is None), "a consumer without its host")
        aliases = [each.alias for each in subgraph.inputs]
        expect(bool(aliases), "a subgraph without inputs")
        expect(len(set(aliases)) == len(aliases), "a subgraph with two inputs of one name")
        flows = [each.subgraph for each in subgraph.inputs if isinstance(each, FlowInput)]
        expect(len(set(flows)) == len(flows), "a subgraph that reads another one twice")


class Deployed(Message, frozen=True, kw_only=True, tag="DEPLOYED"):
    """The subgraph runs: from now on no row is missed."""

    query: StreamName
    attempt: Count
    number: Count
    life: Millis  # Its incarnation: when the host took it in. After a restart of the host it is another.


class DeployRefused(Message, frozen=True, kw_only=True, tag="DEPLOY_REFUSED"):
    """The subgraph does not run here, or has stopped running here."""

    query: StreamName
    attempt: Count
    number: Count
    reason: str
    is_too_large: bool = False  # It has more state than the daemon keeps; an engine of its own may have room.
    lack: Lack | None = None  # The host has no room for it, and says of what.


class Undeploy(Message, frozen=True, kw_only=True, tag="UNDEPLOY"):
    """Attempts up to this one of a query are over."""

    query: StreamName
    attempt: Count


class Prepare(Message, frozen=True, kw_only=True, tag="PREPARE"):
    """Have your engine ready: a part of the query is to move to you. Sent again until it is answered."""

    query: StreamName
    attempt: Count  # The one that runs on elsewhere meanwhile.


class Prepared(Message, frozen=True, kw_only=True, tag="PREPARED"):
    """The engine is ready; or it cannot be, for a reason."""

    query: StreamName
    attempt: Count
    reason: str = ""


class Lease(Message, frozen=True, kw_only=True, tag="LEASE"):
    """The query is still wanted; a host whose lease runs out gives up its subgraphs."""

    query: StreamName
    attempt: Count


class Flow(Message, frozen=True, kw_only=True, tag="FLOW"):
    """Rows from one subgraph to the next, in order, and the progress of its inputs that they account for."""

    query: StreamName
    attempt: Count
    subgraph: Count  # The one that made them.
    life: Millis  # The incarnation of that subgraph.
    sequence: Count
    rows: bytes
    count: Count
    is_new: bool  # Otherwise they are old: the consumer needs them for its state only.
    progress: Progress
    is_whole: bool  # False: more parts of the batch follow (the last has the progress), or its maker still replays.

    def check(self) -> None:
        expect(count_rows(self.rows) == self.count, "a flow whose rows are not as many as it says, or cannot be read")


class Flowed(Message, frozen=True, kw_only=True, tag="FLOWED"):
    """Everything below `sequence` has had its effect at the consumer."""

    query: StreamName
    attempt: Count
    subgraph: Count
    sequence: Count


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """The publisher that holds a watermark back."""

    publisher: PeerId
    unheard_ms: Millis  # For how long neither tuples nor heartbeats of it have come.
    has_rows: bool  # Some of its tuples were read in this attempt.


class InputStatus(msgspec.Struct, frozen=True, array_like=True):
    """One input of a running subgraph, for people to look at."""

    alias: str
    rows: Count
    late: Count
    watermark_us: Micros | None
    is_idle: bool
    missed: Count = 0  # Tuples that expired before they could be read.
    hold: Hold | None = None
    left_out: tuple[PeerId, ...] = ()  # Publishers that were silent for too long to be waited for.
    has_finished: bool = False
    unfit: Count = 0  # Tuples with decimals that an earlier release accepted and no query reads.
    # How many other inputs at this host get the stream from the same reading. None: it reads alone, or reads a flow.
    others: Count | None = None


class RewriterStatus(msgspec.Struct, frozen=True, array_like=True):
    """One of the peers that rewrite a query in the join index, or only read for it."""

    alias: str
    attribute: str
    peer: PeerId
    rewrites: bool
    replica: Count = 0  # Of `replicas` that share the tuples of this side.
    replicas: Count = 1
    tuples: Count = 0  # Read there.


class IndexStatus(msgspec.Struct, frozen=True, array_like=True):
    """A query in the join index, for people to look at."""

    rewriters: tuple[RewriterStatus, ...]
    evaluators: tuple[PeerId, ...]  # Those that may hold a part of it.
    used: Count  # How many evaluators do.
    parts: Count  # JOIN and VL_INDEX that its tuples have become.
    algorithm: str = ""
    why: str = ""  # The reason for that algorithm.
    heavy: tuple[tuple[str, Count], ...] = ()  # Values that have several evaluators, and how many.


class SubgraphStatus(Message, frozen=True, kw_only=True, tag="SUBGRAPH_STATUS"):
    """What a host tells the proxy once a second: that it lives, and how its subgraph is doing."""

    query: StreamName
    attempt: Count
    number: Count
    life: Millis
    rows_in: Count
    rows_out: Count
    waiting: Count  # Inputs taken whose results are not handed on yet.
    inputs: tuple[InputStatus, ...]
    progress: Progress
    state_rows: Count | None = 0  # What its engine keeps; None: it has not said yet.
    index: IndexStatus | None = None
    # How many other runs at this host put their windows together from the same slices. None: it has no windows there.
    windows_with: Count | None = None


# Between the host of the last subgraph and the proxy, which are one peer.


class ResultsReady(Event, frozen=True):
    """The last subgraph of a query has results. They are safe once the proxy has put them into the query's stream."""

    query: StreamName
    attempt: int
    rows: Sequence[Row]
    progress: Progress | None  # None: what they cover is not known yet.
    beyond: Sequence[bytes] = ()  # Digests of what `progress` does not cover; without progress, of `rows`.


class ResultsSafe(Event, frozen=True):
    """The proxy has put one more ResultsReady into the query's stream: the inputs may be acknowledged."""

    query: StreamName
    attempt: int


class AttemptLost(Event, frozen=True):
    """Something that a query needs at another peer is gone."""

    query: StreamName
    attempt: int
    reason: str


def digest_of(schema: Schema, row: Row) -> bytes:
    """The digest that a result is remembered by until the progress of its query covers it."""
    return digests_of(schema.encode([row]))[0]


def digests_of(rows: bytes) -> list[bytes]:
    """`digest_of` each row of an encoded batch, without decoding the rows."""
    return [sha256(_ONE_ROW + row).digest()[:DIGEST_BYTES] for row in _raw_rows.decode(rows)]


def first_proxy(query: StreamName) -> str:
    """Whom the stream of a query's results names: the beginning of the id of the peer that it was submitted at.

    >>> first_proxy("delays.19c8-3f9a77c0-2"), first_proxy("flights")
    ('3f9a77c0', '')
    """
    parts = query.rpartition(".")[2].split("-")
    return parts[1] if len(parts) == 3 else ""
