"""Messages of the join index, named as in the paper.

publisher ── AL_INDEX ──▶ rewriter ── JOIN ──▶ evaluator ── NOTIFY ──▶ subscriber
publisher ── VL_INDEX ──▶ evaluator ── FINGER ──▶ rewriter
subscriber ── ASK_RATE, QUERY, REMOVE_QUERY ──▶ rewriter ── RATE, QUERY_INDEXED, QUERY_REFUSED ──▶ subscriber
                                                rewriter ── FORGET_QUERY ──▶ evaluator
rewriter ── BUNDLE ──▶ holder of cells ── HANDED_ON, HALVED ──▶ rewriter
                       holder of cells ── ASK_LOAD ──▶ any peer ── PEER_LOAD ──▶ holder ── MOVED ──▶ another holder

Where messages and peers get lost, a peer reads a stream for the attribute level, and what goes on to the value level
travels in parcels, so that each side knows what the other has:

stream ── BATCH ──▶ attribute level ── PARCEL ──▶ value level ── RECEIPT ──▶ attribute level ── COVERED ──▶ subscriber
value level ── JOIN_RESULTS ──▶ subscriber ── NOTIFIED ──▶ value level
subscriber ── KEEP_QUERIES ──▶ attribute level ── QUERY_LOST ──▶ subscriber

A tuple travels with the row as the stream's schema writes it: who keeps it need not understand it.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from protocols.clock import Stamp
from protocols.delivery.messages import Origin, Position
from protocols.execution.messages import Reach
from protocols.ids import Key, Millis, PeerId, StreamName
from protocols.messages import Message
from queries.expressions import Expression, Named
from queries.plan import Operator, Source
from queries.schema import Schema

QueryId = str
Algorithm = Literal["sai", "dai-q", "dai-t", "dai-v"]  # The paper's: those that peers run (role.py).
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)
AnyAlgorithm = Literal["sai", "dai-q", "dai-t", "dai-v", "cells"]  # And ours (cells.py).
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


class CellName(msgspec.Struct, frozen=True, array_like=True):
    """A cell of a value: an attribute, and which part of the queries that open it (cells.py)."""

    at: Attribute
    part: int


class TupleId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Names one tuple for ever."""

    publisher: PeerId
    stream: StreamName
    epoch: Millis
    sequence: int

    @classmethod
    def of(cls, origin: Origin, sequence: int) -> TupleId:
        return cls(origin.publisher, origin.stream, origin.epoch, sequence)

    @property
    def origin(self) -> Origin:
        return Origin(self.publisher, self.stream, self.epoch)


class StreamTuple(msgspec.Struct, frozen=True, array_like=True):
    """One tuple of a relation, and pubT: when it was published."""

    id: TupleId
    published_at: Stamp
    row: bytes  # A batch of one row.


class JoinQuery(msgspec.Struct, frozen=True, array_like=True):
    """A continuous equi-join, and insT: when it was posed. Tuples published earlier do not trigger it."""

    id: QueryId
    subscriber: PeerId
    inserted_at: Stamp
    algorithm: AnyAlgorithm
    plan: Operator
    retention_ms: Millis  # Tuples further apart than this need not meet, where no window says less.
    is_set: bool = False  # Equal results may be told once: so DAI-T sends a rewritten query once, as in the paper.
    known: tuple[Reach, ...] = ()  # Two tuples that are both below these have met already: their result is known.
    life: Millis = 0  # Of the subscriber: what is told to it is numbered for each of its lives.
    late_ms: Millis = 0  # How long after its window, or after it came, a tuple is kept for one that is late.


class Rewritten(msgspec.Struct, frozen=True, array_like=True):
    """A query of which one side has been replaced by the tuple that triggered it."""

    query: JoinQuery
    side: Side  # The side that the trigger takes.


class Notification(msgspec.Struct, frozen=True, array_like=True):
    """One result of a query: what it was made of, and its row as the schema of the result writes it."""

    query: QueryId
    id: str  # Every peer and every replay derives the same.
    sources: tuple[tuple[str, TupleId], ...]  # Alias and tuple, by alias.
    published_at: Stamp  # Of the later tuple.
    row: bytes


# Tuples.


class AlIndex(Message, frozen=True, kw_only=True, tag="AL_INDEX"):
    """A tuple at the attribute level: trigger the queries that wait for it."""

    tuple: StreamTuple
    at: Attribute
    value: ValueText


class VlIndex(Message, frozen=True, kw_only=True, tag="VL_INDEX"):
    """A tuple at the value level: meet the rewritten queries that ask for this value."""

    tuple: StreamTuple
    at: Attribute
    value: ValueText
    keep_ms: Millis  # How long after its publication it can be needed.


