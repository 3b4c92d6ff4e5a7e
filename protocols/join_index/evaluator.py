"""The value level: rewritten queries and tuples with the same value meet, and make notifications."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from protocols.clock import wall_ms
from protocols.effects import Effect, Route, Send
from protocols.events import Event, Received, Unreachable, Unroutable
from protocols.ids import Millis, PeerId
from protocols.join_index.cells import FIRST, STEP, Cells, apart, by_cell, cell_key, cell_of, together
from protocols.join_index.condition import Item, Prepared
from protocols.join_index.expiry import Expiry, Recently
from protocols.join_index.keys import value_key
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    AnyAlgorithm,
    Attribute,
    Bundle,
    Finger,
    ForgetQuery,
    Join,
    JoinQuery,
    Moved,
    Notification,
    Notify,
    Opened,
    QueryId,
    Rewritten,
    Side,
    SplitValue,
    StreamTuple,
    TupleId,
    ValueText,
    VlIndex,
)

_Place = tuple[Attribute | None, ValueText, int]
NO_CELL: Final = -1


@dataclass(slots=True, eq=False)
class _Waiting:
    """What the triggers of one query have left at one place: the tuples that took its left, and its right side."""

    prepared: Prepared
    triggers: tuple[dict[TupleId, Item], dict[TupleId, Item]] = field(default_factory=lambda: ({}, {}))


@dataclass(slots=True)
class Evaluator:
    """Evaluates rewritten queries, now simple selections, against the tuples of its values.

    In:        JOIN, VL_INDEX, FORGET_QUERY, BUNDLE, SPLIT_VALUE, MOVED; Unreachable for what it sent
    Out:       NOTIFY to subscribers, FINGER to a rewriter that came through the DHT; SPLIT_VALUE, MOVED, BUNDLE: cells
    Keeps:     VLQT: rewritten queries, by value and query; VLTT: tuples, by value. For how long: the table below
    Invariant: two tuples make a notification of a query at one evaluator, once, whatever the order in which what they
               caused arrives
    Paper:     sections 4 to 6

                rewritten queries     tuples              two tuples meet
    SAI         while they can meet   while they can      always: only one side is rewritten
    DAI-Q       recent                while they can      when the rewritten query's trigger is the later one
    DAI-T       while they can        recent              when the tuple is the later one
    DAI-V       while they can        none                always: both sides are rewritten, to the same place
    cells       while they can        while they can      always, as in SAI; where: cells.py

    The paper's DAI-Q and DAI-T rely on messages arriving in the order of publication. Here the order of publication
    itself decides which of the two evaluators of a pair tells it, and what is recent is kept by both, so that neither
    a late tuple nor a late rewritten query is missed.
    """

    limits: JoinLimits
    _queries: dict[_Place, dict[QueryId, _Waiting]] = field(default_factory=dict)
    _tuples: dict[_Place, dict[TupleId, StreamTuple]] = field(default_factory=dict)
    _prepared: WeakValueDictionary[QueryId, Prepared] = field(default_factory=WeakValueDictionary)
    _old_queries: Expiry[tuple[_Place, QueryId, Side, TupleId]] = field(default_factory=Expiry)
    _old_tuples: Expiry[tuple[_Place, TupleId]] = field(default_factory=Expiry)
    _removed: Recently[QueryId] = field(default_factory=Recently)
    _keep_ms: dict[tuple[_Place, TupleId], Millis] = field(default_factory=dict)  # Of tuples that may be handed over.
    cells: Cells = field(init=False)
    stored_queries: int = 0  # ES, the evaluator storage load, is the sum of
    stored_tuples: int = 0  # these two.
    filtered: int = 0  # EF, the evaluator filtering load: what arrived and was compared with what is stored.
    refused: int = 0  # What a full table had no room for: only what was there already could meet it.

    def __post_init__(self) -> None:
        self.cells = Cells(self.limits)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Received(sender=sender, message=Join() as message):
                effects = self._join(message, now)
                return [self._finger(sender, message), *effects] if message.asks_finger else effects
            case Received(message=VlIndex() as message):
                return self._index(message, now)
            case Received(sender=sender, message=Bundle() as message):
                return self._bundle(sender, message, now)
            case Received(message=ForgetQuery() as message):
                return self._forget(message, now)
            case Received(message=SplitValue(value=value, depth=depth, cell=cell)):
                return self._deepen(value, cell, depth)
            case Received(message=Moved() as message):
                return self._take_in(message, now)
            case Unroutable(key=key, message=SplitValue() | Moved() as message):
                return [Route(key, message)]
            case Unreachable(peer=peer, message=Notify() as message):
                return [Send(peer, message)]
            case Unreachable(message=Finger() | SplitValue()):
                return []  # The next JOIN asks again.
        raise AssertionError(f"no rule for {event}")

    def _finger(self, sender: PeerId, message: Join) -> Effect:
        return Send(sender, Finger(key=value_key(message.at, message.value)))

    # Rewritten queries.

    def _join(self, message: Join, now: Millis) -> list[Effect]:
        place = (message.at, message.value, NO_CELL)
        told = _Told()
        self._rewritten(place, message.trigger, message.rewritten, told, now)
        return told.effects()

    def _rewritten(
        self, place: _Place, trigger: StreamTuple, every: tuple[Rewritten, ...], told: _Told, now: Millis
    ) -> None:
        queries, tuples = self._queries.get(place), self._tuples.get(place)
        if not queries and not tuples and self.stored_queries >= self.limits.rewritten_max:
            self._refuse(every)
            return
        item: Item | None = None
        for rewritten in every:
            query, side = rewritten.query, rewritten.side
            if query.id in self._removed:
                continue
            known = None if queries is None else queries.get(query.id)
            if known is not None and trigger.id in known.triggers[side]:  # It came twice.
                continue
            prepared = self._prepare(query)
            if item is None or item.side != side:
                item = prepared.read(trigger, side)
            self.filtered += query.algorithm != "dai-t"
            told.add(query, self._met_by_query(place, prepared, item))
            self._keep_query(place, prepared, item, now)

    def _refuse(self, every: tuple[Rewritten, ...]) -> None:
        """The table is full, and nothing is here that could meet what has come."""
        self.refused += len(every)
        self.filtered += sum(each.query.algorithm != "dai-t" for each in every)

    def _prepare(self, query: JoinQuery) -> Prepared:
        found = self._prepared.get(query.id)
        if found is None:
            found = self._prepared[query.id] = Prepared.of(query)
        return found

    def _met_by_query(
        self, place: _Place, prepared: Prepared, item: Item, met: Collection[TupleId] = ()
    ) -> Iterator[Notification]:
        other: Side = 1 if item.side == 0 else 0
        if prepared.query.algorithm == "dai-v":
            waiting = self._queries.get(place, {}).get(prepared.query.id)
            others = [] if waiting is None else list(waiting.triggers[other].values())
        else:
            tuples = self._tuples.get(place, {}).values()
            others = [prepared.read(each, other) for each in tuples if each.id not in met]
        for each in others:
            if _is_told_here(prepared.query.algorithm, item, each) and (found := prepared.meet(item, each)):
                yield found

    def _keep_query(self, place: _Place, prepared: Prepared, item: Item, now: Millis) -> None:
        if self.stored_queries >= self.limits.rewritten_max:
            self.refused += 1
            return
        waiting = self._queries.setdefault(place, {}).setdefault(prepared.query.id, _Waiting(prepared))
        waiting.triggers[item.side][item.tuple.id] = item
        self.stored_queries += 1
        keep_ms = 0 if prepared.query.algorithm == "dai-q" else prepared.keep_ms(item.side)
        until = max(now, wall_ms(item.tuple.published_at) + keep_ms) + self.limits.late_ms
        self._old_queries.add(until, (place, prepared.query.id, item.side, item.tuple.id))

    def _forget(self, message: ForgetQuery, now: Millis) -> list[Effect]:
        self._removed.add(message.query, now + self.limits.recent_ms)
        self._take_away((message.at, message.value, message.cell), message.query)
        if message.cell == NO_CELL:
            return []
        assert message.at is not None, "only an attribute is in a cell"
        cell = cell_of(message.at, self.cells.depth(message.value, message.cell))
        if cell == message.cell:
            return []
        return [Route(cell_key(message.value, cell), msgspec.structs.replace(message, cell=cell))]

    def _take_away(self, place: _Place, query: QueryId) -> None:
        waiting = self._queries.get(place, {}).pop(query, None)
        if waiting is not None:
            self.stored_queries -= sum(map(len, waiting.triggers))
            if not self._queries[place]:
                del self._queries[place]

    def drop(self, query: QueryId, now: Millis) -> None:
        """Forget a query wherever it is."""
        self._removed.add(query, now + self.limits.recent_ms)
        for place in [place for place, queries in self._queries.items() if query in queries]:
            self._take_away(place, query)

    def is_removed(self, query: QueryId) -> bool:
        """Whether a query was here until lately."""
        return query in self._removed

    def queries_at(self, at: Attribute | None, value: ValueText) -> tuple[QueryId, ...]:
        """The queries that wait for a value."""
        return tuple(self._queries.get((at, value, NO_CELL), {}))

    # Tuples.

    def _index(self, message: VlIndex, now: Millis) -> list[Effect]:
        told = _Told()
        self._indexed((message.at, message.value, NO_CELL), message.tuple, message.keep_ms, told, now)
        return told.effects()

    def _indexed(self, place: _Place, each: StreamTuple, keep_ms: Millis, told: _Told, now: Millis) -> None:
        if each.id in self._tuples.get(place, {}):
            return
        is_compared = False
        for waiting in self._queries.get(place, {}).values():
            prepared = waiting.prepared
            is_compared |= prepared.query.algorithm != "dai-q"
            told.add(prepared.query, _met_by_tuple(waiting, each))
        self.filtered += is_compared
        self._keep_tuple(place, each, keep_ms, now)

    def _keep_tuple(self, place: _Place, each: StreamTuple, keep_ms: Millis, now: Millis) -> None:
        if self.stored_tuples >= self.limits.tuples_max:
            self.refused += 1
            return
        self._tuples.setdefault(place, {})[each.id] = each
        if place[-1] != NO_CELL:
            self._keep_ms[place, each.id] = keep_ms
        self.stored_tuples += 1
        until = max(now, wall_ms(each.published_at) + keep_ms) + self.limits.late_ms
        self._old_tuples.add(until, (place, each.id))

    # Cells.

    def _bundle(self, sender: PeerId, message: Bundle, now: Millis) -> list[Effect]:
        value, cell, each = message.value, message.cell, message.trigger
        effects = self._deepen(value, cell, message.depth)
        if message.asks_finger:
            effects.append(Send(sender, Finger(key=cell_key(value, cell))))
        depth = self.cells.depth(value, cell)
        if message.depth < depth:
            effects.append(Send(sender, SplitValue(value=value, depth=depth)))
        opened = by_cell(self._wanted(message), depth)
        indexed = by_cell(message.indexed, depth)
        told = _Told()
        before = self.filtered
        is_divisible = len(opened.get(cell, ())) + len(indexed.get(cell, ())) > 1
        for at, every in opened.pop(cell, ()):
            self._rewritten((at, value, cell), each, apart(every), told, now)
        for at, keep_ms in indexed.pop(cell, ()):
            self._indexed((at, value, cell), each, keep_ms, told, now)
        for other in sorted({**opened, **indexed}):  # They are elsewhere by now.
            passed = msgspec.structs.replace(
                message,
                cell=other,
                depth=depth,
                opened=opened.get(other, ()),
                indexed=indexed.get(other, ()),
                asks_finger=False,
            )
            effects.append(Route(cell_key(value, other), passed))
        is_heavy = self.cells.is_heavy(value, cell, self.filtered - before, now)
        if is_heavy and is_divisible:
            if cell == FIRST:
                effects += self._deepen(value, cell, depth + STEP)
            else:
                effects.append(
                    Route(cell_key(value, FIRST), SplitValue(value=value, depth=depth + STEP, cell=FIRST)),
                )
        return effects + told.effects()

    def _wanted(self, message: Bundle) -> list[tuple[Attribute, tuple[Opened, ...]]]:
        """Without queries that are over: where it would be passed on to, nobody may know of that."""
        if not len(self._removed):
            return list(message.opened)
        left = (
            (at, together(each for each in apart(opened) if each.query.id not in self._removed))
            for at, opened in message.opened
        )
        return [(at, opened) for at, opened in left if opened]

    def _deepen(self, value: ValueText, cell: int, depth: int) -> list[Effect]:
        """Hand over what belongs to other cells now; the first cell tells all others."""
        before = self.cells.depth(value, cell)
        if depth <= before:
            return []
        self.cells.deepen(value, cell, depth)
        effects: list[Effect] = []
        if cell == FIRST:
            effects += [
                Route(cell_key(value, other), SplitValue(value=value, depth=depth, cell=other))
                for other in range(1, 1 << (depth - 1))  # Higher ones are as deep from the beginning.
            ]
        joins: list[Join] = []
        tuples: list[VlIndex] = []
        for at in self._attributes_at(value, cell):
            if cell_of(at, depth) != cell:
                place = (at, value, cell)
                joins += self._handed_over_queries(place)
                tuples += self._handed_over_tuples(place)
        moved = Moved(
            value=value, cell=cell, depth=before, joins=tuple(joins), tuples=tuple(tuples), removed=tuple(self._removed)
        )
        return effects + [
            Route(cell_key(value, each.cell), each) for each in _shared(moved, depth) if each.cell != cell
        ]

    def _attributes_at(self, value: ValueText, cell: int) -> list[Attribute]:
        places = (place for table in (self._queries, self._tuples) for place in table)
        found = {at: None for at, of, where in places if of == value and where == cell and at is not None}
        return sorted(found, key=str)

    def _handed_over_queries(self, place: _Place) -> list[Join]:
        by_trigger: dict[TupleId, tuple[StreamTuple, list[Rewritten]]] = {}
        for query, waiting in list(self._queries.get(place, {}).items()):
            for side, triggers in enumerate(waiting.triggers):
                for item in triggers.values():
                    _, every = by_trigger.setdefault(item.tuple.id, (item.tuple, []))
                    every.append(Rewritten(waiting.prepared.query, 0 if side == 0 else 1))
            self._take_away(place, query)
        at, value, _ = place
        return [
            Join(at=at, value=value, trigger=trigger, rewritten=tuple(every), asks_finger=False)
            for trigger, every in by_trigger.values()
        ]

    def _handed_over_tuples(self, place: _Place) -> list[VlIndex]:
        at, value, _ = place
        assert at is not None
        tuples = self._tuples.pop(place, {})
        self.stored_tuples -= len(tuples)
        return [
            VlIndex(tuple=each, at=at, value=value, keep_ms=self._keep_ms.pop((place, each.id)))
            for each in tuples.values()
        ]

    def _take_in(self, message: Moved, now: Millis) -> list[Effect]:
        """What was handed over meets what was here before, not each other: it has met."""
        value, cell = message.value, message.cell
        effects = self._deepen(value, cell, message.depth)
        told = _Told()
        for query in message.removed:
            self._removed.add(query, now + self.limits.recent_ms)
            for at in self._attributes_at(value, cell):
                self._take_away((at, value, cell), query)
        for each in _shared(message, self.cells.depth(value, cell)):
            if each.cell == cell:
                self._meet_and_keep(value, cell, each.joins, each.tuples, told, now)
            else:
                effects.append(Route(cell_key(value, each.cell), each))
        return effects + told.effects()

    def _meet_and_keep(
        self,
        value: ValueText,
        cell: int,
        joins: tuple[Join, ...],
        tuples: tuple[VlIndex, ...],
        told: _Told,
        now: Millis,
    ) -> None:
        kept: list[tuple[_Place, Prepared, Item]] = []
        met: dict[Attribute | None, set[TupleId]] = {}  # A tuple of them may have come here, too.
        for index in tuples:
            met.setdefault(index.at, set()).add(index.tuple.id)
        for join in joins:
            place = (join.at, value, cell)
            for rewritten in join.rewritten:
                query, side = rewritten.query, rewritten.side
                known = self._queries.get(place, {}).get(query.id)
                is_known = known is not None and join.trigger.id in known.triggers[side]
                if query.id in self._removed or is_known:
                    continue
                prepared = self._prepare(query)
                item = prepared.read(join.trigger, side)
                told.add(query, self._met_by_query(place, prepared, item, met.get(join.at, ())))
                kept.append((place, prepared, item))
        for index in tuples:
            place = (index.at, value, cell)
            if index.tuple.id not in self._tuples.get(place, {}):
                for waiting in self._queries.get(place, {}).values():
                    told.add(waiting.prepared.query, _met_by_tuple(waiting, index.tuple))
                self._keep_tuple(place, index.tuple, index.keep_ms, now)
        for place, prepared, item in kept:
            self._keep_query(place, prepared, item, now)

    # Time.

    def sweep(self, now: Millis) -> None:
        """Let go of what has ended."""
        for place, query, side, trigger in self._old_queries.due(now):
            waiting = self._queries.get(place, {}).get(query)
            if waiting is None or waiting.triggers[side].pop(trigger, None) is None:
                continue  # The query was removed.
            self.stored_queries -= 1
            if not any(waiting.triggers):
                del self._queries[place][query]
                if not self._queries[place]:
                    del self._queries[place]
        for place, name in self._old_tuples.due(now):
            tuples = self._tuples.get(place, {})
            if tuples.pop(name, None) is None:
                continue  # It was handed over.
            self._keep_ms.pop((place, name), None)
            self.stored_tuples -= 1
            if not tuples:
                del self._tuples[place]
        self._removed.sweep(now)

    def is_empty(self) -> bool:
        """Whether nothing of any query is left."""
        return not self._queries and not self._prepared

    def validate(self) -> None:
        every = [waiting for queries in self._queries.values() for waiting in queries.values()]
        assert self.stored_queries == sum(len(side) for waiting in every for side in waiting.triggers)
        assert self.stored_tuples == sum(map(len, self._tuples.values()))
        assert self.stored_queries <= self.limits.rewritten_max
        assert self.stored_tuples <= self.limits.tuples_max
        assert all(self._queries.values()), "no place without queries"
        assert all(any(waiting.triggers) for waiting in every), "no query without triggers"


def _is_told_here(algorithm: AnyAlgorithm, trigger: Item, each: Item) -> bool:
    """Whether this is the evaluator that tells a pair: in DAI-Q and DAI-T there are two that could."""
    match algorithm:
        case "dai-q":
            return each.order < trigger.order
        case "dai-t":
            return trigger.order < each.order
    return True


def _shared(moved: Moved, depth: int) -> list[Moved]:
    """What each cell gets of that which belonged to one cell while the value was less deep."""
    found: list[Moved] = []
    for cell in range(moved.cell, 1 << depth, 1 << moved.depth):
        joins = tuple(each for each in moved.joins if each.at is not None and cell_of(each.at, depth) == cell)
        tuples = tuple(each for each in moved.tuples if cell_of(each.at, depth) == cell)
        if joins or tuples or moved.removed:
            found.append(msgspec.structs.replace(moved, cell=cell, depth=depth, joins=joins, tuples=tuples))
    return found


def _met_by_tuple(waiting: _Waiting, each: StreamTuple) -> Iterator[Notification]:
    prepared = waiting.prepared
    for side, triggers in enumerate(waiting.triggers):
        if not triggers:
            continue
        item = prepared.read(each, 0 if side == 1 else 1)
        for trigger in triggers.values():
            if _is_told_here(prepared.query.algorithm, trigger, item) and (found := prepared.meet(trigger, item)):
                yield found


@dataclass(slots=True)
class _Told:
    """Notifications on their way: one message for each subscriber."""

    by_subscriber: dict[PeerId, list[Notification]] = field(default_factory=dict)

    def add(self, query: JoinQuery, found: Iterator[Notification]) -> None:
        notifications = list(found)
        if notifications:
            self.by_subscriber.setdefault(query.subscriber, []).extend(notifications)

    def effects(self) -> list[Effect]:
        return [Send(peer, Notify(notifications=tuple(found))) for peer, found in self.by_subscriber.items()]
