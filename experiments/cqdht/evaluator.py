"""The value level: where rewritten queries meet tuples of the same value, and make notifications."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import (
    AnyAlgorithm,
    Contents,
    Finger,
    ForgetQuery,
    Join,
    JoinQuery,
    Notification,
    Notify,
    Rewritten,
    StreamTuple,
    Triggered,
    TupleId,
    VlIndex,
)
from experiments.cqdht.ready import Item, ReadyQuery
from experiments.cqdht.shared_plans import Sources, apart, together
from protocols.clock import wall_ms
from protocols.effects import Effect, Send
from protocols.events import Event, Received, Unreachable
from protocols.ids import Millis, PeerId
from protocols.join_index.expiry import Expiry, Recently
from protocols.join_index.keys import value_key
from protocols.join_index.messages import Attribute, JoinId, Side, ValueText
from queries.plan import Source

Place = tuple[Attribute | None, ValueText, int]  # The last: the part, where it is a cell.
NO_CELL: Final = -1


@dataclass(slots=True, eq=False)
class _Waiting:
    """The triggers of one query at one place: those of its left side, and those of its right side."""

    ready: ReadyQuery
    triggers: tuple[dict[TupleId, Item], dict[TupleId, Item]] = field(default_factory=lambda: ({}, {}))


@dataclass(slots=True)
class Evaluator:
    """Evaluates rewritten queries, now simple selections, against the tuples of its values.

    In:        JOIN, VL_INDEX, FORGET_QUERY; Unreachable for what it sent; what is done in cells (cell_holder.py)
    Out:       NOTIFY to subscribers, FINGER to a rewriter that came through the DHT
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
    _queries: dict[Place, dict[JoinId, _Waiting]] = field(default_factory=dict)
    _tuples: dict[Place, dict[TupleId, StreamTuple]] = field(default_factory=dict)
    _prepared: WeakValueDictionary[JoinId, ReadyQuery] = field(default_factory=WeakValueDictionary)
    _old_queries: Expiry[tuple[Place, JoinId, Side, TupleId]] = field(default_factory=Expiry)
    _old_tuples: Expiry[tuple[Place, TupleId]] = field(default_factory=Expiry)
    _removed: Recently[JoinId] = field(default_factory=Recently)
    _keep_ms: dict[tuple[Place, TupleId], Millis] = field(default_factory=dict)  # Of tuples that may be handed over.
    stored_queries: int = 0  # ES, the evaluator storage load, is the sum of
    stored_tuples: int = 0  # these two.
    filtered: int = 0  # EF, the evaluator filtering load: what arrived and was compared with what is stored.
    refused: int = 0  # What a full table had no room for: only what was there already could meet it.

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Received(sender=sender, message=Join() as message):
                effects = self._join(message, now)
                return [self._finger(sender, message), *effects] if message.asks_finger else effects
            case Received(message=VlIndex() as message):
                return self._index(message, now)
            case Received(message=ForgetQuery(query=query, at=at, value=value)):
                self.forget(query, [(at, value, NO_CELL)], now)
                return []
            case Unreachable(peer=peer, message=Notify() as message):
                return [Send(peer, message)]
            case Unreachable(message=Finger()):
                return []  # The next JOIN asks again.
        raise AssertionError(f"no rule for {event}")

    def _finger(self, sender: PeerId, message: Join) -> Effect:
        return Send(sender, Finger(key=value_key(message.at, message.value)))

    # Rewritten queries.

    def _join(self, message: Join, now: Millis) -> list[Effect]:
        place = (message.at, message.value, NO_CELL)
        told = Telling()
        self.rewritten(place, message.trigger, message.rewritten, told, now)
        return told.effects()

    def rewritten(
        self, place: Place, trigger: StreamTuple, every: tuple[Rewritten, ...], told: Telling, now: Millis
    ) -> None:
        """Queries that a trigger has rewritten come to a place."""
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
            ready = self._prepare(query)
            if item is None or item.side != side:
                item = ready.read(trigger, side)
            self.filtered += query.algorithm != "dai-t"
            told.add(query, self._met_by_query(place, ready, item))
            self._keep_query(place, ready, item, now)

    def _refuse(self, every: tuple[Rewritten, ...]) -> None:
        """The table is full."""
        self.refused += len(every)
        self.filtered += sum(each.query.algorithm != "dai-t" for each in every)

    def _prepare(self, query: JoinQuery) -> ReadyQuery:
        found = self._prepared.get(query.id)
        if found is None:
            found = self._prepared[query.id] = ReadyQuery.of(query)
        return found

    def _met_by_query(
        self, place: Place, ready: ReadyQuery, item: Item, met: Collection[TupleId] = ()
    ) -> Iterator[Notification]:
        other: Side = 1 if item.side == 0 else 0
        if ready.query.algorithm == "dai-v":
            waiting = self._queries.get(place, {}).get(ready.query.id)
            others = [] if waiting is None else list(waiting.triggers[other].values())
        else:
            tuples = self._tuples.get(place, {}).values()
            others = [ready.read(each, other) for each in tuples if each.id not in met]
        for each in others:
            if _is_told_here(ready.query.algorithm, item, each) and (found := ready.meet(item, each)):
                yield found

    def _keep_query(self, place: Place, ready: ReadyQuery, item: Item, now: Millis) -> None:
        if self.stored_queries >= self.limits.rewritten_max:
            self.refused += 1
            return
        waiting = self._queries.setdefault(place, {}).setdefault(ready.query.id, _Waiting(ready))
        waiting.triggers[item.side][item.tuple.id] = item
        self.stored_queries += 1
        keep_ms = 0 if ready.query.algorithm == "dai-q" else ready.keep_ms(item.side)
        until = max(now, wall_ms(item.tuple.published_at) + keep_ms) + self.limits.late_ms
        self._old_queries.add(until, (place, ready.query.id, item.side, item.tuple.id))

    def forget(self, query: JoinId, places: Iterable[Place], now: Millis) -> None:
        """A query is over: forget it at these places, and drop what still comes of it."""
        self._removed.add(query, now + self.limits.recent_ms)
        for place in places:
            self._take_away(place, query)

    def _take_away(self, place: Place, query: JoinId) -> None:
        waiting = self._queries.get(place, {}).pop(query, None)
        if waiting is not None:
            self.stored_queries -= sum(map(len, waiting.triggers))
            if not self._queries[place]:
                del self._queries[place]

    @property
    def removed(self) -> tuple[JoinId, ...]:
        """Queries that were forgotten lately."""
        return tuple(self._removed)

    # Tuples.

    def _index(self, message: VlIndex, now: Millis) -> list[Effect]:
        told = Telling()
        self.indexed((message.at, message.value, NO_CELL), message.tuple, message.keep_ms, told, now)
        return told.effects()

    def indexed(self, place: Place, each: StreamTuple, keep_ms: Millis, told: Telling, now: Millis) -> None:
        """A tuple comes to a place."""
        if each.id in self._tuples.get(place, {}):
            return
        is_compared = False
        for waiting in self._queries.get(place, {}).values():
            ready = waiting.ready
            is_compared |= ready.query.algorithm != "dai-q"
            told.add(ready.query, _met_by_tuple(waiting, each))
        self.filtered += is_compared
        self._keep_tuple(place, each, keep_ms, now)

    def _keep_tuple(self, place: Place, each: StreamTuple, keep_ms: Millis, now: Millis) -> None:
        if self.stored_tuples >= self.limits.tuples_max:
            self.refused += 1
            return
        self._tuples.setdefault(place, {})[each.id] = each
        if place[-1] != NO_CELL:
            self._keep_ms[place, each.id] = keep_ms
        self.stored_tuples += 1
        until = max(now, wall_ms(each.published_at) + keep_ms) + self.limits.late_ms
        self._old_tuples.add(until, (place, each.id))

    # Places that move.

    def has_any(self, place: Place) -> bool:
        return place in self._queries or place in self._tuples

    def queries_at(self, place: Place) -> tuple[JoinId, ...]:
        return tuple(self._queries.get(place, ()))

    def take_out(self, place: Place, queries: Iterable[JoinId], sources: Sources) -> tuple[Triggered, ...]:
        """Take rewritten queries away, to be kept elsewhere. Adds their sources to those of the message."""
        found: dict[tuple[TupleId, ...], tuple[tuple[StreamTuple, ...], list[Rewritten]]] = {}
        for query in queries:
            waiting = self._queries[place][query]
            for side, triggers in enumerate(waiting.triggers):
                if triggers:
                    by = tuple(item.tuple for item in triggers.values())
                    _, every = found.setdefault(tuple(triggers), (by, []))
                    every.append(Rewritten(waiting.ready.query, 0 if side == 0 else 1))
            self._take_away(place, query)
        return tuple(Triggered(together(every, sources), by) for by, every in found.values())

    def tuples_at(self, place: Place) -> tuple[tuple[StreamTuple, Millis], ...]:
        """The tuples of a place, and how long each can be needed."""
        return tuple((each, self._keep_ms[place, each.id]) for each in self._tuples.get(place, {}).values())

    def drop_tuples(self, place: Place) -> None:
        for name in self._tuples.pop(place, {}):
            del self._keep_ms[place, name]
            self.stored_tuples -= 1

    def take_in(
        self, place: Place, contents: Contents, sources: tuple[Source, ...], told: Telling, now: Millis
    ) -> None:
        """Take in what was taken out elsewhere. It meets what is here; among itself it has met before."""
        kept: list[tuple[ReadyQuery, Item]] = []
        met = {each.id for each, _ in contents.tuples}  # One of them may have come here, too.
        for triggered in contents.queries:
            for rewritten in apart(triggered.plans, sources):
                query, side = rewritten.query, rewritten.side
                if query.id in self._removed:
                    continue
                known = self._queries.get(place, {}).get(query.id)
                ready = self._prepare(query)
                for trigger in triggered.by:
                    if known is None or trigger.id not in known.triggers[side]:
                        item = ready.read(trigger, side)
                        told.add(query, self._met_by_query(place, ready, item, met))
                        kept.append((ready, item))
        for each, keep_ms in contents.tuples:
            if each.id not in self._tuples.get(place, {}):
                for waiting in self._queries.get(place, {}).values():
                    told.add(waiting.ready.query, _met_by_tuple(waiting, each))
                self._keep_tuple(place, each, keep_ms, now)
        for ready, item in kept:
            self._keep_query(place, ready, item, now)

    # Time.

    def sweep(self, now: Millis) -> None:
        """Let go of what has expired."""
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
        assert all(self._tuples.values()), "nor without tuples"
        assert all(any(waiting.triggers) for waiting in every), "no query without triggers"


