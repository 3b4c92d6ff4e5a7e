"""One peer: its roles side by side, and which of them each event is for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from protocols.catalogue.events import Advertised, AdvertiseFailed, LookupFailed, StreamFound
from protocols.catalogue.machine import CatalogueMachine
from protocols.catalogue.messages import CreateStream, DropStream, ListDerived, ListStreams, ShowStream
from protocols.clock import HybridClock
from protocols.delivery.keeper import CopySynced, Keeper
from protocols.delivery.messages import (
    Ack,
    Backed,
    Backup,
    BackupOpened,
    BatchMessage,
    CloseSubscription,
    CursorMoved,
    Gap,
    ListDeadLetters,
    OpenSubscription,
    OutboxClosed,
    OutboxOpened,
    Publish,
    PublisherNews,
    PublishNoted,
    Refuse,
    Seen,
    Subscribe,
    Subscribed,
    SubscriptionOpened,
    TupleBuried,
    Unsubscribe,
)
from protocols.delivery.publisher import LogSynced, Publisher
from protocols.delivery.subscriber import LetterSynced, Subscriber
from protocols.effects import AfterSync, Effect, Reply, Tell
from protocols.errors import LocalProtocolError
from protocols.events import (
    Answered,
    ClockCompared,
    Event,
    LogBounds,
    NearestPeers,
    PeerUp,
    Received,
    Requested,
    TimerFired,
)
from protocols.execution.engine import EngineTried, RunFailed, RunResults, RunStarted, RunState
from protocols.execution.executor import Executor
from protocols.execution.explainer import Explainer
from protocols.execution.messages import (
    ListQueries,
    PlanQuery,
    QueryInstalled,
    ResultsNoted,
    ShowQuery,
    StopQuery,
    SubmitQuery,
    WeighQuery,
)
from protocols.execution.proxy import QueryProxy
from protocols.ids import LogId, Millis, PeerId
from protocols.inside import Inside
from protocols.join_index.machine import MESSAGES as JOIN_MESSAGES
from protocols.join_index.machine import JoinIndex
from protocols.limits import Limits
from protocols.messages import Command, Message, Record
from protocols.placement.events import OperatorsPlaced, PlacementAsked, PlacementStopped
from protocols.placement.machine import PlacementMachine
from protocols.placement.messages import AddSubtree, InvalidateMap, Map, OperatorMapped, OperatorRemapped
from protocols.placement.sight import NetworkSeen
from protocols.store.events import StoreFailed, StoreRead, StoreWritten
from protocols.store.limits import StoreLimits
from protocols.store.machine import StoreMachine
from protocols.store.messages import Leave
from protocols.subgraphs import (
    AttemptLost,
    Deploy,
    Deployed,
    DeployRefused,
    Flow,
    Flowed,
    Lease,
    Prepare,
    Prepared,
    ResultsReady,
    ResultsSafe,
    SubgraphStatus,
    Undeploy,
)


class Role(Protocol):
    """One machine of a peer."""

    def handle(self, event: Event, now: Millis) -> list[Effect]: ...
    def validate(self) -> None: ...


class Peer:
    """All roles of one peer behind one door: one event in, a list of effects out."""

    def __init__(
        self,
        peer_id: PeerId,
        rng: random.Random,
        limits: Limits | None = None,
        store_limits: StoreLimits | None = None,
    ) -> None:
        limits = limits or Limits()
        self.peer_id = peer_id
        self.clock = HybridClock()
        self.store = StoreMachine(peer_id, self.clock, rng, store_limits)
        self.catalogue = CatalogueMachine(peer_id, self.store, self.clock)
        self.publisher = Publisher(peer_id, self.catalogue, self.clock, limits)
        self.keeper = Keeper(limits)
        self.subscriber = Subscriber(peer_id, self.catalogue, self.clock, limits)
        self.inside = Inside()
        self.executor = Executor(peer_id, self.inside)
        self.proxy = QueryProxy(peer_id, self.inside, self.clock, self.publisher, limits)
        self.explainer = Explainer(peer_id, self.inside, self.clock)
        self.placement = PlacementMachine(peer_id)
        self.joins = JoinIndex(peer_id, self.inside, lambda: self.store.neighbours, limits.late_join_ms)
        self._store_alone: tuple[Role, ...] = (self.store,)
        self._busy: dict[type[Role], Role] = {}  # Who has had anything to do since it stated what must hold.
        self._by_name: dict[str, tuple[Role, ...]] = {
            "store": self._store_alone,
            "catalogue": (self.catalogue,),
            "publisher": (self.publisher,),
            "keeper": (self.keeper,),
            "subscriber": (self.subscriber,),
            "executor": (self.executor,),
            "queries": (self.proxy,),
            "explainer": (self.explainer,),
            "placement": (self.placement,),
            "joins": (self.joins,),
        }
        self._everyone = tuple(role for roles in self._by_name.values() for role in roles)
        self._by_name["nobody"] = ()  # Who asked has stopped waiting.
        self._by_message: dict[type[Message], tuple[Role, ...]] = {
            Subscribe: (self.publisher, self.keeper),
            Ack: (self.publisher, self.keeper),
            Unsubscribe: (self.publisher, self.keeper),
            Backup: (self.keeper,),
            Backed: (self.publisher,),
            Subscribed: (self.subscriber,),
            BatchMessage: (self.subscriber,),
            Gap: (self.subscriber,),
            PublisherNews: (self.subscriber,),
            **dict.fromkeys((Lease, Flow, Flowed, Prepare), (self.executor,)),
            **dict.fromkeys((Deploy, Undeploy), (self.executor, self.joins)),
            **dict.fromkeys(JOIN_MESSAGES, (self.joins,)),
            **dict.fromkeys((Deployed, DeployRefused, Prepared, SubgraphStatus), (self.proxy,)),
            **dict.fromkeys((AddSubtree, Map, OperatorMapped, OperatorRemapped, InvalidateMap), (self.placement,)),
        }
        self._by_command: dict[type[Command], tuple[Role, ...]] = {
            CreateStream: (self.catalogue,),
            DropStream: (self.catalogue,),
            ListStreams: (self.catalogue,),
            ListDerived: (self.catalogue,),
            ShowStream: (self.catalogue,),
            Publish: (self.publisher,),
            OpenSubscription: (self.subscriber,),
            Seen: (self.subscriber,),
            Refuse: (self.subscriber,),
            ListDeadLetters: (self.subscriber,),
            CloseSubscription: (self.subscriber,),
            Leave: (self.publisher, self.store),
            **dict.fromkeys((SubmitQuery, StopQuery, ListQueries, ShowQuery), (self.proxy,)),
            **dict.fromkeys((PlanQuery, WeighQuery), (self.explainer,)),
        }
        self._by_event: dict[type[Event], tuple[Role, ...]] = {
            PeerUp: self._store_alone,
            NearestPeers: (self.store, self.publisher),
            LogSynced: (self.publisher,),
            CopySynced: (self.keeper,),
            LetterSynced: (self.subscriber,),
            **dict.fromkeys((ResultsReady, AttemptLost, OperatorsPlaced), (self.proxy,)),
            NetworkSeen: (self.proxy, self.explainer),
            **dict.fromkeys((PlacementAsked, PlacementStopped), (self.placement,)),
            **dict.fromkeys((RunStarted, RunResults, RunState, RunFailed), (self.executor,)),
            EngineTried: (self.executor, self.proxy),
            ResultsSafe: (self.executor, self.joins),
        }

    def restore(self, records: Sequence[Record], logs: Mapping[LogId, LogBounds], now: Millis) -> None:
        """Become again what the journal says we were."""
        for record in records:
            match record:
                case OutboxOpened() | OutboxClosed() | PublishNoted():
                    self.publisher.restore(record, logs)
                case BackupOpened():
                    self.keeper.restore(record, logs)
                case SubscriptionOpened() | CursorMoved() | TupleBuried():
                    self.subscriber.restore(record)
                case QueryInstalled() | ResultsNoted():
                    self.proxy.restore(record)
                case _:
                    self.store.restore(record)
        # No stamp given before the crash may be given again.
        self.clock.witness(max((stamp for log in logs.values() for _, stamp in log.stamps[-1:]), default=0))
        self.clock.tick(now)

    def snapshot(self) -> list[Record]:
        """Records that restore this state, in place of all that were written before."""
        roles = (self.store, self.publisher, self.keeper, self.subscriber, self.proxy)
        return [record for role in roles for record in role.snapshot()]

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        """What to do about one event; what roles tell each other is settled on the way."""
        if isinstance(event, ClockCompared):  # All roles stamp by one clock.
            self.clock.offset_ms, self.clock.compared_with = event.offset_ms, event.peers
            return []
        effects: list[Effect] = []
        pending = [event]
        for current in pending:  # It grows on the way.
            roles = self._roles_for(current)
            for role in roles:
                self._busy[type(role)] = role
                for effect in role.handle(current, now):
                    if type(effect) is Reply or type(effect) is AfterSync:
                        effect = self.inside.turned(effect)  # What a role asked comes back to it.
                    if type(effect) is Tell:
                        pending.append(effect.event)
                    else:
                        effects.append(effect)
        return effects

    def _roles_for(self, event: Event) -> Sequence[Role]:
        if type(event) is Received:
            return self._by_message.get(type(event.message), self._store_alone)
        if type(event) is TimerFired:
            return self._named(event.name.partition("/")[0])
        match event:
            case Answered():
                return self._named(self.inside.role_of(event) or "nobody")
            case Requested():
                return self._by_command[type(event.command)]
            case StoreRead() | StoreWritten() | StoreFailed():
                return self._named(str(event.token[0]))
            case StreamFound() | LookupFailed() | Advertised() | AdvertiseFailed():
                return self._named(str(event.token[0]))
        return self._by_event.get(type(event), self._everyone)

    def _named(self, name: str) -> Sequence[Role]:
        roles = self._by_name.get(name)
        if roles is None:
            raise LocalProtocolError(f'no role is called "{name}"')
        return roles

    def validate(self) -> None:
        """State what must hold between any two events; who had nothing to do has stated it before."""
        self.store.validate()  # The catalogue writes to it on behalf of others.
        for role in self._busy.values():
            if role is not self.store:
                role.validate()
        self._busy.clear()
