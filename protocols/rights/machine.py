"""The rights of a network at one peer: reads them from the store, changes them, and hears when others have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.clock import COUNT_BITS, HybridClock
from protocols.effects import AfterSync, Append, Effect, Reply, Send, SetTimer, Tell
from protocols.errors import LocalProtocolError
from protocols.events import Event, LogBounds, Received, Requested, Started, TimerFired
from protocols.ids import LogId, Millis, PeerId, RequestId
from protocols.limits import Limits
from protocols.messages import Done, Record, Refused
from protocols.rights.messages import (
    ANONYMOUS,
    CLOSED,
    CreateToken,
    Grant,
    NotAllowed,
    RemoveToken,
    Revoke,
    RightKept,
    RightsKnown,
    RightsNews,
    SetPolicy,
)
from protocols.rights.refusals import last_admin, not_a_name, not_kept
from protocols.rights.table import (
    CLIENT,
    KEY,
    PATTERN,
    POLICY,
    PRINCIPAL,
    RightsTable,
    encode,
    grant_item,
    peer_principal,
    token_item,
)
from protocols.role import Owned
from protocols.store.events import StoreFailed, StoreRead, StoreWritten
from protocols.store.machine import StoreMachine

ROLE: Final = "rights"
POLL: Final = "rights/poll"
READ_AGAIN_MS: Final = 1000  # Whatever others say: this peer reads the rights at most so often for it.
REMOVED_MS: Final = 400 * 24 * 3600 * 1000  # A peer that was away for longer may bring a removed right back.
DIGEST_BYTES: Final = 32

Change = SetPolicy | Grant | Revoke | CreateToken | RemoveToken
Write = tuple[str, bytes | None]


class RightsChanged(Event, frozen=True):
    """This peer knows other rights than before, or a token has expired."""


@dataclass(slots=True)
class _Change:
    """A change under way: read, check, write, read again."""

    request: RequestId
    command: Change
    writes: list[Write] = field(default_factory=list)
    replicas: int = 0
    is_written: bool = False


@dataclass(slots=True)
class Rights:
    """Who may do what, as one peer knows it.

    In:        GRANT and its like from clients; RIGHTS_NEWS, NOT_ALLOWED; what the store answers
    Out:       DONE or REFUSED; RIGHTS_NEWS
    Keeps:     a copy of all rights, in the journal too
    Invariant: it believes the store alone; nothing becomes allowed because it was not found
    """

    owned: ClassVar[Owned] = Owned(
        ROLE,
        messages=(RightsNews, NotAllowed),
        commands=(SetPolicy, Grant, Revoke, CreateToken, RemoveToken),
        records=(RightKept, RightsKnown),
    )

    peer_id: PeerId
    store: StoreMachine
    clock: HybridClock
    limits: Limits
    table: RightsTable = field(default_factory=RightsTable)
    # Until it has read the rights once, a peer allows nothing. Where nobody looks them up, there are none.
    is_known: bool = False
    _changes: dict[int, _Change] = field(default_factory=dict)
    _next: int = 0
    _read_at: Millis = 0  # When the last read began,
    _found_at: Millis = 0  # and when the last one that was answered did.
    _is_reading: bool = False
    _is_stale: bool = False  # News came while it was too early to read again.
    _turn: int = 0  # Whose turn it is to be told our digest.

    def __post_init__(self) -> None:
        self.is_known = not self.limits.rights_every_ms
        self.table.read_anew(0)

    def restore(self, record: Record, logs: Mapping[LogId, LogBounds]) -> None:
        match record:
            case RightKept():
                if self.table.put(record):
                    self.table.read_anew(self.clock.now)
            case RightsKnown():
                self.is_known = True
            case _:
                raise LocalProtocolError(f"the rights have no rule for the record {record}")

    def snapshot(self) -> list[Record]:
        known = [RightsKnown(at=0)] if self.is_known and self.limits.rights_every_ms else []
        return [*known, *self.table.entries.values()]

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Requested(
                request=request, command=SetPolicy() | Grant() | Revoke() | CreateToken() | RemoveToken() as command
            ):
                if refusal := _objection(command):
                    return [Reply(request, refusal)]
                self._next += 1
                self._changes[self._next] = _Change(request, command)
                return self._read("change", self._next, now)
            case Received(sender=sender, message=RightsNews() as message):
                return self._heard(sender, message, now)
            case Received(sender=sender, message=NotAllowed(digest=digest)):
                return self._heard(sender, RightsNews(digest=digest, is_answer=True), now)
            case StoreRead(token=(_, "look", _)):
                self._is_reading, self._found_at = False, self._read_at
                return [*self._learned(event, now), *self._read_if_stale(now)]
            case StoreFailed(token=(_, "look", _)):
                self._is_reading, self._is_stale = False, True
            case StoreRead() | StoreWritten() | StoreFailed():
                return self._go_on(int(event.token[2]), event, now)
            case TimerFired():
                return self._poll(now)
            case Started() if self.limits.rights_every_ms:
                return [*self.look(now), SetTimer(POLL, self.limits.rights_every_ms)]
        return []

    # Reading.

    def _read(self, purpose: str, number: int, now: Millis) -> list[Effect]:
        return self.store.read(KEY, (ROLE, purpose, number), now)

    def look(self, now: Millis) -> list[Effect]:
        """Read the rights, unless that was done a moment ago or is under way."""
        if not self.limits.rights_every_ms:
            return []
        self._is_stale = self._is_reading or now - self._read_at < READ_AGAIN_MS
        if self._is_stale:
            return []
        self._is_reading, self._read_at = True, now
        return self._read("look", 0, now)

    def has_read_since(self, at: Millis) -> bool:
        """Whether this peer knows all rights that had been written by then."""
        return self._found_at >= at or not self.limits.rights_every_ms

    def _read_if_stale(self, now: Millis) -> list[Effect]:
        return [SetTimer(POLL, READ_AGAIN_MS)] if self._is_stale else []

    def _learned(self, event: StoreRead, now: Millis) -> list[Effect]:
        news = self.table.learn(event.entries, now)
        effects: list[Effect] = [Append(each) for each in news]
        if not self.is_known:
            self.is_known = True
            effects.append(Append(RightsKnown(at=now)))
        elif not news:
            return effects
        return [*effects, Tell(RightsChanged())]

    def _heard(self, sender: PeerId, message: RightsNews, now: Millis) -> list[Effect]:
        """Another peer has other rights than this one. Whichever is right, the store knows."""
        if message.digest == self.table.digest or not self.limits.rights_every_ms:
            return []
        answer = RightsNews(digest=self.table.digest, is_answer=True)
        told: list[Effect] = [] if message.is_answer else [Send(sender, answer)]
        effects = self.look(now)
        return [*told, *effects, *(self._read_if_stale(now) if not self._is_reading else [])]

    def _poll(self, now: Millis) -> list[Effect]:
        """Tell one neighbour after the other which rights this peer goes by."""
        effects: list[Effect] = [Tell(RightsChanged())] if self.table.expire(now) else []
        if self._is_stale or not self.is_known:
            effects += self.look(now)
        others = self.store.neighbours
        if others:
            self._turn += 1
            effects.append(Send(others[self._turn % len(others)], RightsNews(digest=self.table.digest)))
        return [*effects, SetTimer(POLL, self.limits.rights_every_ms)]

    # Changing.

    def _go_on(self, number: int, event: StoreRead | StoreWritten | StoreFailed, now: Millis) -> list[Effect]:
        change = self._changes[number]
        if isinstance(event, StoreFailed):
            del self._changes[number]
            return [Reply(change.request, not_kept(event.reason))]
        effects: list[Effect] = []
        if isinstance(event, StoreWritten):
            change.replicas = min(change.replicas or event.replicas, event.replicas)
        else:
            effects = self._learned(event, now)
            if change.is_written:  # By now this peer knows what it has written.
                del self._changes[number]
                done = Done(stamp=self.clock.tick(now), replicas=change.replicas or 1)
                news = RightsNews(digest=self.table.digest, is_answer=True)
                told = [Send(peer, news) for peer in self.store.neighbours]
                return [*effects, AfterSync((Reply(change.request, done), *told))]
            wanted = self._writes(change.command, now)
            if isinstance(wanted, Refused):
                del self._changes[number]
                return [*effects, Reply(change.request, wanted)]
            change.writes = wanted
        if not change.writes:
            change.is_written = True
            return [*effects, *self._read("change", number, now)]
        item, value = change.writes.pop(0)
        life = 0 if value is not None else REMOVED_MS
        return [*effects, *self.store.write(KEY, item, value, life, (ROLE, "change", number), now)]

    def _writes(self, command: Change, now: Millis) -> list[Write] | Refused:
        """What to write for a change, or why it is refused."""
        table = self.table
        writes: list[Write] = []
        match command:
            case SetPolicy(policy="closed"):
                own = peer_principal(self.peer_id)
                verbs = table.verbs(own, "*")
                if "admin" not in verbs:
                    writes.append((grant_item(own, "*"), encode((*verbs, "admin"))))
                if table.is_open:  # What was written before the network was closed counts: that time does not move.
                    writes.append((POLICY, encode(CLOSED)))
            case SetPolicy(policy=policy):
                writes.append((POLICY, encode(policy)))
            case Grant(principal=principal, pattern=pattern):
                granted = tuple(dict.fromkeys((*table.verbs(principal, pattern), *command.verbs)))
                writes.append((grant_item(principal, pattern), encode(granted)))
            case Revoke(principal=principal, pattern=pattern):
                before = table.verbs(principal, pattern)
                kept = tuple(verb for verb in before if command.verbs and verb not in command.verbs)
                if kept == before:
                    return _nothing_granted(command, table)
                writes.append((grant_item(principal, pattern), encode(kept) if kept else None))
            case CreateToken(client=client):
                if table.is_good(client):
                    error = f'there is a token for client "{client}" already'
                    hint = f"peer rights token rm {client} makes it worth nothing."
                    return Refused(code="exists", error=error, hint=hint)
                writes.append((token_item(client), encode((command.digest, now, command.expires_at))))
            case RemoveToken(client=client):
                if not any(token.client == client for token in table.tokens()):
                    error = f'there is no token for client "{client}"'
                    return Refused(code="unknown", error=error, hint='"peer rights token ls" lists them.')
                writes.append((token_item(client), None))
        return writes if self._leaves_an_admin(writes, now) else last_admin()

    def _leaves_an_admin(self, writes: Sequence[Write], now: Millis) -> bool:
        """Whether rights can still be changed after these writes."""
        after = RightsTable(dict(self.table.entries))
        for item, value in writes:
            after.entries[item] = RightKept(item=item, stamp=now << COUNT_BITS, writer=self.peer_id, value=value)
        after.read_anew(now)
        return after.is_open or after.has_admin

    def validate(self) -> None:
        assert all(kept.item == item for item, kept in self.table.entries.items())
        assert self.is_known or self.limits.rights_every_ms, "who never looks knows all there is"


def _nothing_granted(command: Revoke, table: RightsTable) -> Refused:
    there = [each.pattern for each in table.grants() if each.principal == command.principal]
    error = f'"{command.principal}" has no such grant for "{command.pattern}"'
    named = ", ".join(there) or "none"
    return Refused(code="unknown", error=error, detail=f"Its grants are for: {named}.", hint='"peer rights show".')


def _objection(command: Change) -> Refused | None:
    """Why a change is malformed."""
    if isinstance(command, Grant | Revoke):
        if not PRINCIPAL.fullmatch(command.principal):
            rule = "A principal is peer:ID (40 digits), client:NAME, peer:*, client:* or *."
            return not_a_name("principal", command.principal, rule)
        if not PATTERN.fullmatch(command.pattern):
            rule = "A pattern is a stream, query:NAME, or the beginning of either with *: plant.*"
            return not_a_name("pattern", command.pattern, rule)
        if isinstance(command, Grant) and not command.verbs:
            return not_a_name("right", "", "Rights are publish, read, create, stop and admin.")
    if isinstance(command, CreateToken | RemoveToken):
        if not CLIENT.fullmatch(command.client) or command.client == ANONYMOUS:
            rule = f"A client has lower-case letters, digits, - and _, up to 63, and is not called {ANONYMOUS}."
            return not_a_name("client", command.client, rule)
        if isinstance(command, CreateToken) and len(command.digest) != DIGEST_BYTES:
            return not_a_name("digest", command.digest.hex(), "A token is known by the SHA-256 of its secret.")
    return None
