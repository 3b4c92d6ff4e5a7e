"""The proxy of queries: the peer they were submitted at plans and deploys them, and keeps them and their results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.messages import CreateStream, DropStream, ListStreams, StreamShown, StreamsListed
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import HybridClock
from protocols.delivery.messages import Publish, Published
from protocols.delivery.publisher import Publisher
from protocols.effects import AfterSync, Append, Effect, Reply, Send, SetTimer, Tell
from protocols.events import Abandoned, Answered, Event, PeerDown, Received, Requested, Started, TimerFired, Unreachable
from protocols.execution.chooser import Chooser, Outcome, adopt_join, instead_of_join
from protocols.execution.cut import Cut
from protocols.execution.derived import DerivedStreams
from protocols.execution.engine import EngineTried
from protocols.execution.messages import (
    ListQueries,
    QueriesListed,
    QueryId,
    QueryStarting,
    ResultsNoted,
    ShowQuery,
    StopQuery,
    SubmitQuery,
)
from protocols.execution.moving import choice_of, move
from protocols.execution.names import forget, make_way, restore
from protocols.execution.placing import BETTER_PLACED, Choice, Placing, Provisional, without_form
from protocols.execution.questions import ROLE, Questions
from protocols.execution.running import RETRY_MIN_MS, Running, planned, results_stream, stream_of, unknown_query
from protocols.execution.submission import cannot_run, not_running, objection
from protocols.ids import Key, Millis, PeerId, RequestId, StreamName
from protocols.inside import Inside
from protocols.limits import Limits
from protocols.messages import Answer, Done, Message, Record, Refused
from protocols.placement.events import OperatorsPlaced
from protocols.placement.sight import NetworkSeen
from protocols.subgraphs import (
    ALGORITHMS,
    AttemptLost,
    Deploy,
    Deployed,
    DeployRefused,
    Lease,
    Prepare,
    Prepared,
    ResultsReady,
    ResultsSafe,
    Spark,
    SubgraphStatus,
    Undeploy,
)
from queries.errors import QueryError
from queries.plan import output_schema
from queries.query import parse
from queries.schema import Schema

TICK: Final = "queries/tick"
TICK_MS: Final = 500
LEASE_EVERY_MS: Final = 3000
RESEND_MS: Final = 2000
SILENT_MS: Final = 5000  # A host that has not said a word for so long is taken for lost.
START_MS: Final = 240_000  # The engine may have to start first, on a machine that has much else to do.
RETRY_MAX_MS: Final = 15_000
PUBLISH_BYTES: Final = 512 << 10
PUBLISH_RETRY_MS: Final = 50


@dataclass(slots=True)
class QueryProxy:
    """Queries submitted at one peer.

    In:        SUBMIT, STOP, LIST_QUERIES, SHOW_QUERY; PREPARED, DEPLOYED, DEPLOY_REFUSED, SUBGRAPH_STATUS; results
    Out:       PREPARE, DEPLOY, UNDEPLOY, LEASE; the results, published to a stream of the query's name
    Keeps:     the queries, and what their results so far are made of
    Invariant: a result is in the query's stream once, whatever hosts were lost on the way
    """

    peer_id: PeerId
    inside: Inside
    clock: HybridClock
    publisher: Publisher
    limits: Limits
    running: dict[QueryId, Running] = field(default_factory=dict)
    _is_ticking: bool = False
    _questions: Questions = field(init=False)
    _chooser: Chooser = field(init=False)
    _derived: DerivedStreams = field(init=False)

    def __post_init__(self) -> None:
        self._questions = Questions(self.inside)
        self._chooser = Chooser(self.peer_id, self.clock, self._questions)
        self._derived = DerivedStreams(self.publisher.catalogue, (ROLE, "derived"))

    def restore(self, record: Record) -> None:
        restore(self.running, record)

    def snapshot(self) -> list[Record]:
        oldest_first = sorted(self.running.values(), key=lambda each: each.inserted_at)
        return [record for each in oldest_first for record in each.records()]

    def handle(self, event: Event, now: Millis) -> list[Effect]:  # noqa: C901 - one branch for each thing that happens
        match event:
            case Requested(request=request, command=SubmitQuery() as command):
                return self._submit(request, command, now)
            case Requested(request=request, command=StopQuery() as command):
                return self._stop(request, command.query, now)
            case Requested(request=request, command=ListQueries()):
                listed = tuple(each.listed() for each in self.running.values() if not each.only_plan)
                return [Reply(request, QueriesListed(queries=listed))]
            case Requested(request=request, command=ShowQuery() as command):
                return [Reply(request, self._show(command.query))]
            case Answered(request=request, answer=answer):
                return self._answered(request, answer, now)
            case Received(sender=sender, message=Deployed() as message):
                return self._deployed(sender, message, now)
            case Received(sender=sender, message=DeployRefused() as message):
                return self._refused(sender, message, now)
            case Received(sender=sender, message=Prepared() as message):
                return self._prepared(sender, message, now)
            case Received(message=SubgraphStatus() as message):
                return self._note_status(message, now)
            case ResultsReady():
                return self._results(event, now)
            case AttemptLost():
                query = self._query_of(event.query)
                is_current = query is not None and query.attempt == event.attempt
                return self._wait(query, event.reason, now) if query is not None and is_current else []
            case Abandoned(request=request):
                return self._abandoned(request, now)
            case PeerDown(peer=peer):
                return self._host_lost(peer, "died or left", now)
            case Unreachable(peer=peer, message=Deploy() | Lease() | Prepare()):
                return self._host_lost(peer, "cannot be reached", now)
            case NetworkSeen():
                query = self._query_of(event.placement)
                return self._act(query, self._chooser.seen(query, event, now), now) if query is not None else []
            case OperatorsPlaced():
                query = self._query_of(event.placement)
                return self._act(query, self._chooser.placed(query, event), now) if query is not None else []
            case EngineTried(reason=reason):
                self._chooser.trouble = reason
            case TimerFired():
                return self._tick(now)
            case Started():
                return self._restart_all(now)
        return []

    # From text to plan.

    def _submit(self, request: RequestId, command: SubmitQuery, now: Millis) -> list[Effect]:
        self.clock.witness(command.witness)
        inserted_at = self.clock.tick(now)
        name = command.name or f"q-{Key.of('query', self.peer_id, str(inserted_at)).hex()[:8]}"
        make_way(self.running, name)
        if refusal := objection(name, command.statistics, self.running, self.clock, self.publisher):
            return [Reply(request, refusal)]
        stream = results_stream(name, inserted_at, self.peer_id, self.publisher.catalogue.store.is_nearest)
        query = Running(name, command.text, command.engine, inserted_at, stream, request=request)
        query.only_plan = command.only_plan
        query.placing = Placing(command.placement, command.within_ms, command.statistics)
        self.running[name] = query
        return [*self._chooser.look_up(query), *self._start_ticking()]

    def _answered(self, request: RequestId, answer: Answer, now: Millis) -> list[Effect]:
        query, purpose = self._questions.take(request)
        if query is None or query.state == "ended":
            return []  # Another may have its name.
        if purpose == "results":
            return self._made(query, answer, now)
        match purpose, answer:
            case "likely", StreamShown() | Refused():
                return self._found_likely(query, answer, now)
            case "streams", StreamsListed():
                return self._plan(query, answer.streams, now)
            case "stream" | "rates", StreamShown():
                return self._act(query, self._chooser.found(query, answer), now)
            case "drop", Done():
                return self._ended(query, now)
            case "drop", Refused(code="unknown"):  # It may never have been there, but for us.
                return [*self.publisher.close_own(query.stream, now), *self._ended(query, now)]
            case "drop", Refused():
                query.retry_at = now + max(answer.retry_after_ms, RETRY_MIN_MS)
                return []
            case "publish", Published():
                return self._published(query, now)
            case "publish", Refused():
                return self._not_published(query, answer, now)
            case _, Refused() if purpose != "rates":  # Else it stays where it is, for now.
                return self._give_up(query, answer, now)
        return []

    def _found_likely(self, query: Running, answer: StreamShown | Refused, now: Millis) -> list[Effect]:
        """A stream that its text seems to name is there, or is not. All of them may tell what it means."""
        query.likely -= 1
        if isinstance(answer, StreamShown):
            query.placing.streams[answer.definition.name] = answer
        if query.likely:
            return []
        return self._plan(query, [each.definition for each in query.placing.streams.values()], now, are_all=False)

    def _plan(
        self, query: Running, definitions: Iterable[StreamDefinition], now: Millis, *, are_all: bool = True
    ) -> list[Effect]:
        streams = {each.name: stream_of(each) for each in definitions if each.name != query.stream}
        try:
            query.parsed = parse(query.text, streams)
        except QueryError as error:
            if not are_all:
                return self._questions.ask(query, "streams", ListStreams())
            said = str(error).removesuffix(f"\nhint: {error.hint}")
            refusal = Refused(code="invalid", error=said, hint=error.hint)
            return self._give_up(query, refusal, now)
        query.placing.adopt(query.parsed.options)
        if objection := adopt_join(query):
            said = f'query "{query.query}" cannot run as {query.engine}: {objection}'
            return self._give_up(query, Refused(code="invalid", error=said, hint=instead_of_join(query)), now)
        if query.only_plan:
            return self._act(query, self._chooser.find_publishers(query), now)
        schema = output_schema(query.parsed.plan)
        if query.is_begun:
            if schema != self._schema_of_results(query, schema):
                refusal = Refused(code="invalid", error="its streams no longer have the columns they had")
                return self._give_up(query, refusal, now)
            query.results.schema = schema
            return self._act(query, self._chooser.find_publishers(query), now)
        query.results.schema = schema
        query.is_begun = query.is_creating = True
        definition = StreamDefinition(
            name=query.stream, schema=schema, query=query.query, created_at=self.clock.tick(now)
        )
        create = self._questions.ask(query, "results", CreateStream(definition=definition))
        effects = [Append(query.record("begun")), AfterSync(tuple(create)), *self.publisher.open_own(definition, now)]
        # Hosts keep nothing that would outlive us: they need not wait for the stream of the results.
        return effects + self._act(query, self._chooser.find_publishers(query), now)

    def _made(self, query: Running, answer: Answer, now: Millis) -> list[Effect]:
        """The stream of its results is there."""
        query.is_creating = False
        if query.state == "ending":
            return []
        if isinstance(answer, Refused):
            return self._give_up(query, answer, now)
        return [*(self._acknowledge(query, now) if query.state == "running" else []), *self._publish(query, now)]

    def _schema_of_results(self, query: Running, otherwise: Schema) -> Schema:
        outbox = self.publisher.outboxes.get(query.stream)
        return outbox.definition.schema if outbox is not None else query.results.schema or otherwise

    # Deploying.

    def _act(self, query: Running, outcome: Outcome, now: Millis) -> list[Effect]:
        """Ask on, or begin it where it was chosen to be; what runs elsewhere already goes there."""
        match outcome:
            case Refused():
                return self._give_up(query, outcome, now)
            case Choice() | Provisional() if query.state == "running":
                return self._move(query, outcome, now)
            case Choice():
                return self._deploy(query, outcome, now)
            case Provisional(decision):
                effects = self._deploy(query, decision.choice, now)
                asks = query.placing.ask(query.stream, decision, query.attempt, now) if query.cut is not None else []
                return effects + asks
        return outcome

    def _move(self, query: Running, target: Choice | Provisional, now: Millis) -> list[Effect]:
        """Have engines started where they are needed; until they are ready it runs on where it is."""
        assert query.cut is not None
        after = self._chooser.cut(query, choice_of(target))
        query.moving = move(query.stream, query.attempt, target, query.cut, after, now)
        return self._go_on_moving(query, now)

    def _prepared(self, host: PeerId, message: Prepared, now: Millis) -> list[Effect]:
        query = self._query_of(message.query)
        if query is None or query.moving is None:
            return []
        query.moving.hear(host, message)
        return self._go_on_moving(query, now)

    def _go_on_moving(self, query: Running, now: Millis) -> list[Effect]:
        """Ask again who has not answered; leave once all are ready, or stay if one cannot be."""
        moving = query.moving
        if moving is None or query.state != "running":
            return []
        asked = [self._send(host, message) for host, message in moving.ask(now)]
        if moving.failed is not None:
            query.moving = None
            query.placing.stay(moving.choice, *moving.failed, now)
        if not moving.is_ready:
            return asked
        effects = self._wait(query, f"{BETTER_PLACED}; {moving.choice.why}", now)
        query.moving, query.retry_at = moving, now
        return effects + self._go_on(query, now)

    def _deploy(self, query: Running, choice: Choice, now: Millis) -> list[Effect]:
        assert query.parsed is not None
        effects, query.moving = query.placing.stop_asking(query.stream), None
        made = self._chooser.cut(query, choice)
        refusal = without_form(query.query, made)
        if refusal is not None:
            return effects + self._give_up(query, refusal, now)
        if query.only_plan:
            return effects + self._tell_plan(query, made, choice)
        query.cut = made
        query.placing.settle(choice, query.reason, now)
        query.attempt, query.attempted_at = self.clock.tick(now), now
        query.resumed_from = query.results.begin_attempt()
        query.state = "starting"
        query.deployed.clear()
        query.lives.clear()
        query.status.clear()
        waits_for = "Spark" if any(isinstance(each.engine, Spark) for each in query.cut.subgraphs) else "its hosts"
        effects += self._send_deploys(query, now)
        if query.request is not None:
            effects.append(Reply(query.request, QueryStarting(query=query.query, waits_for=waits_for), last=False))
        return effects

    def _tell_plan(self, query: Running, made: Cut, choice: Choice) -> list[Effect]:
        assert query.request is not None
        forget(self.running, query)
        return [Reply(query.request, planned(made, choice))]

    def _send_deploys(self, query: Running, now: Millis) -> list[Effect]:
        query.sent_at = now
        deploys = query.deploys()
        return [self._send(host, each) for host, each in deploys if each.subgraph.number not in query.deployed]

    def _send(self, peer: PeerId, message: Message) -> Effect:
        return Tell(Received(self.peer_id, message)) if peer == self.peer_id else Send(peer, message)

    def _query_of(self, stream: StreamName) -> Running | None:
        """The query whose results make a stream."""
        query = self.running.get(stream.rpartition(".")[0])
        return query if query is not None and query.stream == stream else None

    def _deployed(self, sender: PeerId, message: Deployed, now: Millis) -> list[Effect]:
        query = self._query_of(message.query)
        if query is None or query.attempt != message.attempt:
            return [self._send(sender, Undeploy(query=message.query, attempt=message.attempt))]
        assert query.cut is not None
        if query.lives.setdefault(message.number, message.life) != message.life:
            return self._wait(query, f"peer {sender.short} was restarted", now)
        query.deployed[message.number] = now
        if len(query.deployed) < len(query.cut.subgraphs) or query.state == "running":
            return []
        query.state, query.retry_ms = "running", RETRY_MIN_MS
        return [] if query.is_creating else self._acknowledge(query, now)

    def _acknowledge(self, query: Running, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        if not query.is_installed:
            query.is_installed = True
            effects.append(Append(query.record("acknowledged")))
        if query.request is not None:
            accepted = query.accepted(self.clock.tick(now), self.publisher.own_origins(query.stream))
            effects.append(AfterSync((Reply(query.request, accepted),)))
            query.request = None
        return effects

    def _refused(self, sender: PeerId, message: DeployRefused, now: Millis) -> list[Effect]:
        query = self._query_of(message.query)
        if query is None or query.attempt != message.attempt:
            return []
        if not query.is_installed:
            return self._give_up(query, cannot_run(query.query, query.engine, sender, message.reason), now)
        return self._wait(query, f"peer {sender.short}: {message.reason}", now)

    def _give_up(self, query: Running, refusal: Refused, now: Millis) -> list[Effect]:
        """A new query is refused; one that was acknowledged is tried again."""
        if query.is_installed:
            return self._wait(query, refusal.error, now)
        effects: list[Effect] = []
        if query.request is not None:
            effects.append(Reply(query.request, refusal))
            query.request = None
        if not query.is_begun or refusal.code == "exists":  # The stream of that name is somebody else's.
            return effects + self._undeploy(query, now) + self._ended(query, now)
        return effects + self._end(query, now)

    def _abandoned(self, request: RequestId, now: Millis) -> list[Effect]:
        """Who submitted a query has gone before it was acknowledged: nobody knows of it."""
        for query in self.running.values():
            if query.request == request:
                query.request = None
                return self._give_up(query, Refused(code="unavailable", error="nobody waits for it"), now)
        return []

    def _undeploy(self, query: Running, now: Millis) -> list[Effect]:
        hosts = dict.fromkeys(query.cut.hosts) if query.cut is not None else {}
        undeploy, query.moving = Undeploy(query=query.stream, attempt=query.attempt), None
        effects = [*query.placing.stop_asking(query.stream), *self._derived.withdraw(query, now)]
        return [*effects, *(self._send(host, undeploy) for host in hosts)]

    # Losing hosts, and going on.

    def _host_lost(self, peer: PeerId, why: str, now: Millis) -> list[Effect]:
        """Go on without it at once: it is not chosen again for a while, and where streams are was known till now."""
        self._chooser.note_lost(peer, now)
        effects: list[Effect] = []
        for query in list(self.running.values()):
            if query.cut is not None and peer in query.cut.hosts and query.state != "waiting":
                is_first = query.retry_ms == RETRY_MIN_MS
                effects += self._wait(query, f"peer {peer.short} {why}", now)
                if is_first:
                    query.retry_at, query.is_hasty = now, True
                    effects += self._go_on(query, now)
            elif query.moving is not None:
                query.moving.fail(peer, why)
                effects += self._go_on_moving(query, now)
        return effects

    def _wait(self, query: Running, reason: str, now: Millis) -> list[Effect]:
        """This attempt is over; the next begins soon."""
        effects = self._undeploy(query, now)
        self._questions.stop(query)
        query.state, query.reason = "waiting", reason
        query.retry_at = now + query.retry_ms
        query.retry_ms = min(query.retry_ms * 2, RETRY_MAX_MS)
        query.cut, query.attempt = None, 0
        query.results.end_attempt()
        return effects

    def _restart_all(self, now: Millis) -> list[Effect]:
        """After a start of this peer: what is in a query's stream says where to go on."""
        for query in self.running.values():
            outbox = self.publisher.outboxes.get(query.stream)
            query.results.restart(outbox.feed.next if outbox is not None else 0)
            query.state = "waiting" if query.is_installed else "ending"
            query.retry_at, query.reason = now, "this peer was restarted"
        return self._start_ticking()

    def _start_ticking(self) -> list[Effect]:
        if self._is_ticking or not self.running:
            return []
        self._is_ticking = True
        return [SetTimer(TICK, TICK_MS)]

    def _tick(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for query in list(self.running.values()):
            effects += self._look_after(query, now)
        self._is_ticking = bool(self.running)
        return [*effects, SetTimer(TICK, TICK_MS)] if self.running else effects

    def _look_after(self, query: Running, now: Millis) -> list[Effect]:
        if query.state == "ending":
            if now < query.retry_at or query.is_creating:
                return []
            query.retry_at = now + RETRY_MAX_MS
            return self._questions.ask(query, "drop", DropStream(name=query.stream))
        if query.state == "waiting":
            return self._go_on(query, now)
        effects = self._publish(query, now)
        if query.cut is None:
            return effects + self._act(query, self._chooser.await_coordinators(query, now), now)
        hosts = dict(zip((each.number for each in query.cut.subgraphs), query.cut.hosts, strict=True))
        if query.state == "starting":
            if now - query.attempted_at > START_MS:
                late = [hosts[number] for number in hosts if number not in query.deployed]
                return effects + self._give_up(query, not_running(query.query, late, START_MS), now)
            if now - query.sent_at >= RESEND_MS:
                effects += self._send_deploys(query, now)
        else:
            silent = [number for number, heard_at in query.deployed.items() if now - heard_at > SILENT_MS]
            if silent:
                return effects + self._host_lost(hosts[silent[0]], f"was silent for {SILENT_MS // 1000} s", now)
            assert query.parsed is not None
            is_placed = query.engine not in ALGORITHMS
            if query.moving is not None:
                effects += self._go_on_moving(query, now)
            elif is_placed and query.placing.is_due(query.parsed.plan, query.attempted_at, now):
                query.placing.weighed_at = now
                effects += self._act(query, self._chooser.find_publishers(query), now)
        effects += self._derived.renew(query, now)
        if now - query.leased_at >= LEASE_EVERY_MS:
            query.leased_at = now
            lease = Lease(query=query.stream, attempt=query.attempt)
            effects += [self._send(host, lease) for host in dict.fromkeys(hosts.values()) if host != self.peer_id]
        return effects

    def _go_on(self, query: Running, now: Millis) -> list[Effect]:
        """Begin the next attempt, once it is time and what the last one made is in the stream."""
        if now < query.retry_at or query.results.in_flight is not None:
            return []
        query.state = "starting"
        is_hasty, query.is_hasty = query.is_hasty, False
        if query.moving is not None and query.moving.is_ready:
            return self._act(query, query.moving.target, now)
        return self._act(query, self._chooser.find_publishers(query), now) if is_hasty else self._chooser.look_up(query)

    def _note_status(self, message: SubgraphStatus, now: Millis) -> list[Effect]:
        query = self._query_of(message.query)
        if query is None or query.attempt != message.attempt or message.number not in query.deployed:
            return []
        if query.lives[message.number] != message.life:
            return self._wait(query, f"subgraph {message.number} began anew", now)
        query.deployed[message.number] = now
        query.status[message.number] = message
        return []

    # Results.

    def _results(self, event: ResultsReady, now: Millis) -> list[Effect]:
        query = self._query_of(event.query)
        if query is None or query.attempt != event.attempt or not query.attempt:
            return []
        query.results.add(event.rows, event.progress, event.beyond)
        return self._publish(query, now)

    def _publish(self, query: Running, now: Millis) -> list[Effect]:
        """Put what waits into the query's stream: a note of what it is made of, then the rows."""
        results = query.results
        if query.is_creating or now < query.publish_at:
            return []
        batch = results.next_batch(min(PUBLISH_BYTES, self.limits.publish_bytes_max))
        if batch is None:
            return []
        note, rows = batch
        if not rows:
            effects = self._settle(query, note)
            if results.wants_note(now):
                results.noted_at, results.notes = now, [note]
                effects.append(Append(note))
            return effects
        assert results.schema is not None
        results.noted_at = now
        command = Publish(stream=query.stream, rows=results.schema.encode(rows), count=len(rows))
        return [Append(note), *self._questions.ask(query, "publish", command)]

    def _published(self, query: Running, now: Millis) -> list[Effect]:
        note = query.results.is_in()
        if query.state == "running" or query.state == "starting":
            return self._settle(query, note) + self._publish(query, now)
        query.results.go_on_from(note)  # The attempt that made them is over.
        return self._go_on(query, now) if query.state == "waiting" else []

    def _not_published(self, query: Running, refusal: Refused, now: Millis) -> list[Effect]:
        query.results.is_not_in()
        if refusal.code == "invalid":  # Asking again would not help those that it was said of.
            query.results.drop_unfit(self.limits.publish_bytes_max)
        query.publish_at = now + max(refusal.retry_after_ms, PUBLISH_RETRY_MS)
        return []

    def _settle(self, query: Running, note: ResultsNoted) -> list[Effect]:
        return [Tell(ResultsSafe(query.stream, query.attempt)) for _ in range(query.results.settle(note))]

    # What people ask.

    def _stop(self, request: RequestId, name: QueryId, now: Millis) -> list[Effect]:
        query = self.running.get(name)
        if query is None or query.ending_for is not None:
            return [Reply(request, unknown_query(name, list(self.running)))]
        effects: list[Effect] = []
        if query.request is not None:
            effects.append(Reply(query.request, Refused(code="unknown", error=f'query "{name}" was stopped')))
            query.request = None
        query.ending_for = request
        return effects + (self._end(query, now) if query.is_begun else self._ended(query, now))

    def _end(self, query: Running, now: Millis) -> list[Effect]:
        """Take away what was made for a query: its subgraphs, then its stream, then the memory of it."""
        effects = self._undeploy(query, now)
        self._questions.stop(query)
        if query.is_installed:  # Should we crash from here on, it still ends.
            query.is_installed = False
            effects.append(Append(query.record("begun")))
        query.state, query.cut, query.attempt, query.retry_at = "ending", None, 0, 0
        query.results.end_attempt()
        return effects

    def _ended(self, query: Running, now: Millis) -> list[Effect]:
        forget(self.running, query)
        effects: list[Effect] = [Append(query.record("ended"))] if query.is_begun else []
        if query.ending_for is not None:
            effects.append(AfterSync((Reply(query.ending_for, Done(stamp=self.clock.tick(now))),)))
        return effects

    def _show(self, name: QueryId) -> Answer:
        query = self.running.get(name)
        return query.shown() if query is not None else unknown_query(name, list(self.running))

    def validate(self) -> None:
        for query in self.running.values():
            assert (query.cut is None) == (query.attempt == 0), "an attempt has subgraphs"
            query.results.validate()
