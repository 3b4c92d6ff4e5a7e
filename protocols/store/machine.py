"""The store of one peer: entries under keys, each on the R peers nearest to its key, safe once W have it on disk."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from protocols.clock import AHEAD_MAX_MS, HybridClock, Stamp, wall_ms
from protocols.effects import AfterSync, Append, Effect, Route, Send, SetTimer, Tell
from protocols.errors import LocalProtocolError, expect
from protocols.events import Event, LogBounds, NearestPeers, PeerDown, PeerUp, Received, Requested, Started, TimerFired
from protocols.ids import Key, LogId, Millis, PeerId, RequestId
from protocols.messages import Message, Record
from protocols.role import Owned, messages_in
from protocols.store import messages
from protocols.store.comparison import Comparisons, parts_of, pulls_of
from protocols.store.coordinator import Coordinator
from protocols.store.entries import Entry
from protocols.store.events import StoreFailed, StoreRead, StoreWritten, Token
from protocols.store.handover import Handovers
from protocols.store.leaving import Departure
from protocols.store.limits import StoreLimits
from protocols.store.messages import (
    EntryKept,
    ItemName,
    KeyDropped,
    Leave,
    NeighboursKept,
    StoreAck,
    StoreDigest,
    StoreEntries,
    StoreFetch,
    StoreFound,
    StoreGet,
    StoreLeaving,
    StoreOffer,
    StorePull,
    StorePut,
    StorePutDone,
    StoreReplicate,
    Version,
)
from protocols.store.neighbourhood import Neighbourhood
from protocols.store.table import EntryTable, has_expired, size_of, version_of, version_size
from protocols.store.upkeep import Pass

RETRY: Final = "store/retry"
COMPARE: Final = "store/compare"
UPKEEP: Final = "store/upkeep"


@dataclass(slots=True)
class _Operation:
    """A read or a write that a role of this peer waits for."""

    token: Token
    key: Key
    entry: Entry | None  # Of a write.
    deadline_at: Millis
    next_at: Millis
    wait_ms: Millis
    # Its stamp stays: it has been stamped anew once, or a later write of ours supersedes it.
    is_final: bool = False


class StoreMachine:
    """Everything one peer does for the store: it asks, coordinates, owns entries, catches up, and hands over.

    In:        read() and write() of other roles; STORE_* of other peers
    Out:       StoreRead, StoreWritten, StoreFailed; STORE_* to other peers
    Keeps:     entries of the keys this peer owns, and of those it has not handed over yet, in the journal
    Invariant: what was acknowledged is on the disks of W owners, and whoever drops an entry has handed it to R others
    """

    owned: ClassVar[Owned] = Owned(
        "store",
        messages=messages_in(messages),
        commands=(Leave,),
        events=(PeerUp, NearestPeers),
        records=(EntryKept, KeyDropped, NeighboursKept),
    )

    def __init__(
        self, peer_id: PeerId, clock: HybridClock, rng: random.Random, limits: StoreLimits | None = None
    ) -> None:
        self.limits = limits or StoreLimits()
        self.peer_id = peer_id
        self._clock = clock
        self._rng = rng
        self._table = EntryTable(self.limits)
        self._neighbourhood = Neighbourhood(peer_id, self.limits)
        self._coordinator = Coordinator(self._neighbourhood)
        self._comparisons = Comparisons(self._table, self._neighbourhood, clock)
        self._handovers = Handovers(self._table, self._neighbourhood)
        self._operations: dict[Stamp, _Operation] = {}
        self._writes: dict[tuple[Key, str], _Operation] = {}  # The last write to each item that is under way.
        self._timers: dict[str, None] = {}  # The timers that run.
        self._must_review = False
        self._pass: Pass | None = None  # Over all keys; it may take several events.
        self._departure: Departure | None = None
        self._is_valid = False  # Nothing has happened since validate() last looked.

    @property
    def entries(self) -> int:
        """How many entries it holds, including those still to be handed over."""
        return len(self._table)

    # What other roles ask.

    def is_nearest(self, key: Key) -> bool:
        """Whether nobody we know is nearer to a key: then we coordinate it ourselves."""
        return self._neighbourhood.owners(key)[0] == self.peer_id

    def held(self, name: ItemName) -> Entry | None:
        """The version of an entry that this peer holds."""
        held = self._table.get(name)
        return held.entry if held is not None else None

    def read(self, key: Key, token: Token, now: Millis) -> list[Effect]:
        """Everything under a key; answered with StoreRead or StoreFailed."""
        self._is_valid = False
        return self._open(self._clock.tick(now), _Operation(token, key, None, *self._times(now)))

    def write(
        self, key: Key, item: str, value: bytes | None, expires_in_ms: Millis, token: Token, now: Millis
    ) -> list[Effect]:
        """Put a value under a key, or remove it (None); answered with StoreWritten or StoreFailed.

        It supersedes everything acknowledged before. `expires_in_ms` 0 means never, for a removal the longest time that
        is kept of one. Whoever removes an entry that expires says its life again: no copy of it can be found later.
        """
        self._is_valid = False
        if len(value or b"") > self.limits.value_bytes_max or len(item) > self.limits.item_chars_max:
            reason = f"{len(value or b'')} bytes are too many for one entry: at most {self.limits.value_bytes_max}"
            return [Tell(StoreFailed(token, reason))]
        if value is None:
            expires_in_ms = expires_in_ms or self.limits.tombstone_ms
        expires_at = now + expires_in_ms if expires_in_ms else 0
        entry = Entry(key, item, self._clock.tick(now), self.peer_id, value, expires_at)
        operation = _Operation(token, key, entry, *self._times(now))
        if (before := self._writes.get((key, item))) is not None:
            before.is_final = True
        return self._open(entry.stamp, operation)

    # What survives a crash.

    def restore(self, record: Record, logs: Mapping[LogId, LogBounds]) -> None:
        match record:
            case EntryKept(entry=entry):
                self._table.put(entry)
                self._clock.witness(entry.stamp)
            case KeyDropped(key=key):
                if key in self._table:
                    self._table.drop(key)
            case NeighboursKept(peers=peers):
                self._neighbourhood.remembered = peers
            case _:
                raise LocalProtocolError(f"the store has no rule for the record {record}")

    def snapshot(self) -> list[Record]:
        around = self._neighbourhood.remembered
        neighbours = [NeighboursKept(peers=around)] if around is not None else []
        return [*neighbours, *(EntryKept(entry=held.entry) for held in self._table)]

    # What happens.

    @property
    def neighbours(self) -> tuple[PeerId, ...]:
        """The peers around us, as far as we know."""
        return self._neighbourhood.others

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        self._is_valid = False
        self._must_review |= self._neighbourhood.fade(now)
        match event:
            case Received(sender=sender, message=message):
                return self._received(sender, message, now)
            case TimerFired(name="store/retry"):
                return self._retry(now)
            case TimerFired(name="store/compare"):
                return self._compare(now)
            case TimerFired(name="store/upkeep"):
                self._timers.pop(UPKEEP, None)
                return self._go_on(now) + self._set_timers()
            case PeerUp(peer=peer):
                return self._up(peer, now)
            case PeerDown(peer=peer):
                return self._down(peer, now)
            case Started():
                self._neighbourhood.start(now)
                self._must_review = True
                return self._set_timers()
            case Requested(request=request, command=Leave()):
                return self._leave(request, now)
        return []

    def _received(self, sender: PeerId, message: Message, now: Millis) -> list[Effect]:  # noqa: C901 - one branch for each kind
        match message:  # The most frequent kinds first: each case costs a comparison.
            case StoreDigest():
                return self._digest(sender, message, now)
            case StoreOffer(round=0):
                return self._offered(sender, message, now)
            case StoreOffer():
                return self._comparisons.offered(sender, message, now)
            case StorePut(entry=entry):
                expect(entry.writer == sender, "an entry of another writer")
                _check_stamps((entry,), now)
                return [*self._note_neighbours(now), *self._coordinator.put(message, now)]
            case StoreGet(reader=reader):
                expect(reader == sender, "a question for another reader")
                return self._coordinator.get(message, now)
            case StoreReplicate():
                return self._replicated(sender, message, now)
            case StoreAck():
                self._handovers.acked(sender, message)
                return self._coordinator.acked(sender, message, now)
            case StorePutDone():
                return self._put_done(message, now)
            case StoreFetch():
                return self._fetched(sender, message, now)
            case StoreEntries(entries=entries):
                _check_stamps(entries, now)
                return self._coordinator.entries(sender, message, now)
            case StoreFound():
                return self._found(message, now)
            case StorePull():
                return self._pulled(sender, message, now)
            case StoreLeaving(is_done=is_done):
                return self._count_out(sender, now) if self._neighbourhood.leaves(sender, now, is_done=is_done) else []
        raise LocalProtocolError(f"the store has no rule for {message}")

    # Asking.

    def _times(self, now: Millis) -> tuple[Millis, Millis, Millis]:
        return now + self.limits.deadline_ms, now + self.limits.retry_ms, self.limits.retry_ms

    def _open(self, request: Stamp, operation: _Operation) -> list[Effect]:
        if len(self._operations) >= self.limits.operations_max:
            return [Tell(StoreFailed(operation.token, f"{len(self._operations)} reads and writes are under way here"))]
        self._operations[request] = operation
        if operation.entry is not None:
            self._writes[operation.key, operation.entry.item] = operation
        return [self._ask(request, operation), *self._set_timers()]

    def _end(self, request: Stamp) -> _Operation:
        operation = self._operations.pop(request)
        if operation.entry is not None and self._writes.get((operation.key, operation.entry.item)) is operation:
            del self._writes[operation.key, operation.entry.item]
        return operation

    def _ask(self, request: Stamp, operation: _Operation) -> Effect:
        if operation.entry is not None:
            return Route(operation.key, StorePut(entry=operation.entry))
        return Route(operation.key, StoreGet(key=operation.key, reader=self.peer_id, request=request))

    def _put_done(self, message: StorePutDone, now: Millis) -> list[Effect]:
        self._clock.witness(message.newest)
        operation = self._operations.get(message.stamp)
        if operation is None or operation.entry is None:
            return []
        expect(message.name == ItemName(operation.key, operation.entry.item), "an answer about another entry")
        self._end(message.stamp)
        if message.refusal:
            return [Tell(StoreFailed(operation.token, message.refusal))]
        if not message.is_newest and not operation.is_final:
            # An earlier writer's clock was ahead of ours. Now that we have seen its stamp, ours is ahead.
            entry = operation.entry
            operation.entry = Entry(
                entry.key, entry.item, self._clock.tick(now), entry.writer, entry.value, entry.expires_at
            )
            operation.is_final = True
            return self._open(operation.entry.stamp, operation)
        return [Tell(StoreWritten(operation.token, message.replicas))]

    def _found(self, message: StoreFound, now: Millis) -> list[Effect]:
        operation = self._operations.get(message.request)
        if operation is None or operation.entry is not None:
            return []
        expect(all(entry.key == operation.key for entry in message.entries), "an answer about another key")
        _check_stamps(message.entries, now)
        self._end(message.request)
        for entry in message.entries:
            self._clock.witness(entry.stamp)
        live = tuple(entry for entry in message.entries if not has_expired(entry, now))
        return [Tell(StoreRead(operation.token, operation.key, live))]

    def _retry_operations(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for request, operation in list(self._operations.items()):
            if operation.deadline_at <= now:
                self._end(request)
                reason = f"fewer than {self.limits.quorum} owners of key {operation.key.short} answered in time"
                effects.append(Tell(StoreFailed(operation.token, reason)))
            elif operation.next_at <= now:
                operation.wait_ms = min(2 * operation.wait_ms, self.limits.retry_ms_max)
                operation.next_at = now + operation.wait_ms
                effects.append(self._ask(request, operation))
        return effects

    # Owning.

    def _replicated(self, sender: PeerId, message: StoreReplicate, now: Millis) -> list[Effect]:
        _check_stamps(message.entries, now)
        kept: list[Version] = []
        not_mine: list[ItemName] = []
        refused: list[ItemName] = []
        effects: list[Effect] = []
        for entry in message.entries:
            name = ItemName(entry.key, entry.item)
            self._clock.witness(entry.stamp)
            if not self._neighbourhood.is_owner(entry.key):
                not_mine.append(name)
                continue
            if not has_expired(entry, now):
                if not self._table.has_room_for(entry):
                    refused.append(name)
                    continue
                if self._table.put(entry):
                    effects.append(Append(EntryKept(entry=entry)))
            if self._neighbourhood.answers_for(entry.key, now):
                held = self._table.get(name)
                kept.append(held.version if held else version_of(entry))
            else:
                not_mine.append(name)
        acks = self._acks(kept, not_mine, refused)
        effects += [AfterSync(tuple(self._coordinator.hand(sender, ack) for ack in acks)), *self._set_timers()]
        if message.round and not refused:  # Without room for its entries, that comparison must not count as complete.
            effects += self._comparisons.replicated(sender, message.round, now)
        return effects

    def _fetched(self, sender: PeerId, message: StoreFetch, now: Millis) -> list[Effect]:
        is_owner = self._neighbourhood.answers_for(message.key, now)
        answer = StoreEntries(
            key=message.key,
            reader=message.reader,
            request=message.request,
            entries=self._table.entries(message.key),
            is_owner=is_owner,
            closer=() if is_owner else tuple(self._neighbourhood.owners(message.key)),
        )
        # Nobody may see what a crash could still undo.
        return [AfterSync((self._coordinator.hand(sender, answer),))]

    def _offered(self, sender: PeerId, message: StoreOffer, now: Millis) -> list[Effect]:
        """Another peer holds entries of ours: pull those we lack, and acknowledge the others."""
        lacking: list[Version] = []
        kept: list[Version] = []
        not_mine: list[ItemName] = []
        for version in message.versions:
            name = ItemName(version.key, version.item)
            held = self._table.get(name)
            if not self._neighbourhood.is_owner(version.key):
                not_mine.append(name)
            elif held is None or held.entry.order < version.order:
                lacking.append(version)
            elif self._neighbourhood.answers_for(version.key, now):
                kept.append(held.version)
        effects: list[Effect] = [Send(sender, pull) for pull in pulls_of(lacking, self.limits.message_bytes)]
        if kept or not_mine:
            effects.append(AfterSync(tuple(Send(sender, ack) for ack in self._acks(kept, not_mine, []))))
        return effects

    def _pulled(self, sender: PeerId, message: StorePull, now: Millis) -> list[Effect]:
        """Send what was asked for, once each, as much as fits. If not all does, that completes no comparison."""
        entries: list[Entry] = []
        size = 0
        for name in dict.fromkeys(message.names):
            held = self._table.get(name)
            if held is None or has_expired(held.entry, now):
                continue
            size += size_of(held.entry)
            if size > self.limits.key_bytes_max:
                return [Send(sender, StoreReplicate(entries=tuple(entries)))]
            entries.append(held.entry)
        return [Send(sender, StoreReplicate(entries=tuple(entries), round=message.round))]

    def _acks(self, kept: list[Version], not_mine: list[ItemName], refused: list[ItemName]) -> list[StoreAck]:
        """What became of entries, in one message unless somebody has sent very many."""
        items = [each.item for each in kept] + [name.item for name in (*not_mine, *refused)]
        if sum(map(version_size, items)) <= self.limits.message_bytes:
            return [self._ack(kept, not_mine, refused)]
        return [
            *(self._ack(some, (), ()) for some in parts_of(kept, self.limits)),
            *(self._ack((), some, ()) for some in parts_of(not_mine, self.limits)),
            *(self._ack((), (), some) for some in parts_of(refused, self.limits)),
        ]

    def _ack(self, kept: Sequence[Version], not_mine: Sequence[ItemName], refused: Sequence[ItemName]) -> StoreAck:
        closer = dict.fromkeys(
            peer
            for key in dict.fromkeys(name.key for name in not_mine)
            for peer in self._neighbourhood.owners(key)
            if peer != self.peer_id
        )
        return StoreAck(kept=tuple(kept), not_mine=tuple(not_mine), closer=tuple(closer), refused=tuple(refused))

    # Neighbours come and go.

    def _up(self, peer: PeerId, now: Millis) -> list[Effect]:
        self._neighbourhood.up(peer, now)
        self._must_review = True
        # That there are others at all must be on disk at once; who they are is written later, many at a time.
        effects = [] if self._neighbourhood.remembered else self._note_neighbours(now)
        if peer in self._neighbourhood.near:
            effects += self._comparisons.begin(peer, now=now)
        return effects + self._set_timers()

    def _down(self, peer: PeerId, now: Millis) -> list[Effect]:
        self._comparisons.end(peer)
        return self._count_out(peer, now) if self._neighbourhood.down(peer, now) else []

    def _count_out(self, peer: PeerId, now: Millis) -> list[Effect]:
        """A peer has gone, or is about to: keys that were not ours may be ours now."""
        self._handovers.lost(peer)
        self._must_review = True
        # A comparison begun before that does not cover these keys.
        effects = self._comparisons.begin(*self._neighbourhood.compared, now=now)
        return effects + self._set_timers()

    def _leave(self, request: RequestId, now: Millis) -> list[Effect]:
        if self._departure is None or self._departure.is_over:
            self._departure = Departure.begin(self._comparisons, now)
        self._departure.requests[request] = None
        return self._hand_all_over(self._departure, now) + self._set_timers()

    def _digest(self, sender: PeerId, message: StoreDigest, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        if self._neighbourhood.hear(sender, now):
            self._must_review = True
            if self._neighbourhood.is_awaited(sender):
                effects = self._comparisons.begin(sender, now=now)
        return [*effects, *self._comparisons.compare(sender, message, now), *self._set_timers()]

    def _note_neighbours(self, now: Millis) -> list[Effect]:
        """Write down who is around, or that nobody is, for the time after a crash."""
        around = self._neighbourhood.around
        is_certain = bool(around) or self._neighbourhood.is_alone(now)
        if not is_certain or around == (self._neighbourhood.remembered or ()):
            return []
        self._neighbourhood.remembered = around
        return [Append(NeighboursKept(peers=around))]

    # From time to time.

    def _retry(self, now: Millis) -> list[Effect]:
        self._timers.pop(RETRY, None)
        effects = self._retry_operations(now) + self._comparisons.retry(now)
        if self._departure is not None:
            self._must_review = False
            effects += self._hand_all_over(self._departure, now)
        elif self._must_review:
            compares = self._pass is not None and self._pass.compares
            effects += self._look_at_all(now, compares=compares)  # Whatever a pass has found so far may have changed.
        return effects + self._set_timers()

    def _compare(self, now: Millis) -> list[Effect]:
        self._timers.pop(COMPARE, None)
        if self._pass is not None and self._pass.leaves:
            return self._set_timers()
        return self._look_at_all(now, compares=True) + self._set_timers()

    def _look_at_all(self, now: Millis, *, compares: bool) -> list[Effect]:
        """Begin a pass over all keys: what has expired, whose is each, who owns some together with us?"""
        reviews = self._departure is None
        self._must_review = self._must_review and not reviews
        self._pass = Pass(self._table, self._neighbourhood, self._handovers, compares=compares, reviews=reviews)
        return self._go_on(now)

    def _hand_all_over(self, departure: Departure, now: Millis) -> list[Effect]:
        """Begin a pass over all keys, before we go: what do their new owners lack?"""
        if (self._pass is not None and self._pass.leaves) or not departure.may_begin(now):
            return []
        is_due = departure.is_due(now)
        self._pass = Pass(self._table, self._neighbourhood, self._handovers, leaves=True, offers=is_due)
        return self._go_on(now)

    def _go_on(self, now: Millis) -> list[Effect]:
        """Look at the next keys of the pass."""
        if self._pass is None:
            return []
        effects = self._pass.go_on(now)
        if not self._pass.is_over:
            return effects
        done, self._pass = self._pass, None
        if self._departure is not None and done.leaves:
            return self._departure.advance(done.left, effects, now, is_due=done.offers)
        if done.reviews:
            effects = self._note_neighbours(now) + effects
        return effects + self._comparisons.begin_missing(done.sharing_with(self.peer_id), now)

    def _set_timers(self) -> list[Effect]:
        """Set the timers that are needed and not running; a peer with nothing to do sleeps."""
        effects: list[Effect] = []
        if RETRY not in self._timers and (
            self._operations or len(self._comparisons) or self._must_review or self._is_departing
        ):
            self._timers[RETRY] = None
            effects.append(SetTimer(RETRY, self.limits.retry_ms))
        if COMPARE not in self._timers and len(self._table):
            self._timers[COMPARE] = None
            jitter = self._rng.uniform(0.75, 1.25)
            effects.append(SetTimer(COMPARE, round(self.limits.compare_ms * jitter)))
        if UPKEEP not in self._timers and self._pass is not None:
            self._timers[UPKEEP] = None
            effects.append(SetTimer(UPKEEP, 0))
        return effects

    @property
    def _is_departing(self) -> bool:
        return self._departure is not None and not self._departure.is_over

    def validate(self) -> None:
        """State what must hold between any two events."""
        if self._is_valid:
            return
        self._is_valid = True
        self._table.validate()
        self._neighbourhood.validate()
        self._coordinator.validate()
        self._comparisons.validate()
        self._handovers.validate()
        assert len(self._operations) <= self.limits.operations_max
        assert len(self._writes) <= len(self._operations)


def _check_stamps(entries: Iterable[Entry], now: Millis) -> None:
    """Nobody's clock gives such a stamp, and nobody could ever write over an entry that has it."""
    for entry in entries:
        expect(wall_ms(entry.stamp) <= now + AHEAD_MAX_MS, "an entry of the future")
