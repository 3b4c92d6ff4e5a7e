"""The attribute level: queries wait here for tuples, which rewrite them and send them on to evaluators."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeVar

import msgspec

from experiments.cqdht.cells import Parts, cell_key
from experiments.cqdht.fingers import JoinFingers
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import (
    AlIndex,
    AskRate,
    Bundle,
    CellName,
    Finger,
    ForgetQuery,
    Halved,
    HandedOn,
    Join,
    Query,
    QueryIndexed,
    QueryRefused,
    Rate,
    RemoveQuery,
    Rewritten,
    Share,
    StreamTuple,
    TupleId,
)
from experiments.cqdht.ready import Item, ReadyQuery
from experiments.cqdht.shared_plans import Sources, some_shares, together
from protocols.clock import Stamp, wall_ms
from protocols.effects import Effect, Route, Send
from protocols.events import Event, Received, Unreachable, Unroutable
from protocols.ids import Key, Millis, PeerId
from protocols.join_index.condition import NotIndexed
from protocols.join_index.expiry import Expiry, Recently
from protocols.join_index.keys import NULL, value_key
from protocols.join_index.messages import Attribute, JoinId, Side, ValueText
from queries.expressions import Column

_Target = tuple[Attribute | None, ValueText]  # Names an evaluator.
_Once = tuple[Attribute, Side, bytes]
_WHOLE: Final = Parts()
_Name = TypeVar("_Name")
_What = TypeVar("_What")


@dataclass(slots=True, eq=False)
class _Group:
    """Queries with equivalent join conditions, indexed by the same side: one tuple, one evaluator.

    What they share is kept once, so that a tuple costs the same however many they are.
    """

    side: Side
    opens: Attribute | None  # The attribute that stays open; None: DAI-V.
    formula: bytes  # Groups that agree in it find the same value in a tuple.
    once: _Once | None  # What of a tuple shows in their results, where equal rewritten queries are sent once.
    queries: dict[JoinId, ReadyQuery] = field(default_factory=dict)
    rewritten: tuple[Rewritten, ...] = ()  # All of them.
    newest: Stamp = 0  # When the last of them was posed.
    serial: int = 0  # The place of the last one among all queries that came here.
    keep_ms: Millis = 0
    is_selective: bool = False
    has_cells: bool = False
    is_indexing: bool = False  # Its tuples go on as they are, to be found by the other side.

    def add(self, ready: ReadyQuery, serial: int) -> None:
        self.queries[ready.query.id] = ready
        self.rewritten = (*self.rewritten, Rewritten(ready.query, self.side))
        self.newest = max(self.newest, ready.query.inserted_at)
        self.serial = serial
        self.keep_ms = max(self.keep_ms, ready.keep_ms(self.side))
        self.is_selective |= ready.is_selective(self.side)

    def remove(self, query: JoinId) -> None:
        del self.queries[query]
        self.rewritten = tuple(each for each in self.rewritten if each.query.id != query)

    def triggered(self, item: Item) -> tuple[Rewritten, ...]:
        if not self.is_selective and item.tuple.published_at >= self.newest:
            return self.rewritten
        queries = self.queries
        return tuple(each for each in self.rewritten if queries[each.query.id].is_triggered(item))


@dataclass(slots=True, eq=False)
class _Sent:
    """Queries that were sent with an equal trigger before. DAI-T does not send them again."""

    retention_ms: Millis
    queries: int = 0
    newest: Stamp = 0  # When the last of them was posed.
    serial: int = 0
    upto: dict[bytes, int] = field(default_factory=dict)  # By what they see of a tuple: the last query sent.


@dataclass(slots=True, eq=False)
class _Bundled:
    """What one tuple has for the cells of one value: triggered queries by attribute, and its own attributes."""

    plans: dict[Attribute, list[tuple[Rewritten, ...]]] = field(default_factory=dict)
    indexed: dict[Attribute, Millis] = field(default_factory=dict)

    def add(self, at: Attribute, group: _Group, rewritten: tuple[Rewritten, ...]) -> None:
        if group.is_indexing:
            self.indexed[at] = max(self.indexed.get(at, 0), group.keep_ms)
        else:
            assert group.opens is not None
            self.plans.setdefault(group.opens, []).append(rewritten)


@dataclass(slots=True, eq=False)
class _Reading:
    """One tuple, read once for all groups."""

    of: StreamTuple
    items: dict[Side, Item] = field(default_factory=dict)
    values: dict[tuple[Side, bytes], ValueText] = field(default_factory=dict)
    parts: dict[_Once, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Rewriter:
    """Keeps join queries under the attribute they are indexed by, and rewrites them as tuples arrive.

    In:        QUERY, AL_INDEX, REMOVE_QUERY, ASK_RATE, FINGER, HANDED_ON, HALVED; Unroutable, Unreachable
    Out:       JOIN, BUNDLE and FORGET_QUERY to evaluators, QUERY_INDEXED, QUERY_REFUSED and RATE to who asks
    Keeps:     ALQT: queries, grouped by equivalent join condition; tuples, only for as long as a query published
               before them may still be on its way; JFRT; which values have gone on to evaluators
    Invariant: a tuple triggers only the queries posed no later than it was published, each of them once
    Paper:     sections 4, 5 and 7; a query that comes after a tuple it is older than is triggered by it all the same
    """

    limits: JoinLimits
    fingers: JoinFingers = field(init=False)
    _groups: dict[Attribute, dict[bytes, _Group]] = field(default_factory=dict)
    _places: dict[JoinId, dict[tuple[Attribute, bytes], None]] = field(default_factory=dict)
    _serial: int = 0
    _recent: dict[Attribute, dict[TupleId, StreamTuple]] = field(default_factory=dict)
    _ageing: Expiry[tuple[Attribute, TupleId]] = field(default_factory=Expiry)
    _values: dict[tuple[Attribute, Side, bytes], Recently[ValueText]] = field(
        default_factory=dict
    )  # Sent on from here.
    _sent: dict[_Once, _Sent] = field(default_factory=dict)
    _old_sent: Expiry[tuple[_Once, bytes, int]] = field(default_factory=Expiry)
    _removed: Recently[JoinId] = field(default_factory=Recently)
    _holders: dict[tuple[ValueText, CellName], tuple[int, PeerId]] = field(default_factory=dict)  # Of cells handed on.
    _parts: dict[tuple[ValueText, Attribute], Parts] = field(default_factory=dict)  # Where there is more than one.
    _arrivals: dict[Attribute, deque[tuple[Millis, ValueText]]] = field(default_factory=dict)
    stored: int = 0  # RS, the rewriter storage load: queries indexed here.
    filtered: int = 0  # RF, the rewriter filtering load: tuples that arrived.

    def __post_init__(self) -> None:
        self.fingers = JoinFingers(self.limits.fingers_max)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Received(sender=sender, message=Finger(key=key)):
                self.fingers.learn(key, sender)
                return []
            case Received(message=AlIndex() as message):
                return self._trigger(message, now)
            case Received(sender=sender, message=Query() as message):
                return self._index(sender, message, now)
            case Received(message=HandedOn() as message):
                return self._learn_holders(message)
            case Received(message=Halved(value=value, cell=cell, bits=bits)):
                parts = self._parts.get((value, cell.at)) or Parts()
                parts.learn(cell.part, bits)
                self._remember(self._parts, (value, cell.at), parts)
                return []
            case Received(message=RemoveQuery(query=query)):
                return self._remove(query, now)
            case Received(sender=sender, message=AskRate() as message):
                return [Send(sender, self._rate(message, now))]
            case Unroutable(key=key, message=Join() | ForgetQuery() | Bundle() as message):
                return [Route(key, message)]
            case Unreachable(peer=peer, message=Join() | ForgetQuery() | Bundle() as message):
                self.fingers.forget(peer)
                return _from_the_first(message)
            case Unreachable(peer=peer, message=QueryIndexed() | QueryRefused() | Rate() as message):
                return [Send(peer, message)]
        raise AssertionError(f"no rule for {event}")

    # Queries.

    def _index(self, sender: PeerId, message: Query, now: Millis) -> list[Effect]:
        query = message.query
        done = Send(sender, QueryIndexed(query=query.id, side=message.side, replica=message.replica))
        if query.id in self._removed:
            return []
        try:
            ready = ReadyQuery.of(query)
        except NotIndexed as error:
            return [Send(sender, QueryRefused(query=query.id, reason=str(error)))]
        is_indexing = query.algorithm == "cells" and not message.rewrites
        at, name = ready.side(message.side).attribute, _group_name(ready, message.side, is_indexing=is_indexing)
        places = self._places.get(query.id, {})
        if (at, name) in places:  # The network may deliver a message twice.
            return [done]
        if self.stored >= self.limits.queries_max:
            reason = f"the query table of {at} is full at {self.limits.queries_max}"
            return [Send(sender, QueryRefused(query=query.id, reason=reason))]
        alone = _group(ready, message.side, is_indexing=is_indexing)
        group = self._groups.setdefault(at, {}).setdefault(name, _group(ready, message.side, is_indexing=is_indexing))
        self._serial += 1
        group.add(ready, self._serial)
        self._places.setdefault(query.id, {})[at, name] = None
        self.stored += 1
        alone.add(ready, self._serial)
        if alone.once is not None:
            sent = self._sent.setdefault(alone.once, _Sent(query.retention_ms))
            sent.queries += 1
            sent.newest, sent.serial = max(sent.newest, query.inserted_at), self._serial
            sent.retention_ms = min(sent.retention_ms, query.retention_ms)
        effects: list[Effect] = [done]
        for each in list(self._recent.get(at, {}).values()):  # Tuples that overtook it.
            effects += self._rewritten(at, each, [alone], now)
        return effects

    def _remove(self, query: JoinId, now: Millis) -> list[Effect]:
        self._removed.add(query, now + self.limits.recent_ms)
        effects: list[Effect] = []
        for at, name in self._places.pop(query, {}):
            group = self._groups[at][name]
            group.remove(query)
            self.stored -= 1
            if group.once is not None:
                self._sent[group.once].queries -= 1
                if not self._sent[group.once].queries:
                    del self._sent[group.once]
            if not group.is_indexing:
                values = self._values.get((at, group.side, group.formula), ())
                effects += [self._forgotten(query, group, value) for value in values]
            if not group.queries:
                del self._groups[at][name]
            if not self._groups[at]:
                del self._groups[at]
        return effects

    def _forgotten(self, query: JoinId, group: _Group, value: ValueText) -> Effect:
        message = ForgetQuery(query=query, at=group.opens, value=value)
        if not group.has_cells:
            return self.fingers.towards(value_key(group.opens, value), message)
        assert group.opens is not None
        parts = self._parts.get((value, group.opens), _WHOLE)
        cell = CellName(group.opens, parts.of(query))
        holder, peer = self._holders.get((value, cell), (0, None))
        message = msgspec.structs.replace(message, part=cell.part, holder=holder)
        return self.fingers.towards(cell_key(value, cell), message) if peer is None else Send(peer, message)

    # Tuples.

    def _trigger(self, message: AlIndex, now: Millis) -> list[Effect]:
        at, each = message.at, message.tuple
        recent = self._recent.setdefault(at, {})
        if each.id in recent:
            return []
        recent[each.id] = each
        self._ageing.add(max(now, wall_ms(each.published_at)) + self.limits.recent_ms, (at, each.id))
        arrivals = self._arrivals.get(at)
        if arrivals is None:
            arrivals = self._arrivals[at] = deque(maxlen=self.limits.arrivals_max)
        arrivals.append((now, message.value))
        self.filtered += 1
        return self._rewritten(at, each, self._groups.get(at, {}).values(), now)

    def _rewritten(self, at: Attribute, each: StreamTuple, groups: Iterable[_Group], now: Millis) -> list[Effect]:
        """One JOIN for each evaluator, however many queries and groups go there."""
        joins: dict[_Target, list[tuple[Rewritten, ...]]] = {}
        keep_ms: dict[tuple[Side, bytes], Millis] = {}
        bundles: dict[ValueText, _Bundled] = {}
        reading = _Reading(each)
        for group in groups:
            formula = (group.side, group.formula)
            value = reading.values.get(formula)
            if value is None:
                value = self._read(reading, group)
            if value == NULL or (group.once is not None and self._is_sent(reading, group)):
                continue
            rewritten = group.triggered(reading.items[group.side])
            if not rewritten:
                continue
            if group.has_cells:
                bundles.setdefault(value, _Bundled()).add(at, group, rewritten)
            else:
                joins.setdefault((group.opens, value), []).append(rewritten)
            if group.keep_ms > keep_ms.get(formula, -1):
                keep_ms[formula] = group.keep_ms
        for once, part in reading.parts.items():
            self._note_sent(once, part, each)
        for (side, name), kept_ms in keep_ms.items():
            until = max(now, wall_ms(each.published_at) + kept_ms) + self.limits.recent_ms
            self._values.setdefault((at, side, name), Recently()).add(reading.values[side, name], until)
        if bundles:
            return [
                *(self._join(target, each, tuple(chain.from_iterable(found))) for target, found in joins.items()),
                *(effect for value, found in bundles.items() for effect in self._bundles(value, each, found)),
            ]
        if not self.limits.groups:
            return [
                self._join(target, each, (one,))
                for target, found in joins.items()
                for one in chain.from_iterable(found)
            ]
        return [
            self._join(target, each, found[0] if len(found) == 1 else tuple(chain.from_iterable(found)))
            for target, found in joins.items()
        ]

    def _read(self, reading: _Reading, group: _Group) -> ValueText:
        """The value that a tuple has for a group."""
        side = group.side
        any_query = next(iter(group.queries.values()))
        if side not in reading.items:
            reading.items[side] = any_query.read(reading.of, side)
        item = reading.items[side]
        value = reading.values[side, group.formula] = (
            any_query.own_value(item) if group.is_indexing else any_query.value(item)
        )
        return value

    def _is_sent(self, reading: _Reading, group: _Group) -> bool:
        """Whether all queries of a group were sent before with an equal trigger."""
        once = group.once
        assert once is not None
        part = reading.parts.get(once)
        if part is None:
            any_query = next(iter(group.queries.values()))
            part = reading.parts[once] = any_query.part_read(reading.items[group.side])
        return self._sent[once].upto.get(part, 0) >= group.serial

    def _note_sent(self, once: _Once, part: bytes, each: StreamTuple) -> None:
        sent = self._sent[once]
        if each.published_at >= sent.newest and sent.upto.get(part, 0) < sent.serial:
            sent.upto[part] = sent.serial  # A tuple older than a query has not triggered it.
            self._old_sent.add(wall_ms(each.published_at) + sent.retention_ms, (once, part, sent.serial))

    def _join(self, target: _Target, trigger: StreamTuple, rewritten: tuple[Rewritten, ...]) -> Effect:
        at, value = target
        key = value_key(at, value)
        peer = self.fingers.find(key)
        message = Join(at=at, value=value, trigger=trigger, rewritten=rewritten, asks_finger=peer is None)
        return Route(key, message) if peer is None else Send(peer, message)

    def _bundles(self, value: ValueText, each: StreamTuple, found: _Bundled) -> list[Effect]:
        """One message for each peer that holds cells of a value."""
        shares: dict[PeerId | Key, list[Share]] = {}  # By key where nobody is known.
        sources: dict[PeerId | Key, Sources] = {}
        for at in {**found.plans, **found.indexed}:
            keep_ms = found.indexed.get(at)
            for part, bits, rewritten in self._by_part(value, at, found.plans.get(at, [])):
                if rewritten or keep_ms is not None:
                    cell = CellName(at, part)
                    key = cell_key(value, cell)
                    holder, peer = self._holders.get((value, cell), (0, self.fingers.find(key)))
                    towards = key if peer is None else peer
                    plans = together(rewritten, sources.setdefault(towards, Sources()))
                    shares.setdefault(towards, []).append(Share(cell, bits, holder, plans, keep_ms))
        effects: list[Effect] = []
        for towards, some in shares.items():
            is_key = not isinstance(towards, PeerId)
            told = sources[towards].told()
            message = Bundle(value=value, trigger=each, shares=tuple(some), asks_finger=is_key, sources=told)
            effects.append(Send(towards, message) if isinstance(towards, PeerId) else Route(towards, message))
        return effects

    def _by_part(
        self, value: ValueText, at: Attribute, found: list[tuple[Rewritten, ...]]
    ) -> list[tuple[int, int, list[Rewritten]]]:
        """The parts of a cell, how often each was halved, and the queries for each."""
        parts = self._parts.get((value, at))
        if parts is None:
            return [(0, 0, list(chain.from_iterable(found)))]
        by_part: dict[int, list[Rewritten]] = {}
        for each in chain.from_iterable(found):
            by_part.setdefault(parts.of(each.query.id), []).append(each)
        return [(part, bits, by_part.get(part, [])) for part, bits in parts.bits.items()]

    def _learn_holders(self, message: HandedOn) -> list[Effect]:
        for cell, holder in message.cells:
            known, _ = self._holders.get((message.value, cell), (0, None))
            if known < holder:
                self._remember(self._holders, (message.value, cell), (holder, message.peer))
        return []

    def _remember(self, known: dict[_Name, _What], name: _Name, what: _What) -> None:
        """Learn where a cell is. The oldest knowledge makes room: holders tell it again when it is needed."""
        known.pop(name, None)
        known[name] = what
        if len(known) > self.limits.fingers_max:
            del known[next(iter(known))]

    # Rates and time.

    def _rate(self, message: AskRate, now: Millis) -> Rate:
        values = [value for at, value in self._arrivals.get(message.at, ()) if at > now - self.limits.rate_ms]
        top = max(Counter(values).values(), default=0)
        share = top / len(values) if values else 0.0
        return Rate(query=message.query, side=message.side, tuples=len(values), top_share=share)

    def sweep(self, now: Millis) -> None:
        """Let go of what has expired."""
        for at, each in self._ageing.due(now):
            recent = self._recent[at]
            del recent[each]
            if not recent:
                del self._recent[at]
        for place in [place for place, values in self._values.items() if values.sweep(now)]:
            del self._values[place]
        for once, part, serial in self._old_sent.due(now):
            if once in self._sent and self._sent[once].upto.get(part) == serial:
                del self._sent[once].upto[part]
        self._removed.sweep(now)

    def is_empty(self) -> bool:
        """Whether nothing of any query is left; what is there to be forgotten later does not count."""
        return not self._groups and not self._places

    def validate(self) -> None:
        assert self.stored == sum(len(g.queries) for groups in self._groups.values() for g in groups.values())
        assert self.stored <= self.limits.queries_max
        for groups in self._groups.values():
            assert groups, "no attribute without groups"
            assert all(group.queries for group in groups.values()), "no group without queries"
        self.fingers.validate()
        assert max(len(self._holders), len(self._parts)) <= self.limits.fingers_max


def _opens(ready: ReadyQuery, side: Side) -> Attribute | None:
    other = ready.condition.sides[1 - side]
    return None if ready.query.algorithm == "dai-v" else other.attribute


def _from_the_first(message: Join | ForgetQuery | Bundle) -> list[Effect]:
    """Send again what did not arrive: for a cell, from its first holder on; anything else to its key."""
    match message:
        case Bundle(value=value, shares=shares):
            by_key: dict[Key, list[Share]] = {}
            for each in shares:
                by_key.setdefault(cell_key(value, each.cell), []).append(msgspec.structs.replace(each, holder=0))
            return [Route(key, some_shares(message, some)) for key, some in by_key.items()]
        case ForgetQuery(at=at, value=value, part=part) if part >= 0:
            assert at is not None, "a cell has an attribute"
            return [Route(cell_key(value, CellName(at, part)), msgspec.structs.replace(message, holder=0))]
    return [Route(value_key(message.at, message.value), message)]


def _group(ready: ReadyQuery, side: Side, *, is_indexing: bool) -> _Group:
    own, other = ready.side(side), ready.side(1 if side == 0 else 0)
    opens = _opens(ready, side)
    is_own_value = opens is None or all(isinstance(each, Column) for each in other.expressions)
    formula = own.signature if is_own_value else b"%d " % len(own.signature) + own.signature + other.signature
    if is_indexing:
        formula = b""
    has_cells = ready.query.algorithm == "cells"
    return _Group(side, opens, formula, _once(ready, side), has_cells=has_cells, is_indexing=is_indexing)


def _once(ready: ReadyQuery, side: Side) -> _Once | None:
    """What makes two triggers equal in DAI-T, where equal results may be told once; None: send every trigger.

    Under a window it is another query each time: it ends with the window of its trigger.
    """
    query, own = ready.query, ready.side(side)
    if query.algorithm != "dai-t" or not query.is_set or own.window_ms is not None:
        return None
    return own.attribute, side, ready.shows[side]


def _group_name(ready: ReadyQuery, side: Side, *, is_indexing: bool) -> bytes:
    """What decides the evaluator: our side's expression, the attribute looked for, and what it must equal."""
    if is_indexing:
        return b"%d indexing" % side
    own, opens, once = ready.side(side), _opens(ready, side), _once(ready, side)
    other = b"" if opens is None else str(opens).encode() + ready.condition.sides[1 - side].signature
    if ready.query.algorithm == "cells":
        other += b" cells"
    name = b"%d %d " % (side, len(own.signature)) + own.signature + other
    return name if once is None else name + b" once " + once[-1]
