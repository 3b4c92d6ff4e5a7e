"""What the paper's machines say to each other, named as in the paper; the package's docstring has the table."""

from __future__ import annotations

from typing import Literal

import msgspec

from protocols.clock import Stamp
from protocols.ids import Key, Millis, PeerId, StreamName
from protocols.join_index.messages import Attribute, JoinId, Side, ValueText
from protocols.messages import Message
from queries.expressions import Expression, Named
from queries.plan import Operator, Source

AnyAlgorithm = Literal["sai", "dai-q", "dai-t", "dai-v", "cells"]  # The paper's four, and ours (cells.py).


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


class StreamTuple(msgspec.Struct, frozen=True, array_like=True):
    """One tuple of a relation, and pubT: when it was published."""

    id: TupleId
    published_at: Stamp
    row: bytes  # A batch of one row.


class JoinQuery(msgspec.Struct, frozen=True, array_like=True):
    """A continuous equi-join, and insT: when it was posed. Tuples published earlier do not trigger it."""

    id: JoinId
    subscriber: PeerId
    inserted_at: Stamp
    algorithm: AnyAlgorithm
    plan: Operator
    retention_ms: Millis  # Tuples further apart than this need not meet, where no window says less.
    is_set: bool = False  # Equal results may be told once: so DAI-T sends a rewritten query once.


class Rewritten(msgspec.Struct, frozen=True, array_like=True):
    """A query of which one side has been replaced by the tuple that triggered it."""

    query: JoinQuery
    side: Side  # The side that the trigger takes.


class Notification(msgspec.Struct, frozen=True, array_like=True):
    """One result of a query: what it was made of, and its row as the schema of the result writes it."""

    query: JoinId
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


class Query(Message, frozen=True, kw_only=True, tag="QUERY"):
    """Index a query by one of its sides, at one of the rewriters of an attribute."""

    query: JoinQuery
    side: Side
    replica: int
    rewrites: bool = True  # Else its tuples only go to their evaluators: SAI rewrites by one side.


class QueryIndexed(Message, frozen=True, kw_only=True, tag="QUERY_INDEXED"):
    """From now on no tuple published after the query passes it by here."""

    query: JoinId
    side: Side
    replica: int


class QueryRefused(Message, frozen=True, kw_only=True, tag="QUERY_REFUSED"):
    """The query is not kept here."""

    query: JoinId
    reason: str


class RemoveQuery(Message, frozen=True, kw_only=True, tag="REMOVE_QUERY"):
    """The query is over: forget it, and have its evaluators forget it."""

    query: JoinId


class ForgetQuery(Message, frozen=True, kw_only=True, tag="FORGET_QUERY"):
    """The query is over: forget what was made of it."""

    query: JoinId
    at: Attribute | None
    value: ValueText
    part: int = -1  # Of a cell,
    holder: int = 0  # and who holds it; none: it is not in one.


class AskRate(Message, frozen=True, kw_only=True, tag="ASK_RATE"):
    """How fast do tuples come under this attribute?"""

    query: JoinId
    side: Side
    at: Attribute


class Rate(Message, frozen=True, kw_only=True, tag="RATE"):
    """So many came lately, and this share of them had the most frequent value."""

    query: JoinId
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

    id: JoinId
    subscriber: PeerId
    inserted_at: Stamp
    retention_ms: Millis
    is_set: bool


class SharedPlan(msgspec.Struct, frozen=True, array_like=True):
    """Rewritten queries that differ only in who asks, with their plan once (shared_plans.py)."""

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
    plans: tuple[SharedPlan, ...] = ()
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

    plans: tuple[SharedPlan, ...]
    by: tuple[StreamTuple, ...]


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a cell that moves. They have met each other at the old holder."""

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
    removed: tuple[JoinId, ...]  # What still comes of these is late.
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
