"""The proxy of queries: the peer they were submitted at, which plans and deploys them and keeps their results.

This file finds the query that an event is about; `submitted.py` says what the event does to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.catalogue.events import Advertised, AdvertiseFailed
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import HybridClock
from protocols.delivery.backups import StreamClosed, StreamTaken
from protocols.delivery.ingress import Ingress
from protocols.effects import Effect, Reply, Send, SetTimer, Tell
from protocols.errors import expect
from protocols.events import (
    Abandoned,
    Answered,
    Event,
    LogBounds,
    PeerDown,
    Received,
    Requested,
    Started,
    TimerFired,
    Unreachable,
)
from protocols.execution.derived import DerivedStreams
from protocols.execution.engine import EngineTried
from protocols.execution.installed import Installed
from protocols.execution.listing import Listings
from protocols.execution.messages import (
    ListQueries,
    NotHere,
    QueryId,
    QueryInstalled,
    ResultsNoted,
    ShowQuery,
    StopQuery,
    SubmitQuery,
)
from protocols.execution.planning import Planner
from protocols.execution.refusals import objection, unknown_query
from protocols.execution.registry import Registry, results_stream
from protocols.execution.shown import shown
from protocols.execution.submitted import Services, SubmittedQuery
from protocols.ids import Key, LogId, Millis, PeerId, RequestId, StreamName
from protocols.inside import Inside, Questions
from protocols.limits import Limits
from protocols.messages import Record
from protocols.placement.events import OperatorsPlaced
from protocols.role import Owned
from protocols.sight import NetworkSeen
from protocols.subgraphs import (
    AttemptLost,
    Deploy,
    Deployed,
    DeployRefused,
    Lease,
    Prepare,
    Prepared,
    ResultsReady,
    SubgraphStatus,
    Undeploy,
)

ROLE: Final = "queries"
TICK: Final = f"{ROLE}/tick"
TICK_MS: Final = 500


@dataclass(slots=True)
class QueryProxy:
    """Queries submitted at one peer.

    In:        SUBMIT, STOP, LIST_QUERIES, SHOW_QUERY; PREPARED, DEPLOYED, DEPLOY_REFUSED, SUBGRAPH_STATUS; results
    Out:       PREPARE, DEPLOY, UNDEPLOY, LEASE; the results, published to a stream of each query's own
    Keeps:     the queries, and checkpoints of what their results so far cover
    Invariant: a result is in the query's stream once, whatever hosts were lost on the way
    """

    owned: ClassVar[Owned] = Owned(
        ROLE,
        messages=(Deployed, DeployRefused, Prepared, SubgraphStatus),
        commands=(SubmitQuery, StopQuery, ListQueries, ShowQuery),
        events=(ResultsReady, AttemptLost, OperatorsPlaced, NetworkSeen, EngineTried, StreamTaken, StreamClosed),
        records=(QueryInstalled, ResultsNoted),
    )

    peer_id: PeerId
    inside: Inside
    clock: HybridClock
    publisher: Ingress
    limits: Limits
    planner: Planner = field(init=False)
    registry: Registry = field(init=False)
    _questions: Questions = field(init=False)
    _services: Services = field(init=False)
    _is_ticking: bool = False

    def __post_init__(self) -> None:
        self._questions = Questions(self.inside, ROLE)
        self.planner = Planner(self.peer_id, self.clock, self._questions)
        catalogue = self.publisher.catalogue
        self._services = Services(
            self.peer_id,
            self.clock,
            self.publisher,
            self.limits,
            self._questions,
            self.planner,
            DerivedStreams(catalogue, (ROLE, "derived")),
            Listings(self.peer_id, catalogue.queries, ROLE),
        )
        self.registry = Registry(self._services)

    @property
    def queries(self) -> dict[QueryId, SubmittedQuery]:
        return self.registry.queries

    def restore(self, record: Record, logs: Mapping[LogId, LogBounds]) -> None:
        self.registry.restore(record)

    def snapshot(self) -> list[Record]:
        return self.registry.snapshot()

    def handle(self, event: Event, now: Millis) -> list[Effect]:  # noqa: C901 - one branch for each kind of address
        match event:
            case Requested(request=request, command=SubmitQuery() as command):
                return self._submit(request, command, event.asker, now)
            case Requested(request=request, command=StopQuery(query=name) | ShowQuery(query=name) as command):
                query = self.registry.named(name)
                is_stop = isinstance(command, StopQuery)
                if query is None or (is_stop and query.ending_for is not None):
                    return self._not_here(request, command)
                return self._hand_to(query, event, now) if is_stop else [Reply(request, shown(query))]
            case Requested(request=request, command=ListQueries(everywhere=True) as command):
                return self._not_here(request, command)
            case Requested(request=request, command=ListQueries()):
                return [Reply(request, self.registry.listed())]
            case Advertised() | AdvertiseFailed():
                self._services.listings.answered(event, now)
            case Answered(request=request):
                query = self.registry.of(self._questions.owner_of(request))
                if query is None:
                    self._questions.take(request)
                return self._hand_to(query, event, now) if query is not None else []
            case Received(sender=sender, message=Deployed() as message) if self.registry.of(message.query) is None:
                over = Undeploy(query=message.query, attempt=message.attempt)
                return [Send(sender, over) if sender != self.peer_id else Tell(Received(sender, over))]
            case Received(sender=sender, message=Deployed() | DeployRefused() | SubgraphStatus() as message):
                query = self.registry.of(message.query)
                expect(query is None or query.may_hear(sender, message), "news of a subgraph that another peer runs")
                return self._hand_to_query_of(message.query, event, now)
            case Received(message=Prepared() as message):
                return self._hand_to_query_of(message.query, event, now)
            case StreamTaken(stream=stream) | StreamClosed(stream=stream):
                return self._hand_to_query_of(stream, event, now)
            case ResultsReady() | AttemptLost():
                return self._hand_to_query_of(event.query, event, now)
            case NetworkSeen() | OperatorsPlaced():
                return self._hand_to_query_of(event.placement, event, now)
            case Abandoned(request=request):
                waited_for = [each for each in self.queries.values() if each.client == request]
                return self._hand_to(waited_for[0], event, now) if waited_for else []
            case PeerDown(peer=peer):
                return self._host_lost(peer, "died or left", now)
            case Unreachable(peer=peer, message=Deploy() | Lease() | Prepare()):
                return self._host_lost(peer, "cannot be reached", now)
            case EngineTried(reason=reason):
                self.planner.trouble = reason
            case TimerFired():
                return self._tick(event, now)
            case Started():
                for query in self.queries.values():
                    query.handle(event, now)
                return self._start_ticking()
        return []

    def _not_here(self, request: RequestId, command: ShowQuery | StopQuery | ListQueries) -> list[Effect]:
        """A client may mean a query of another peer. A peer that asks for its client has found the query before."""
        if Inside.is_client(request):
            return [Tell(NotHere(request, command, tuple(self.queries)))]
        assert not isinstance(command, ListQueries), "a list of all is for clients"
        return [Reply(request, unknown_query(command.query, tuple(self.queries)))]

    def _submit(self, request: RequestId, command: SubmitQuery, owner: str, now: Millis) -> list[Effect]:
        self.clock.witness(command.witness)
        inserted_at = self.clock.tick(now)
        name = command.name or f"q-{Key.of('query', self.peer_id, str(inserted_at)).hex()[:8]}"
        self.registry.make_way(name)
        taken = [*self.queries, *self.registry.reserved]
        if refusal := objection(name, command.statistics, taken, self.clock, self.publisher):
            return [Reply(request, refusal)]
        stream = results_stream(name, inserted_at, self.peer_id, self.publisher.catalogue.store.is_nearest)
        installed = Installed.of(command, owner, stream, inserted_at)
        query = self.registry.add(name, command, installed, request)
        return [*query.begin(now), *self._start_ticking()]

    def adopt(self, record: QueryInstalled, results: StreamDefinition, proxy: PeerId, now: Millis) -> list[Effect]:
        """Go on with a query of another proxy, which is gone."""
        self.registry.restore(record)
        query = self.registry.of(record.stream)
        assert query is not None
        return [*query.take_over(results, proxy, now), *self._start_ticking()]

    def _hand_to_query_of(self, stream: StreamName, event: Event, now: Millis) -> list[Effect]:
        """Hand an event to the query of a stream, if there is one still."""
        query = self.registry.of(stream)
        return self._hand_to(query, event, now) if query is not None else []

    def _hand_to(self, query: SubmittedQuery, event: Event, now: Millis) -> list[Effect]:
        effects = query.handle(event, now)
        if query.state == "ended":
            self.registry.forget(query)
        return effects

    def _host_lost(self, peer: PeerId, why: str, now: Millis) -> list[Effect]:
        """Every query goes on without it, and none chooses it again for a while."""
        self.planner.note_lost(peer, now)
        effects: list[Effect] = []
        for query in list(self.queries.values()):
            effects += query.host_lost(peer, why, now)
            if query.state == "ended":
                self.registry.forget(query)
        return effects

    def _start_ticking(self) -> list[Effect]:
        if self._is_ticking or not self.queries:
            return []
        self._is_ticking = True
        return [SetTimer(TICK, TICK_MS)]

    def _tick(self, event: TimerFired, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for query in list(self.queries.values()):
            lost = query.silent_host(now)
            effects += self._host_lost(*lost, now) if lost is not None else self._hand_to(query, event, now)
        effects += self._services.listings.tick(now)
        self._is_ticking = bool(self.queries) or self._services.listings.has_work
        return [*effects, SetTimer(TICK, TICK_MS)] if self._is_ticking else effects

    def validate(self) -> None:
        for name, query in self.queries.items():
            assert name in (query.name, query.stream), "a query is found by its name or its stream"
            query.validate()