# Queries.


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


class ForgetQuery(Message, frozen=True, kw_only=True, tag="FORGET_QUERY"):
    """The query is over: forget what was made of it."""

    query: QueryId
    at: Attribute | None
    value: ValueText
    part: int = -1  # Of a cell,
    holder: int = 0  # and who holds it; none: it is not in one.


class AskRate(Message, frozen=True, kw_only=True, tag="ASK_RATE"):
    """How fast do tuples come under this attribute?"""

    query: QueryId
    side: Side
    at: Attribute


class Rate(Message, frozen=True, kw_only=True, tag="RATE"):
    """So many came lately, and this share of them had the most frequent value."""

    query: QueryId
    side: Side
    tuples: int
    top_share: float


# Rewritten queries and results.


class Join(Message, frozen=True, kw_only=True, tag="JOIN"):
    """Queries rewritten by one trigger, for the one evaluator that can have the tuples they still need.

    In DAI-V the evaluator goes by the value alone: there is no attribute.
    """

    at: Attribute | None  # The attribute still open.
    value: ValueText  # What it must equal.
    trigger: StreamTuple
    rewritten: tuple[Rewritten, ...]
    asks_finger: bool  # The rewriter does not know yet who the evaluator is.


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """A query without its plan."""

    id: QueryId
    subscriber: PeerId
    inserted_at: Stamp
    retention_ms: Millis
    is_set: bool
    known: tuple[Reach, ...]
    life: Millis
    late_ms: Millis


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """Rewritten queries that differ in who asks: their plan is told once (opened.py)."""

    left: int  # The place of its source among those of the message,
    right: int  # likewise.
    where: tuple[Expression, ...]
    outputs: tuple[Named, ...]
    side: Side
    queries: tuple[Asked, ...]


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What one cell gets of a tuple: queries that it triggers, or itself, or both."""

    cell: CellName
    bits: int  # So often has the cell been halved, as far as the sender knows.
    holder: int  # Of the cell: 0 is the peer nearest to its key, 1 the one that got it from there, and so on.
    opened: tuple[Opened, ...] = ()
    keep_ms: Millis | None = None  # How long after its publication the tuple itself can be needed here.


class Bundle(Message, frozen=True, kw_only=True, tag="BUNDLE"):
    """What the cells of a value that one peer holds get of a tuple."""

    value: ValueText
    trigger: StreamTuple
    shares: tuple[Share, ...]
    asks_finger: bool
    sources: tuple[Source, ...] = ()  # Of all queries in it.


class Triggered(msgspec.Struct, frozen=True, array_like=True):
    """Queries, and the tuples that each of them was rewritten by."""

    opened: tuple[Opened, ...]
    by: tuple[StreamTuple, ...]


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """What belongs to a cell, and has been elsewhere until now: it has met there."""

    value: ValueText
    cell: CellName
    bits: int
    holder: int
    queries_load: int  # Rewritten queries that were compared,
    tuples_load: int  # and tuples.
    queries: tuple[Triggered, ...]
    tuples: tuple[tuple[StreamTuple, Millis], ...]  # And how long after their publication they can be needed.


class Moved(Message, frozen=True, kw_only=True, tag="MOVED"):
    """You are the holder of these cells."""

    cells: tuple[Contents, ...]
    removed: tuple[QueryId, ...]  # What still comes of these is late.
    sources: tuple[Source, ...] = ()  # Of all queries in it.


class HandedOn(Message, frozen=True, kw_only=True, tag="HANDED_ON"):
    """These cells of a value have another holder."""

    value: ValueText
    cells: tuple[tuple[CellName, int], ...]
    peer: PeerId


class Halved(Message, frozen=True, kw_only=True, tag="HALVED"):
    """A cell has been halved so often."""

    value: ValueText
    cell: CellName
    bits: int


class AskLoad(Message, frozen=True, kw_only=True, tag="ASK_LOAD"):
    """How much has there been to compare at you?"""

    number: int


class PeerLoad(Message, frozen=True, kw_only=True, tag="PEER_LOAD"):
    """So much, with all that has ever come to the cells which are here now."""

    number: int
    load: int


class Finger(Message, frozen=True, kw_only=True, tag="FINGER"):
    """I am the evaluator of this key."""

    key: Key


class Notify(Message, frozen=True, kw_only=True, tag="NOTIFY"):
    """Results for queries of one subscriber."""

    notifications: tuple[Notification, ...]


# Between peers that may forget.


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
