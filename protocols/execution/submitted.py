"""One query at its proxy: what each event leads to, from its submission until nothing is left of it.

The query is planned (`planning.py`), then deployed (`attempt.py`). While it runs, its results go into a stream of its
own (`results.py`). `installed.py` is what the journal has of it, `lifecycle.py` the table of its states. An attempt or
the whole query can come to an end. Most methods below lead to one of these:

- `_lose_attempt`: the attempt, or the planning, is over; the next one begins after a delay (`Retry`).
- `_give_up`: the query cannot run now. An accepted query loses its attempt; any other is refused, and ends.
- `_end`: the query is undeployed, and each tick tries to drop its stream.
- `_finish`: nothing is left of it; the proxy forgets it.
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
from protocols.execution.attempt import SILENT_MS, Attempt, Letters, Retry
from protocols.execution.decision import BETTER_PLACED, Decision
from protocols.execution.derived import DerivedStreams
from protocols.execution.installed import Installed
from protocols.execution.lifecycle import Lifecycle, State
from protocols.execution.listing import Listings
from protocols.execution.messages import (
    QueryId,
    QueryInstalled,
    QueryStarting,
    ResultsNoted,
    StopQuery,
)
from protocols.execution.planning import PURPOSES, Outcome, Planner, Planning
from protocols.execution.refusals import no_takeover, not_running, without_form
from protocols.execution.results import QueryResults
from protocols.execution.shown import accepted
from protocols.ids import Millis, PeerId, RequestId, StreamName
from protocols.inside import Questions
from protocols.limits import Limits
from protocols.messages import Answer, Done, Refused
from protocols.placement.events import OperatorsPlaced
from protocols.sight import NetworkSeen
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
from queries.plan import output_schema, sources
from queries.query import ParsedQuery

START_MS: Final = 240_000  # An attempt may have to start Spark, on a busy machine.
DROP_AGAIN_MIN_MS: Final = 500  # Between two tries to drop the stream of a query that ends, after a refusal,
DROP_AGAIN_MS: Final = 15_000  # or without an answer.


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
    installed: Installed
    planning: Planning
    results: QueryResults
    client: RequestId | None = None  # Waits for the acknowledgement.
    ending_for: RequestId | None = None  # The client that wants it stopped.
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    attempt: Attempt | None = None
    retry: Retry = field(default_factory=Retry)
    is_creating: bool = False  # The stream of its results was asked for, and the catalogue has not answered.
    drop_at: Millis = 0  # While it ends: the next try to drop its stream.

    @property
    def name(self) -> QueryId:
        return self.planning.name

    @property
    def stream(self) -> StreamName:
        """Of its results."""
        return self.installed.stream

    @property
    def owner(self) -> str:
        return self.installed.owner

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def is_acknowledged(self) -> bool:
        return self.installed.is_acknowledged

    @property
    def is_refused(self) -> bool:
        """Whether it was refused, or its client left before an answer. Only its stream is left to drop."""
        is_wanted = self.is_acknowledged or self.client is not None or self.ending_for is not None
        return self.installed.is_noted and not is_wanted

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
                return self._deploy_refused(sender, message, now)
            case Received(message=SubgraphStatus() as message):
                attempt = self._attempt(message.attempt)
                is_same = attempt is None or attempt.hear(message, now)
                return [] if is_same else self._lose_attempt(f"subgraph {message.number} began anew", now)
            case Received(sender=sender, message=Prepared() as message):
                if self.attempt is not None and self.attempt.moving is not None:
                    self.attempt.moving.hear(sender, message)
                return self._continue_move(now)
            case AttemptLost():
                return self._lose_attempt(event.reason, now) if self._attempt(event.attempt) is not None else []
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
                return self._taken_over(event.by, now)
            case StreamClosed():
                return self._results_removed(now)
        return []

    def _attempt(self, number: Stamp) -> Attempt | None:
        """The attempt that a message is about, if it is the current one."""
        return self.attempt if self.attempt is not None and self.attempt.number == number else None

    def may_hear(self, sender: PeerId, message: Deployed | DeployRefused | SubgraphStatus) -> bool:
        """Whether a peer may send this: only a host of the current attempt. News of an earlier attempt do no harm."""
        attempt = self._attempt(message.attempt)
        return attempt is None or (sender in attempt.cut.hosts and message.number in attempt.cut.by_number)

    def _send(self, letters: Letters) -> list[Effect]:
        """To hosts; to ourselves without the network."""
        own = self.services.peer_id
        return [Tell(Received(own, message)) if host == own else Send(host, message) for host, message in letters]

    def _answer(self, answer: Answer) -> list[Effect]:
        """The last answer for the client, if one still waits."""
        client, self.client = self.client, None
        return [Reply(client, answer)] if client is not None else []

    # Planning.

    def begin(self, now: Millis) -> list[Effect]:
        self.lifecycle.note(now, "it was submitted")
        return self.planning.begin()

    def _answered(self, purpose: str, answer: Answer, now: Millis) -> list[Effect]:
        match purpose, answer:
            case "results", _:
                return self._created(answer, now)
            case "drop", Done():
                return self._finish(now)
            case "drop", Refused(code="unknown"):  # Only this peer knows the stream.
                return [*self.services.publisher.close_own(self.stream, now), *self._finish(now)]
            case "drop", Refused():
                self.drop_at = now + max(answer.retry_after_ms, DROP_AGAIN_MIN_MS)
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
        if not self.installed.is_noted:
            definition = self.installed.definition(self.name, parsed, schema)
            if self.installed.takeover_ms is None:
                self.installed.takeover_ms = takeover_asked(parsed.options)
            if refusal := no_takeover(self.name, self.installed.takeover_ms, definition.durability):
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

    def _create(self, definition: StreamDefinition, now: Millis) -> list[Effect]:
        """Create the stream of the results, after the journal has noted that it may exist."""
        definition = msgspec.structs.replace(definition, created_at=self.services.clock.tick(now))
        self.installed.journalled, self.is_creating = "begun", True
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

    # An attempt.

    def _deploy(self, decision: Decision, now: Millis) -> list[Effect]:
        effects = self.planning.stop()
        made = self.planning.cut(decision, self.installed.since)
        if refusal := without_form(self.name, made):
            return effects + self._give_up(refusal, now)
        self.planning.placing.settle(decision.choice, self.retry.reason, now)
        number, self.retry.decided = self.services.clock.tick(now), None
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
            return self._lose_attempt(f"peer {sender.short} was restarted", now)
        if not attempt.is_complete or self.state == "running":
            return []
        self.lifecycle.change("runs", now)
        self.retry.note_running()
        self.planning.placing.unable.clear()
        return [] if self.is_creating else self._acknowledge(now)

    def _acknowledge(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        if not self.is_acknowledged:
            self.installed.journalled = "acknowledged"
            effects.append(Append(self.record("acknowledged")))
            note_beside(self, now)
        if self.client is not None:
            answer = accepted(self, self.services.clock.tick(now))
            effects.append(AfterSync(tuple(self._answer(answer))))
        return effects

    def _deploy_refused(self, sender: PeerId, message: DeployRefused, now: Millis) -> list[Effect]:
        attempt, placing = self._attempt(message.attempt), self.planning.placing
        if attempt is None:
            return []
        self.planning.note_lack(sender, message, attempt.cut, now)
        lacks_engine = self.state == "starting" and attempt.has_engine_at(sender)
        if message.is_too_large and self.planning.wanted_engine == "auto":
            self.planning.is_too_large = True
            return self._lose_attempt(f"peer {sender.short}: {message.reason}", now) + self._begin_attempt_at_once(now)
        if self.is_acknowledged:
            if lacks_engine:
                placing.avoid(sender, now)
            return self._lose_attempt(f"peer {sender.short}: {message.reason}", now)
        if refusal := self.planning.cannot_be_at(sender, message, lacks_engine=lacks_engine):
            return self._give_up(refusal, now)
        return self._lose_attempt(f"peer {sender.short}: {message.reason}", now) + self._begin_attempt_at_once(now)

    def _move(self, target: Decision, now: Millis) -> list[Effect]:
        """Plan a move: new hosts start their engines first, and the query runs on where it is meanwhile."""
        assert self.attempt is not None
        self.attempt.move_to(target, self.planning.cut(target, self.installed.since), now)
        return self._continue_move(now)

    def _continue_move(self, now: Millis) -> list[Effect]:
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
        effects = self._lose_attempt(f"{BETTER_PLACED}; {moving.target.choice.why}", now)
        self.retry.decided, self.retry.at = moving.target, now
        return effects + self._begin_attempt(now)

    # Its end, and the next one.

    def host_lost(self, peer: PeerId, why: str, now: Millis) -> list[Effect]:
        """Go on without a peer.

        After the first loss since it ran, the next attempt begins at once, with what is known of its streams. After
        further losses it waits.
        """
        if self.attempt is not None and peer in self.attempt.cut.hosts:
            is_first = self.retry.is_first
            effects = self._lose_attempt(f"peer {peer.short} {why}", now)
            return effects + (self._begin_attempt_at_once(now) if is_first else [])
        if self.attempt is not None and self.attempt.moving is not None:
            self.attempt.moving.fail(peer, why)
            return self._continue_move(now)
        if self.retry.decided is not None and peer in self.retry.decided.choice.peers:
            self.retry.decided = None
        return []

    def silent_host(self, now: Millis) -> tuple[PeerId, str] | None:
        host = self.attempt.silent_host(now) if self.attempt is not None and self.state == "running" else None
        return (host, f"was silent for {SILENT_MS // 1000} s") if host is not None else None

    def _lose_attempt(self, reason: str, now: Millis) -> list[Effect]:
        """End this attempt, or this planning. The next one begins after a delay that doubles each time."""
        effects = self._end_attempt(now)
        self.lifecycle.change("loses its attempt", now, reason)
        self.retry.note_lost(reason, now)
        return effects

    def _end_attempt(self, now: Millis) -> list[Effect]:
        """Undeploy its attempt, if there is one, and stop all questions of its planning."""
        effects = self.planning.stop()
        self.services.questions.stop(self.stream, PURPOSES)
        attempt, self.attempt, self.retry.decided = self.attempt, None, None
        self.results.end_attempt()
        if attempt is None:
            return effects
        return [*effects, *self.services.derived.withdraw(attempt, now), *self._send(attempt.undeploys())]

    def _begin_attempt(self, now: Millis) -> list[Effect]:
        """Begin the next attempt, unless it is too early or results of the last one are still in flight."""
        if now < self.retry.at or self.results.in_flight is not None or may_be_taken(self):
            return []
        self.lifecycle.change("begins again", now)
        is_hasty, self.retry.is_hasty = self.retry.is_hasty, False
        if self.retry.decided is not None:
            return self._follow(self.retry.decided, now)
        return self._follow(self.planning.locate(), now) if is_hasty else self.planning.begin()

    def _begin_attempt_at_once(self, now: Millis) -> list[Effect]:
        """Begin the next attempt with what is known of its streams."""
        self.retry.at, self.retry.is_hasty = now, True
        return self._begin_attempt(now)

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
        self.retry.at, self.retry.reason = now, why
        self.lifecycle.change("loses its attempt" if self.is_acknowledged else "ends", now, why)

    def _tick(self, now: Millis) -> list[Effect]:
        if self.state == "ending":
            if now < self.drop_at or self.is_creating:
                return []
            self.drop_at = now + DROP_AGAIN_MS
            return self.services.questions.ask(self.stream, "drop", DropStream(name=self.stream, force=True))
        listed = self.services.listings.keep(self, now) if self.is_acknowledged and not may_be_taken(self) else []
        if self.state == "waiting":
            return listed + self._begin_attempt(now)
        effects, attempt, planning = listed + self._publish(now), self.attempt, self.planning
        if attempt is None:
            return effects + self._follow(planning.overdue(now), now)
        if self.state == "starting":
            if now - attempt.begun_at > START_MS:
                return effects + self._give_up(not_running(self.name, attempt.late_hosts(), START_MS), now)
            effects += self._send(attempt.deploys_again(now))
        elif attempt.moving is not None:
            effects += self._continue_move(now)
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
            return self.results.acknowledge(note, self.attempt.number) + self._publish(now)
        self.results.resume_from(note)  # The attempt that made them is over.
        return self._begin_attempt(now) if self.state == "waiting" else []

    # From one proxy to the next.

    def take_over(self, definition: StreamDefinition, proxy: PeerId, now: Millis) -> list[Effect]:
        """Go on with a query whose proxy is gone, from the copy of its results that this peer has."""
        opened = self.services.publisher.open_own(definition, now)
        self._restart(now, f"its proxy {proxy.short} is gone, and this peer has taken it over")
        return [Append(self.record("acknowledged")), *opened]

    def _taken_over(self, adopter: PeerId, now: Millis) -> list[Effect]:
        """Another peer has taken it over, and goes on with it."""
        if self.state == "ending":  # Whoever wanted it stopped was told, or will be: its stream goes.
            return []
        effects = self._end_attempt(now)
        gone = Refused(code="unavailable", error=f'query "{self.name}" was taken over by peer {adopter.short}')
        effects += self._answer(gone)
        self.lifecycle.change("is gone", now, f"peer {adopter.short} has taken it over")
        return [*effects, Append(self.record("ended")), *self.services.listings.hand_over(self, adopter, now)]

    def _results_removed(self, now: Millis) -> list[Effect]:
        """Somebody has removed its results."""
        if not self.is_acknowledged or self.is_creating or self.state in ("ending", "ended"):
            return []
        return [*self._end_attempt(now), *self._finish(now)]

    # The end of the query.

    def _give_up(self, refusal: Refused, now: Millis) -> list[Effect]:
        """It cannot run now: refuse it; an acknowledged query is tried again."""
        if self.is_acknowledged:
            return self._lose_attempt(refusal.error, now)
        effects = self._answer(refusal)
        is_other = refusal.code == "exists"  # The stream of that name is somebody else's.
        if not self.installed.is_noted or is_other:
            return effects + self._end_attempt(now) + self._finish(now)
        return effects + self._end(refusal.error, now)

    def _stop(self, request: RequestId, now: Millis) -> list[Effect]:
        effects = self._answer(Refused(code="unknown", error=f'query "{self.name}" was stopped'))
        self.ending_for = request
        return effects + (self._end("it was stopped", now) if self.installed.is_noted else self._finish(now))

    def _end(self, why: str, now: Millis) -> list[Effect]:
        """Undeploy its subgraphs; the next ticks drop its stream, and then it is forgotten."""
        effects = self._end_attempt(now)
        if self.is_acknowledged:  # A restart ends a query that the journal calls begun.
            self.installed.journalled = "begun"
            effects.append(Append(self.record("begun")))
        self.lifecycle.change("ends", now, why)
        self.drop_at = 0
        return effects

    def _finish(self, now: Millis) -> list[Effect]:
        self.lifecycle.change("is gone", now)
        effects: list[Effect] = [Append(self.record("ended"))] if self.installed.is_noted else []
        effects += self.services.listings.withdraw(self, now)
        if self.ending_for is not None:
            effects.append(AfterSync((Reply(self.ending_for, Done(stamp=self.services.clock.tick(now))),)))
        return effects

    # What others keep of it.

    @property
    def durability(self) -> Durability:
        """That of the stream of its results."""
        outbox = self.services.publisher.outboxes.get(self.stream)
        return outbox.definition.durability if outbox is not None else "disk"

    def record(self, state: Literal["begun", "acknowledged", "ended"]) -> QueryInstalled:
        return self.installed.record(state, self.planning, self.results)

    def validate(self) -> None:
        assert self.attempt is not None or self.state != "running", "what runs has an attempt"
        assert self.attempt is None or self.state in ("starting", "running"), "an attempt is over in any other state"
        self.results.validate()
