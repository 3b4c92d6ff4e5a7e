"""One reading of a stream at the attribute level, and all queries that it serves."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.catalogue.shares import WHOLE, PublisherShare
from protocols.clock import Stamp
from protocols.delivery.messages import Batch, Origin
from protocols.ids import Millis, PeerId, RequestId
from protocols.join_index.condition import CompiledJoin, time_of
from protocols.join_index.expiry import less
from protocols.join_index.heavy import Spread
from protocols.join_index.keys import NULL, value_text
from protocols.join_index.messages import Attribute, IndexQuery, JoinId, JoinQuery, Load, Side, ValueText
from protocols.join_index.selections import Member, Selections, getter
from queries.compile import OnRow
from queries.plan import Source
from queries.schema import Row, Schema

RECENT_BYTES: Final = 4 << 20  # Of batches that were read, for queries that come a little later.
APART_MAX: Final = 1000  # Tuples that a reading may be behind another when it takes over its queries.

PIECE_BYTES: Final = 256 << 10  # Of rows in one load,
PIECE_ROWS: Final = 2000  # and how many.
TUPLE_BYTES_MAX: Final = 512 << 10

HeldName = tuple[JoinId, Side, int]  # And which of the rewriters of that side.
Ear = tuple[PeerId, Millis]  # A subscriber in one of its lives.


class TupleTooLarge(Exception):
    """A tuple that no parcel takes."""


@dataclass(slots=True, eq=False)
class Reading:
    """What was read together, of which not everything has been unpacked yet."""

    passes: dict[Origin, int] = field(default_factory=dict)
    parcels: int = 0


@dataclass(slots=True, eq=False)
class Held:
    """One side of a query."""

    member: Member
    message: IndexQuery
    subscriber: PeerId
    leased_at: Millis
    since: Reading | None = None  # Not before this is unpacked is it in place.

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
    def ear(self) -> Ear:
        return self.subscriber, self.member.query.life

    @property
    def indexes(self) -> bool:
        """Whether tuples of this side go to the value level as they are."""
        return self.member.algorithm in ("dai-q", "dai-t") or not self.message.rewrites


@dataclass(slots=True, eq=False)
class _Rewriting:
    """A group whose queries are rewritten by one side."""

    group: bytes
    opens: Attribute | None  # The attribute that stays open; None: DAI-V.
    value: OnRow
    wanted: Selections
    queries: int = 0

    @classmethod
    def of(cls, held: Held) -> _Rewriting:
        side = held.message.side
        opens = None if held.member.algorithm == "dai-v" else held.member.attributes[1 - side]
        wanted = Selections(side, held.source.schema)
        return cls(held.member.group, opens, CompiledJoin.of(held.member.query).values[side], wanted)


@dataclass(slots=True, eq=False)
class Reader:
    """One reading of a stream, for queries that want the same attribute of the same tuples.

    Invariant: what COVERED says of it is unpacked for every query that is in place
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
    joining: dict[HeldName, Held] = field(default_factory=dict)  # Those that are not in place yet.
    ears: Counter[Ear] = field(default_factory=Counter)
    lapsed: dict[JoinId, Ear] = field(default_factory=dict)  # Forgotten, and their subscribers have not said so.
    recent: deque[Batch] = field(default_factory=deque)
    forgotten: Stamp = -1  # Of what was read and is not among the recent any more, the latest.
    readings: deque[Reading] = field(default_factory=deque)
    read: dict[Origin, int] = field(default_factory=dict)
    covers: dict[Origin, int] = field(default_factory=dict)
    used: dict[PeerId, Millis] = field(default_factory=dict)  # Evaluators that have something of it, and their lives,
    heard: dict[PeerId, dict[Ear, int]] = field(default_factory=dict)  # and how much each has told whom.
    told: dict[PeerId, dict[JoinId, None]] = field(default_factory=dict)  # Which queries each has been told of.
    reported_at: Millis = 0
    report: int = 0
    tuples: int = 0
    messages: int = 0
    _rewritings: dict[tuple[bytes, Side], _Rewriting] = field(default_factory=dict)
    _indexing: int = 0  # For how many tuples go to the value level as they are.
    _queries: Counter[JoinId] = field(default_factory=Counter)  # How many sides of each are held.
    _recent_bytes: int = 0
    _value: OnRow = field(init=False)

    def __post_init__(self) -> None:
        self._value = getter(self.schema, self.at.path)

    # Queries.

    def add(self, held: Held) -> None:
        self.held[held.name] = held
        self._queries[held.name[0]] += 1
        self.ears[held.ear] += 1
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
        less(self.ears, held.ear)
        if held.message.rewrites:
            group = (held.member.group, held.message.side)
            self._rewritings[group].wanted.remove(held.member)
            self._rewritings[group].queries -= 1
            if not self._rewritings[group].queries:
                del self._rewritings[group]
        if held.indexes:
            self._indexing -= 1
        less(self._queries, name[0])
        if name[0] not in self._queries:
            for queries in self.told.values():
                queries.pop(name[0], None)

    def untold(self, peer: PeerId) -> list[JoinQuery]:
        """Queries that an evaluator has not been told of; from now on it has."""
        told = self.told.setdefault(peer, {})
        if len(told) == len(self._queries):
            return []
        new = {held.member.query.id: held.member.query for held in self.held.values() if held.name[0] not in told}
        told.update(dict.fromkeys(new))
        return list(new.values())

    # Tuples.

    def note(self, batches: Iterable[Batch]) -> None:
        """These have been read."""
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
        """What tuples mean for the value level."""
        for batch in (piece for each in batches for piece in _pieces(each)):
            rows = self._rows(batch)
            if self._indexing:
                yield from self._indexed(batch, rows)
            for rewriting in self._rewritings.values():
                yield from _rewritten(self.schema, batch, rows, rewriting)

    def loads_for(self, held: Held, batches: Iterable[Batch]) -> Iterator[Load]:
        """What tuples mean for one query alone."""
        for batch in (piece for each in batches for piece in _pieces(each)):
            rows = self._rows(batch)
            if held.indexes:
                yield from self._indexed(batch, rows)
            if held.message.rewrites:
                alone = _Rewriting.of(held)
                alone.wanted.add(held.member)
                yield from _rewritten(self.schema, batch, rows, alone)

    def _rows(self, batch: Batch) -> list[Row]:
        """The rows of a batch with TIME."""
        time = (time_of(batch.published_at),)
        return [row + time for row in self.schema.decode(batch.rows)]

    def _indexed(self, batch: Batch, rows: Sequence[Row]) -> Iterator[Load]:
        values = [value_text(value) for value in map(self._value, rows)]
        wanted = [value != NULL for value in values]  # Null equals nothing.
        yield from _load(self.schema, batch, self.at, b"", 0, values, wanted)

    # Two readings.

    def is_like(self, at: Attribute, schema: Schema, spread: Spread, share: PublisherShare) -> bool:
        """Whether its tuples are of use to one that wants these."""
        return self.at == at and self.spread is spread and self.schema == schema and self.share == share

    def can_take_over(self, other: Reader) -> bool:
        """Whether all that another reading has done for its queries is done, and this one has little left to catch up.

        What it reads again for them is told again, and dropped by their subscribers.
        """
        if (
            not self.is_like(other.at, other.schema, other.spread, other.share)
            or not self.is_open
            or not other.is_open
            or self.since > other.since
        ):
            return False
        if other.readings or other.joining or self.read.keys() != other.covers.keys():
            return False
        apart = [other.covers[origin] - upto for origin, upto in self.read.items()]
        lives = all(self.used.get(peer, life) == life for peer, life in other.used.items())
        return lives and min(apart, default=0) >= 0 and sum(apart) <= APART_MAX

    def take_over(self, other: Reader) -> None:
        """Have the queries of another reading."""
        for held in other.held.values():
            self.add(held)
        self.used |= other.used
        for peer, ears in other.heard.items():
            mine = self.heard.setdefault(peer, {})
            for ear, sequence in ears.items():
                mine[ear] = max(mine.get(ear, 0), sequence)

    def validate(self) -> None:
        assert self.ears.total() == len(self.held)
        assert self._queries.total() == len(self.held)
        assert self.joining.keys() <= self.held.keys()


def _pieces(batch: Batch) -> Iterator[Batch]:
    """A batch that is too large for one parcel, taken apart; raises TupleTooLarge."""
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


def _rewritten(schema: Schema, batch: Batch, rows: Sequence[Row], rewriting: _Rewriting) -> Iterator[Load]:
    values = [value_text(value) for value in map(rewriting.value, rows)]
    wanted = [value != NULL for value in values]
    if not rewriting.wanted.anything:
        is_wanted = rewriting.wanted.is_wanted
        wanted = [good and is_wanted(row) for good, row in zip(wanted, rows, strict=True)]
    side = rewriting.wanted.side
    yield from _load(schema, batch, rewriting.opens, rewriting.group, side, values, wanted)


def _load(
    schema: Schema,
    batch: Batch,
    at: Attribute | None,
    group: bytes,
    side: Side,
    values: Sequence[ValueText],
    wanted: Sequence[bool],
) -> Iterator[Load]:
    """Those of a batch that are wanted, if any."""
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
