"""What the paper's machines hear from publishers and clients of their peer, and what they tell them."""

from __future__ import annotations

from experiments.cqdht.messages import JoinQuery, Notification, StreamTuple
from protocols.events import Event
from protocols.ids import Millis
from protocols.join_index.messages import JoinId
from queries.schema import Schema


class TuplePublished(Event, frozen=True):
    """A tuple was accepted here."""

    tuple: StreamTuple
    schema: Schema
    keep_ms: Millis


class QueryPosed(Event, frozen=True):
    """A client of this peer wants the results of a query."""

    query: JoinQuery


class QueryInPlace(Event, frozen=True):
    """Every rewriter of a query has it."""

    query: JoinId


class QueryFailed(Event, frozen=True):
    """A query cannot be kept; what was kept of it has been taken back."""

    query: JoinId
    reason: str


class QueryStopped(Event, frozen=True):
    """Nobody wants a query any more."""

    query: JoinId


class Notified(Event, frozen=True):
    """A result, once."""

    notification: Notification
