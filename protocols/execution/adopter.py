"""Takes over queries whose proxy is gone, from the copies of their results that this peer keeps as their backup.

the proxy is silent, or ADOPT ─▶ the copy is frozen ─▶ a wish for the next link of the chain of custody ─▶ it is decided
─▶ this peer is the proxy
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.catalogue.custody import Custody, CustodyDecided, CustodyUndecided, Keeping
from protocols.catalogue.entries import stream_in
from protocols.catalogue.events import LookupFailed, StreamFound
from protocols.catalogue.machine import CatalogueMachine
from protocols.delivery.keeper import Keeper
from protocols.delivery.messages import Origin
from protocols.effects import AfterSync, Effect, Reply, SetTimer, Tell
from protocols.events import Event, PeerDown, Requested, Started, TimerFired
from protocols.execution.adopting import installed_in, successor, unsound
from protocols.execution.messages import AdoptQuery, NotHere, QueryInstalled
from protocols.execution.proxy import QueryProxy
from protocols.execution.refusals import not_adopted
from protocols.ids import Millis, PeerId, RequestId, StreamName
from protocols.inside import Inside
from protocols.messages import Done
from protocols.role import Owned
from protocols.store.entries import Entry
from protocols.store.events import Token

ROLE: Final = "adopter"
TICK: Final = f"{ROLE}/tick"
TICK_MS: Final = 2000
ALIVE_WITHIN_MS: Final = 15_000  # A proxy that was heard of so lately is alive: it says so every 5 s.
TRIES_MAX: Final = 16  # At once: all queries of a dead peer may have the same backup.
RETRY_MS: Final = 30_000  # When something stood in the way.
UNDECIDED_MS: Final = 5_000
FORGOTTEN_MS: Final = 600_000  # After so long without a word, look whether the stream is still there.


class CopyFrozen(Event, frozen=True):
    """Our disk knows that a copy takes no more results."""

    origin: Origin


@dataclass(slots=True)
class Adopter:
    """Taking over at one peer.

    In:        ADOPT; the notes beside the copies that this peer keeps; what the catalogue decides
    Out:       a wish for the next link of the chain of custody; the query, for the proxy of this peer
    Keeps:     what is under way; the keeper and the proxy keep the rest
    Invariant: a query goes on here only after its chain of custody says that this peer has taken it over
    """

    owned: ClassVar[Owned] = Owned(ROLE, commands=(AdoptQuery,), events=(CopyFrozen,))

    peer_id: PeerId
    catalogue: CatalogueMachine
    keeper: Keeper
    proxy: QueryProxy
    may_publish: Callable[[StreamName], bool] = lambda _stream: True  # The door replaces it.
    _adopting: dict[Origin, tuple[str, RequestId | None]] = field(default_factory=dict)  # Name, and who waits for it.
    _looking: dict[Origin, None] = field(default_factory=dict)
    _retry_at: dict[Origin, Millis] = field(default_factory=dict)  # After a try that failed: the next one.
    _down: dict[PeerId, Millis] = field(default_factory=dict)
    _read: dict[Origin, tuple[int, QueryInstalled | None]] = field(default_factory=dict)  # Notes that were decoded.

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case TimerFired():
                return [*self._tick(now), SetTimer(TICK, TICK_MS)]
            case Requested(request=request, command=AdoptQuery() as command):
                return self._asked(request, command, now)
            case CopyFrozen(origin=origin):
                return self._wish(origin, now)
            case CustodyDecided(token=(_, *place), custody=custody):
                return self._decided(_origin(place), custody, now)
            case CustodyUndecided(token=(_, *place), reason=reason):
                return self._undecided(_origin(place), reason, now)
            case StreamFound(token=(_, *place)):
                return self._found(_origin(place), event, now)
            case LookupFailed(token=(_, *place), reason=reason):
                self._looking.pop(_origin(place), None)
                return self._undecided(_origin(place), reason, now)
            case PeerDown(peer=peer):
                self._down[peer] = now
            case Started():
                for origin in self.keeper.notes:
                    self.keeper.heard_at[origin] = now
                    if origin in self.keeper.frozen and (installed := self._installed(origin)) is not None:
                        self.proxy.registry.reserved[installed.query] = None
                return [SetTimer(TICK, TICK_MS)]
        return []

    # When.

    def _tick(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        tries = TRIES_MAX - len(self._adopting)
        self._retry_at = {origin: at for origin, at in self._retry_at.items() if at > now}
        if len(self._read) > len(self.keeper.notes):
            self._read = {origin: read for origin, read in self._read.items() if origin in self.keeper.notes}
        for origin in list(self.keeper.notes):
            if origin in self._adopting or origin in self._looking or origin in self._retry_at:
                continue
            installed = self._installed(origin)
            silent_ms = now - self.keeper.heard_at.setdefault(origin, now)
            if self.proxy.registry.of(origin.stream) is not None:  # A crash came before the notes were forgotten.
                effects += self.keeper.forget_notes(origin)
            elif installed is not None and self._is_due(installed, origin, silent_ms):
                tries -= 1
                if tries < 0:
                    break
                if origin not in self.keeper.frozen and self._objection(installed, origin, now):
                    self._retry_at[origin] = now + RETRY_MS
                else:
                    effects += self._begin(origin, None)
            elif silent_ms > FORGOTTEN_MS:
                self._looking[origin] = None
                effects += self.catalogue.lookup(origin.stream, _token(origin), now)
        return effects

    def _is_due(self, installed: QueryInstalled, origin: Origin, silent_ms: Millis) -> bool:
        """Whether its proxy has been gone for long enough, or this peer has begun to take it over already."""
        is_gone = bool(installed.takeover_ms) and silent_ms > installed.takeover_ms
        return is_gone or origin in self.keeper.frozen

    def _installed(self, origin: Origin) -> QueryInstalled | None:
        number = self.keeper.noted(origin)
        known = self._read.get(origin)
        if known is None or known[0] != number:
            known = self._read[origin] = number, installed_in(self.keeper.notes.get(origin, ()))
        return known[1]

    def _asked(self, request: RequestId, command: AdoptQuery, now: Millis) -> list[Effect]:
        name, _, peer = command.query.partition("@")
        if self.proxy.registry.named(command.query) is not None:
            return [Reply(request, not_adopted(name, "it runs here: this peer is its proxy"))]
        if Inside.is_client(request):  # The directory says whose query it is, and the catalogue who is the backup.
            return [Tell(NotHere(request, command, tuple(self.proxy.queries)))]
        meant = [
            origin
            for origin in self.keeper.notes
            if (each := self._installed(origin)) is not None
            if each.query == name and origin.publisher.hex().startswith(peer)
        ]
        if len(meant) != 1:
            return [Reply(request, not_adopted(name, f"peer {self.peer_id.short} has no copy to go on from"))]
        origin, installed = meant[0], self._installed(meant[0])
        assert installed is not None
        silent_ms = now - self.keeper.heard_at.get(origin, now)
        if silent_ms < ALIVE_WITHIN_MS and self._down.get(origin.publisher, 0) <= now - silent_ms:
            hint = f'"peer query stop {name}" ends it. A proxy that dies is noticed within 15 s.'
            alive = f"its proxy {origin.publisher.short} was heard of {silent_ms / 1000:.0f} s ago"
            return [Reply(request, not_adopted(name, alive, hint))]
        if why := self._objection(installed, origin, now):
            return [Reply(request, not_adopted(name, why))]
        if origin in self._adopting:
            return [Reply(request, not_adopted(name, "it is being taken over just now"))]
        return self._begin(origin, request)

    def _objection(self, installed: QueryInstalled, origin: Origin, now: Millis) -> str:
        """Why this peer cannot be its proxy. Its notes may be anything that a member wrote."""
        if self._has_another(installed.query, origin):
            return f"peer {self.peer_id.short}, its backup, has another query of that name"
        if problem := unsound(installed, origin.stream, now):
            return problem
        if installed.state != "acknowledged":
            return "it was never acknowledged"
        if not self.may_publish(origin.stream):
            return f"peer {self.peer_id.short}, its backup, may not run it"
        if successor(self.keeper.notes[origin], self.keeper.feeds[origin].next) is None:
            return f"the copy at peer {self.peer_id.short} is not whole"
        return ""

    def _has_another(self, name: str, origin: Origin) -> bool:
        """Whether this peer has a query of a name already, or is about to."""
        taken = (each for each, (query, _) in self._adopting.items() if query == name)
        return name in self.proxy.queries or any(each != origin for each in taken)

    # How.

    def _begin(self, origin: Origin, request: RequestId | None) -> list[Effect]:
        installed = self._installed(origin)
        assert installed is not None
        self._adopting[origin] = installed.query, request
        self.proxy.registry.reserved[installed.query] = None
        frozen = self.keeper.freeze(origin) if origin not in self.keeper.frozen else []
        return [*frozen, AfterSync((Tell(CopyFrozen(origin)),))]

    def _wish(self, origin: Origin, now: Millis) -> list[Effect]:
        """Our disk has the copy up to its end: ask the catalogue for the next link of the chain of custody."""
        wish = Keeping(backup=self.peer_id, is_taken=True, upto=self.keeper.feeds[origin].next)

        def is_listed(entries: tuple[Entry, ...], last: Custody | None) -> bool:
            found = stream_in(entries, origin.stream, ())
            return found.definition is not None and backup_of(found, origin.publisher, origin.epoch) == self.peer_id

        return self.catalogue.custody.wish(
            origin.stream, origin.publisher, origin.epoch, wish, is_listed, _token(origin), now
        )

    def _decided(self, origin: Origin, custody: Custody | None, now: Millis) -> list[Effect]:
        if custody is not None and custody.keeping.is_taken and custody.keeping.backup == self.peer_id:
            return self.catalogue.lookup(origin.stream, _token(origin), now)  # For its definition.
        if custody is None:  # Not listed, or not found. An earlier wish of ours may still be decided.
            return self.catalogue.lookup(origin.stream, _token(origin), now)
        return self._give_up(origin, "another peer is its backup")

    def _found(self, origin: Origin, event: StreamFound, now: Millis) -> list[Effect]:
        if origin in self._looking:
            del self._looking[origin]
            self.keeper.heard_at[origin] = now
            is_ours = backup_of(event, origin.publisher, origin.epoch) in (self.peer_id, None)
            return [] if is_ours and not event.is_dropped else self.keeper.forget_notes(origin)
        if origin not in self._adopting:
            return []
        if event.is_dropped:
            return self._give_up(origin, "it has ended")
        if backup_of(event, origin.publisher, origin.epoch) not in (self.peer_id, None):
            return self._give_up(origin, "another peer is its backup")
        place = origin.publisher, origin.epoch, self.peer_id, True
        links = [(each.publisher, each.epoch, each.keeping.backup, each.keeping.is_taken) for each in event.custodies]
        if event.definition is None or place not in links:
            return self._undecided(origin, "no peer answers for who its backup is", now)
        if self._has_another(self._adopting[origin][0], origin):  # It may be stopped some time.
            return self._undecided(origin, "this peer has another query of that name", now)
        record = successor(self.keeper.notes[origin], self.keeper.feeds[origin].next)
        assert record is not None, "it was whole when it was frozen"
        name, request = self._adopting.pop(origin)
        self.proxy.registry.reserved.pop(name, None)
        effects = self.proxy.adopt(record, event.definition, origin.publisher, now)
        effects += self.keeper.forget_notes(origin)
        done = Done(stamp=self.catalogue.clock.tick(now))
        return [*effects, AfterSync((Reply(request, done),))] if request is not None else effects

    def _give_up(self, origin: Origin, why: str) -> list[Effect]:
        """This peer cannot go on with the query: forget its notes."""
        name, request = self._adopting.pop(origin)
        self.proxy.registry.reserved.pop(name, None)
        effects = [*self.keeper.thaw(origin), *self.keeper.forget_notes(origin)]
        return [*effects, Reply(request, not_adopted(name, why))] if request is not None else effects

    def _undecided(self, origin: Origin, reason: str, now: Millis) -> list[Effect]:
        """The wish may be decided without our knowing it: the copy stays frozen, and we ask again."""
        if origin not in self._adopting:
            return []
        self._retry_at[origin] = now + UNDECIDED_MS
        name, request = self._adopting.pop(origin)
        why = f"the network cannot decide it now, and will try again: {reason}"
        return [Reply(request, not_adopted(name, why))] if request is not None else []

    def validate(self) -> None:
        assert all(origin in self.keeper.frozen for origin in self._adopting), "what is taken over stays as it is"


def backup_of(found: StreamFound, publisher: PeerId, epoch: Millis | None = None) -> PeerId | None:
    """Who has the second copy of what a peer published; the chain of custody has the last word."""
    named = {each.epoch: each.backup for each in found.publishers if each.peer == publisher}
    named |= {each.epoch: each.keeping.backup for each in found.custodies if each.publisher == publisher}
    if epoch is None:
        epoch = max(named, default=0)
    return named.get(epoch)


def _token(origin: Origin) -> Token:
    return (ROLE, origin.publisher.hex(), origin.stream, origin.epoch)


def _origin(place: list[str | int]) -> Origin:
    publisher, stream, epoch = place
    return Origin(PeerId.fromhex(str(publisher)), str(stream), int(epoch))
