"""The subscriber's part of the join index: to the proxy of a query, the index is a subgraph that its own peer hosts.

All state in the index is soft. Whatever is lost, the proxy begins the next attempt, which reads the streams again from
where the query was posed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.catalogue.messages import ShowStream, StreamShown
from protocols.effects import Effect, Route, Send, Tell
from protocols.errors import RemoteProtocolError, expect
from protocols.events import Received
from protocols.ids import Millis, PeerId, RequestId, StreamName
from protocols.inside import Inside
from protocols.join_index.attempt import JoinAttempt, RewriterName
from protocols.join_index.condition import CompiledJoin, NotIndexed
from protocols.join_index.expiry import Recently, decrement
from protocols.join_index.keys import attribute_key
from protocols.join_index.messages import (
    SIDES,
    AskEvaluators,
    Covered,
    Evaluators,
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
)
from protocols.join_index.panel import EVALUATORS_MAX, SHUN_MS
from protocols.join_index.reports import Reports
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
    Progress,
    ResultsReady,
    ResultsSafe,
    StreamInput,
    SubgraphStatus,
    Undeploy,
    first_proxy,
)
from queries.catalogue import DAY_MS
from queries.schema import Row

POSE_MS: Final = 2000  # A query that a rewriter has not answered is sent again after this time.
KEEP_MS: Final = 3000  # Between two renewals of leases.
SILENT_MS: Final = 6000  # A rewriter that has been silent for longer is taken for lost.
UNSAFE_MAX: Final = 50_000  # With more results that are not safe yet, evaluators get no NOTIFIED: back-pressure.
PROGRESS_MS: Final = 3000  # The proxy hears at least this often how far a query is.


@dataclass(slots=True)
class Subscriber:
    """The queries of one proxy that run through the join index.

    In:        DEPLOY, UNDEPLOY from this same peer; EVALUATORS, QUERY_INDEXED, QUERY_REFUSED, QUERY_LOST, COVERED;
               JOIN_RESULTS
    Out:       ASK_EVALUATORS to the rewriter where the sides of a query meet, then QUERY to the peer nearest to the key
               of each replica of each side's attribute; KEEP_QUERIES, REMOVE_QUERY; NOTIFIED, later where results pile
               up; results for the proxy
    Keeps:     its attempts, and what it knows of their readers
    Invariant: the proxy gets all results of tuples before it hears that these are covered
    """

    peer_id: PeerId
    inside: Inside
    neighbours: Callable[[], tuple[PeerId, ...]]
    first_late_ms: Millis = 0  # JoinQuery.late_ms of first attempts. A tuple that is later ends the attempt.
    life: Millis = 0
    attempts: dict[JoinId, JoinAttempt] = field(default_factory=dict)
    _asked: dict[RequestId, JoinAttempt] = field(default_factory=dict)
    _shunned: Recently[PeerId] = field(default_factory=Recently)  # Evaluators that were lost.
    # By query: the late_ms of its next attempt, and when it was raised.
    _raised: dict[StreamName, tuple[Millis, Millis]] = field(default_factory=dict)
    _alike: Counter[tuple[bytes, Algorithm]] = field(default_factory=Counter)  # Attempts, by condition and algorithm.
    _reports: Reports = field(default_factory=Reports)
    _owed: list[tuple[PeerId, Notified]] = field(default_factory=list)  # Held back until results are safe.
    _unsafe: int = 0  # Results that the proxy has not put into the streams of their queries yet.
    _kept_at: Millis = 0  # When leases were last renewed.

    # Attempts come and go.

    def deploy(self, message: Deploy, now: Millis) -> list[Effect]:
        subgraph = message.subgraph
        assert isinstance(subgraph.engine, Indexed)
        name = self._join_id(message.query, message.attempt)
        if name in self.attempts:
            return []
        query = JoinQuery(
            name,
            self.peer_id,
            next(each.since for each in subgraph.inputs if isinstance(each, StreamInput)),
            subgraph.engine.algorithm,
            subgraph.plan,
            DAY_MS,
            resume=message.resume.covers,
            life=self.life,
            late_ms=self._late_ms(message.query, now),
        )
        try:
            join = CompiledJoin.of(query)
        except NotIndexed as error:
            return [self._refusal(message, str(error))]
        attempt = self.attempts[name] = JoinAttempt(message, join, now)
        effects: list[Effect] = []
        for side in SIDES:
            request, effect = self.inside.ask(ROLE, ShowStream(name=join.side(side).source.stream))
            attempt.unknown[request] = side
            self._asked[request] = attempt
            effects.append(effect)
        return effects

    def _join_id(self, query: StreamName, attempt: int) -> JoinId:
        """What the index calls an attempt. The stream of a query names its first proxy; any other says who it is."""
        is_first = first_proxy(query) in ("", self.peer_id.short)
        return f"{query}~{attempt}" if is_first else f"{query}~{self.peer_id.short}~{attempt}"

    def _late_ms(self, query: StreamName, now: Millis) -> Millis:
        """How late tuples may be for windows: twice as much as in an attempt that ended because one was later."""
        running = {attempt.deploy.query: None for attempt in self.attempts.values()} | {query: None}
        self._raised = {
            name: (late_ms, at) for name, (late_ms, at) in self._raised.items() if name in running or now - at < DAY_MS
        }
        return self._raised.get(query, (self.first_late_ms, now))[0]

    def _ask_evaluators(self, attempt: JoinAttempt, now: Millis) -> list[Effect]:
        """All rewriters of an attempt must agree who evaluates a value, so one of them names the evaluators."""
        attempt.posed_at = now
        self._shunned.sweep(now)
        message = AskEvaluators(query=attempt.name, shunned=tuple(self._shunned))
        return [Route(attribute_key(attempt.meets_at()), message)]

    def named(self, message: Evaluators, now: Millis) -> list[Effect]:
        """The first answer counts: rewriters may already go by it. An impossible one counts as none."""
        attempt = self.attempts.get(message.query)
        if attempt is None or attempt.chosen is None or attempt.evaluators:
            return []
        if not 1 <= len(message.peers) <= EVALUATORS_MAX:
            return []
        attempt.agree(message.peers)
        return _pose(attempt, now)

    def answered(self, request: RequestId, answer: Answer, now: Millis) -> list[Effect]:
        """The catalogue has said what it knows of a stream."""
        attempt = self._asked.pop(request, None)
        if attempt is None or self.attempts.get(attempt.name) is not attempt:
            return []
        side = attempt.unknown.pop(request)
        if isinstance(answer, StreamShown):
            found = [each.statistics for each in answer.publishers if each.statistics is not None]
            attempt.statistics[side] = found
        if attempt.unknown:
            return []
        signature = attempt.join.condition.signature
        alike = {algorithm: self._alike[signature, algorithm] for algorithm in ALGORITHMS}
        attempt.choose_algorithm(alike, min(len(self.neighbours()) + 1, EVALUATORS_MAX))
        assert attempt.chosen is not None
        self._alike[signature, attempt.chosen.algorithm] += 1
        return self._ask_evaluators(attempt, now)

    def indexed(self, sender: PeerId, message: QueryIndexed, now: Millis) -> list[Effect]:
        attempt = self.attempts.get(message.query)
        if attempt is None:
            return [Send(sender, RemoveQuery(query=message.query))]
        rewriter = (message.side, message.replica)
        if rewriter not in attempt.queries:
            return []
        was_in_place = attempt.is_in_place
        before = self._reports.readers.get(attempt.readers.get(rewriter, ""))
        if before is not None and before.peer != sender:
            return self._lose(attempt, f"peers {sender.short} and {before.peer.short} both took it")
        if before is not None and attempt.readers[rewriter] != message.reader:
            self._leave(attempt, rewriter)
        attempt.readers[rewriter] = message.reader
        self._reports.enter((message.query, *rewriter), message.reader, sender, message.report, now)
        if was_in_place or not attempt.is_in_place:
            return []
        deploy = attempt.deploy
        number = deploy.subgraph.number
        deployed = Deployed(query=deploy.query, attempt=deploy.attempt, number=number, life=attempt.began_at)
        return [self._tell_proxy(deployed), self._status(attempt)]

    def _expect_rewriter(self, attempt: JoinAttempt, sender: PeerId) -> None:
        """Once an attempt is in place, only its rewriters may end it."""
        rewriters = [self._reports.readers[reader].peer for reader in attempt.readers.values()]
        expect(not attempt.is_in_place or sender in rewriters, "news of a query from a peer that does not run it")

    def refused(self, sender: PeerId, message: QueryRefused) -> list[Effect]:
        attempt = self.attempts.get(message.query)
        if attempt is None:
            return []
        self._expect_rewriter(attempt, sender)
        return [*self._end(attempt), self._refusal(attempt.deploy, message.reason)]

    def lost(self, sender: PeerId, message: QueryLost, now: Millis) -> list[Effect]:
        attempt = self.attempts.get(message.query)
        if attempt is None:
            return []
        self._expect_rewriter(attempt, sender)
        if message.culprit is not None:
            self._shunned.sweep(now)
            self._shunned.add(message.culprit, now + SHUN_MS)
        return self._lose(attempt, message.reason)

    def _lose_query(self, query: JoinId, reason: str) -> list[Effect]:
        attempt = self.attempts.get(query)
        return self._lose(attempt, reason) if attempt is not None else []

    def _lose(self, attempt: JoinAttempt, reason: str) -> list[Effect]:
        """End an attempt; the proxy begins another one soon."""
        deploy = attempt.deploy
        return [*self._end(attempt), Tell(AttemptLost(deploy.query, deploy.attempt, reason))]

    def undeploy(self, message: Undeploy) -> list[Effect]:
        over = [
            attempt
            for attempt in self.attempts.values()
            if attempt.deploy.query == message.query and attempt.deploy.attempt <= message.attempt
        ]
        return [effect for attempt in over for effect in self._end(attempt)]

    def _end(self, attempt: JoinAttempt) -> list[Effect]:
        del self.attempts[attempt.name]
        if attempt.chosen is not None:
            decrement(self._alike, (attempt.join.condition.signature, attempt.chosen.algorithm))
        for request in attempt.unknown:
            self._asked.pop(request, None)
            self.inside.forget(request)
        rewriters = dict.fromkeys(self._reports.readers[reader].peer for reader in attempt.readers.values())
        for rewriter in list(attempt.readers):
            self._leave(attempt, rewriter)
        self._unsafe -= sum(attempt.unsafe)
        over = Parcel(number=0, over=(attempt.name,))
        return [
            *(Send(peer, RemoveQuery(query=attempt.name)) for peer in rewriters),
            *(Send(peer, over) for peer in attempt.evaluators),
            *self._notify(),
        ]

    def _leave(self, attempt: JoinAttempt, rewriter: RewriterName) -> None:
        self._reports.leave((attempt.name, *rewriter), attempt.readers.pop(rewriter))

    def _refusal(self, deploy: Deploy, reason: str) -> Effect:
        number = deploy.subgraph.number
        message = DeployRefused(query=deploy.query, attempt=deploy.attempt, number=number, reason=reason)
        return self._tell_proxy(message)

    def _status(self, attempt: JoinAttempt) -> Effect:
        seen = {rewriter: self._reports.readers[name] for rewriter, name in attempt.readers.items()}
        return self._tell_proxy(attempt.status(seen))

    def _tell_proxy(self, message: Deployed | DeployRefused | SubgraphStatus) -> Effect:
        return Tell(Received(self.peer_id, message))

    # Results.

    def results(self, sender: PeerId, message: JoinResults, now: Millis) -> list[Effect]:
        notified = Notified(subscriber_life=message.subscriber_life, sequence=message.sequence)
        if message.subscriber_life != self.life:  # An earlier life of this peer waited for them.
            return [Send(sender, notified)]
        decoded = self._decoded(sender, message)
        expect(self._reports.is_near(sender, message.life, message.sequence), "results far ahead of all others")
        effects = self._note_life(sender, message.life)
        if self._reports.take(sender, message.life, message.sequence):
            for query in message.dropped:
                if (attempt := self.attempts.get(query)) is not None:
                    effects += self._lose(attempt, f"peer {sender.short} has let go of it")
            for query in message.late:
                effects += self._too_late(query, now)
            for each, made in zip(message.results, decoded, strict=True):
                if (attempt := self.attempts.get(each.query)) is not None:
                    rows, digests = attempt.new_rows(each, made)
                    effects += [self._ready(attempt, rows, None, digests)] if rows else []
        self._owed.append((sender, notified))
        return effects + self._notify() + self._believe_reports(now)

    def _decoded(self, sender: PeerId, message: JoinResults) -> list[list[Row]]:
        """The rows of each of its results; none for a query that is over."""
        for query in (*message.late, *message.dropped, *(each.query for each in message.results)):
            attempt = self.attempts.get(query)
            expect(attempt is None or sender in attempt.evaluators, "results from a peer that does not evaluate them")
        try:
            return [
                self.attempts[each.query].join.schema.decode(each.rows) if each.query in self.attempts else []
                for each in message.results
            ]
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(f"results that do not have the columns of their query: {error}") from error

    def _too_late(self, query: JoinId, now: Millis) -> list[Effect]:
        """A tuple may have missed partners that had expired: the next attempt has evaluators keep them longer."""
        attempt = self.attempts.get(query)
        if attempt is None:
            return []
        late_ms = attempt.join.query.late_ms
        self._raised[attempt.deploy.query] = (min(max(2 * late_ms, 1), DAY_MS), now)
        return self._lose(attempt, f"a tuple was more than {late_ms} ms late for its windows")

    def _ready(
        self, attempt: JoinAttempt, rows: Sequence[Row], progress: Progress | None, beyond: Sequence[bytes]
    ) -> Effect:
        attempt.unsafe.append(len(rows))
        self._unsafe += len(rows)
        return Tell(ResultsReady(attempt.deploy.query, attempt.deploy.attempt, rows, progress, beyond))

    def safe(self, event: ResultsSafe) -> list[Effect]:
        """The proxy has put a group of results into the query's stream: more may come."""
        attempt = self.attempts.get(self._join_id(event.query, event.attempt))
        if attempt is not None and attempt.unsafe:
            self._unsafe -= attempt.unsafe.popleft()
        return self._notify()

    def _notify(self) -> list[Effect]:
        """Acknowledge results. With too many unsafe ones hold NOTIFIED back, so that evaluators withhold receipts."""
        if self._unsafe > UNSAFE_MAX or not self._owed:
            return []
        owed, self._owed = self._owed, []
        return [Send(peer, notified) for peer, notified in owed]

    # How far everything is.

    def covered(self, sender: PeerId, message: Covered, now: Millis) -> list[Effect]:
        seen = self._reports.readers.get(message.reader)
        if seen is None or seen.peer != sender or message.subscriber_life != self.life:
            return []
        seen.heard_at = now
        effects: list[Effect] = []
        for query in message.forgotten:
            attempt = self.attempts.get(query)
            if attempt is not None and message.reader in attempt.readers.values():
                effects += self._lose(attempt, f"peer {sender.short} has forgotten it")
            else:
                effects.append(Send(sender, RemoveQuery(query=query)))
        if seen.latest is not None and message.report <= seen.latest.report:
            return effects
        seen.latest = seen.waiting = message
        for each in message.sent:
            effects += self._note_life(each.peer, each.life)
        return effects + self._believe_reports(now)

    def _note_life(self, peer: PeerId, life: Millis) -> list[Effect]:
        """An evaluator has one life at a time: attempts that count on another one are lost."""
        lost = self._reports.restarted(peer, life)
        return [effect for query in lost for effect in self._lose_query(query, f"peer {peer.short} was restarted")]

    def _believe_reports(self, now: Millis) -> list[Effect]:
        """Tell the proxy what has become known with the reports whose results are all here."""
        effects: list[Effect] = []
        for seen in self._reports.newly_believed():
            for query in dict.fromkeys(query for query, _, _ in seen.members):
                attempt = self.attempts[query]
                if attempt.uncovered or now - attempt.reported_at >= PROGRESS_MS:
                    effects += self._tell_progress(attempt, now)
        return effects

    def _tell_progress(self, attempt: JoinAttempt, now: Millis) -> list[Effect]:
        for (side, replica), name in attempt.readers.items():
            seen = self._reports.readers[name]
            if seen.believed >= seen.members[attempt.name, side, replica]:
                attempt.advance(side, seen.covers)
        news = attempt.news(now)
        return [self._ready(attempt, (), *news)] if news is not None else []

    # Time.

    def sweep(self, now: Millis) -> list[Effect]:
        """Renew leases, ask and pose again where nobody answered, and end attempts whose rewriters are silent."""
        effects: list[Effect] = []
        for attempt in list(self.attempts.values()):
            readers = [self._reports.readers[name] for name in attempt.readers.values()]
            silent = [seen.peer for seen in readers if now - seen.heard_at > SILENT_MS]
            if silent:
                effects += self._lose(attempt, f"peer {silent[0].short} was silent")
                continue
            if attempt.chosen is not None and not attempt.is_in_place and now - attempt.posed_at >= POSE_MS:
                effects += _pose(attempt, now) if attempt.queries else self._ask_evaluators(attempt, now)
            if attempt.is_in_place:
                effects += [self._status(attempt), *self._tell_progress(attempt, now)]
        if now - self._kept_at >= KEEP_MS:
            self._kept_at = now
            for seen in self._reports.readers.values():
                effects.append(Send(seen.peer, KeepQueries(queries=tuple(seen.members))))
        return effects

    def is_empty(self) -> bool:
        """Whether nothing of any query is left."""
        return not self.attempts and not self._asked and not self._owed

    def validate(self) -> None:
        assert self._alike.total() == sum(attempt.chosen is not None for attempt in self.attempts.values())
        for attempt in self._asked.values():
            assert self.attempts.get(attempt.name) is attempt
        assert self._unsafe == sum(sum(attempt.unsafe) for attempt in self.attempts.values())
        for name, seen in self._reports.readers.items():
            assert seen.members, "a reader that serves no query is forgotten"
            assert all(self.attempts[query].readers[side, replica] == name for query, side, replica in seen.members)


def _pose(attempt: JoinAttempt, now: Millis) -> list[Effect]:
    """Send the query to the rewriters that have not indexed it yet."""
    attempt.posed_at = now
    return [
        Route(attribute_key(attempt.join.side(side).attribute, replica), query)
        for (side, replica), query in attempt.queries.items()
        if (side, replica) not in attempt.readers
    ]
