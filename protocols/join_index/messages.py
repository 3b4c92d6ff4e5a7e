"""Messages of the join index, named as in the paper.

subscriber ── QUERY, KEEP_QUERIES, REMOVE_QUERY ──▶ rewriter ── QUERY_INDEXED, QUERY_REFUSED, QUERY_LOST ──▶ subscriber
stream ── BATCH ──▶ rewriter ── PARCEL ──▶ evaluator ── RECEIPT ──▶ rewriter ── COVERED ──▶ subscriber
evaluator ── JOIN_RESULTS ──▶ subscriber ── NOTIFIED ──▶ evaluator

Peers and messages can get lost. So a rewriter reads tuples from the log of their stream, and sends them on in numbered
parcels that evaluators acknowledge. A parcel carries what the paper sends as JOIN and VL_INDEX (experiments/cqdht).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from protocols.clock import Stamp
from protocols.delivery.messages import Origin, Position
from protocols.ids import Millis, PeerId, StreamName
from protocols.messages import Message
from protocols.subgraphs import Algorithm, Reach
from queries.plan import Operator
from queries.schema import Schema

QueryId = str
Side = Literal[0, 1]  # Of a join: left or right.
LEFT: Final[Side] = 0
RIGHT: Final[Side] = 1
ValueText = str  # A value as keys have it: equal values have equal texts, whatever their types. Empty: null.


class Attribute(msgspec.Struct, frozen=True, array_like=True):
    """An attribute of a relation; its path is longer than one name inside records."""

    relation: StreamName
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.relation, *self.path))


class JoinQuery(msgspec.Struct, frozen=True, array_like=True):
    """A continuous equi-join, and insT: when it was posed. Tuples published earlier do not trigger it."""

    id: QueryId
    subscriber: PeerId
    inserted_at: Stamp
    algorithm: Algorithm
    plan: Operator
    retention_ms: Millis  # Tuples further apart than this need not meet, where no window says less.
    known: tuple[Reach, ...] = ()  # Two tuples that are both below these have met already: their result is known.
    life: Millis = 0  # Of the subscriber: what is told to it is numbered for each of its lives.
    late_ms: Millis = 0  # How long after its window, or after it came, a tuple is kept for one that is late.


class Heavy(msgspec.Struct, frozen=True, array_like=True):
    """A value, at an attribute or in DAI-V, whose evaluators form a grid."""

    at: Attribute | None
    value: ValueText
    rows: int
    columns: int


class Query(Message, frozen=True, kw_only=True, tag="QUERY"):
    """Index a query by one of its sides, at one of the rewriters of an attribute."""

    query: JoinQuery
    side: Side
    replica: int
    rewrites: bool = True  # Else its tuples only go to their evaluators: SAI rewrites by one side.
    evaluators: tuple[PeerId, ...] = ()  # Of these the nearest to a value's key evaluates it; none: the nearest of all.
    heavy: tuple[Heavy, ...] = ()  # Values that have several. All this is the same on both sides.
    replicas: int = 1  # The rewriters of this side, of which each reads a share of the publishers.


class QueryIndexed(Message, frozen=True, kw_only=True, tag="QUERY_INDEXED"):
    """From now on no tuple published after the query passes it by here."""

    query: QueryId
    side: Side
    replica: int
    reader: str = ""  # What of COVERED is about it: of this reader,
    report: int = 0  # from this number on.


class QueryRefused(Message, frozen=True, kw_only=True, tag="QUERY_REFUSED"):
    """The query is not kept here."""

    query: QueryId
    reason: str


class RemoveQuery(Message, frozen=True, kw_only=True, tag="REMOVE_QUERY"):
    """The query is over: forget it, and have its evaluators forget it."""

    query: QueryId


class Load(msgspec.Struct, frozen=True, array_like=True):
    """Tuples of one batch for one evaluator: VL_INDEX of each, or JOIN of each for all queries of a group."""

    at: Attribute | None  # Where they go: the values of this attribute; None: DAI-V, where a value is enough.
    group: bytes  # Of queries, equal in their join condition: the tuples are its triggers. Empty: they are tuples.
    side: Side  # That the triggers take.
    schema: Schema
    origin: Origin
    published_at: Stamp
    sequences: tuple[int, ...]
    values: tuple[ValueText, ...]
    rows: bytes  # A batch of them.


class Parcel(Message, frozen=True, kw_only=True, tag="PARCEL"):
    """What the attribute level of one peer has for the value level of another; without loads: are you still there?"""

    number: int
    loads: tuple[Load, ...] = ()
    queries: tuple[JoinQuery, ...] = ()  # To be known there before the loads are unpacked,
    over: tuple[QueryId, ...] = ()  # those that their subscriber has ended,
    released: tuple[QueryId, ...] = ()  # and those that the sender has let go: others may still bring them.
    counts_on: bool = False  # What the value level has of it. Else: the sender is a subscriber.
    after: int = 0  # A parcel with queries that must have been unpacked before,
    settled: int = 0  # and the lowest number of one that may come again.


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """How many times an evaluator, in one life, has told a subscriber results."""

    peer: PeerId
    life: Millis
    sequence: int


class Told(msgspec.Struct, frozen=True, array_like=True):
    """The number of what was last told to a subscriber, in one life of it."""

    subscriber: PeerId
    life: Millis
    sequence: int


class Receipt(Message, frozen=True, kw_only=True, tag="RECEIPT"):
    """The parcel is unpacked; results that came of it have left with these numbers, or lower ones."""

    number: int
    life: Millis  # It began when the evaluator had nothing. What it got in an earlier one is lost.
    told: tuple[Told, ...] = ()
    refused: str = ""  # Why some of it was not kept.


class Results(msgspec.Struct, frozen=True, array_like=True):
    """Results of one query: rows as the schema of the result writes them, and the two tuples that made each."""

    query: QueryId
    origins: tuple[Origin, ...]
    made_of: tuple[int, ...]  # Four numbers for a row: origin, by its place above, and sequence of left and of right.
    rows: bytes


class JoinResults(Message, frozen=True, kw_only=True, tag="JOIN_RESULTS"):
    """Results for queries of one subscriber; NOTIFY among peers that may forget."""

    life: Millis  # Of the evaluator.
    subscriber_life: Millis
    sequence: int  # Among all that is told to this life of the subscriber: from 1, none is left out.
    results: tuple[Results, ...]
    late: tuple[QueryId, ...] = ()  # Queries for which a tuple came too late: what it might have met is gone.


class Notified(Message, frozen=True, kw_only=True, tag="NOTIFIED"):
    """These results have arrived."""

    subscriber_life: Millis
    sequence: int


class KeepQueries(Message, frozen=True, kw_only=True, tag="KEEP_QUERIES"):
    """These sides of queries are wanted still; who hears nothing for a while forgets them."""

    queries: tuple[tuple[QueryId, Side, int], ...]  # And by which replica.


class QueryLost(Message, frozen=True, kw_only=True, tag="QUERY_LOST"):
    """Something that the query needs is gone: it has to be posed anew."""

    query: QueryId
    reason: str
    culprit: PeerId | None = None  # The evaluator that is better left out.


class Covered(Message, frozen=True, kw_only=True, tag="COVERED"):
    """How far a reader's tuples have had their effect, for a subscriber that has been told as much as this.

    It holds for all queries that were said to be indexed with this reader, but for those that it has forgotten.
    """

    reader: str
    report: int  # The reader's how many-th.
    tuples: int  # Read so far,
    messages: int  # and what became of them: JOIN and VL_INDEX.
    covers: tuple[Position, ...]
    heard: tuple[Heard, ...]  # All evaluators that have something of it.
    forgotten: tuple[QueryId, ...] = ()
    subscriber_life: Millis = 0  # Whose results these numbers count: an earlier one may not have left yet.
