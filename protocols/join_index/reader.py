"""A reader of a stream, and the queries that it serves: it turns batches of tuples into loads for evaluators."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.catalogue.shares import WHOLE, PublisherShare
from protocols.clock import Stamp
from protocols.delivery.messages import Batch, Origin
from protocols.filing import getter
from protocols.ids import Millis, PeerId, RequestId
from protocols.join_index.condition import CompiledJoin, timed_rows, together
from protocols.join_index.expiry import decrement
from protocols.join_index.heavy import Spread
from protocols.join_index.keys import NULL, value_text
from protocols.join_index.messages import Attribute, Incarnation, IndexQuery, JoinId, JoinQuery, Load, Side, ValueText
from protocols.join_index.selections import Member, Selections
from queries.compile import OnRow
from queries.plan import Source
from queries.schema import Row, Schema

RECENT_BYTES: Final = 4 << 20  # Batches kept for queries that come a little later.
APART_MAX: Final = 1000  # A reader may be so many tuples behind another when it takes over its queries.
PIECE_BYTES: Final = 256 << 10  # Most bytes of rows in one load.
PIECE_ROWS: Final = 2000  # Most rows in one load.
TUPLE_BYTES_MAX: Final = 512 << 10

HeldName = tuple[JoinId, Side, int]
"""A side of a query, and which of the replicas that share it."""


class TupleTooLarge(Exception):
    """A tuple that fits into no parcel."""


@dataclass(slots=True, eq=False)
class Dispatch:
    """Tuples that were sent on together. It is done once evaluators have unpacked all parcels made of them."""

    passes: dict[Origin, int] = field(default_factory=dict)  # Its reader covers these positions once it is done.
    parcels: int = 0  # Without a receipt.


@dataclass(slots=True, eq=False)
class Held:
    """One side of a query, held by a rewriter."""

    member: Member
    message: IndexQuery
    subscriber: PeerId
    leased_at: Millis
    awaits: Dispatch | None = None  # Recent tuples that were replayed for this side: it is indexed once that is done.

    @property
    def name(self) -> HeldName:
        return self.member.query.id, self.message.side, self.message.replica

    @property
    def source(self) -> Source:
        return self.member.sources[self.message.side]

    @property
    def attribute(self) -> Attribute:
        return self.member.attributes[self.message.side]

    @property
    def share(self) -> PublisherShare:
        return PublisherShare(self.message.replica, self.message.replicas)

    @property
    def incarnation(self) -> Incarnation:
        return self.subscriber, self.member.query.life

    @property
    def indexes(self) -> bool:
        """Whether tuples of this side go to evaluators as they are."""
        return self.member.algorithm in ("dai-q", "dai-t") or not self.message.rewrites


@dataclass(slots=True, eq=False)
class _Rewriting:
    """A group of queries with one join condition, rewritten by one side."""

    group: bytes
    seeks: Attribute | None  # The attribute by which partners are looked for; None: DAI-V.
    value: OnRow
    wanted: Selections
    queries: int = 0

    @classmethod
    def of(cls, held: Held) -> _Rewriting:
        side = held.message.side
        seeks = None if held.member.algorithm == "dai-v" else held.member.attributes[1 - side]
        wanted = Selections.of(side, held.source.schema)
        return cls(held.member.group, seeks, together(CompiledJoin.of(held.member.query).values[side]), wanted)


@dataclass(slots=True, eq=False)
class Reader:
    """Reads a stream for all queries that are indexed by one attribute of it.

    Invariant: evaluators have unpacked what it covers, for every query that is in place
    """

    name: str
    at: Attribute
    schema: Schema
    request: RequestId
    since: Stamp
    spread: Spread
    share: PublisherShare = WHOLE
    is_open: bool = False
    held: dict[HeldName, Held] = field(default_factory=dict)
    joining: dict[HeldName, Held] = field(default_factory=dict)  # Sides that are not in place yet.
    subscribers: Counter[Incarnation] = field(default_factory=Counter)  # With how many sides each.
    lapsed: dict[JoinId, Incarnation] = field(default_factory=dict)  # Forgotten; the subscriber has not confirmed it.
    recent: deque[Batch] = field(default_factory=deque)  # Replayed for queries that come a little later.
    forgotten: Stamp = -1  # The latest stamp among the batches that are no longer in `recent`.
    dispatches: deque[Dispatch] = field(default_factory=deque)
    read: dict[Origin, int] = field(default_factory=dict)
    covers: dict[Origin, int] = field(default_factory=dict)
    used: dict[PeerId, Millis] = field(default_factory=dict)  # Evaluators that have got something, and their lives.
    sent: dict[PeerId, dict[Incarnation, int]] = field(default_factory=dict)  # By evaluator: SentTo each subscriber.
    knows: dict[PeerId, dict[JoinId, None]] = field(default_factory=dict)  # By evaluator: the queries that it was sent.
    reported_at: Millis = 0
    report: int = 0
    tuples: int = 0
    unfit: int = 0
    messages: int = 0
    _rewritings: dict[tuple[bytes, Side], _Rewriting] = field(default_factory=dict)
    _indexing: int = 0  # Sides whose tuples go to evaluators as they are.
    _queries: Counter[JoinId] = field(default_factory=Counter)  # How many sides of each query are held.
    _recent_bytes: int = 0
    _value: OnRow = field(init=False)

    def __post_init__(self) -> None:
        self._value = together([getter(self.schema, path) for path in self.at.paths])

    # Queries.

    def add(self, held: Held) -> None:
        self.held[held.name] = held
        self._queries[held.name[0]] += 1
        self.subscribers[held.incarnation] += 1
        if held.message.rewrites:
            name = (held.member.group, held.message.side)
            if name not in self._rewritings:
                self._rewritings[name] = _Rewriting.of(held)
            self._rewritings[name].wanted.add(held.member)
            self._rewritings[name].queries += 1
        if held.indexes:
            self._indexing += 1

    def remove(self, name: HeldName) -> None:
        held = self.held.pop(name)
        self.joining.pop(name, None)
        decrement(self.subscribers, held.incarnation)
        if held.message.rewrites:
            group = (held.member.group, held.message.side)
            self._rewritings[group].wanted.remove(held.member)
            self._rewritings[group].queries -= 1
            if not self._rewritings[group].queries:
                del self._rewritings[group]
        if held.indexes:
            self._indexing -= 1
        decrement(self._queries, name[0])
        if name[0] not in self._queries:
            for queries in self.knows.values():
                queries.pop(name[0], None)

    def unknown_to(self, peer: PeerId) -> list[JoinQuery]:
        """Queries that an evaluator does not know yet; the caller sends them."""
        knows = self.knows.setdefault(peer, {})
        if len(knows) == len(self._queries):
            return []
        new = {held.member.query.id: held.member.query for held in self.held.values() if held.name[0] not in knows}
        knows.update(dict.fromkeys(new))
        return list(new.values())

    # Tuples.

    def note(self, batches: Iterable[Batch]) -> None:
        """Note that these have been read."""
        for batch in batches:
            self.tuples += batch.count
            self.read[batch.origin] = batch.next
            self.recent.append(batch)
            self._recent_bytes += len(batch.rows)
        while self._recent_bytes > RECENT_BYTES:
            batch = self.recent.popleft()
            self._recent_bytes -= len(batch.rows)
            self.forgotten = max(self.forgotten, batch.published_at)

    def loads(self, batches: Iterable[Batch]) -> Iterator[Load]:
        """What evaluators get of these tuples."""
        for batch in pieces_of(batches):
            rows = timed_rows(self.schema, batch.rows, batch.published_at)
            self.unfit += rows.count(None)
            if self._indexing:
                yield from self._indexed(batch, rows)
            for rewriting in self._rewritings.values():
                yield from _rewritten(self.schema, batch, rows, rewriting)

    def loads_for(self, held: Held, batches: Iterable[Batch]) -> Iterator[Load]:
        """What evaluators get of these tuples for one query alone."""
        for batch in pieces_of(batches):
            rows = timed_rows(self.schema, batch.rows, batch.published_at)
            if held.indexes:
                yield from self._indexed(batch, rows)
            if held.message.rewrites:
                alone = _Rewriting.of(held)
                alone.wanted.add(held.member)
                yield from _rewritten(self.schema, batch, rows, alone)

    def _indexed(self, batch: Batch, rows: Sequence[Row | None]) -> Iterator[Load]:
        values = _texts(self._value, rows)
        wanted = [value != NULL for value in values]  # Null equals nothing.
        yield from _load(self.schema, batch, self.at, b"", 0, values, wanted)

    # Two readers.

    def is_like(self, at: Attribute, schema: Schema, spread: Spread, share: PublisherShare) -> bool:
        """Whether it reads the same tuples for the same evaluators."""
        return self.at == at and self.spread is spread and self.schema == schema and self.share == share

    def can_take_over(self, other: Reader) -> bool:
        """Whether it can serve the queries of another reader, which is as far as this one or a little ahead.

        This one reads the tuples in between again for these queries. Their subscribers drop results that come twice.
        """
        if (
            not self.is_like(other.at, other.schema, other.spread, other.share)
            or not self.is_open
            or not other.is_open
            or self.since > other.since
        ):
            return False
        if other.dispatches or other.joining or self.read.keys() != other.covers.keys():
            return False
        apart = [other.covers[origin] - upto for origin, upto in self.read.items()]
        lives = all(self.used.get(peer, life) == life for peer, life in other.used.items())
        return lives and min(apart, default=0) >= 0 and sum(apart) <= APART_MAX

    def take_over(self, other: Reader) -> None:
        """Serve the queries of another reader."""
        for held in other.held.values():
            self.add(held)
        self.used |= other.used
        for peer, sent in other.sent.items():
            mine = self.sent.setdefault(peer, {})
            for whom, sequence in sent.items():
                mine[whom] = max(mine.get(whom, 0), sequence)

    def validate(self) -> None:
        assert self.subscribers.total() == len(self.held)
        assert self._queries.total() == len(self.held)
        assert self.joining.keys() <= self.held.keys()


def pieces_of(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Batches in pieces that fit into a parcel; raises TupleTooLarge."""
    return (piece for batch in batches for piece in _pieces(batch))


