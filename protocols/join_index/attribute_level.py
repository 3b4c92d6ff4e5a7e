"""The attribute level of a peer that may crash: it reads streams for the queries it has, and carries on what they make.

A tuple that was published need not be sent here: it is in the log of its stream. Whoever has a query reads the stream
from the moment the query was posed, so no tuple can overtake a query, or be lost with a rewriter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.clock import Stamp
from protocols.delivery.messages import Batch, Missed, Opened, OpenSubscription, Origin, Position, Rows, Seen
from protocols.effects import Effect, Route, Send, Tell
from protocols.events import Abandoned, Received
from protocols.execution.messages import Reach
from protocols.ids import Key, Millis, PeerId, RequestId
from protocols.inside import Inside
from protocols.join_index.condition import NotIndexed, Prepared
from protocols.join_index.keys import NULL, at_path, value_key, value_text
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    AlIndex,
    Attribute,
    Covered,
    Heard,
    Join,
    KeepQuery,
    Parcel,
    Query,
    QueryId,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    Receipt,
    RemoveQuery,
    Side,
    StreamTuple,
    TupleId,
    VlIndex,
)
from protocols.join_index.rewriter import Rewriter
from protocols.messages import Answer, Refused

ROLE: Final = "joins"
LEASE_MS: Final = 20_000
RESEND_MS: Final = 2000
SILENT_MS: Final = 6000  # An evaluator that has not said a word for so long is taken for lost.
LIST_MS: Final = 10_000  # How often evaluators hear which queries are wanted still.
PARCEL_BYTES: Final = 256 << 10
TUPLE_BYTES_MAX: Final = 512 << 10
JOIN_QUERIES_MAX: Final = 64  # In one part.

HeldName = tuple[QueryId, Side]
Part = Join | VlIndex


@dataclass(slots=True, eq=False)
class _Held:
    """One side of a query."""

    prepared: Prepared
    message: Query
    subscriber: PeerId
    leased_at: Millis
    heard: dict[PeerId, int] = field(default_factory=dict)  # How often each evaluator has told results of it.

    @property
    def indexes(self) -> bool:
        """Whether tuples of this side go to the value level as they are."""
        return self.prepared.query.algorithm in ("dai-q", "dai-t") or not self.message.rewrites


@dataclass(slots=True, eq=False)
class _Reading:
    """A batch of which not everything has been unpacked yet."""

    origin: Origin
    next: int
    parcels: int = 0


@dataclass(slots=True, eq=False)
class _Reader:
    """One reading of a stream, for queries that want the same attribute of the same tuples."""

    name: str
    at: Attribute
    rewriter: Rewriter
    request: RequestId
    since: Stamp
    evaluators: tuple[PeerId, ...]
    is_open: bool = False
    held: dict[HeldName, _Held] = field(default_factory=dict)
    latest: Stamp = 0  # Of the tuples read.
    readings: deque[_Reading] = field(default_factory=deque)
    covers: dict[Origin, int] = field(default_factory=dict)
    used: dict[PeerId, Millis] = field(default_factory=dict)  # Evaluators that have something of it, and their lives.
    tuples: int = 0
    messages: int = 0


@dataclass(slots=True, eq=False)
class _Carried:
    """A parcel that is on its way."""

    reader: _Reader
    reading: _Reading
    parcel: Parcel
    to: PeerId
    sent_at: Millis


@dataclass(slots=True)
class AttributeLevel:
    """Rewriters among peers that come and go.

    In:        QUERY, KEEP_QUERY, REMOVE_QUERY from subscribers; tuples of streams; RECEIPT from value levels
    Out:       QUERY_INDEXED, QUERY_REFUSED, QUERY_LOST, COVERED; PARCEL to evaluators
    Keeps:     readers, each with a rewriter; parcels until they are unpacked
    Invariant: what COVERED says was unpacked by evaluators that have not begun a new life since, or QUERY_LOST follows
    """

    peer_id: PeerId
    limits: JoinLimits
    inside: Inside
    life: Millis = 0
    readers: dict[str, _Reader] = field(default_factory=dict)
    _requests: dict[RequestId, _Reader] = field(default_factory=dict)
    _carried: dict[int, _Carried] = field(default_factory=dict)
    _last_number: int = 0
    _seen_at: dict[PeerId, Millis] = field(default_factory=dict)  # When an evaluator last said a word.
    _listed_at: Millis = 0

    # Queries.

    def index(self, sender: PeerId, message: Query, now: Millis) -> list[Effect]:
        name = (message.query.id, message.side)
        known = next((reader for reader in self.readers.values() if name in reader.held), None)
        if known is not None:
            return [_indexed(known.held[name])] if known.is_open else []
        try:
            prepared = Prepared.of(message.query)
        except NotIndexed as error:
            return [Send(sender, QueryRefused(query=message.query.id, reason=str(error)))]
        if not message.evaluators:
            return [Send(sender, QueryRefused(query=message.query.id, reason="it names no evaluators"))]
        if sum(len(reader.held) for reader in self.readers.values()) >= self.limits.queries_max:
            reason = f"peer {self.peer_id.short} has {self.limits.queries_max} join queries already"
            return [Send(sender, QueryRefused(query=message.query.id, reason=reason))]
        held = _Held(prepared, message, sender, now)
        reader, effects = self._reader_for(held)
        reader.held[name] = held
        if message.rewrites:
            reader.rewriter.handle(Received(sender, message), now)
        return [*effects, *([_indexed(held)] if reader.is_open else [])]

    def _reader_for(self, held: _Held) -> tuple[_Reader, list[Effect]]:
        """One that has read nothing yet of what the query wants, or a new one."""
        side, inserted_at = held.prepared.side(held.message.side), held.prepared.query.inserted_at
        for reader in self.readers.values():
            is_alike = reader.at == side.attribute and reader.evaluators == held.message.evaluators
            if is_alike and reader.since <= inserted_at and reader.latest < inserted_at:
                return reader, []
        self._last_number += 1
        name = f"join/{side.attribute}/{self.peer_id.short}/{self.life:x}-{self._last_number}"
        command = OpenSubscription(stream=side.source.stream, subscription=name, since=inserted_at)
        request, effect = self.inside.ask(ROLE, command)
        reader = _Reader(name, side.attribute, Rewriter(self.limits), request, inserted_at, held.message.evaluators)
        self.readers[name] = self._requests[request] = reader
        return reader, [effect]

    def keep(self, sender: PeerId, message: KeepQuery, now: Millis) -> list[Effect]:
        for reader in self.readers.values():
            held = reader.held.get((message.query, message.side))
            if held is not None:
                held.leased_at = now
                return []
        return [Send(sender, QueryLost(query=message.query, reason=f"peer {self.peer_id.short} has forgotten it"))]

    def remove(self, message: RemoveQuery, now: Millis) -> list[Effect]:
        """The subscriber tells the evaluators itself: this peer may be gone when it wants to."""
        mine = [reader for reader in self.readers.values() if any(query == message.query for query, _ in reader.held)]
        return [effect for reader in mine for effect in self._forget(reader, message.query, now)]

    def _forget(self, reader: _Reader, query: QueryId, now: Millis) -> list[Effect]:
        for side in (0, 1):
            reader.held.pop((query, side), None)
        reader.rewriter.handle(Received(self.peer_id, RemoveQuery(query=query)), now)  # Evaluators hear it otherwise.
        return [] if reader.held else self._close(reader)

    def _close(self, reader: _Reader) -> list[Effect]:
        del self.readers[reader.name]
        self._requests.pop(reader.request, None)
        self._carried = {number: each for number, each in self._carried.items() if each.reader is not reader}
        self.inside.forget(reader.request)
        return [Tell(Abandoned(reader.request))]

    def _lose(self, reader: _Reader, reason: str, culprit: PeerId | None = None) -> list[Effect]:
        """Something that came of what was read is gone: the queries must begin anew."""
        lost = {query: held.subscriber for (query, _), held in reader.held.items()}
        effects: list[Effect] = [
            Send(peer, QueryLost(query=query, reason=reason, culprit=culprit)) for query, peer in lost.items()
        ]
        return effects + self._close(reader)

    # Tuples.

    def answered(self, request: RequestId, answer: Answer, now: Millis) -> list[Effect]:
        reader = self._requests.get(request)
        if reader is None:
            return []
        match answer:
            case Opened():
                reader.is_open = True
                return [_indexed(held) for held in reader.held.values()]
            case Rows(batches=batches):
                effects: list[Effect] = []
                for batch in batches:
                    if reader.name in self.readers:  # Else it was lost on those before.
                        effects += self._read(reader, batch, now)
                return effects
            case Missed(origin=origin, next=upto):
                reader.readings.append(_Reading(origin, upto))
                return self._settle(reader)
            case Refused():
                return self._lose(reader, f"{answer.error}. {answer.detail}".strip())
        return []

    def _read(self, reader: _Reader, batch: Batch, now: Millis) -> list[Effect]:
        reading = _Reading(batch.origin, batch.next)
        reader.readings.append(reading)
        reader.latest = max(reader.latest, batch.published_at)
        parts: list[tuple[Key, Part]] = []
        for place, raw in enumerate(msgspec.msgpack.decode(batch.rows, type=list[msgspec.Raw])):
            row = msgspec.msgpack.encode([raw])
            if len(row) > TUPLE_BYTES_MAX:
                return self._lose(reader, f"a tuple of {len(row)} bytes is too large for the join index")
            each = StreamTuple(TupleId.of(batch.origin, batch.first + place), batch.published_at, row)
            try:
                parts += self._parts(reader, each, now)
            except msgspec.MsgspecError as error:
                return self._lose(reader, f"rows of {reader.at.relation} do not have the columns they had: {error}")
        reader.tuples += batch.count
        reader.messages += len(parts)
        effects = self._carry(reader, reading, parts, now)
        return effects + self._settle(reader)

    def _parts(self, reader: _Reader, each: StreamTuple, now: Millis) -> Iterator[tuple[Key, Part]]:
        """What one tuple means for the value level."""
        any_held = next(iter(reader.held.values()))
        schema = any_held.prepared.side(any_held.message.side).source.schema
        (row,) = schema.decode(each.row)
        value = value_text(at_path(schema, row, reader.at.path))
        trigger = Received(self.peer_id, AlIndex(tuple=each, at=reader.at, value=value))
        for effect in reader.rewriter.handle(trigger, now):
            assert isinstance(effect, Route), "a rewriter without fingers routes"
            assert isinstance(effect.message, Join)
            join = effect.message
            for first in range(0, len(join.rewritten), JOIN_QUERIES_MAX):
                some = join.rewritten[first : first + JOIN_QUERIES_MAX]
                yield effect.key, msgspec.structs.replace(join, rewritten=some, asks_finger=False)
        keep_ms = max(
            (held.prepared.keep_ms(side) for (_, side), held in reader.held.items() if held.indexes), default=-1
        )
        if keep_ms >= 0 and value != NULL:  # Null equals nothing.
            yield value_key(reader.at, value), VlIndex(tuple=each, at=reader.at, value=value, keep_ms=keep_ms)

    def _carry(self, reader: _Reader, reading: _Reading, parts: list[tuple[Key, Part]], now: Millis) -> list[Effect]:
        """One parcel for each evaluator, unless it would be too large."""
        loads: dict[PeerId, list[Part]] = {}
        for key, part in parts:
            loads.setdefault(nearest(key, reader.evaluators), []).append(part)
        effects: list[Effect] = []
        for to, load in loads.items():
            self._seen_at.setdefault(to, now)
            for some in _portions(load):
                self._last_number += 1
                parcel = Parcel(number=self._last_number, parts=some)
                reading.parcels += 1
                self._carried[parcel.number] = _Carried(reader, reading, parcel, to, now)
                effects.append(Send(to, parcel))
        return effects

    # What evaluators say.

    def received(self, sender: PeerId, receipt: Receipt, now: Millis) -> list[Effect]:
        self._seen_at[sender] = now
        effects: list[Effect] = []
        for reader in list(self.readers.values()):
            if reader.used.get(sender, receipt.life) != receipt.life:
                effects += self._lose(reader, f"peer {sender.short} was restarted")
        carried = self._carried.pop(receipt.number, None)
        if carried is None:  # Of a reader that is no more, or the second one.
            return effects
        reader = carried.reader
        if receipt.refused:
            return effects + self._lose(reader, receipt.refused)
        reader.used[sender] = receipt.life
        for query, sequence in receipt.told:
            for side in (0, 1):
                held = reader.held.get((query, side))
                if held is not None:
                    held.heard[sender] = max(held.heard.get(sender, 0), sequence)
        carried.reading.parcels -= 1
        return effects + self._settle(reader)

    def _settle(self, reader: _Reader) -> list[Effect]:
        """Go on behind the batches of which everything has been unpacked."""
        passed: dict[Origin, int] = {}
        while reader.readings and not reader.readings[0].parcels:
            done = reader.readings.popleft()
            reader.covers[done.origin] = passed[done.origin] = max(done.next, reader.covers.get(done.origin, 0))
        if not passed:
            return []
        positions = tuple(Position(origin, upto) for origin, upto in passed.items())
        return [self.inside.tell(Seen(subscription=reader.name, positions=positions))]

    # Time.

    def sweep(self, now: Millis) -> list[Effect]:
        """Look after evaluators and leases, say again what was not heard, and how far everything is."""
        effects: list[Effect] = []
        for reader in list(self.readers.values()):
            reader.rewriter.sweep(now)
            for query, side in [name for name, held in reader.held.items() if now - held.leased_at > LEASE_MS]:
                if (query, side) in reader.held:
                    effects += self._forget(reader, query, now)
        for number, carried in self._carried.items():
            if now - carried.sent_at >= RESEND_MS:
                self._carried[number].sent_at = now
                effects.append(Send(carried.to, carried.parcel))
        effects += self._look_after_evaluators(now)
        for reader in self.readers.values():
            effects += self._report(reader)
        return effects

    def _look_after_evaluators(self, now: Millis) -> list[Effect]:
        wanted: dict[PeerId, dict[QueryId, None]] = {}
        for reader in self.readers.values():
            for peer in reader.used:
                wanted.setdefault(peer, {}).update(dict.fromkeys(query for query, _ in reader.held))
        for carried in self._carried.values():
            wanted.setdefault(carried.to, {})
        self._seen_at = {peer: at for peer, at in self._seen_at.items() if peer in wanted}
        is_list = now - self._listed_at >= LIST_MS
        if is_list:
            self._listed_at = now
        effects: list[Effect] = []
        for peer, queries in wanted.items():
            if now - self._seen_at.setdefault(peer, now) > SILENT_MS:
                effects += self._lose_with(peer)
            else:
                effects.append(Send(peer, Parcel(number=0, parts=(), wanted=tuple(queries) if is_list else ())))
        return effects

    def _lose_with(self, peer: PeerId) -> list[Effect]:
        del self._seen_at[peer]
        waiting = [carried.reader for carried in self._carried.values() if carried.to == peer]
        lost = [reader for reader in self.readers.values() if peer in reader.used or reader in waiting]
        reason = f"peer {peer.short} was silent for {SILENT_MS // 1000} s"
        return [effect for reader in lost for effect in self._lose(reader, reason, peer)]

    def _report(self, reader: _Reader) -> list[Effect]:
        effects: list[Effect] = []
        if not reader.is_open:
            return []
        for (query, side), held in reader.held.items():
            alias = held.prepared.side(side).source.alias
            message = Covered(
                query=query,
                side=side,
                tuples=reader.tuples,
                messages=reader.messages,
                covers=tuple(Reach(alias, origin, upto) for origin, upto in reader.covers.items()),
                heard=tuple(Heard(peer, life, held.heard.get(peer, 0)) for peer, life in reader.used.items()),
            )
            effects.append(Send(held.subscriber, message))
        return effects

    def is_empty(self) -> bool:
        """Whether nothing of any query is left."""
        return not self.readers and not self._carried

    def validate(self) -> None:
        for reader in self.readers.values():
            assert reader.held, "nobody reads for nobody"
            reader.rewriter.validate()
        for carried in self._carried.values():
            assert carried.reader.name in self.readers
            assert carried.reading.parcels > 0


def nearest(key: Key, peers: tuple[PeerId, ...]) -> PeerId:
    """Of some peers the one that a key belongs to."""
    point = int.from_bytes(key, "big")
    return min(peers, key=lambda peer: peer.number ^ point)


def _indexed(held: _Held) -> Effect:
    query, side, replica = held.message.query.id, held.message.side, held.message.replica
    return Send(held.subscriber, QueryIndexed(query=query, side=side, replica=replica))


def _portions(parts: list[Part]) -> list[tuple[Part, ...]]:
    """Parts in parcels that are not too large."""
    portions: list[list[Part]] = []
    size = PARCEL_BYTES
    for part in parts:
        if size >= PARCEL_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(part)
        row = part.trigger.row if isinstance(part, Join) else part.tuple.row
        size += len(row) + 1000 * (len(part.rewritten) if isinstance(part, Join) else 1)
    return [tuple(portion) for portion in portions]
