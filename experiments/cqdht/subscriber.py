"""The subscriber's part: a query goes to its rewriters, its results come back, each told once."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.cqdht.events import Notified, QueryFailed, QueryInPlace, QueryPosed, QueryStopped
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import AskRate, JoinQuery, Notify, Query, QueryIndexed, QueryRefused, Rate, RemoveQuery
from experiments.cqdht.ready import ReadyQuery
from protocols.effects import Effect, Route, Tell
from protocols.events import Event, Received, Unroutable
from protocols.ids import Key, Millis
from protocols.join_index.condition import NotIndexed
from protocols.join_index.expiry import Recently
from protocols.join_index.keys import attribute_key
from protocols.join_index.messages import LEFT, RIGHT, JoinId, Side


@dataclass(slots=True, eq=False)
class _Posed:
    """A query of ours: where it goes, and who has answered."""

    ready: ReadyQuery
    rates: dict[Side, Rate] = field(default_factory=dict)
    places: dict[tuple[Side, int], Key] = field(default_factory=dict)  # Side, replica: the rewriter's key.
    waiting: dict[tuple[Side, int], None] = field(default_factory=dict)


@dataclass(slots=True)
class JoinSubscriber:
    """Poses queries, chooses the index attribute in SAI, takes queries back, and drops results that come twice.

    In:        QueryPosed, QueryStopped, RATE, QUERY_INDEXED, QUERY_REFUSED, NOTIFY; Unroutable for what it sent
    Out:       ASK_RATE, QUERY, REMOVE_QUERY to rewriters; QueryInPlace, QueryFailed, Notified to other roles
    Keeps:     its queries; ids of results for as long as one may come again
    Invariant: a result of a query is told at most once, and none before it is posed or after it is stopped
    Paper:     sections 4 (SAI: one of two attributes, 4.1), 5 (DAI: both), 7 (on every replica of the rewriter)
    """

    limits: JoinLimits
    _queries: dict[JoinId, _Posed] = field(default_factory=dict)
    _told: Recently[str] = field(default_factory=Recently)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case QueryPosed(query=query):
                return self._pose(query)
            case QueryStopped(query=query):
                return self._stop(query)
            case Received(message=Rate() as message):
                return self._choose(message)
            case Received(message=QueryIndexed() as message):
                return self._placed(message)
            case Received(message=QueryRefused(query=query, reason=reason)):
                return [*self._stop(query), Tell(QueryFailed(query, reason))] if query in self._queries else []
            case Received(message=Notify() as message):
                return self._tell(message, now)
            case Unroutable(key=key, message=RemoveQuery() as message):
                return [Route(key, message)]
            case Unroutable(key=key, message=AskRate() as message):
                return [Route(key, message)] if message.query in self._queries else []
            case Unroutable(key=key, message=Query() as message):
                return [Route(key, message)] if message.query.id in self._queries else []
        raise AssertionError(f"no rule for {event}")

    def _pose(self, query: JoinQuery) -> list[Effect]:
        assert query.id not in self._queries, "a query is posed once"
        try:
            ready = ReadyQuery.of(query)
        except NotIndexed as error:
            return [Tell(QueryFailed(query.id, str(error)))]
        posed = self._queries[query.id] = _Posed(ready)
        if query.algorithm not in ("sai", "cells"):
            return self._place(posed, (LEFT, RIGHT))
        return [
            Route(attribute_key(at), AskRate(query=query.id, side=side, at=at))
            for side in (LEFT, RIGHT)
            for at in [ready.side(side).attribute]
        ]

    def _choose(self, rate: Rate) -> list[Effect]:
        """Section 4.1: the attribute of the slower relation, or of the one with the flatter values."""
        posed = self._queries.get(rate.query)
        if posed is None or posed.places:
            return []
        posed.rates[rate.side] = rate
        if len(posed.rates) < 2:
            return []
        left, right = posed.rates[LEFT], posed.rates[RIGHT]
        is_by_rate = self.limits.choose_by == "rate"
        is_left = left.tuples <= right.tuples if is_by_rate else left.top_share <= right.top_share
        slower: Side = LEFT if is_left else RIGHT
        if posed.ready.query.algorithm == "sai":
            return self._place(posed, (slower,))
        return self._place(posed, (LEFT, RIGHT), rewritten=(slower,))

    def _place(
        self, posed: _Posed, sides: tuple[Side, ...], rewritten: tuple[Side, ...] = (LEFT, RIGHT)
    ) -> list[Effect]:
        effects: list[Effect] = []
        for side in sides:
            for replica in range(self.limits.replicas):
                key = attribute_key(posed.ready.side(side).attribute, replica)
                posed.places[side, replica] = key
                posed.waiting[side, replica] = None
                query, rewrites = posed.ready.query, side in rewritten
                effects.append(Route(key, Query(query=query, side=side, replica=replica, rewrites=rewrites)))
        return effects

    def _placed(self, message: QueryIndexed) -> list[Effect]:
        posed = self._queries.get(message.query)
        if posed is None or (message.side, message.replica) not in posed.waiting:
            return []
        del posed.waiting[message.side, message.replica]
        return [] if posed.waiting else [Tell(QueryInPlace(message.query))]

    def _stop(self, query: JoinId) -> list[Effect]:
        posed = self._queries.pop(query, None)
        keys = {} if posed is None else dict.fromkeys(posed.places.values())
        return [Route(key, RemoveQuery(query=query)) for key in keys]

    def _tell(self, message: Notify, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for each in message.notifications:
            if each.query in self._queries and each.id not in self._told:
                effects.append(Tell(Notified(each)))
            self._told.add(each.id, now + 2 * self.limits.recent_ms)
        return effects

    def sweep(self, now: Millis) -> None:
        """Let go of what has ended."""
        self._told.sweep(now)

    def is_empty(self) -> bool:
        """Whether nothing of any query is left."""
        return not self._queries

    def validate(self) -> None:
        for posed in self._queries.values():
            assert posed.waiting.keys() <= posed.places.keys()