def _pieces(batch: Batch) -> Iterator[Batch]:
    if len(batch.rows) <= PIECE_BYTES and batch.count <= PIECE_ROWS:
        yield batch
        return
    raw = msgspec.msgpack.decode(batch.rows, type=list[msgspec.Raw])
    first = size = 0
    for place, each in enumerate(raw):
        row_bytes = len(memoryview(each))
        if row_bytes > TUPLE_BYTES_MAX:
            raise TupleTooLarge(f"a tuple of {row_bytes} bytes is too large for the join index")
        if place > first and (size + row_bytes > PIECE_BYTES or place - first == PIECE_ROWS):
            yield _piece(batch, first, raw[first:place])
            first, size = place, 0
        size += row_bytes
    yield _piece(batch, first, raw[first:])


def _piece(batch: Batch, first: int, raw: list[msgspec.Raw]) -> Batch:
    return Batch(batch.origin, batch.first + first, len(raw), batch.published_at, msgspec.msgpack.encode(raw))


def _texts(value: OnRow, rows: Sequence[Row | None]) -> list[ValueText]:
    return [NULL if row is None else value_text(value(row)) for row in rows]


def _rewritten(schema: Schema, batch: Batch, rows: Sequence[Row | None], rewriting: _Rewriting) -> Iterator[Load]:
    values = _texts(rewriting.value, rows)
    wanted = [value != NULL for value in values]
    if not rewriting.wanted.filed.anything:
        is_wanted = rewriting.wanted.filed.is_wanted
        wanted = [good and row is not None and is_wanted(row) for good, row in zip(wanted, rows, strict=True)]
    side = rewriting.wanted.side
    yield from _load(schema, batch, rewriting.seeks, rewriting.group, side, values, wanted)


def _load(
    schema: Schema,
    batch: Batch,
    at: Attribute | None,
    group: bytes,
    side: Side,
    values: Sequence[ValueText],
    wanted: Sequence[bool],
) -> Iterator[Load]:
    """A load with the wanted tuples of a batch, if there are any."""
    sequences = range(batch.first, batch.next)
    rows = batch.rows
    if not all(wanted):
        raw = msgspec.msgpack.decode(batch.rows, type=list[msgspec.Raw])
        rows = msgspec.msgpack.encode([each for each, good in zip(raw, wanted, strict=True) if good])
        values = [value for value, good in zip(values, wanted, strict=True) if good]
        sequences_left = [each for each, good in zip(sequences, wanted, strict=True) if good]
    else:
        sequences_left = list(sequences)
    if values:
        place = (batch.origin, batch.published_at, tuple(sequences_left), tuple(values), rows)
        yield Load(at, group, side, schema, *place)
