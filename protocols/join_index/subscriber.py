"""The subscriber's part among peers that come and go: to its proxy a query in the index is a subgraph that it hosts.

Everything in the index is soft, as in all of execution: whatever is lost, the query begins its next attempt, and its
streams are read again from where it was posed. What the proxy must know to tell each result once is how far both sides
have met. A pair has been told once both its tuples are covered: each was unpacked by the one evaluator of their value,
in one life of it, and all that it told this peer until then is here. A result may be told more than once, so those that
are not covered yet are remembered by the tuples they are made of.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.messages import ShowStream, StreamShown
from protocols.catalogue.statistics import StreamStatistics
from protocols.catalogue.streams import DAY_MS
from protocols.delivery.messages import Origin
from protocols.effects import Effect, Route, Send, Tell
from protocols.events import Received
from protocols.ids import Millis, PeerId, RequestId, StreamName
from protocols.inside import Inside
from protocols.join_index.choice import Chosen, chosen, rewriting
from protocols.join_index.condition import CompiledJoin, NotIndexed
from protocols.join_index.expiry import less
from protocols.join_index.heavy import heavy_values
from protocols.join_index.keys import attribute_key
from protocols.join_index.known import both
from protocols.join_index.messages import (
    LEFT,
    RIGHT,
    Covered,
    Heard,
    IndexQuery,
    JoinId,
    JoinQuery,
    JoinResults,
    KeepQueries,
    Notified,
    Parcel,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    RemoveQuery,
    ResultRows,
    Side,
)
from protocols.join_index.reader import HeldName
from protocols.join_index.replicas import replicas_for
from protocols.join_index.rewriter import ROLE
from protocols.messages import Answer
from protocols.subgraphs import (
    ALGORITHMS,
    Algorithm,
    AttemptLost,
    Deploy,
    Deployed,
    DeployRefused,
    Indexed,
    IndexStatus,
    InputStatus,
    Progress,
    Reach,
    ResultsReady,
    ResultsSafe,
    RewriterStatus,
    StreamInput,
    SubgraphStatus,
    Undeploy,
    Vector,
    digest_of,
)
from queries.schema import Row

SIDES: Final[tuple[Side, Side]] = (LEFT, RIGHT)
POSE_MS: Final = 2000  # Between two tries.
KEEP_MS: Final = 3000
SILENT_MS: Final = 6000  # An attribute level that has not said a word for so long is taken for lost.
SHUN_MS: Final = 30_000  # An evaluator that was lost is not chosen again for a while.
EVALUATORS_MAX: Final = 64
AWAIT_MS: Final = 3_600_000  # How long to wait for tuples that an earlier attempt has read and this one cannot find,
UNCOVERED_MAX: Final = 100_000  # and how many results beyond them to remember by name.
UNSAFE_MAX: Final = 50_000  # Results on their way into streams; then evaluators are not told that theirs have arrived.
SAY_MS: Final = 3000  # How often the proxy hears how far a query is of which there is no news.


_Pair = tuple[Origin, int, Origin, int]  # The tuples that made a result, left and right.
_Rewriter = tuple[Side, int]  # One of those that share the tuples of a side.


@dataclass(slots=True, eq=False)
class _Seen:
    """A reader of some attempts, as its reports show it."""

    peer: PeerId
    heard_at: Millis
    members: dict[HeldName, int] = field(default_factory=dict)  # From which report on it speaks of them.
    latest: Covered | None = None
    waiting: Covered | None = None  # The latest, if results of before it are not all here.
    believed: int = 0  # The number of the last report that is believed,
    covers: dict[Origin, int] = field(default_factory=dict)  # and what it said.


@dataclass(slots=True)
class _Mouth:
    """What one life of an evaluator has told this peer."""

    upto: int = 0  # Everything up to here has arrived,
    ahead: dict[int, None] = field(default_factory=dict)  # and some of what it told after that.

    def say(self, sequence: int) -> bool:
        """Whether it is the first time."""
        if sequence <= self.upto or sequence in self.ahead:
            return False
        self.ahead[sequence] = None
        while self.upto + 1 in self.ahead:
            self.upto += 1
            del self.ahead[self.upto]
        return True


@dataclass(slots=True, eq=False)
class _Attempt:
    """One attempt of a query."""

    deploy: Deploy
    join: CompiledJoin
    evaluators: tuple[PeerId, ...]
    began_at: Millis
    unknown: dict[RequestId, Side] = field(default_factory=dict)  # Streams whose rates are being asked for.
    statistics: dict[Side, list[StreamStatistics]] = field(default_factory=dict)
    chosen: Chosen | None = None
    queries: dict[_Rewriter, IndexQuery] = field(default_factory=dict)
    readers: dict[_Rewriter, str] = field(default_factory=dict)
    posed_at: Millis = 0
    covers: Vector = field(default_factory=Vector)
    uncovered: dict[_Pair, Row] = field(default_factory=dict)  # Told.
    said: tuple[Reach, ...] = ()
    said_at: Millis = 0
    is_whole: bool = False  # Everything an earlier attempt had covered has been read again.
    results: int = 0
    unsafe: deque[int] = field(default_factory=deque)  # How many results were handed on and are not safe yet.

    @property
    def query(self) -> JoinId:
        return self.join.query.id

    @property
    def engine(self) -> Indexed:
        engine = self.deploy.subgraph.engine
        assert isinstance(engine, Indexed)
        return engine

    @property
    def is_in_place(self) -> bool:
        return bool(self.queries) and len(self.readers) == len(self.queries)

    def alias(self, side: Side) -> str:
        return self.join.side(side).source.alias


@dataclass(slots=True)
class Subscriber:
    """The queries of one proxy that run through the join index.

    In:        DEPLOY, UNDEPLOY of this same peer; QUERY_INDEXED, QUERY_REFUSED, QUERY_LOST, COVERED; JOIN_RESULTS
    Out:       QUERY to the nearest of each replica of each side's attribute, KEEP_QUERIES, REMOVE_QUERY; NOTIFIED,
               later where results pile up; results for the proxy
    Keeps:     its attempts; of each the results that are not covered yet
    Invariant: a result is handed on once in an attempt, and not at all if it was covered before the attempt; what
               is said to be covered has been handed on before
    """

    peer_id: PeerId
    inside: Inside
    neighbours: Callable[[], tuple[PeerId, ...]]
    late_ms: Millis = 0  # How late a tuple may be for a window of a join; an attempt that sees it later ends.
    life: Millis = 0
    attempts: dict[JoinId, _Attempt] = field(default_factory=dict)
    _asked: dict[RequestId, _Attempt] = field(default_factory=dict)
    _shunned: dict[PeerId, Millis] = field(default_factory=dict)
    _late: dict[StreamName, tuple[Millis, Millis]] = field(default_factory=dict)  # For queries that ended so, and when.
    _alike: Counter[tuple[bytes, Algorithm]] = field(default_factory=Counter)  # Attempts, by condition and algorithm.
    _readers: dict[str, _Seen] = field(default_factory=dict)
    _lives: dict[PeerId, Millis] = field(default_factory=dict)  # Of evaluators.
    _mouths: dict[tuple[PeerId, Millis], _Mouth] = field(default_factory=dict)
    _owed: list[tuple[PeerId, Notified]] = field(default_factory=list)  # Until results are safe.
    _unsafe: int = 0
    _kept_at: Millis = 0

    # Coming and going.

    def deploy(self, message: Deploy, now: Millis) -> list[Effect]:
        subgraph = message.subgraph
        assert isinstance(subgraph.engine, Indexed)
        name = f"{message.query}~{message.attempt}"
        if name in self.attempts:
            return []
        since = next(each.since for each in subgraph.inputs if isinstance(each, StreamInput))
        query = JoinQuery(
            name,
            self.peer_id,
            since,
            subgraph.engine.algorithm,
            subgraph.plan,
            DAY_MS,
            known=message.resume.covers,
            life=self.life,
            late_ms=self._late_ms(message.query, now),
        )
        try:
            join = CompiledJoin.of(query)
        except NotIndexed as error:
            return [self._refusal(message, str(error))]
        attempt = self.attempts[name] = _Attempt(message, join, self._evaluators(now), now)
        effects: list[Effect] = []
        for side in SIDES:
            request, effect = self.inside.ask(ROLE, ShowStream(name=join.side(side).source.stream))
            attempt.unknown[request] = side
            self._asked[request] = attempt
            effects.append(effect)
        return effects

    def _late_ms(self, query: StreamName, now: Millis) -> Millis:
        """How late tuples may be: twice as much as in an attempt that ended since some were later."""
        going_on = {attempt.deploy.query: None for attempt in self.attempts.values()} | {query: None}
        self._late = {
            name: (late_ms, at) for name, (late_ms, at) in self._late.items() if name in going_on or now - at < DAY_MS
        }
        return self._late.get(query, (self.late_ms, now))[0]

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
            found = [each.statistics for each in answer.publishers if each.statistics is not None]
            attempt.statistics[side] = found
        return [] if attempt.unknown else self._pose_first(attempt, now)

    def _pose_first(self, attempt: _Attempt, now: Millis) -> list[Effect]:
        """Say by which algorithm it runs, who rewrites and who evaluates: to both sides the same."""
        attempt.chosen = algorithm, _ = self._choose(attempt)
        attempt.join = attempt.join.by(algorithm)
        self._alike[attempt.join.condition.signature, algorithm] += 1
        query, known = attempt.join.query, both(attempt.join, attempt.statistics)
        rewrites, peers = rewriting(algorithm, known), attempt.evaluators
        engine = attempt.engine
        heavy = heavy_values(algorithm, attempt.join.attributes, rewrites, known, len(peers), engine.skew)
        for side in SIDES:
            replicas = replicas_for(engine.replicas, attempt.statistics.get(side, ()), len(peers))
            for replica in range(replicas):
                attempt.queries[side, replica] = IndexQuery(
                    query=query,
                    side=side,
                    replica=replica,
                    rewrites=rewrites[side],
                    evaluators=peers,
                    heavy=heavy,
                    replicas=replicas,
                )
        return self._pose(attempt, now)

    def _choose(self, attempt: _Attempt) -> Chosen:
        engine, join = attempt.engine, attempt.join
        if not engine.is_open:
            return Chosen(engine.algorithm, "as asked for")
        signature = join.condition.signature
        shared = {algorithm: self._alike[signature, algorithm] for algorithm in ALGORITHMS}
        return chosen(join, attempt.statistics, len(attempt.evaluators), engine.skew, shared)

    def _pose(self, attempt: _Attempt, now: Millis) -> list[Effect]:
        attempt.posed_at = now
        return [
            Route(attribute_key(attempt.join.side(side).attribute, replica), query)
            for (side, replica), query in attempt.queries.items()
            if (side, replica) not in attempt.readers
        ]

    def indexed(self, sender: PeerId, message: QueryIndexed, now: Millis) -> list[Effect]:
        attempt = self.attempts.get(message.query)
        if attempt is None:
            return [Send(sender, RemoveQuery(query=message.query))]
        rewriter = (message.side, message.replica)
        if rewriter not in attempt.queries:
            return []
        was_in_place = attempt.is_in_place
        before = self._readers.get(attempt.readers.get(rewriter, ""))
        if before is not None and before.peer != sender:
            return self._lose(attempt, f"peers {sender.short} and {before.peer.short} both took it", now)
        if before is not None and attempt.readers[rewriter] != message.reader:
            self._leave(attempt, rewriter)
        attempt.readers[rewriter] = message.reader
        seen = self._readers.setdefault(message.reader, _Seen(sender, now))
        seen.heard_at = now
        seen.members.setdefault((message.query, *rewriter), message.report)
        if was_in_place or not attempt.is_in_place:
            return []
        deploy = attempt.deploy
        number = deploy.subgraph.number
        deployed = Deployed(query=deploy.query, attempt=deploy.attempt, number=number, life=attempt.began_at)
        return [self._tell_proxy(deployed), self._tell_proxy(self._status(attempt))]

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
        if attempt.chosen is not None:
            less(self._alike, (attempt.join.condition.signature, attempt.chosen.algorithm))
        for request in attempt.unknown:
            self._asked.pop(request, None)
            self.inside.forget(request)
        places = dict.fromkeys(self._readers[reader].peer for reader in attempt.readers.values())
        for rewriter in list(attempt.readers):
            self._leave(attempt, rewriter)
        self._unsafe -= sum(attempt.unsafe)
        over = Parcel(number=0, over=(attempt.query,))
        return [
            *(Send(peer, RemoveQuery(query=attempt.query)) for peer in places),
            *(Send(peer, over) for peer in attempt.evaluators),
            *self._pay(),
        ]

    def _leave(self, attempt: _Attempt, rewriter: _Rewriter) -> None:
        name = attempt.readers.pop(rewriter)
        del self._readers[name].members[attempt.query, *rewriter]
        if not self._readers[name].members:
            del self._readers[name]

    def _refusal(self, deploy: Deploy, reason: str) -> Effect:
        number = deploy.subgraph.number
        message = DeployRefused(query=deploy.query, attempt=deploy.attempt, number=number, reason=reason)
        return self._tell_proxy(message)

    def _tell_proxy(self, message: Deployed | DeployRefused | SubgraphStatus) -> Effect:
        return Tell(Received(self.peer_id, message))

    # Results.

    def results(self, sender: PeerId, message: JoinResults, now: Millis) -> list[Effect]:
        notified = Notified(subscriber_life=message.subscriber_life, sequence=message.sequence)
        if message.subscriber_life != self.life:  # Those who waited for them are no more.
            return [Send(sender, notified)]
        effects = self._meet(sender, message.life, now)
        if self._mouths.setdefault((sender, message.life), _Mouth()).say(message.sequence):
            for query in message.late:
                effects += self._is_late(query, now)
            for each in message.results:
                attempt = self.attempts.get(each.query)
                if attempt is not None:
                    effects += self._hand_on(attempt, each)
        self._owed.append((sender, notified))
        return effects + self._pay() + self._go_on(now)

    def _is_late(self, query: JoinId, now: Millis) -> list[Effect]:
        """A tuple may have missed others, which were out of their windows: read them again, and keep them longer."""
        attempt = self.attempts.get(query)
        if attempt is None:
            return []
        late_ms = attempt.join.query.late_ms
        self._late[attempt.deploy.query] = (min(max(2 * late_ms, 1), DAY_MS), now)
        return self._lose(attempt, f"a tuple was more than {late_ms} ms late for its windows", now)

    def _hand_on(self, attempt: _Attempt, results: ResultRows) -> list[Effect]:
        """Those that were not told before."""
        left, right = (
            [attempt.covers.next.get((attempt.alias(side), origin), 0) for origin in results.origins] for side in SIDES
        )
        origins, numbers = results.origins, iter(results.made_of)
        rows: list[Row] = []
        made = attempt.join.schema.decode(results.rows)
        for row, one, first, other, second in zip(made, numbers, numbers, numbers, numbers, strict=True):
            pair = (origins[one], first, origins[other], second)
            is_covered = first < left[one] and second < right[other]
            if not is_covered and pair not in attempt.uncovered:
                attempt.uncovered[pair] = row
                rows.append(row)
        if not rows:
            return []
        attempt.results += len(rows)
        return [self._ready(attempt, rows, None)]

    def _ready(
        self, attempt: _Attempt, rows: Sequence[Row], progress: Progress | None, beyond: tuple[bytes, ...] = ()
    ) -> Effect:
        attempt.unsafe.append(len(rows))
        self._unsafe += len(rows)
        return Tell(ResultsReady(attempt.deploy.query, attempt.deploy.attempt, rows, progress, beyond))

    def safe(self, event: ResultsSafe) -> list[Effect]:
        """Results are in the query's stream: more may come."""
        attempt = self.attempts.get(f"{event.query}~{event.attempt}")
        if attempt is not None and attempt.unsafe:
            self._unsafe -= attempt.unsafe.popleft()
        return self._pay()

    def _pay(self) -> list[Effect]:
        """Say what has arrived, unless too much of it lies here: evaluators that are not told stop in time."""
        if self._unsafe > UNSAFE_MAX or not self._owed:
            return []
        owed, self._owed = self._owed, []
        return [Send(peer, notified) for peer, notified in owed]

    # How far everything is.

    def covered(self, sender: PeerId, message: Covered, now: Millis) -> list[Effect]:
        seen = self._readers.get(message.reader)
        if seen is None or seen.peer != sender or message.subscriber_life != self.life:
            return []
        seen.heard_at = now
        effects: list[Effect] = []
        for query in message.forgotten:
            attempt = self.attempts.get(query)
            if attempt is not None and message.reader in attempt.readers.values():
                effects += self._lose(attempt, f"peer {sender.short} has forgotten it", now)
            else:
                effects.append(Send(sender, RemoveQuery(query=query)))
        if seen.latest is not None and message.report <= seen.latest.report:
            return effects
        seen.latest = seen.waiting = message
        for heard in message.heard:
            effects += self._meet(heard.peer, heard.life, now)
        return effects + self._go_on(now)

    def _meet(self, peer: PeerId, life: Millis, now: Millis) -> list[Effect]:
        """An evaluator has only one life: whoever counts on another is lost."""
        if self._lives.get(peer) == life:
            return []
        self._lives[peer] = life
        for mouth in [each for each in self._mouths if each[0] == peer and each[1] != life]:
            del self._mouths[mouth]
        effects: list[Effect] = []
        for seen in list(self._readers.values()):
            report = seen.latest
            if report is not None and any(each.peer == peer and each.life != life for each in report.heard):
                for query, _, _ in list(seen.members):
                    if query in self.attempts:
                        effects += self._lose(self.attempts[query], f"peer {peer.short} was restarted", now)
        return effects

    def _go_on(self, now: Millis) -> list[Effect]:
        """Believe the reports whose results are all here."""
        effects: list[Effect] = []
        for seen in list(self._readers.values()):
            report = seen.waiting
            if report is None or not all(self._has_heard(heard) for heard in report.heard):
                continue
            seen.waiting, seen.believed = None, report.report
            for position in report.covers:
                seen.covers[position.origin] = max(position.next, seen.covers.get(position.origin, 0))
            for query in dict.fromkeys(query for query, _, _ in seen.members):
                attempt = self.attempts[query]
                if attempt.uncovered or now - attempt.said_at >= SAY_MS:
                    effects += self._say(attempt, now)
        return effects

    def _has_heard(self, heard: Heard) -> bool:
        if not heard.sequence:
            return True
        mouth = self._mouths.get((heard.peer, heard.life))
        return mouth is not None and mouth.upto >= heard.sequence

    def _say(self, attempt: _Attempt, now: Millis) -> list[Effect]:
        for (side, replica), name in attempt.readers.items():
            seen = self._readers[name]
            if seen.believed >= seen.members[attempt.query, side, replica]:
                alias = attempt.alias(side)
                attempt.covers.advance(tuple(Reach(alias, origin, upto) for origin, upto in seen.covers.items()))
        attempt.is_whole = attempt.is_whole or self._has_all(attempt, now)
        reached = attempt.covers.reaches()
        if not attempt.is_whole or reached == attempt.said:
            return []
        attempt.said, attempt.said_at = reached, now
        left, right = (attempt.alias(side) for side in SIDES)
        covers = attempt.covers.next
        attempt.uncovered = {
            pair: row
            for pair, row in attempt.uncovered.items()
            if pair[1] >= covers.get((left, pair[0]), 0) or pair[3] >= covers.get((right, pair[2]), 0)
        }
        schema = attempt.join.schema
        beyond = tuple(digest_of(schema, row) for row in attempt.uncovered.values())
        return [self._ready(attempt, (), Progress(reached), beyond)]

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
            silent = [
                seen.peer
                for seen in (self._readers[name] for name in attempt.readers.values())
                if now - seen.heard_at > SILENT_MS
            ]
            if silent:
                effects += self._lose(attempt, f"peer {silent[0].short} was silent", now)
                continue
            if attempt.queries and not attempt.is_in_place and now - attempt.posed_at >= POSE_MS:
                effects += self._pose(attempt, now)
            if attempt.is_in_place:
                effects += [self._tell_proxy(self._status(attempt)), *self._say(attempt, now)]
        if now - self._kept_at >= KEEP_MS:
            self._kept_at = now
            for seen in self._readers.values():
                effects.append(Send(seen.peer, KeepQueries(queries=tuple(seen.members))))
        return effects

    def is_empty(self) -> bool:
        """Whether nothing of any query is left."""
        return not self.attempts and not self._asked and not self._owed

    def _status(self, attempt: _Attempt) -> SubgraphStatus:
        deploy = attempt.deploy
        assert attempt.chosen is not None
        seen = {rewriter: self._readers[name] for rewriter, name in attempt.readers.items()}
        reports = {rewriter: each.latest for rewriter, each in seen.items() if each.latest is not None}
        read = {rewriter: report.tuples for rewriter, report in reports.items()}
        return SubgraphStatus(
            query=deploy.query,
            attempt=deploy.attempt,
            number=deploy.subgraph.number,
            life=attempt.began_at,
            rows_in=sum(read.values()),
            rows_out=attempt.results,
            waiting=sum(each.waiting is not None for each in seen.values()),
            inputs=tuple(
                InputStatus(attempt.alias(side), sum(n for each, n in read.items() if each[0] == side), 0, None, False)
                for side in SIDES
            ),
            progress=Progress(attempt.covers.reaches()),
            index=IndexStatus(
                tuple(
                    RewriterStatus(
                        attempt.alias(rewriter[0]),
                        str(attempt.join.side(rewriter[0]).attribute),
                        seen[rewriter].peer,
                        attempt.queries[rewriter].rewrites,
                        rewriter[1],
                        attempt.queries[rewriter].replicas,
                        read.get(rewriter, 0),
                    )
                    for rewriter in sorted(seen)
                ),
                attempt.evaluators,
                len({heard.peer: None for report in reports.values() for heard in report.heard}),
                sum(report.messages for report in reports.values()),
                attempt.chosen.algorithm,
                attempt.chosen.why,
                tuple((each.value, each.rows * each.columns) for each in attempt.queries[LEFT, 0].heavy),
            ),
        )

    def validate(self) -> None:
        assert self._alike.total() == sum(attempt.chosen is not None for attempt in self.attempts.values())
        for attempt in self._asked.values():
            assert self.attempts.get(attempt.query) is attempt
        assert self._unsafe == sum(sum(attempt.unsafe) for attempt in self.attempts.values())
        for name, seen in self._readers.items():
            assert seen.members, "nobody is read for"
            assert all(self.attempts[query].readers[side, replica] == name for query, side, replica in seen.members)
