"""Tuples, and queries over two relations, for the tests of the paper's machines."""

from __future__ import annotations

from typing import Any

from experiments.cqdht.messages import (
    AlIndex,
    AnyAlgorithm,
    Join,
    JoinQuery,
    Rewritten,
    StreamTuple,
    TupleId,
    VlIndex,
)
from protocols.clock import COUNT_BITS
from protocols.events import Received
from protocols.ids import Millis
from protocols.join_index.keys import value_text
from protocols.join_index.messages import Attribute, Side
from queries import sql
from tests.protocols.join_index.things import EQUI_JOIN, HOUR_MS, PUBLISHER, STREAMS, SUBSCRIBER, received


def query(
    text: str = EQUI_JOIN, algorithm: AnyAlgorithm = "sai", name: str = "q1", at: Millis = 0, **more: Any
) -> JoinQuery:
    plan = sql.plan(text, STREAMS).plan
    return JoinQuery(name, SUBSCRIBER, at << COUNT_BITS, algorithm, plan, HOUR_MS, **more)


def stream_tuple(stream: str, row: tuple[int, ...], at: Millis, sequence: int = 0) -> StreamTuple:
    schema = STREAMS[stream].schema
    return StreamTuple(TupleId(PUBLISHER, stream, 1, sequence), at << COUNT_BITS, schema.encode([schema.row(row)]))


def r(a: int, b: int, at: Millis, sequence: int = 0) -> StreamTuple:
    return stream_tuple("R", (a, b), at, sequence)


def s(d: int, e: int, at: Millis, sequence: int = 0) -> StreamTuple:
    return stream_tuple("S", (d, e), at, sequence)


def al(each: StreamTuple, at: Attribute, value: int) -> Received:
    return received(AlIndex(tuple=each, at=at, value=value_text(value)))


def vl(each: StreamTuple, at: Attribute, value: int, keep_ms: Millis = HOUR_MS) -> Received:
    return received(VlIndex(tuple=each, at=at, value=value_text(value), keep_ms=keep_ms))


def join(
    trigger: StreamTuple, at: Attribute | None, value: int, *queries: JoinQuery, side: Side = 0, asks: bool = False
) -> Join:
    rewritten = tuple(Rewritten(each, side) for each in queries)
    return Join(at=at, value=value_text(value), trigger=trigger, rewritten=rewritten, asks_finger=asks)
