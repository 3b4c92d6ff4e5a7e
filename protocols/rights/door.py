"""The door of a peer: nothing that clients ask or peers send gets past it without the right it needs.

What the roles of one peer ask each other is not looked at again. In an open network links cost nothing here, and a
command costs a look into a dictionary; in a closed one a decision is made once and remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, cast, get_args

import msgspec

from protocols.catalogue.events import StreamRemoved
from protocols.catalogue.messages import CreateStream
from protocols.delivery.ingress import Ingress
from protocols.delivery.keeper import Keeper
from protocols.delivery.messages import CloseSubscription, OpenSubscription, Publish, Refuse, Seen
from protocols.delivery.subscriber import Subscriber
from protocols.effects import Effect, Reply, Send, Tell
from protocols.events import Abandoned, Disconnected, Event, Received, Requested
from protocols.execution.executor import Executor
from protocols.execution.messages import AskProxy, ProxyAnswer, StopQuery, SubmitQuery
from protocols.execution.proxy import QueryProxy
from protocols.ids import Millis, PeerId, RequestId, StreamName
from protocols.join_index.messages import IndexQuery, QueryRefused, RemoveQuery
from protocols.messages import Command, Message, Refused
from protocols.rights.audit import Audit
from protocols.rights.machine import Change, Rights, RightsChanged
from protocols.rights.messages import (
    ANONYMOUS,
    AuditListed,
    Authenticate,
    Authenticated,
    ListAudit,
    NotAllowed,
    Principal,
    RightsShown,
    ShowRights,
    Verb,
)
from protocols.rights.needs import OF_MESSAGE, Need, PeerNeed, of_command, of_entry
from protocols.rights.peer_quotas import COUNTED, PeerQuotas
from protocols.rights.quotas import Quotas, Rates
from protocols.rights.refusals import bad_token, forbidden, may_not, not_known, over_quota, what
from protocols.rights.table import KEY, RightsTable, client_principal, object_of, peer_principal
from protocols.role import Owned
from protocols.store.entries import Entry
from protocols.store.machine import StoreMachine
from protocols.store.messages import (
    ItemName,
    Leave,
    StoreAck,
    StoreEntries,
    StoreFound,
    StorePut,
    StorePutDone,
    StoreReplicate,
)
from protocols.subgraphs import (
    AttemptLost,
    Deploy,
    DeployRefused,
    Prepare,
    Prepared,
    StreamInput,
    Undeploy,
    first_proxy,
)
from queries.plan import sources

ROLE: Final = "door"
NOBODY: Final = client_principal(ANONYMOUS)
_LIMITED: Final = (Publish, CreateStream, OpenSubscription, SubmitQuery)
_CHANGES: Final = get_args(Change)
_WITH_ENTRIES: Final = (StoreReplicate, StoreEntries, StoreFound)
_Entries = StoreReplicate | StoreEntries | StoreFound


@dataclass(slots=True)
class Door:
    """Who may what, at one peer.

    In:        every command of a client and every message of another peer, before the roles have it; AUTHENTICATE,
               SHOW_RIGHTS, LIST_AUDIT; RightsChanged
    Out:       REFUSED, NOT_ALLOWED; the end of what is no longer allowed; audit events
    Keeps:     for whom each connection acts, what clients read, how much they have taken
    Invariant: a request gets past only with the right of whoever asks, and with that of this peer
    """

    owned: ClassVar[Owned] = Owned(
        ROLE,
        messages=(NotAllowed,),
        commands=(Authenticate, ShowRights, ListAudit),
        events=(RightsChanged, StreamRemoved, Disconnected),
    )

    peer_id: PeerId
    rights: Rights
    store: StoreMachine
    publisher: Ingress
    keeper: Keeper
    subscriber: Subscriber
    executor: Executor
    proxy: QueryProxy
    of_peers: PeerQuotas
    quotas: Quotas = field(default_factory=Quotas)
    audit: Audit = field(default_factory=Audit)
    own: Principal = field(init=False)
    _askers: dict[int, Principal] = field(default_factory=dict)  # Of connections that presented a token.
    _tried: dict[int, Millis] = field(default_factory=dict)  # When each first presented a token that is unknown here.
    _connections: Counter[Principal] = field(default_factory=Counter)
    _reading: dict[RequestId, tuple[Principal, StreamName]] = field(default_factory=dict)
    _streams: dict[Principal, dict[StreamName, None]] = field(default_factory=dict)
    _rates: Rates = field(init=False)

    def __post_init__(self) -> None:
        self.own = peer_principal(self.peer_id)
        self._rates = Rates(self.quotas)

    @property
    def table(self) -> RightsTable:
        return self.rights.table

    def limit(self, quotas: Quotas) -> None:
        """Set the quotas of this peer's clients."""
        self.quotas, self._rates = quotas, Rates(quotas)

    # Who may what.

    def allows(self, principal: Principal, verb: Verb, thing: str) -> Refused | None:
        """Why somebody may not do this here. A client needs a right of its own, and that of this peer."""
        for each in (principal,) if principal == self.own else (principal, self.own):
            if not self.table.may(each, verb, thing):
                return forbidden(each, verb, thing, self.peer_id)
        return None

    def objection_to(self, token: str, verb: Verb, thing: str, now: Millis) -> tuple[Refused | None, list[Effect]]:
        """Why whoever presents a token may not do this, asked by an interface without commands; and what to tell."""
        name, _, secret = token.partition(".")
        if token and not self.table.admits(name, secret):
            told = self.audit.note("token", client_principal(name[:63]), "present a token", "control", now)
            return bad_token(name[:63], self.peer_id), told
        asker = client_principal(name) if token else self.own
        if not self.rights.is_known:
            return not_known(self.peer_id), []
        refusal = self.allows(asker, verb, thing)
        return refusal, self.audit.note("refused", asker, what(verb, thing), "control", now) if refusal else []

    def may_read(self, peer: PeerId, stream: StreamName) -> bool:
        """Whether a peer may host what reads a stream."""
        return self.table.is_open or self.table.may(peer_principal(peer), "read", object_of(stream))

    def may_publish(self, results: StreamName) -> bool:
        """Whether this peer may be the proxy of a query that makes these results."""
        return self.rights.is_known and self.table.may(self.own, "create", object_of(results))

    def all_may_read(self, stream: StreamName) -> bool:
        """Whether every peer may: the join index meets its tuples at any of them."""
        return self.table.is_open or self.table.may("peer:*", "read", object_of(stream))

    def objection(self, owner: Principal, streams: Iterable[StreamName]) -> Refused | None:
        """Why a query may not read its streams. A query of an earlier release is this peer's own."""
        if self.table.is_open:
            return None
        refusals = (self.allows(owner or self.own, "read", object_of(each)) for each in streams)
        return next((each for each in refusals if each is not None), None)

    # What comes in.

    def admit(self, event: Event, now: Millis) -> Event | list[Effect]:
        """The event for the roles; or what is done instead."""
        if type(event) is Requested:
            return self._admit_request(event, now) if event.request >= 0 else event
        if type(event) is Received and event.sender != self.peer_id:
            if self.table.is_open and self.rights.is_known:
                if type(event.message) in _WITH_ENTRIES:  # They may close the network.
                    return self._admit_entries(event, cast("_Entries", event.message), now)
                return self._within_quota(event, now) if type(event.message) in COUNTED else event
            return self._admit_message(event, now)
        if type(event) is Abandoned:
            self._reading.pop(event.request, None)
        return event

    def _admit_request(self, event: Requested, now: Millis) -> Event | list[Effect]:
        command = event.command
        if not event.request:  # The driver itself.
            return event
        asker = self._askers.get(event.connection, self.own)
        need = self._need(command)
        if need is not None and not (asker == self.own and isinstance(command, Leave | ListAudit)):
            if not self.rights.is_known:
                return [] if isinstance(command, Seen | Refuse) else [Reply(event.request, not_known(self.peer_id))]
            refusal = self.allows(asker, *need)
            if refusal is not None and not self._is_own(asker, command):
                told = self.audit.note("refused", asker, what(*need), "client", now)
                return told if isinstance(command, Seen | Refuse) else [*told, Reply(event.request, refusal)]
        if type(command) in _LIMITED and (refusal := self._over_quota(asker, command, now)) is not None:
            told = self.audit.note("quota", asker, f"{refusal.error}: {refusal.detail}", "client", now)
            return [*told, Reply(event.request, refusal)]
        return self._admitted(event, asker, now)

    def _need(self, command: Command) -> Need | None:
        """The right that a command needs; None for none."""
        if isinstance(command, Seen | Refuse | CloseSubscription):
            subscription = self.subscriber.subscriptions.get(command.subscription)
            return Need("read", object_of(subscription.stream)) if subscription is not None else None
        return of_command(command)

    def _is_own(self, asker: Principal, command: Command) -> bool:
        """Whether it is about a query that the asker has submitted: whoever did may read its results and stop it."""
        if self.table.is_open:
            return False
        match command:
            case StopQuery(query=name):
                query = self.proxy.registry.named(name)
            case OpenSubscription(stream=stream):
                query = self.proxy.registry.of(stream)
            case Seen() | Refuse() | CloseSubscription():
                subscription = self.subscriber.subscriptions.get(command.subscription)
                query = self.proxy.registry.of(subscription.stream) if subscription is not None else None
            case _:
                return False
        return query is not None and (query.owner or self.own) == asker and self._is_somebody(asker)

    def _is_somebody(self, principal: Principal) -> bool:
        """Whether it is a peer, or a client whose token is still good."""
        kind, _, name = principal.partition(":")
        return kind == "peer" or self.table.is_good(name)

    def _admitted(self, event: Requested, asker: Principal, now: Millis) -> Event | list[Effect]:
        """What a role learns of the asker, and what the door remembers."""
        command = event.command
        if type(command) is Publish:  # The most frequent one; nothing is to be noted.
            return event
        match command:
            case SubmitQuery() | Authenticate() | ShowRights() | ListAudit():
                return msgspec.structs.replace(event, asker=asker)
            case OpenSubscription(stream=stream):
                self._reading[event.request] = (asker, stream)
        if isinstance(command, _CHANGES):
            action = f"{command.__struct_config__.tag} {_said(command)}"
            return [*self.audit.note("change", asker, action, "client", now), Tell(event)]
        return event

    # Quotas.

    def _over_quota(self, asker: Principal, command: Command, now: Millis) -> Refused | None:
        quotas = self.quotas
        if type(command) is Publish:
            size = len(command.rows)
            count = min(max(command.count, 0), size)  # Nobody has looked whether it is true; a row has a byte at least.
            if (found := self._rates.exceeded(asker, count, size, now)) is not None:
                name, limit, used, wait_ms = found
                unit = name.removeprefix("quota_").removesuffix("_per_s") + " per second"
                return over_quota(asker, name, limit, used, unit, wait_ms)
            return self._another_stream(asker, command.stream)
        match command:
            case CreateStream(definition=definition):
                return self._another_stream(asker, definition.name)
            case OpenSubscription():
                self._reading = {each: who for each, who in self._reading.items() if self.subscriber.serves(each)}
                used = sum(reader == asker for reader, _ in self._reading.values())
                if quotas.subscriptions and used >= quotas.subscriptions:
                    return over_quota(asker, "quota_subscriptions", quotas.subscriptions, used, "subscriptions")
            case SubmitQuery():
                return self._another_query(asker)
        return None

    def _another_stream(self, asker: Principal, stream: StreamName) -> Refused | None:
        streams = self._streams.get(asker)
        if streams is None:
            streams = self._streams[asker] = {}
        if stream not in streams:
            limit = self.quotas.streams
            if limit and len(streams) >= limit:
                return over_quota(asker, "quota_streams", limit, len(streams), "streams")
            streams[stream] = None
        return None

    def _another_query(self, asker: Principal) -> Refused | None:
        quotas = self.quotas
        queries = [each for each in self.proxy.queries.values() if (each.owner or self.own) == asker]
        if quotas.queries and len(queries) >= quotas.queries:
            return over_quota(asker, "quota_queries", quotas.queries, len(queries), "queries")
        attempts = [each.attempt for each in queries if each.attempt is not None]
        rows = sum(status.state_rows or 0 for attempt in attempts for status in attempt.status.values())
        if quotas.state_rows and rows >= quotas.state_rows:
            return over_quota(asker, "quota_state_rows", quotas.state_rows, rows, "rows of state")
        return None

    # What other peers send.

    def _admit_message(self, event: Received, now: Millis) -> Event | list[Effect]:
        message, sender = event.message, event.sender
        match message:
            case StorePut(entry=entry):
                if not self.rights.is_known:
                    return []  # It will be sent again. Others take an entry from us without asking who wrote it.
                need = self._need_of(entry, sender, self.table)
                return event if need is None else self._refuse(sender, message, need, now)
            case StoreReplicate() | StoreEntries() | StoreFound():
                return self._admit_entries(event, message, now)
            case Undeploy(query=query):
                hosted = [each for (name, _), each in self.executor.hosted.items() if name == query]
                if all(each.proxy == sender for each in hosted):
                    return event
                needs: Iterable[PeerNeed] = (PeerNeed(sender, "stop", object_of(query)),)
            case RemoveQuery(query=query):
                stream, *proxies = query.split("~")[:-1] or [query]  # It names its proxy, unless that is the first.
                if sender.short in (proxies or [first_proxy(stream)]):
                    return event
                needs = (PeerNeed(sender, "stop", object_of(stream)),)
            case _:
                wanted = OF_MESSAGE.get(type(message))
                if wanted is None:
                    return event
                needs = wanted(sender, self.peer_id, message)
        if not self.rights.is_known:  # It will be sent again.
            return []
        for need in needs:
            if not self.table.may(need.principal, need.verb, need.object):
                return self._refuse(sender, message, need, now)
        return self._within_quota(event, now) if type(message) in COUNTED else event

    def _within_quota(self, event: Received, now: Millis) -> Event | list[Effect]:
        """A message, unless its sender has enough here of what it asks for."""
        message, sender = event.message, event.sender
        found = self.of_peers.exceeded(sender, message, self.quotas)
        if found is None:
            return event
        reason = f"peer {sender.short} has reached its quota here: {found.name} = {found.limit}; {found.used} in use"
        told = self.audit.note("quota", peer_principal(sender), reason, str(message.__struct_config__.tag), now)
        match message:
            case Deploy():
                return [*told, Send(sender, _deploy_refused(message, reason))]
            case IndexQuery():
                return [*told, Send(sender, QueryRefused(query=message.query.id, reason=reason))]
        return told

    def _need_of(self, entry: Entry, writer: PeerId, table: RightsTable) -> PeerNeed | None:
        """The right that a writer lacks for an entry, by the rights in a table."""
        if table.is_open:
            return None
        need = of_entry(entry, self.store.held(ItemName(entry.key, entry.item)))
        if need is None or table.may(peer_principal(writer), *need):
            return None
        return PeerNeed(writer, *need)

    def _admit_entries(self, event: Received, message: _Entries, now: Millis) -> Event | list[Effect]:
        """Entries of others are taken from whoever has them. What a peer has written itself needs the right, also
        where that peer owns the key and answers reads of it: unless the network was open when it did, or, for the
        definition of a stream, its grants have changed since. Of rights that does not count, or else whoever keeps one
        that it gave itself would only have to wait.

        Rights are judged by those that come with them: the sender may have become admin since this peer last read.
        """
        sender, table = event.sender, self.table
        own = [entry for entry in message.entries if entry.writer == sender]
        if any(entry.key == KEY for entry in own):
            table = RightsTable(dict(table.entries))
            table.learn((entry for entry in message.entries if entry.writer != sender), now)
            table.read_anew(now)
        lacking = {
            ItemName(entry.key, entry.item): need
            for entry in own
            if not table.was_open(entry.stamp)
            if (need := self._need_of(entry, sender, table)) is not None
            if entry.key == KEY or not table.has_changed(need.principal, need.object, entry.stamp)
        }
        if not lacking:
            return event
        effects = self._refuse(event.sender, message, next(iter(lacking.values())), now)
        kept = tuple(each for each in message.entries if ItemName(each.key, each.item) not in lacking)
        if isinstance(message, StoreReplicate):
            effects.append(Send(event.sender, StoreAck(kept=(), refused=tuple(lacking))))
        if kept or not isinstance(message, StoreReplicate) or message.round:
            effects.append(Tell(Received(event.sender, msgspec.structs.replace(message, entries=kept))))
        return effects

    def _refuse(self, sender: PeerId, message: Message, need: PeerNeed, now: Millis) -> list[Effect]:
        """Answer as the kind of message asks for, so that whoever waits hears why."""
        kind, reason = str(message.__struct_config__.tag), may_not(need.principal, need.verb, need.object)
        told = self.audit.note("refused", need.principal, what(need.verb, need.object), kind, now)
        match message:
            case Deploy():
                answer: Message = _deploy_refused(message, reason)
            case Prepare():
                answer = Prepared(query=message.query, attempt=message.attempt, reason=reason)
            case AskProxy(number=number):
                answer = ProxyAnswer(
                    number=number, answer=forbidden(need.principal, need.verb, need.object, self.peer_id)
                )
            case IndexQuery():
                answer = QueryRefused(query=message.query.id, reason=reason)
            case StorePut(entry=entry):
                name = ItemName(entry.key, entry.item)
                answer = StorePutDone(
                    name=name, stamp=entry.stamp, replicas=0, newest=entry.stamp, is_newest=False, refusal=reason
                )
            case _:
                answer = NotAllowed(
                    kind=kind,
                    principal=need.principal,
                    verb=need.verb,
                    object=need.object,
                    digest=self.table.digest,
                )
        return [*told, Send(sender, answer)]

    # Its own commands, and changes.

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Requested(command=Authenticate() as command):
                return self._authenticate(event, command, now)
            case Requested(request=request, command=ShowRights()):
                return [Reply(request, self._shown(event.asker))]
            case Requested(request=request, command=ListAudit()):
                return [Reply(request, AuditListed(events=tuple(self.audit.events)))]
            case Disconnected(connection=connection):
                self._tried.pop(connection, None)
                if (asker := self._askers.pop(connection, None)) is not None:
                    self._connections[asker] -= 1
            case Received(sender=sender, message=NotAllowed() as message):
                action = f"{what(message.verb, message.object)}, said by peer {sender.short}"
                return self.audit.note("told", message.principal, action, message.kind, now)
            case StreamRemoved(name=name):  # Of whomever it was, it counts for nobody any more.
                for streams in self._streams.values():
                    streams.pop(name, None)
            case RightsChanged():
                known = f"{self.table.policy}, {len(self.table.grants())} grants, {len(self.table.tokens())} tokens"
                told = self.audit.note("changed", self.own, f"this peer knows: {known}", "store", now)
                return [*told, *self._end_readings(now), *self._end_feeds(now), *self._end_attempts()]
        return []

    def _authenticate(self, event: Requested, command: Authenticate, now: Millis) -> list[Effect]:
        name, _, secret = command.token.partition(".")
        if command.token and not self.table.admits(name, secret):
            self._acts_for(event.connection, NOBODY)  # What it asks meanwhile it does not ask as this peer.
            first_at = self._tried.setdefault(event.connection, now)
            if not self.table.is_good(name) and not self.rights.has_read_since(first_at):
                # Perhaps it was made at another peer a moment ago.
                return [*self.rights.look(now), Reply(event.request, not_known(self.peer_id))]
            del self._tried[event.connection]
            told = self.audit.note("token", client_principal(name[:63]), "present a token", "client", now)
            return [*told, Reply(event.request, bad_token(name, self.peer_id))]
        self._tried.pop(event.connection, None)
        asker = client_principal(name or ANONYMOUS)
        limit, used = self.quotas.connections, self._connections[asker]
        if limit and used >= limit and self._askers.get(event.connection) != asker:
            self._acts_for(event.connection, NOBODY)
            refusal = over_quota(asker, "quota_connections", limit, used, "connections")
            told = self.audit.note("quota", asker, f"{refusal.error}: {refusal.detail}", "client", now)
            return [*told, Reply(event.request, refusal)]
        self._acts_for(event.connection, asker)
        return [Reply(event.request, Authenticated(client=name or ANONYMOUS))]

    def _acts_for(self, connection: int, asker: Principal) -> None:
        if (before := self._askers.get(connection)) is not None:
            self._connections[before] -= 1
        self._askers[connection] = asker
        self._connections[asker] += 1

    def _shown(self, asker: Principal) -> RightsShown:
        return RightsShown(
            policy=self.table.policy,
            grants=self.table.grants(),
            tokens=self.table.tokens(),
            peer=self.peer_id,
            client="" if asker == self.own else asker.partition(":")[2],
            is_known=self.rights.is_known,
        )

    def _end_readings(self, now: Millis) -> list[Effect]:
        """Clients no longer get what they may no longer read."""
        effects: list[Effect] = []
        for request, (asker, stream) in list(self._reading.items()):
            if self._is_own(asker, OpenSubscription(stream=stream, subscription="")):
                continue
            refusal = self.allows(asker, "read", object_of(stream))
            if refusal is not None:
                del self._reading[request]
                effects += self.audit.note("refused", asker, what("read", object_of(stream)), "client", now)
                effects += [Reply(request, refusal), Tell(Abandoned(request))]
        return effects

    def _end_feeds(self, now: Millis) -> list[Effect]:
        """Nor do peers."""
        if self.table.is_open:
            return []
        effects: list[Effect] = []
        feeds = [each.feed for each in self.publisher.outboxes.values()] + list(self.keeper.feeds.values())
        for feed in feeds:
            for subscription, consumer in list(feed.consumers.items()):
                thing = object_of(feed.origin.stream)
                reader = peer_principal(consumer.peer)
                if consumer.peer != self.peer_id and not self.table.may(reader, "read", thing):
                    feed.unsubscribe(subscription, consumer.peer)
                    effects += self.audit.note("refused", reader, what("read", thing), "BATCH", now)
        return effects

    def _end_attempts(self) -> list[Effect]:
        """A query whose owner, or one of whose hosts, may no longer read its streams begins anew; if it may."""
        if self.table.is_open:
            return []
        effects: list[Effect] = []
        for query in self.proxy.queries.values():
            attempt = query.attempt
            if attempt is None:
                continue
            read = [
                (host, each.stream)
                for subgraph, host in attempt.cut.placed
                for each in subgraph.inputs
                if isinstance(each, StreamInput)
            ]
            streams = dict.fromkeys(each.stream for each in sources(query.planning.plan))
            refusal = self.objection(query.owner, streams)
            reasons = [refusal.error] if refusal is not None else []
            reasons += [
                may_not(peer_principal(host), "read", object_of(stream))
                for host, stream in read
                if not self.may_read(host, stream)
            ]
            if query.planning.index is not None:
                secret = [each for each in streams if not self.all_may_read(each)]
                reasons += [f'not every peer may read stream "{each}", and the index needs that' for each in secret]
            if reasons:
                effects.append(Tell(AttemptLost(query.stream, attempt.number, reasons[0])))
        return effects

    def validate(self) -> None:
        assert sum(self._connections.values()) == len(self._askers), "each connection acts for one"


def _deploy_refused(message: Deploy, reason: str) -> DeployRefused:
    number = message.subgraph.number
    return DeployRefused(query=message.query, attempt=message.attempt, number=number, reason=reason)


def _said(command: Command) -> str:
    """A change as the audit tells it; digests of secrets stay out of it."""
    fields = msgspec.structs.asdict(command)
    return " ".join(f"{name}={value}" for name, value in fields.items() if name != "digest")
