"""The subscriber's part among peers that come and go: to its proxy a query in the index is a subgraph that it hosts.

Everything in the index is soft, as in all of execution: whatever is lost, the query begins its next attempt, and its
streams are read again from where it was posed. What the proxy must know to tell each result once is how far both sides
have met. A pair has been told once both its tuples are covered: each was unpacked by the one evaluator of their value,
in one life of it, and all that it told of the query until then is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from protocols.catalogue.messages import ShowStream, StreamShown
from protocols.catalogue.streams import DAY_MS
from protocols.effects import Effect, Route, Send, Tell
from protocols.events import Received
from protocols.execution.executor import AttemptLost, ResultsReady
from protocols.execution.messages import (
    Deploy,
    Deployed,
    DeployRefused,
    IndexStatus,
    InputStatus,
    Progress,
    Reach,
    StreamInput,
    SubgraphStatus,
    Undeploy,
)
from protocols.execution.progress import Vector
from protocols.execution.results import DIGEST_BYTES
from protocols.ids import Millis, PeerId, RequestId
from protocols.inside import Inside
from protocols.join_index.attribute_level import ROLE
from protocols.join_index.condition import NotIndexed, Prepared
from protocols.join_index.keys import attribute_key
from protocols.join_index.messages import (
    ALGORITHMS,
    LEFT,
    RIGHT,
    Covered,
    JoinQuery,
    KeepQuery,
    Notification,
    Notified,
    Notify,
    Parcel,
    Query,
    QueryId,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    RemoveQuery,
    Side,
)
from protocols.messages import Answer
from queries.schema import Row

SIDES: Final[tuple[Side, Side]] = (LEFT, RIGHT)
POSE_MS: Final = 2000  # Between two tries.
KEEP_MS: Final = 3000
SILENT_MS: Final = 6000  # An attribute level that has not said a word for so long is taken for lost.
SHUN_MS: Final = 30_000  # An evaluator that was lost is not chosen again for a while.
EVALUATORS_MAX: Final = 64
AWAIT_MS: Final = 3_600_000  # How long to wait for tuples that an earlier attempt has read and this one cannot find,
UNCOVERED_MAX: Final = 100_000  # and how many results beyond them to remember by name.


@dataclass(slots=True, eq=False)
class _Attempt:
    """One attempt of a query."""

    deploy: Deploy
    prepared: Prepared
    evaluators: tuple[PeerId, ...]
    began_at: Millis
    unknown: dict[RequestId, Side] = field(default_factory=dict)  # Streams whose rates are being asked for.
    rates: dict[Side, float] = field(default_factory=dict)
    queries: dict[Side, Query] = field(default_factory=dict)
    places: dict[Side, PeerId] = field(default_factory=dict)
    posed_at: Millis = 0
    kept_at: Millis = 0
    heard_at: dict[Side, Millis] = field(default_factory=dict)
    lives: dict[PeerId, Millis] = field(default_factory=dict)  # Of evaluators.
    arrived: dict[PeerId, int] = field(default_factory=dict)  # Everything an evaluator has told up to here,
    ahead: dict[PeerId, dict[int, None]] = field(default_factory=dict)  # and some of what it told after that.
    reports: dict[Side, Covered] = field(default_factory=dict)  # The latest of each side,
    waiting: dict[Side, Covered] = field(default_factory=dict)  # or the one whose results are not all here.
    covers: Vector = field(default_factory=Vector)
    uncovered: dict[str, tuple[Notification, bytes]] = field(default_factory=dict)  # Told, with digests of their rows.
    said: tuple[Reach, ...] = ()
    is_whole: bool = False  # Everything an earlier attempt had covered has been read again.
    results: int = 0

    @property
    def query(self) -> QueryId:
        return self.prepared.query.id

    @property
    def is_in_place(self) -> bool:
        return bool(self.queries) and len(self.places) == len(SIDES)

    def alias(self, side: Side) -> str:
        return self.prepared.side(side).source.alias


@dataclass(slots=True)
class IndexedQueries:
    """The queries of one proxy that run through the join index.

    In:        DEPLOY, UNDEPLOY of this same peer; QUERY_INDEXED, QUERY_REFUSED, QUERY_LOST, COVERED; NOTIFY
    Out:       QUERY to the nearest of each side's attribute, KEEP_QUERY, REMOVE_QUERY; NOTIFIED; results for the proxy
    Keeps:     its attempts; of each the results that are not covered yet
    Invariant: a result is handed on once in an attempt, and not at all if it was covered before the attempt; what
               is said to be covered has been handed on before
    """

    peer_id: PeerId
    inside: Inside
    neighbours: Callable[[], tuple[PeerId, ...]]
    attempts: dict[QueryId, _Attempt] = field(default_factory=dict)
    _asked: dict[RequestId, _Attempt] = field(default_factory=dict)
    _shunned: dict[PeerId, Millis] = field(default_factory=dict)

    # Coming and going.

    def deploy(self, message: Deploy, now: Millis) -> list[Effect]:
        subgraph = message.subgraph
        assert subgraph.engine in ALGORITHMS
        name = f"{message.query}~{message.attempt}"
        if name in self.attempts:
            return []
        since = next(each.since for each in subgraph.inputs if isinstance(each, StreamInput))
        query = JoinQuery(
            name, self.peer_id, since, subgraph.engine, subgraph.plan, DAY_MS, known=message.resume.covers
        )
        try:
            prepared = Prepared.of(query)
        except NotIndexed as error:
            return [self._refusal(message, str(error))]
        attempt = self.attempts[name] = _Attempt(message, prepared, self._evaluators(now), now)
        effects: list[Effect] = []
        for side in SIDES:
            request, effect = self.inside.ask(ROLE, ShowStream(name=prepared.side(side).source.stream))
            attempt.unknown[request] = side
            self._asked[request] = attempt
            effects.append(effect)
        return effects

    def _evaluators(self, now: Millis) -> tuple[PeerId, ...]:
        """All rewriters of an attempt must agree who evaluates a value, so it is decided here, and for the attempt."""
        self._shunned = {peer: at for peer, at in self._shunned.items() if now - at < SHUN_MS}
        there = [peer for peer in self.neighbours() if peer not in self._shunned and peer != self.peer_id]
        return tuple(sorted((self.peer_id, *there[: EVALUATORS_MAX - 1])))

    def answered(self, request: RequestId, answer: Answer, now: Millis) -> list[Effect]:
        attempt = self._asked.pop(request, None)
        if attempt is None or self.attempts.get(attempt.query) is not attempt:
            return []
        side = attempt.unknown.pop(request)
        if isinstance(answer, StreamShown):
            known = [each.statistics.rate_per_s for each in answer.publishers if each.statistics is not None]
            attempt.rates[side] = sum(known)
        return [] if attempt.unknown else self._pose_first(attempt, now)

    def _pose_first(self, attempt: _Attempt, now: Millis) -> list[Effect]:
        """SAI rewrites by the side whose tuples are fewer (section 4.1), the others by both."""
        slower = LEFT if attempt.rates.get(LEFT, 0.0) <= attempt.rates.get(RIGHT, 0.0) else RIGHT
        for side in SIDES:
            rewrites = attempt.prepared.query.algorithm != "sai" or side == slower
            attempt.queries[side] = Query(
                query=attempt.prepared.query, side=side, replica=0, rewrites=rewrites, evaluators=attempt.evaluators
            )
        return self._pose(attempt, now)

    def _pose(self, attempt: _Attempt, now: Millis) -> list[Effect]:
        attempt.posed_at = now
        return [
            Route(attribute_key(attempt.prepared.side(side).attribute), query)
            for side, query in attempt.queries.items()
            if side not in attempt.places
        ]

    def indexed(self, sender: PeerId, message: QueryIndexed, now: Millis) -> list[Effect]:
        attempt = self.attempts.get(message.query)
        if attempt is None:
            return [Send(sender, RemoveQuery(query=message.query))]
        was_in_place = attempt.is_in_place
        if attempt.places.setdefault(message.side, sender) != sender:
            return self._lose(
                attempt, f"peers {sender.short} and {attempt.places[message.side].short} both took it", now
            )
        attempt.heard_at[message.side] = now
        if was_in_place or not attempt.is_in_place:
            return []
        deploy = attempt.deploy
        number = deploy.subgraph.number
        deployed = Deployed(query=deploy.query, attempt=deploy.attempt, number=number, life=attempt.began_at)
        return [self._tell_proxy(deployed), self._tell_proxy(_status(attempt))]

    def refused(self, message: QueryRefused, now: Millis) -> list[Effect]:
        attempt = self.attempts.get(message.query)
        if attempt is None:
            return []
        return [*self._end(attempt), self._refusal(attempt.deploy, message.reason)]

    def lost(self, message: QueryLost, now: Millis) -> list[Effect]:
        if message.culprit is not None and message.culprit != self.peer_id:
            self._shunned[message.culprit] = now
        attempt = self.attempts.get(message.query)
        return self._lose(attempt, message.reason, now) if attempt is not None else []

    def _lose(self, attempt: _Attempt, reason: str, now: Millis) -> list[Effect]:
        """The proxy begins another attempt soon."""
        deploy = attempt.deploy
        return [*self._end(attempt), Tell(AttemptLost(deploy.query, deploy.attempt, reason))]

    def undeploy(self, message: Undeploy) -> list[Effect]:
        over = [
            attempt
            for attempt in self.attempts.values()
            if attempt.deploy.query == message.query and attempt.deploy.attempt <= message.attempt
        ]
        return [effect for attempt in over for effect in self._end(attempt)]

    def _end(self, attempt: _Attempt) -> list[Effect]:
        del self.attempts[attempt.query]
        for request in attempt.unknown:
            self._asked.pop(request, None)
            self.inside.forget(request)
        places = dict.fromkeys(attempt.places.values())
        over = Parcel(number=0, parts=(), over=(attempt.query,))
        return [
            *(Send(peer, RemoveQuery(query=attempt.query)) for peer in places),
            *(Send(peer, over) for peer in attempt.evaluators),
        ]

    def _refusal(self, deploy: Deploy, reason: str) -> Effect:
        number = deploy.subgraph.number
        message = DeployRefused(query=deploy.query, attempt=deploy.attempt, number=number, reason=reason)
        return self._tell_proxy(message)

    def _tell_proxy(self, message: Deployed | DeployRefused | SubgraphStatus) -> Effect:
        return Tell(Received(self.peer_id, message))

    # Results.

    def notify(self, sender: PeerId, message: Notify, now: Millis) -> list[Effect]:
        query = message.notifications[0].query
        effects: list[Effect] = [Send(sender, Notified(query=query, sequence=message.sequence))]
        attempt = self.attempts.get(query)
        if attempt is None:
            return effects
        if attempt.lives.setdefault(sender, message.life) != message.life:
            return effects + self._lose(attempt, f"peer {sender.short} was restarted", now)
        self._arrived(attempt, sender, message.sequence)
        new = [
            each
            for each in message.notifications
            if each.id not in attempt.uncovered and not _is_covered(each, attempt.covers)
        ]
        if new:
            encoded = [each.row for each in new]
            rows: Sequence[Row] = [row for raw in encoded for row in attempt.prepared.schema.decode(raw)]
            for each in new:
                attempt.uncovered[each.id] = (each, sha256(each.row).digest()[:DIGEST_BYTES])
            attempt.results += len(new)
            effects.append(Tell(ResultsReady(attempt.deploy.query, attempt.deploy.attempt, rows, None)))
        return effects + self._go_on(attempt, now)

    def _arrived(self, attempt: _Attempt, sender: PeerId, sequence: int) -> None:
        ahead = attempt.ahead.setdefault(sender, {})
        ahead[sequence] = None
        upto = attempt.arrived.get(sender, 0)
        while upto + 1 in ahead:
            upto += 1
            del ahead[upto]
        attempt.arrived[sender] = upto

    def covered(self, sender: PeerId, message: Covered, now: Millis) -> list[Effect]:
        attempt = self.attempts.get(message.query)
        if attempt is None:
            return [Send(sender, RemoveQuery(query=message.query))]
        if attempt.places.get(message.side) != sender:
            return []
        attempt.heard_at[message.side] = now
        attempt.reports[message.side] = message
        for heard in message.heard:
            if attempt.lives.setdefault(heard.peer, heard.life) != heard.life:
                return self._lose(attempt, f"peer {heard.peer.short} was restarted", now)
        attempt.waiting[message.side] = message
        return self._go_on(attempt, now)

    def _go_on(self, attempt: _Attempt, now: Millis) -> list[Effect]:
        """Believe the reports whose results are all here."""
        believed = [
            side
            for side, report in attempt.waiting.items()
            if all(attempt.arrived.get(heard.peer, 0) >= heard.sequence for heard in report.heard)
        ]
        for side in believed:
            attempt.covers.advance(attempt.waiting.pop(side).covers)
        return self._say(attempt, now) if believed else []

    def _say(self, attempt: _Attempt, now: Millis) -> list[Effect]:
        attempt.is_whole = attempt.is_whole or self._has_all(attempt, now)
        reached = attempt.covers.reaches()
        if not attempt.is_whole or reached == attempt.said:
            return []
        attempt.said = reached
        told = attempt.uncovered.items()
        attempt.uncovered = {name: each for name, each in told if not _is_covered(each[0], attempt.covers)}
        beyond = tuple(digest for _, digest in attempt.uncovered.values())
        deploy = attempt.deploy
        return [Tell(ResultsReady(deploy.query, deploy.attempt, (), Progress(reached), beyond))]

    def _has_all(self, attempt: _Attempt, now: Millis) -> bool:
        """Whether all tuples that an earlier attempt had covered are where those to come will look for them."""
        if now - attempt.began_at >= AWAIT_MS or len(attempt.uncovered) > UNCOVERED_MAX:
            return True
        resume = attempt.deploy.resume.covers
        return all(attempt.covers.next.get((reach.alias, reach.origin), 0) >= reach.next for reach in resume)

    # Time.

    def sweep(self, now: Millis) -> list[Effect]:
        """Keep what is in place, try again what is not, and see whether everybody is there."""
        effects: list[Effect] = []
        for attempt in list(self.attempts.values()):
            silent = [side for side, at in attempt.heard_at.items() if now - at > SILENT_MS]
            if silent:
                effects += self._lose(attempt, f"peer {attempt.places[silent[0]].short} was silent", now)
                continue
            if attempt.queries and not attempt.is_in_place and now - attempt.posed_at >= POSE_MS:
                effects += self._pose(attempt, now)
            if now - attempt.kept_at >= KEEP_MS:
                attempt.kept_at = now
                effects += [
                    Send(peer, KeepQuery(query=attempt.query, side=side)) for side, peer in attempt.places.items()
                ]
            if attempt.is_in_place:
                effects.append(self._tell_proxy(_status(attempt)))
        return effects

    def is_empty(self) -> bool:
        """Whether nothing of any query is left."""
        return not self.attempts and not self._asked

    def validate(self) -> None:
        for attempt in self._asked.values():
            assert self.attempts.get(attempt.query) is attempt


def _is_covered(each: Notification, covers: Vector) -> bool:
    return all(name.sequence < covers.next.get((alias, name.origin), 0) for alias, name in each.sources)


def _status(attempt: _Attempt) -> SubgraphStatus:
    deploy = attempt.deploy
    read = {side: report.tuples for side, report in attempt.reports.items()}
    return SubgraphStatus(
        query=deploy.query,
        attempt=deploy.attempt,
        number=deploy.subgraph.number,
        life=attempt.began_at,
        rows_in=sum(read.values()),
        rows_out=attempt.results,
        waiting=len(attempt.waiting),
        inputs=tuple(InputStatus(attempt.alias(side), read.get(side, 0), 0, None, False) for side in SIDES),
        progress=Progress(attempt.covers.reaches()),
        index=IndexStatus(
            tuple(
                (attempt.alias(side), str(attempt.prepared.side(side).attribute), peer, attempt.queries[side].rewrites)
                for side, peer in sorted(attempt.places.items())
            ),
            attempt.evaluators,
            len({heard.peer: None for report in attempt.reports.values() for heard in report.heard}),
            sum(report.messages for report in attempt.reports.values()),
        ),
    )
