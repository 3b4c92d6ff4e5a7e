"""What peers say to each other for a join in the index.

subscriber ── QUERY, KEEP_QUERIES, REMOVE_QUERY ──▶ rewriter ── QUERY_INDEXED, QUERY_REFUSED, QUERY_LOST ──▶ subscriber
stream ── BATCH ──▶ rewriter ── PARCEL ──▶ evaluator ── RECEIPT ──▶ rewriter ── COVERED ──▶ subscriber
evaluator ── JOIN_RESULTS ──▶ subscriber ── NOTIFIED ──▶ evaluator

Peers and messages get lost. So a rewriter reads tuples from the log of their stream, and sends them on in numbered
parcels that evaluators acknowledge. A parcel carries what the paper sends as JOIN and VL_INDEX (experiments/cqdht).
A life is an incarnation of a peer's part of the index: it begins with nothing, at the time that names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from protocols.clock import Stamp
from protocols.delivery.messages import Origin, Position, count_rows
from protocols.errors import expect
from protocols.ids import NAME_MAX, Count, Millis, PeerId, StreamName
from protocols.messages import Message
from protocols.subgraphs import Algorithm, Reach
from queries.plan import Operator
from queries.schema import Schema

JoinId = Annotated[str, msgspec.Meta(max_length=NAME_MAX + 64)]
"""Names one attempt of a query, as NAME~ATTEMPT."""
Side = Literal[0, 1]
"""Of a join."""
LEFT: Final[Side] = 0
RIGHT: Final[Side] = 1
SIDES: Final[tuple[Side, Side]] = (LEFT, RIGHT)
ValueText = str
"""A value as keys have it: equal values have equal texts, whatever their types. Null is empty."""
Incarnation = tuple[PeerId, Millis]
"""A subscriber in one of its lives."""


def other_side(side: Side) -> Side:
    return RIGHT if side == LEFT else LEFT


class Attribute(msgspec.Struct, frozen=True, array_like=True):
    """An attribute of a relation, or several that are taken as one: a join on several columns looks for all at once.

    A path has several names if the attribute is inside a record.

    >>> str(Attribute("R", ("b",))), str(Attribute.of("R", [("b",), ("c", "x")]))
    ('R.b', 'R.(b, c.x)')
    """

    relation: StreamName
    path: tuple[str, ...]  # Between the paths of two attributes is an empty name.

    @classmethod
    def of(cls, relation: StreamName, paths: Iterable[tuple[str, ...]]) -> Attribute:
        """Attributes taken as one."""
        return cls(relation, tuple(name for path in paths for name in ("", *path))[1:])

    @property
    def paths(self) -> list[tuple[str, ...]]:
        """The paths of all attributes that are taken as one."""
        ends = [place for place, name in enumerate(self.path) if not name]
        firsts = [0, *(end + 1 for end in ends)]
        return [self.path[first:end] for first, end in zip(firsts, [*ends, len(self.path)], strict=True)]

    def __str__(self) -> str:
        names = [".".join(path) for path in self.paths]
        return f"{self.relation}.{names[0]}" if len(names) == 1 else f"{self.relation}.({', '.join(names)})"


# Queries.


class JoinQuery(msgspec.Struct, frozen=True, array_like=True):
    """A continuous equi-join, and insT: when it was posed. Tuples published earlier do not trigger it."""

    id: JoinId
    subscriber: PeerId
    inserted_at: Stamp
    algorithm: Algorithm
    plan: Operator
    retention_ms: Millis  # Without a window, a tuple meets others for this long after its publication.
    resume: tuple[Reach, ...] = ()  # An earlier attempt has handed on the results of two tuples that lie below these.
    life: Millis = 0  # The subscriber's. Evaluators number the results for each life.
    late_ms: Millis = 0  # Windows allow for tuples that are so late: evaluators keep their partners so much longer.


class Heavy(msgspec.Struct, frozen=True, array_like=True):
    """A frequent value whose evaluators form a grid (heavy.py)."""

    at: Attribute | None  # None: DAI-V, where the value alone decides.
    value: ValueText
    rows: Count
    columns: Count


class IndexQuery(Message, frozen=True, kw_only=True, tag="QUERY"):
    """Index a query by one of its sides. Both sides get the same evaluators and heavy values."""

    query: JoinQuery
    side: Side
    replica: Count
    rewrites: bool = True  # False: this side's tuples go to evaluators as they are. SAI rewrites by one side.
    evaluators: tuple[PeerId, ...] = ()  # A value's key, modulo their number, says which of them evaluates it.
    heavy: tuple[Heavy, ...] = ()  # Values that several of them evaluate.
    replicas: Count = 1  # Rewriters of this side. Each reads a share of the publishers.

    def check(self) -> None:
        expect(len(set(self.evaluators)) == len(self.evaluators), "an evaluator that is named twice")


class AskEvaluators(Message, frozen=True, kw_only=True, tag="ASK_EVALUATORS"):
    """Who is to evaluate this query? Asked of the rewriter of the attribute where its two sides meet."""

    query: JoinId
    shunned: tuple[PeerId, ...] = ()  # Evaluators that the subscriber has lost lately.


class Evaluators(Message, frozen=True, kw_only=True, tag="EVALUATORS"):
    """These are: the same for all queries whose sides meet at attributes of this rewriter."""

    query: JoinId
    peers: tuple[PeerId, ...]


class QueryIndexed(Message, frozen=True, kw_only=True, tag="QUERY_INDEXED"):
    """The side is indexed: from now on the rewriter misses no tuple published after the query."""

    query: JoinId
    side: Side
    replica: Count
    reader: str = ""  # The reader that serves this side.
    report: Count = 0  # Its first COVERED that counts for this query.


class QueryRefused(Message, frozen=True, kw_only=True, tag="QUERY_REFUSED"):
    """The query is not kept here."""

    query: JoinId
    reason: str


class RemoveQuery(Message, frozen=True, kw_only=True, tag="REMOVE_QUERY"):
    """The query is over: forget it, and have its evaluators forget it."""

    query: JoinId


class KeepQueries(Message, frozen=True, kw_only=True, tag="KEEP_QUERIES"):
    """Renews the lease of these sides of queries. A rewriter forgets a side whose lease has run out."""

    queries: tuple[tuple[JoinId, Side, Count], ...]  # The number is the replica.


class QueryLost(Message, frozen=True, kw_only=True, tag="QUERY_LOST"):
    """State of this attempt is lost: begin a new attempt."""

    query: JoinId
    reason: str
    culprit: PeerId | None = None  # The evaluator that the next attempt should leave out.


# Tuples and results.


class Load(msgspec.Struct, frozen=True, array_like=True):
    """Tuples of one batch for one evaluator: VL_INDEX of each, or JOIN of each for all queries of a group."""

    at: Attribute | None  # The values are of this attribute. None: DAI-V, where a value is enough.
    group: bytes  # The tuples trigger the queries of this group, which have one join condition. Empty: plain tuples.
    side: Side  # The side that the triggers take.
    schema: Schema
    origin: Origin
    published_at: Stamp
    sequences: tuple[Count, ...]
    values: tuple[ValueText, ...]
    rows: bytes  # A batch, as the schema writes it.


class Parcel(Message, frozen=True, kw_only=True, tag="PARCEL"):
    """What a rewriter has for an evaluator. Number 0 carries no loads; it asks whether the evaluator is still there."""

    number: Count
    loads: tuple[Load, ...] = ()
    queries: tuple[JoinQuery, ...] = ()  # The evaluator learns these before it takes the loads.
    over: tuple[JoinId, ...] = ()  # Their subscriber has ended these: forget them for good.
    released: tuple[JoinId, ...] = ()  # This rewriter has dropped these: forget those that no other has brought.
    counts_on: bool = False  # The sender is a rewriter, which relies on what evaluators keep.
    after: Count = 0  # A parcel with queries that the evaluator must have unpacked before this one.
    settled: Count = 0  # Parcels with lower numbers will not be sent again.

    def check(self) -> None:
        expect(bool(self.number) or not (self.loads or self.queries), "a load in a parcel without a number")
        expect(self.after <= self.number and self.settled <= self.number, "a parcel that waits for a later one")
        for load in self.loads:
            expect(len(load.sequences) == len(load.values), "a load whose lists differ in length")
            expect(count_rows(load.rows) == len(load.values), "a load whose rows are not as many as it says")


class SentTo(msgspec.Struct, frozen=True, array_like=True):
    """The number of the last JOIN_RESULTS that an evaluator has sent one subscriber."""

    subscriber: PeerId
    life: Millis  # The subscriber's.
    sequence: Count


class SentBy(msgspec.Struct, frozen=True, array_like=True):
    """The number of the last JOIN_RESULTS that one evaluator has sent a subscriber."""

    peer: PeerId  # The evaluator.
    life: Millis  # The evaluator's.
    sequence: Count


class Receipt(Message, frozen=True, kw_only=True, tag="RECEIPT"):
    """The parcel is unpacked. Its results have left with the numbers in `sent`, or lower ones."""

    number: Count
    life: Millis  # The evaluator's. What it got in an earlier life is lost.
    sent: tuple[SentTo, ...] = ()
    refused: str = ""  # Why the evaluator did not keep some of it.


class ResultRows(msgspec.Struct, frozen=True, array_like=True):
    """Results of one query, and the two tuples that made each."""

    query: JoinId
    origins: tuple[Origin, ...]
    made_of: tuple[Count, ...]  # Four numbers a row: for left, then right, an index into `origins` and a sequence.
    rows: bytes  # As the schema of the result writes them.


class JoinResults(Message, frozen=True, kw_only=True, tag="JOIN_RESULTS"):
    """Results for the queries of one subscriber. They are sent until NOTIFIED."""

    life: Millis  # The evaluator's.
    subscriber_life: Millis
    sequence: Count  # Counts from 1, without gaps, for each life of the subscriber.
    results: tuple[ResultRows, ...]
    late: tuple[JoinId, ...] = ()  # A tuple came too late for these: its partners may have expired.
    dropped: tuple[JoinId, ...] = ()  # The evaluator has let go of these, and of what it had to tell of them here.

    def check(self) -> None:
        expect(self.sequence > 0, "results without a number")
        for each in self.results:
            places = (*each.made_of[::4], *each.made_of[2::4])
            expect(len(each.made_of) % 4 == 0, "results that are not made of two tuples each")
            expect(all(place < len(each.origins) for place in places), "a result made of a tuple of nobody")
            expect(count_rows(each.rows) * 4 == len(each.made_of), "results whose rows are not as many as they say")


class Notified(Message, frozen=True, kw_only=True, tag="NOTIFIED"):
    """One JOIN_RESULTS has arrived. The subscriber withholds this while results pile up: back-pressure."""

    subscriber_life: Millis
    sequence: Count


class Covered(Message, frozen=True, kw_only=True, tag="COVERED"):
    """How far a reader has come: evaluators have unpacked all tuples below `covers`.

    The subscriber may rely on it once it has the results that `sent` counts. It holds for all queries that are indexed
    with this reader, except the forgotten ones.
    """

    reader: str
    report: Count  # Numbers the reports of the reader.
    tuples: Count  # Read so far.
    messages: Count  # Tuples and triggers sent to evaluators.
    covers: tuple[Position, ...]
    sent: tuple[SentBy, ...]  # Every evaluator that has got something of this reader.
    forgotten: tuple[JoinId, ...] = ()
    subscriber_life: Millis = 0  # The life whose results `sent` counts.
    unfit: Count = 0  # Of the tuples read, those with decimals that an earlier release accepted and no query reads.
