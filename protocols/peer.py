"""One peer: its roles side by side, and which of them each event is for."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from protocols.catalogue.custody import CustodyDecided, CustodyUndecided
from protocols.catalogue.events import (
    Advertised,
    AdvertiseFailed,
    LookupFailed,
    QueriesFound,
    QueryLookupFailed,
    StreamFound,
)
from protocols.catalogue.machine import CatalogueMachine
from protocols.clock import HybridClock
from protocols.delivery.ingress import Ingress
from protocols.delivery.keeper import Keeper
from protocols.delivery.subscriber import Subscriber
from protocols.effects import AfterSync, Blame, Effect, Reply, Tell
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.events import (
    Answered,
    ClockCompared,
    Event,
    LogBounds,
    Received,
    Requested,
    TimerFired,
)
from protocols.execution.adopter import Adopter
from protocols.execution.executor import Executor
from protocols.execution.explainer import Explainer
from protocols.execution.finder import QueryFinder
from protocols.execution.proxy import QueryProxy
from protocols.ids import LogId, Millis, PeerId
from protocols.inside import Inside
from protocols.join_index.machine import JoinIndex
from protocols.limits import Limits
from protocols.messages import Record
from protocols.placement.machine import PlacementMachine
from protocols.rights.door import Door
from protocols.rights.machine import Rights
from protocols.rights.peer_quotas import PeerQuotas
from protocols.role import KeptRole, Role
from protocols.store.events import StoreFailed, StoreRead, StoreWritten
from protocols.store.limits import StoreLimits
from protocols.store.machine import StoreMachine
from protocols.versions import Family


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
        self.publisher = Ingress(peer_id, self.catalogue, self.clock, limits)
        self.keeper = Keeper(limits)
        self.subscriber = Subscriber(peer_id, self.catalogue, self.clock, limits)
        self.inside = Inside()
        self.executor = Executor(peer_id, self.inside, limits)
        self.executor.admission.publishes = lambda stream: stream in self.publisher.outboxes
        self.proxy = QueryProxy(peer_id, self.inside, self.clock, self.publisher, limits)
        self.finder = QueryFinder(peer_id, self.catalogue, self.clock, self.inside)
        self.adopter = Adopter(peer_id, self.catalogue, self.keeper, self.proxy)
        self.explainer = Explainer(peer_id, self.inside, self.clock)
        self.placement = PlacementMachine(peer_id)
        self.shares: Callable[[PeerId, Family], bool] = lambda _peer, _family: True  # The driver replaces it.
        self.joins = JoinIndex(peer_id, self.inside, self._evaluators, limits.late_join_ms)
        self.rights = Rights(peer_id, self.store, self.clock, limits)
        self.door = self._make_door()
        # A command that several roles take reaches the store last, since its answer to LEAVE ends the request.
        self._roles: tuple[Role, ...] = (
            self.catalogue,
            self.publisher,
            self.keeper,
            self.subscriber,
            self.executor,
            self.proxy,
            self.finder,
            self.adopter,
            self.explainer,
            self.placement,
            self.joins,
            self.rights,
            self.door,
            self.store,
        )
        # An event for all roles reaches the store first: the others ask it who is there.
        self._everyone: tuple[Role, ...] = (self.store, *self._roles[:-1])
        self._kept: tuple[KeptRole, ...] = (
            self.store,
            self.publisher,
            self.keeper,
            self.subscriber,
            self.proxy,
            self.rights,
        )
        self._busy: dict[type[Role], Role] = {}  # Roles that took an event since the last validate().
        self._by_name: dict[str, tuple[Role, ...]] = {"nobody": ()}  # For answers that nobody waits for any more.
        self._by_kind: dict[type[msgspec.Struct], tuple[Role, ...]] = {}
        self._file_roles()

    def _make_door(self) -> Door:
        door = Door(
            self.peer_id,
            self.rights,
            self.store,
            self.publisher,
            self.keeper,
            self.subscriber,
            self.executor,
            self.proxy,
            PeerQuotas(self.publisher, self.keeper, self.executor, self.joins.rewriter),
        )
        self.adopter.may_publish = door.may_publish
        for planner in (self.proxy.planner, self.explainer.planner):
            planner.objection = door.objection
            planner.may_host, planner.all_may_read = door.may_read, door.all_may_read
        return door

    def _file_roles(self) -> None:
        self._by_record = {kind: role for role in self._kept for kind in role.owned.records}
        for role in self._roles:
            self._by_name[role.owned.name] = (role,)
            for kind in (*role.owned.messages, *role.owned.commands, *role.owned.events):
                self._by_kind[kind] = (*self._by_kind.get(kind, ()), role)

    def _evaluators(self) -> tuple[PeerId, ...]:
        """The neighbours that may evaluate joins of ours."""
        return tuple(peer for peer in self.store.neighbours if self.shares(peer, "join_index"))

    def restore(self, records: Sequence[Record], logs: Mapping[LogId, LogBounds], now: Millis) -> None:
        """Restore the state of all roles from the records of the journal."""
        self.clock.now = now
        for record in records:
            self._by_record[type(record)].restore(record, logs)
        # No stamp given before the crash may be given again.
        self.clock.witness(max((stamp for log in logs.values() for _, stamp in log.stamps[-1:]), default=0))
        self.clock.tick(now)

    def snapshot(self) -> list[Record]:
        """Records that restore this state, in place of all that were written before."""
        return [record for role in self._kept for record in role.snapshot()]

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        """What to do about one event. Events that roles tell each other are handled before it returns."""
        self.clock.now = now
        if isinstance(event, ClockCompared):  # All roles stamp by one clock.
            self.clock.offset_ms, self.clock.compared_with = event.offset_ms, event.peers
            return []
        if type(event) is Received and event.sender != self.peer_id:
            try:
                event.message.check()
            except RemoteProtocolError as error:
                return [_blamed(event, error)]
        effects: list[Effect] = []
        pending: list[Event] = []
        admitted = self.door.admit(event, now)
        if isinstance(admitted, Event):
            pending.append(admitted)
        else:
            for effect in admitted:
                (pending.append(effect.event) if type(effect) is Tell else effects.append(effect))
        for current in pending:  # The loop appends to it.
            roles = self._roles_for(current)
            for role in roles:
                self._busy[type(role)] = role
                for effect in self._effects(role, current, now):
                    if type(effect) is Reply or type(effect) is AfterSync:
                        effect = self.inside.turned(effect)  # A reply to a role becomes an event.
                    if type(effect) is Tell:
                        pending.append(effect.event)
                    else:
                        effects.append(effect)
        return effects

    def _effects(self, role: Role, event: Event, now: Millis) -> list[Effect]:
        """What a role makes of an event. The mistakes of other peers end here; our own end the peer.

        A message to ourselves ends here, too, if it contradicts what another peer has made us believe.
        """
        try:
            return role.handle(event, now)
        except RemoteProtocolError as error:
            if not isinstance(event, Received):
                raise
            return [_blamed(event, error)]

    def _roles_for(self, event: Event) -> Sequence[Role]:
        if type(event) is Received:
            return self._by_kind[type(event.message)]
        if type(event) is TimerFired:
            return self._named(event.name.partition("/")[0])
        match event:
            case Answered():
                return self._named(self.inside.role_of(event) or "nobody")
            case Requested():
                return self._by_kind[type(event.command)]
            case StoreRead() | StoreWritten() | StoreFailed():
                return self._named(str(event.token[0]))
            case (
                StreamFound()
                | LookupFailed()
                | Advertised()
                | AdvertiseFailed()
                | QueriesFound()
                | QueryLookupFailed()
                | CustodyDecided()
                | CustodyUndecided()
            ):
                return self._named(str(event.token[0]))
        return self._by_kind.get(type(event), self._everyone)

    def _named(self, name: str) -> Sequence[Role]:
        roles = self._by_name.get(name)
        if roles is None:
            raise LocalProtocolError(f'no role is called "{name}"')
        return roles

    def validate(self) -> None:
        """Check the invariants of all roles that took an event since the last check."""
        self.store.validate()  # It changes without an event of its own: the catalogue writes to it.
        for role in self._busy.values():
            if role is not self.store:
                role.validate()
        self._busy.clear()


def _blamed(event: Received, error: RemoteProtocolError) -> Blame:
    return Blame(event.sender, f"{event.message.__struct_config__.tag}: {error}")