def _is_told_here(algorithm: AnyAlgorithm, trigger: Item, each: Item) -> bool:
    """In DAI-Q and DAI-T a pair meets at two evaluators. Whether this is the one that tells it."""
    match algorithm:
        case "dai-q":
            return each.order < trigger.order
        case "dai-t":
            return trigger.order < each.order
    return True


def _met_by_tuple(waiting: _Waiting, each: StreamTuple) -> Iterator[Notification]:
    ready = waiting.ready
    for side, triggers in enumerate(waiting.triggers):
        if not triggers:
            continue
        item = ready.read(each, 0 if side == 1 else 1)
        for trigger in triggers.values():
            if _is_told_here(ready.query.algorithm, trigger, item) and (found := ready.meet(trigger, item)):
                yield found


@dataclass(slots=True)
class Telling:
    """Notifications to be sent: one message for each subscriber."""

    by_subscriber: dict[PeerId, list[Notification]] = field(default_factory=dict)

    def add(self, query: JoinQuery, found: Iterator[Notification]) -> None:
        notifications = list(found)
        if notifications:
            self.by_subscriber.setdefault(query.subscriber, []).extend(notifications)

    def effects(self) -> list[Effect]:
        return [Send(peer, Notify(notifications=tuple(found))) for peer, found in self.by_subscriber.items()]
