"""One query at its proxy: what each event leads to, from its submission until nothing is left of it.

It is planned (`planning.py`), deployed (`attempt.py`), and while it runs its results go into a stream of its own
(`results.py`). `lifecycle.py` has its states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from protocols.catalogue.messages import CreateStream, DropStream
from protocols.catalogue.streams import Durability, StreamDefinition
from protocols.clock import HybridClock, Stamp
from protocols.delivery.backups import StreamClosed, StreamTaken
from protocols.delivery.ingress import Ingress
from protocols.delivery.messages import Published
from protocols.effects import AfterSync, Append, Effect, Reply, Send, Tell
from protocols.events import Abandoned, Answered, Event, Received, Requested, Started, TimerFired
from protocols.execution.adopting import may_be_taken, note_beside, takeover_asked
from protocols.execution.attempt import SILENT_MS, Attempt, Letters
from protocols.execution.decision import BETTER_PLACED, Decision
from protocols.execution.derived import DerivedStreams
from protocols.execution.lifecycle import Lifecycle, State
from protocols.execution.listing import Listings
from protocols.execution.messages import (
    QueryAccepted,
    QueryId,
    QueryInstalled,
    QueryStarting,
    ResultsDurability,
    ResultsNoted,
    StopQuery,
)
from protocols.execution.planning import PURPOSES, Outcome, Planner, Planning
from protocols.execution.refusals import no_takeover, not_running, without_form
from protocols.execution.results import QueryResults
from protocols.ids import Millis, PeerId, RequestId, StreamName
from protocols.inside import Questions
from protocols.limits import Limits
from protocols.messages import Answer, Done, Record, Refused
from protocols.placement.events import OperatorsPlaced
from protocols.placement.sight import NetworkSeen
from protocols.subgraphs import (
    AttemptLost,
    Deployed,
    DeployRefused,
    Prepared,
    ResultsReady,
    Spark,
    SubgraphStatus,
    Undeploy,
)
from queries.plan import Restructure, Union, output_schema, sources
from queries.query import ParsedQuery
from queries.schema import Schema

START_MS: Final = 240_000  # An attempt may have to start Spark, on a busy machine.
RETRY_MIN_MS: Final = 500
RETRY_MAX_MS: Final = 15_000

Journalled = Literal["nothing", "begun", "acknowledged"]
"""What the journal has of a query: nothing; that its stream may exist (a restart ends it); that it was accepted."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the queries of one proxy use together."""

    peer_id: PeerId
    clock: HybridClock
    publisher: Ingress
    limits: Limits
    questions: Questions
    planner: Planner
    derived: DerivedStreams
    listings: Listings


