"""The attribute level: queries wait for tuples, are rewritten by them, and go on to their evaluators."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from protocols.clock import wall_ms
from protocols.effects import Effect, Route, Send
from protocols.events import Event, Received, Unreachable, Unroutable
from protocols.ids import Millis, PeerId
from protocols.join_index.condition import Item, NotIndexed, Prepared
from protocols.join_index.expiry import Expiry, Recently
from protocols.join_index.fingers import JoinFingers
from protocols.join_index.keys import NULL, value_key
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    AlIndex,
    AskRate,
    Attribute,
    Finger,
    ForgetQuery,
    Join,
    Query,
    QueryId,
    QueryIndexed,
    QueryRefused,
    Rate,
    RemoveQuery,
    Rewritten,
    Side,
    StreamTuple,
    TupleId,
    ValueText,
)

_Target = tuple[Attribute | None, ValueText]  # Names an evaluator.


@dataclass(slots=True, eq=False)
class _Group:
    """Queries with equivalent join conditions, indexed by the same side: one tuple, one evaluator."""

    side: Side
    opens: Attribute | None  # The attribute that stays open; None: DAI-V.
    queries: dict[QueryId, Prepared] = field(default_factory=dict)
    targets: dict[_Target, Millis] = field(default_factory=dict)  # Evaluators that know of them, and until when.


@dataclass(slots=True)
class Rewriter:
    """Keeps join queries under the attribute they are indexed by, and rewrites them as tuples arrive.

    In:        QUERY, AL_INDEX, REMOVE_QUERY, ASK_RATE, FINGER; Unroutable and Unreachable for what it sent
    Out:       JOIN and FORGET_QUERY to evaluators, QUERY_INDEXED, QUERY_REFUSED and RATE to who asks
    Keeps:     ALQT: queries, grouped by equivalent join condition; tuples, only for as long as a query published
               before them may still be on its way; JFRT; which evaluators know of which group
    Invariant: a tuple triggers only the queries posed no later than it was published, each of them once
    Paper:     sections 4, 5 and 7; a query that comes after a tuple it is older than is triggered by it all the same
    """

    limits: JoinLimits
    fingers: JoinFingers = field(init=False)
    _groups: dict[Attribute, dict[bytes, _Group]] = field(default_factory=dict)
    _places: dict[QueryId, dict[tuple[Attribute, bytes], None]] = field(default_factory=dict)
    _recent: dict[Attribute, dict[TupleId, StreamTuple]] = field(default_factory=dict)
    _ageing: Expiry[tuple[Attribute, TupleId]] = field(default_factory=Expiry)
    _targets: Expiry[tuple[Attribute, bytes, _Target]] = field(default_factory=Expiry)
    _sent: Recently[tuple[QueryId, Side, bytes]] = field(default_factory=Recently)  # DAI-T: never the same again.
    _removed: Recently[QueryId] = field(default_factory=Recently)
    _arrivals: dict[Attribute, deque[tuple[Millis, ValueText]]] = field(default_factory=dict)
    stored: int = 0  # RS, the rewriter storage load: queries indexed here.
    filtered: int = 0  # RF, the rewriter filtering load: tuples that arrived.

    def __post_init__(self) -> None:
        self.fingers = JoinFingers(self.limits.fingers_max)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Received(message=AlIndex() as message):
                return self._trigger(message, now)
            case Received(sender=sender, message=Query() as message):
                return self._index(sender, message, now)
            case Received(message=RemoveQuery(query=query)):
                return self._remove(query, now)
            case Received(sender=sender, message=AskRate() as message):
                return [Send(sender, self._rate(message, now))]
            case Received(sender=sender, message=Finger(key=key)):
                self.fingers.learn(key, sender)
                return []
            case Unroutable(key=key, message=Join() | ForgetQuery() as message):
                return [Route(key, message)]
            case Unreachable(peer=peer, message=Join() | ForgetQuery() as message):
                self.fingers.forget(peer)
                return [Route(value_key(message.at, message.value), message)]
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
            prepared = Prepared.of(query)
        except NotIndexed as error:
            return [Send(sender, QueryRefused(query=query.id, reason=str(error)))]
        at, name = prepared.side(message.side).attribute, _group_name(prepared, message.side)
        places = self._places.get(query.id, {})
        if (at, name) in places:  # The network may deliver a message twice.
            return [done]
        if self.stored >= self.limits.queries_max:
            reason = f"the query table of {at} is full at {self.limits.queries_max}"
            return [Send(sender, QueryRefused(query=query.id, reason=reason))]
        groups = self._groups.setdefault(at, {})
        group = groups.setdefault(name, _Group(message.side, _opens(prepared, message.side)))
        group.queries[query.id] = prepared
        self._places.setdefault(query.id, {})[at, name] = None
        self.stored += 1
        effects: list[Effect] = [done]
        for each in list(self._recent.get(at, {}).values()):  # Tuples that overtook it.
            effects += self._rewritten(at, each, {name: (group, {query.id: prepared})}, now)
        return effects

    def _remove(self, query: QueryId, now: Millis) -> list[Effect]:
        self._removed.add(query, now + self.limits.recent_ms)
        effects: list[Effect] = []
        for at, name in self._places.pop(query, {}):
            group = self._groups[at][name]
            del group.queries[query]
            self.stored -= 1
            for opens, value in group.targets:
                message = ForgetQuery(query=query, at=opens, value=value)
                effects.append(self.fingers.towards(value_key(opens, value), message))
            if not group.queries:
                del self._groups[at][name]
            if not self._groups[at]:
                del self._groups[at]
        return effects

    # Tuples.

    def _trigger(self, message: AlIndex, now: Millis) -> list[Effect]:
        at, each = message.at, message.tuple
        recent = self._recent.setdefault(at, {})
        if each.id in recent:
            return []
        recent[each.id] = each
        self._ageing.add(max(now, wall_ms(each.published_at)) + self.limits.recent_ms, (at, each.id))
        arrivals = self._arrivals.setdefault(at, deque(maxlen=self.limits.arrivals_max))
        arrivals.append((now, message.value))
        self.filtered += 1
        groups = {name: (group, group.queries) for name, group in self._groups.get(at, {}).items()}
        return self._rewritten(at, each, groups, now)

    def _rewritten(
        self, at: Attribute, each: StreamTuple, groups: dict[bytes, tuple[_Group, dict[QueryId, Prepared]]], now: Millis
    ) -> list[Effect]:
        """One JOIN for each evaluator, however many queries and groups go there."""
        joins: dict[_Target, list[Rewritten]] = {}
        items: dict[Side, Item] = {}
        for name, (group, queries) in groups.items():
            any_query = next(iter(queries.values()))
            if group.side not in items:
                items[group.side] = any_query.read(each, group.side)
            item = items[group.side]
            value = any_query.value(item)
            if value == NULL:
                continue
            triggered = [query for query in queries.values() if query.is_triggered(item) and self._is_new(query, item)]
            if not triggered:
                continue
            target = (group.opens, value)
            joins.setdefault(target, []).extend(Rewritten(query.query, group.side) for query in triggered)
            until = wall_ms(each.published_at) + max(query.keep_ms(group.side) for query in triggered)
            self._note_target(at, name, group, target, max(now, until) + self.limits.recent_ms)
        return [self._join(target, each, tuple(rewritten)) for target, rewritten in joins.items()]

    def _is_new(self, query: Prepared, item: Item) -> bool:
        """Whether the rewritten query has to be sent; in DAI-T, where equal results may be told once, it may be there.

        Under a window it is another query each time: it ends with the window of its trigger.
        """
        is_once = query.query.algorithm == "dai-t" and query.query.is_set
        if not is_once or query.side(item.side).window_ms is not None:
            return True
        name = (query.query.id, item.side, query.part_read(item))
        if name in self._sent:
            return False
        self._sent.add(name, wall_ms(item.tuple.published_at) + query.query.retention_ms)
        return True

    def _note_target(self, at: Attribute, name: bytes, group: _Group, target: _Target, until: Millis) -> None:
        if until > group.targets.get(target, 0):
            group.targets[target] = until
            self._targets.add(until, (at, name, target))

    def _join(self, target: _Target, trigger: StreamTuple, rewritten: tuple[Rewritten, ...]) -> Effect:
        at, value = target
        key = value_key(at, value)
        asks = not self.fingers.knows(key)
        return self.fingers.towards(
            key, Join(at=at, value=value, trigger=trigger, rewritten=rewritten, asks_finger=asks)
        )

    # Rates and time.

    def _rate(self, message: AskRate, now: Millis) -> Rate:
        values = [value for at, value in self._arrivals.get(message.at, ()) if at > now - self.limits.rate_ms]
        top = max(Counter(values).values(), default=0)
        share = top / len(values) if values else 0.0
        return Rate(query=message.query, side=message.side, tuples=len(values), top_share=share)

    def sweep(self, now: Millis) -> None:
        """Let go of what has ended."""
        for at, each in self._ageing.due(now):
            recent = self._recent[at]
            del recent[each]
            if not recent:
                del self._recent[at]
        for at, name, target in self._targets.due(now):
            group = self._groups.get(at, {}).get(name)
            if group is not None and group.targets.get(target, now + 1) <= now:
                del group.targets[target]
        self._sent.sweep(now)
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


def _opens(prepared: Prepared, side: Side) -> Attribute | None:
    other = prepared.condition.sides[1 - side]
    return None if prepared.query.algorithm == "dai-v" else other.attribute


def _group_name(prepared: Prepared, side: Side) -> bytes:
    """What decides the evaluator: the value of our side, and what the attribute that stays open must be for it."""
    own, opens = prepared.side(side), _opens(prepared, side)
    other = b"" if opens is None else str(opens).encode() + prepared.condition.sides[1 - side].signature
    return b"%d %d " % (side, len(own.signature)) + own.signature + other