@dataclass(slots=True)
class SubmittedQuery:
    """One query of this peer.

    In:        what its hosts, the catalogue, the driver and its client say; results; the tick
    Out:       questions while it is planned; DEPLOY, LEASE, UNDEPLOY, PREPARE; its results, published; records
    Keeps:     its planning, its attempt while there is one, its results and checkpoints of what they cover
    Invariant: a result is in its stream once, whatever hosts were lost on the way
    """

    services: Services
    inserted_at: Stamp
    stream: StreamName  # Of its results.
    planning: Planning
    results: QueryResults
    client: RequestId | None = None  # Waits for the acknowledgement.
    owner: str = ""  # Who submitted it; empty for the peer's own user.
    ending_for: RequestId | None = None  # The client that wants it stopped.
    journalled: Journalled = "nothing"
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    attempt: Attempt | None = None
    decided: Decision | None = None  # Where the next attempt begins, if that is known already.
    reason: str = ""  # Why the last attempt ended.
    retry_at: Millis = 0  # The next attempt begins then; while it ends, the next try to drop its stream.
    retry_ms: Millis = RETRY_MIN_MS
    is_hasty: bool = False  # The next attempt skips the lookup of its streams.
    is_creating: bool = False  # The stream of its results was asked for, and the catalogue has not answered.
    wanted_durability: ResultsDurability = "auto"  # As asked for; its text may say it, too.
    since: Stamp = field(init=False)  # It reads what was published from then on.
    takeover_ms: Millis | None = None  # Its backup takes it over after so long; None: as its text says.
    term: int = 1  # Which of its proxies this is, counted from the first.
    before: int = 0  # Results that earlier proxies have published.
    base: ResultsNoted | None = None  # What those cover.

    def __post_init__(self) -> None:
        self.since = self.inserted_at

    @property
    def name(self) -> QueryId:
        return self.planning.name

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def is_acknowledged(self) -> bool:
        return self.journalled == "acknowledged"

    @property
    def is_refused(self) -> bool:
        """Whether it was refused, or its client left before an answer. Only its stream is left to drop."""
        is_wanted = self.is_acknowledged or self.client is not None or self.ending_for is not None
        return self.journalled != "nothing" and not is_wanted

    def handle(self, event: Event, now: Millis) -> list[Effect]:  # noqa: C901 - one branch for each thing that happens
        match event:
            case Answered(request=request, answer=answer):
                return self._answered(self.services.questions.take(request), answer, now)
            case NetworkSeen():
                outcome = self.planning.seen(event, now, is_running=self.state == "running")
                return self._follow(outcome, now)
            case OperatorsPlaced():
                return self._follow(self.planning.placed(event, has_begun=self.attempt is not None), now)
            case Received(sender=sender, message=Deployed() as message):
                return self._deployed(sender, message, now)
            case Received(sender=sender, message=DeployRefused() as message):
                return self._refused(sender, message, now)
            case Received(message=SubgraphStatus() as message):
                attempt = self._attempt(message.attempt)
                is_same = attempt is None or attempt.hear(message, now)
                return [] if is_same else self._lose(f"subgraph {message.number} began anew", now)
            case Received(sender=sender, message=Prepared() as message):
                if self.attempt is not None and self.attempt.moving is not None:
                    self.attempt.moving.hear(sender, message)
                return self._go_on_moving(now)
            case AttemptLost():
                return self._lose(event.reason, now) if self._attempt(event.attempt) is not None else []
            case ResultsReady():
                if self._attempt(event.attempt) is None:
                    return []
                self.results.add(event.rows, event.progress, event.beyond)
                return self._publish(now)
            case Requested(request=request, command=StopQuery()):
                return self._stop(request, now)
            case Abandoned():
                self.client = None
                return self._give_up(Refused(code="unavailable", error="nobody waits for it"), now)
            case TimerFired():
                return self._tick(now)
            case Started():
                self._restart(now)
            case StreamTaken():
                return self._retire(event.by, now)
            case StreamClosed():
                return self._closed(now)
        return []

    def _attempt(self, number: Stamp) -> Attempt | None:
        """The attempt that a message is about, if it is the current one."""
        return self.attempt if self.attempt is not None and self.attempt.number == number else None

    def may_hear(self, sender: PeerId, message: Deployed | DeployRefused | SubgraphStatus) -> bool:
        """Whether a peer may say that: of the current attempt only its hosts may. What is over anybody may tell."""
        attempt = self._attempt(message.attempt)
        return attempt is None or (sender in attempt.cut.hosts and message.number in attempt.cut.by_number)

    def _send(self, letters: Letters) -> list[Effect]:
        """To hosts; to ourselves without the network."""
        own = self.services.peer_id
        return [Tell(Received(own, message)) if host == own else Send(host, message) for host, message in letters]

    # Planning.

    def begin(self, now: Millis) -> list[Effect]:
        self.lifecycle.note(now, "it was submitted")
        return self.planning.begin()

    def _answered(self, purpose: str, answer: Answer, now: Millis) -> list[Effect]:
        match purpose, answer:
            case "results", _:
                return self._created(answer, now)
            case "drop", Done():
                return self._gone(now)
            case "drop", Refused(code="unknown"):  # Only this peer knows the stream.
                return [*self.services.publisher.close_own(self.stream, now), *self._gone(now)]
            case "drop", Refused():
                self.retry_at = now + max(answer.retry_after_ms, RETRY_MIN_MS)
                return []
            case "publish", Published():
                return self._published(now)
            case "publish", Refused():
                self.results.refused(answer, self.services.limits.publish_bytes_max, now)
                return []
        return self._follow(self.planning.answered(purpose, answer), now)

    def _follow(self, outcome: Outcome, now: Millis) -> list[Effect]:
        """Act on an outcome of planning: give up, ask more, deploy as decided, or move there if it runs already."""
        match outcome:
            case Refused():
                return self._give_up(outcome, now)
            case ParsedQuery():
                return self._planned(outcome, now)
            case Decision():
                return self._move(outcome, now) if self.state == "running" else self._deploy(outcome, now)
        return outcome

    def _planned(self, parsed: ParsedQuery, now: Millis) -> list[Effect]:
        """The text is parsed: create the stream of the results, and look for hosts at the same time.

        Hosts keep soft state only, so their DEPLOY need not wait for the stream.
        """
        streams = dict.fromkeys(each.stream for each in sources(parsed.plan))
        if refusal := self.services.planner.objection(self.owner, streams):
            return self._give_up(refusal, now)
        schema, outbox = output_schema(parsed.plan), self.services.publisher.outboxes.get(self.stream)
        effects: list[Effect] = []
        if self.journalled == "nothing":
            definition = self._definition(parsed, schema)
            self.takeover_ms = takeover_asked(parsed.options) if self.takeover_ms is None else self.takeover_ms
            if refusal := no_takeover(self.name, self.takeover_ms, definition.durability):
                return self._give_up(refusal, now)
            effects = self._create(definition, now)
        else:
            known = outbox.definition.schema if outbox is not None else self.results.schema or schema
            if not schema.is_like(known):
                reason = "its streams no longer have the columns they had"
                return self._give_up(Refused(code="invalid", error=reason), now)
            schema = known  # Another release may know better what may be null. A null that does not fit is counted.
        self.results.schema = schema
        return effects + self._follow(self.planning.locate(), now)

    def _definition(self, parsed: ParsedQuery, schema: Schema) -> StreamDefinition:
        """The stream of its results."""
        said = dict(parsed.options).get("durability") if self.wanted_durability == "auto" else self.wanted_durability
        durability: Durability = "replicated" if said == "replicated" else "disk"
        return StreamDefinition(name=self.stream, schema=schema, query=self.name, durability=durability)

    def _create(self, definition: StreamDefinition, now: Millis) -> list[Effect]:
        """Create the stream of the results, after the journal has noted that it may exist."""
        definition = msgspec.structs.replace(definition, created_at=self.services.clock.tick(now))
        self.journalled, self.is_creating = "begun", True
        create = self.services.questions.ask(self.stream, "results", CreateStream(definition=definition))
        opened = self.services.publisher.open_own(definition, now)
        note_beside(self, now, is_whole=True)
        return [Append(self.record("begun")), AfterSync(tuple(create)), *opened]

    def _created(self, answer: Answer, now: Millis) -> list[Effect]:
        self.is_creating = False
        if self.state == "ending":
            return []
        if isinstance(answer, Refused):
            return self._give_up(answer, now)
        return [*(self._acknowledge(now) if self.state == "running" else []), *self._publish(now)]

    # Its attempt.

    def _deploy(self, decision: Decision, now: Millis) -> list[Effect]:
        effects = self.planning.stop()
        made = self.planning.cut(decision, self.since)
        if refusal := without_form(self.name, made):
            return effects + self._give_up(refusal, now)
        self.planning.placing.settle(decision.choice, self.reason, now)
        number, self.decided = self.services.clock.tick(now), None
        self.attempt = Attempt(self.stream, number, made, self.results.begin_attempt(), now, self.is_acknowledged)
        hosts = ", ".join(host.short for host in dict.fromkeys(made.hosts))
        self.lifecycle.note(now, f"it is deployed at peer {hosts}: {decision.choice.why}")
        effects += self._send(self.attempt.deploys(now))
        if self.client is not None:
            waits_for = "Spark" if any(isinstance(each.engine, Spark) for each in made.subgraphs) else "its hosts"
            effects.append(Reply(self.client, QueryStarting(query=self.name, waits_for=waits_for), last=False))
        return effects + (self.planning.ask_coordinators(decision, number, now) if decision.is_provisional else [])

    def _deployed(self, sender: PeerId, message: Deployed, now: Millis) -> list[Effect]:
        attempt = self._attempt(message.attempt)
        if attempt is None:
            return self._send([(sender, Undeploy(query=message.query, attempt=message.attempt))])
        if not attempt.deployed(message.number, message.life, now):
            return self._lose(f"peer {sender.short} was restarted", now)
        if not attempt.is_complete or self.state == "running":
            return []
        self.lifecycle.change("runs", now)
        self.retry_ms = RETRY_MIN_MS
        self.planning.placing.unable.clear()
        return [] if self.is_creating else self._acknowledge(now)

    def _acknowledge(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        if not self.is_acknowledged:
            self.journalled = "acknowledged"
            effects.append(Append(self.record("acknowledged")))
            note_beside(self, now)
        if self.client is not None:
            effects.append(AfterSync((Reply(self.client, self._accepted(self.services.clock.tick(now))),)))
            self.client = None
        return effects

    def _refused(self, sender: PeerId, message: DeployRefused, now: Millis) -> list[Effect]:
        attempt, placing = self._attempt(message.attempt), self.planning.placing
        if attempt is None:
            return []
        self.planning.note_lack(sender, message, attempt.cut, now)
        lacks_engine = self.state == "starting" and attempt.has_engine_at(sender)
        if message.is_too_large and self.planning.wanted_engine == "auto":
            self.planning.is_too_large = True
            return self._lose(f"peer {sender.short}: {message.reason}", now) + self._go_on_at_once(now)
        if self.is_acknowledged:
            if lacks_engine:
                placing.avoid(sender, now)
            return self._lose(f"peer {sender.short}: {message.reason}", now)
        if refusal := self.planning.cannot_be_at(sender, message, lacks_engine=lacks_engine):
            return self._give_up(refusal, now)
        return self._lose(f"peer {sender.short}: {message.reason}", now) + self._go_on_at_once(now)

    def _move(self, target: Decision, now: Millis) -> list[Effect]:
        """Plan a move: new hosts start their engines first, and the query runs on where it is meanwhile."""
        assert self.attempt is not None
        self.attempt.move_to(target, self.planning.cut(target, self.since), now)
        return self._go_on_moving(now)

    def _go_on_moving(self, now: Millis) -> list[Effect]:
        """Send PREPARE again; move once all hosts are ready, or stay if one cannot be."""
        attempt = self.attempt
        if attempt is None or attempt.moving is None or self.state != "running":
            return []
        moving = attempt.moving
        asked = self._send(moving.ask(now))
        if moving.failed is not None:
            attempt.moving = None
            self.planning.placing.stay(moving.target.choice, *moving.failed, now)
            self.lifecycle.note(now, f"it stays where it is: peer {moving.failed[0].short} {moving.failed[1]}")
        if not moving.is_ready:
            return asked
        effects = self._lose(f"{BETTER_PLACED}; {moving.target.choice.why}", now)
        self.decided, self.retry_at = moving.target, now
        return effects + self._go_on(now)

    # Losing it, and going on.

    def host_lost(self, peer: PeerId, why: str, now: Millis) -> list[Effect]:
        """Go on without a peer.

        After the first loss since it ran, the next attempt begins at once, with what is known of its streams. After
        further losses it waits.
        """
        if self.attempt is not None and peer in self.attempt.cut.hosts:
            is_first = self.retry_ms == RETRY_MIN_MS
            effects = self._lose(f"peer {peer.short} {why}", now)
            return effects + (self._go_on_at_once(now) if is_first else [])
        if self.attempt is not None and self.attempt.moving is not None:
            self.attempt.moving.fail(peer, why)
            return self._go_on_moving(now)
        if self.decided is not None and peer in self.decided.choice.peers:
            self.decided = None
        return []

    def silent_host(self, now: Millis) -> tuple[PeerId, str] | None:
        host = self.attempt.silent_host(now) if self.attempt is not None and self.state == "running" else None
        return (host, f"was silent for {SILENT_MS // 1000} s") if host is not None else None

    def _lose(self, reason: str, now: Millis) -> list[Effect]:
        """End this attempt, or this planning, and plan the next one after a delay that doubles each time."""
        effects = self._let_go(now)
        self.lifecycle.change("loses its attempt", now, reason)
        self.reason = reason
        self.retry_at = now + self.retry_ms
        self.retry_ms = min(self.retry_ms * 2, RETRY_MAX_MS)
        return effects

    def _let_go(self, now: Millis) -> list[Effect]:
        """Undeploy its attempt, and stop all questions of its planning."""
        effects = self.planning.stop()
        self.services.questions.stop(self.stream, PURPOSES)
        attempt, self.attempt, self.decided = self.attempt, None, None
        self.results.end_attempt()
        if attempt is None:
            return effects
        return [*effects, *self.services.derived.withdraw(attempt, now), *self._send(attempt.undeploys())]

    def _go_on(self, now: Millis) -> list[Effect]:
        """Begin the next attempt, unless it is too early or results of the last one are still in flight."""
        if now < self.retry_at or self.results.in_flight is not None or may_be_taken(self):
            return []
        self.lifecycle.change("begins again", now)
        is_hasty, self.is_hasty = self.is_hasty, False
        if self.decided is not None:
            return self._follow(self.decided, now)
        return self._follow(self.planning.locate(), now) if is_hasty else self.planning.begin()

    def _go_on_at_once(self, now: Millis) -> list[Effect]:
        """Begin the next attempt with what is known of its streams."""
        self.retry_at, self.is_hasty = now, True
        return self._go_on(now)

    def _restart(self, now: Millis, why: str = "this peer was restarted") -> None:
        """Begin anew here: resume an acknowledged query from what its stream has; end any other."""
        outbox = self.services.publisher.outboxes.get(self.stream)
        count = outbox.feed.next if outbox is not None else 0
        noted = self.results.safe(count)
        self.results.restart(count)
        for note in noted:
            note_beside(self, now, note)
        if not noted:
            note_beside(self, now, is_whole=True)
        self.services.listings.note_restored(self, now)
        self.results.number_from(self.services.clock.tick(now))
        self.retry_at, self.reason = now, why
        self.lifecycle.change("loses its attempt" if self.is_acknowledged else "ends", now, self.reason)

    def _tick(self, now: Millis) -> list[Effect]:
        if self.state == "ending":
            if now < self.retry_at or self.is_creating:
                return []
            self.retry_at = now + RETRY_MAX_MS
            return self.services.questions.ask(self.stream, "drop", DropStream(name=self.stream, force=True))
        listed = self.services.listings.keep(self, now) if self.is_acknowledged and not may_be_taken(self) else []
        if self.state == "waiting":
            return listed + self._go_on(now)
        effects, attempt, planning = listed + self._publish(now), self.attempt, self.planning
        if attempt is None:
            return effects + self._follow(planning.overdue(now), now)
        if self.state == "starting":
            if now - attempt.begun_at > START_MS:
                return effects + self._give_up(not_running(self.name, attempt.late_hosts(), START_MS), now)
            effects += self._send(attempt.deploys_again(now))
        elif attempt.moving is not None:
            effects += self._go_on_moving(now)
        elif planning.index is None and planning.placing.is_due(planning.plan, attempt.begun_at, now):
            planning.placing.weighed_at = now
            effects += self._follow(planning.locate(anew=True), now)
        if self.attempt is not attempt:
            return effects
        if self.state == "running":
            effects += self.services.derived.renew(attempt, now)
        return effects + self._send([each for each in attempt.leases(now) if each[0] != self.services.peer_id])

    # Its results.

    def _publish(self, now: Millis) -> list[Effect]:
        """Publish waiting results once their stream exists: first the checkpoint to the journal, then the rows."""
        if self.is_creating:
            return []
        limits, number = self.services.limits, self.attempt.number if self.attempt is not None else 0
        effects, command = self.results.publish(number, limits.publish_bytes_max, now)
        for each in effects:
            if isinstance(each, Append) and isinstance(each.record, ResultsNoted):
                note_beside(self, now, each.record)
        return effects + (self.services.questions.ask(self.stream, "publish", command) if command is not None else [])

    def _published(self, now: Millis) -> list[Effect]:
        note = self.results.mark_published()
        if self.attempt is not None:
            return self.results.settled(note, self.attempt.number) + self._publish(now)
        self.results.go_on_from(note)  # The attempt that made them is over.
        return self._go_on(now) if self.state == "waiting" else []

    # From one proxy to the next.

    def take_over(self, definition: StreamDefinition, proxy: PeerId, now: Millis) -> list[Effect]:
        """Go on with a query whose proxy is gone, from the copy of its results that this peer has."""
        opened = self.services.publisher.open_own(definition, now)
        self._restart(now, f"its proxy {proxy.short} is gone, and this peer has taken it over")
        return [Append(self.record("acknowledged")), *opened]

    def _retire(self, adopter: PeerId, now: Millis) -> list[Effect]:
        """Another peer has taken it over, and goes on with it."""
        if self.state == "ending":  # Whoever wanted it stopped was told, or will be: its stream goes.
            return []
        effects = self._let_go(now)
        gone = Refused(code="unavailable", error=f'query "{self.name}" was taken over by peer {adopter.short}')
        effects += [Reply(self.client, gone)] if self.client is not None else []
        self.client = None
        self.lifecycle.change("is gone", now, f"peer {adopter.short} has taken it over")
        return [*effects, Append(self.record("ended")), *self.services.listings.hand_over(self, adopter, now)]

    def _closed(self, now: Millis) -> list[Effect]:
        """Somebody has removed its results."""
        if not self.is_acknowledged or self.is_creating or self.state in ("ending", "ended"):
            return []
        return [*self._let_go(now), *self._gone(now)]

    # Its end.

    def _give_up(self, refusal: Refused, now: Millis) -> list[Effect]:
        """Refuse a query, unless it was acknowledged: then try again."""
        if self.is_acknowledged:
            return self._lose(refusal.error, now)
        effects: list[Effect] = []
        if self.client is not None:
            effects.append(Reply(self.client, refusal))
            self.client = None
        if self.journalled == "nothing" or refusal.code == "exists":  # The stream of that name is somebody else's.
            return effects + self._let_go(now) + self._gone(now)
        return effects + self._end(refusal.error, now)

    def _stop(self, request: RequestId, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        if self.client is not None:
            effects.append(Reply(self.client, Refused(code="unknown", error=f'query "{self.name}" was stopped')))
            self.client = None
        self.ending_for = request
        return effects + (self._gone(now) if self.journalled == "nothing" else self._end("it was stopped", now))

    def _end(self, why: str, now: Millis) -> list[Effect]:
        """Undeploy its subgraphs; the next ticks drop its stream, and then it is forgotten."""
        effects = self._let_go(now)
        if self.is_acknowledged:  # A restart ends a query that the journal calls begun.
            self.journalled = "begun"
            effects.append(Append(self.record("begun")))
        self.lifecycle.change("ends", now, why)
        self.retry_at = 0
        return effects

    def _gone(self, now: Millis) -> list[Effect]:
        self.lifecycle.change("is gone", now)
        effects: list[Effect] = [Append(self.record("ended"))] if self.journalled != "nothing" else []
        effects += self.services.listings.withdraw(self, now)
        if self.ending_for is not None:
            effects.append(AfterSync((Reply(self.ending_for, Done(stamp=self.services.clock.tick(now))),)))
        return effects

    # What it tells.

    @property
    def envelope(self) -> tuple[str, ...]:
        plan = self.planning.parsed.plan if self.planning.parsed is not None else None
        if isinstance(plan, Union):  # All branches of XML are in the same elements.
            plan = plan.branches[0]
        return plan.envelope if isinstance(plan, Restructure) else ()

    @property
    def durability(self) -> Durability:
        """That of the stream of its results."""
        outbox = self.services.publisher.outboxes.get(self.stream)
        return outbox.definition.durability if outbox is not None else "disk"

    def _accepted(self, stamp: Stamp) -> QueryAccepted:
        assert self.results.schema is not None
        return QueryAccepted(
            query=self.name,
            stream=self.stream,
            stamp=stamp,
            schema=self.results.schema,
            envelope=self.envelope,
            known=self.services.publisher.own_origins(self.stream),
        )

    def record(self, state: Literal["begun", "acknowledged", "ended"]) -> QueryInstalled:
        placing = self.planning.placing
        return QueryInstalled(
            query=self.name,
            text=self.planning.text,
            engine=self.planning.engine,
            inserted_at=self.inserted_at,
            stream=self.stream,
            state=state,
            placement=placing.placement,
            within_ms=placing.within_ms,
            statistics=placing.statistics,
            since=self.since,
            owner=self.owner,
            versions=tuple(self.planning.versions.values()) if self.planning.versions is not None else None,
            takeover_ms=self.takeover_ms or 0,
            term=self.term,
            before=self.before,
            base=self.base if self.results.notes[:1] == [self.base] else None,
        )

    def records(self) -> list[Record]:
        """What a snapshot of the journal tells of it."""
        return [self.record(self.journalled), *self.results.notes] if self.journalled != "nothing" else []

    def validate(self) -> None:
        assert self.attempt is not None or self.state != "running", "what runs has an attempt"
        assert self.attempt is None or self.state in ("starting", "running"), "an attempt is over in any other state"
        self.results.validate()
