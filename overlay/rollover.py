"""Replacing the network key while everybody goes on: who has to hear of it, from whom, and in which order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from overlay.identity import Identity
from overlay.keyring import KEYS_MAX as _KEYS_MAX
from overlay.keyring import (
    ROSTER_MAX,
    STATEMENTS_MAX,
    Keyring,
    KeyringError,
    Listed,
    MayExpel,
    Outcast,
    Raw,
    Statement,
    anybody_may,
)
from protocols.ids import Millis, PeerId

AGAIN_MS: Final = 5_000  # Until an offer, or a dial, is repeated.
AWAITED_MS: Final = 60_000  # For so long the initiator dials those who have not answered it.
DIALS_AT_ONCE: Final = 16
STATE_AGAIN_MS: Final = 60_000  # A driver repeats what records state after this time,
STATED_LIFE_MS: Final = 180_000  # and what is not repeated is forgotten after this one.
FRESH_AFTER_MS: Final = (1_000, 5_000)  # How long a member waits for another to replace a key that an expelled knows.
BEHIND_MAX: Final = 4096
STATED_BYTES: Final = 8


# What members say to each other about it, in frames of their link.


class Offer(msgspec.Struct, array_like=True, frozen=True, tag="RING_OFFER"):
    """My ring: all statements, the keys that may be new to you, and the roster."""

    statements: Annotated[list[Raw], msgspec.Meta(max_length=STATEMENTS_MAX)]
    keys: Annotated[
        list[Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]], msgspec.Meta(max_length=_KEYS_MAX)
    ]
    roster: Annotated[list[Listed], msgspec.Meta(max_length=ROSTER_MAX)]

    def __repr__(self) -> str:
        return f"Offer({len(self.statements)} statements, {len(self.keys)} keys hidden, {len(self.roster)} listed)"


class Have(msgspec.Struct, array_like=True, frozen=True, tag="RING_HAVE"):
    """This ring is on my disk."""

    stated: Annotated[bytes, msgspec.Meta(max_length=16)]


class Refusal(msgspec.Struct, array_like=True, frozen=True, tag="RING_REFUSAL"):
    """There is no link, for this reason. With it go the statements of an expulsion, of either side, and no key."""

    reason: Annotated[str, msgspec.Meta(max_length=200)]
    statements: Annotated[list[Raw], msgspec.Meta(max_length=STATEMENTS_MAX)] = []


RingMessage = Offer | Have | Refusal
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(RingMessage).decode


# Events.


@dataclass(frozen=True, slots=True, repr=False)
class Begin:
    """Replace the key, and expel somebody or nobody. `members` are those of whom the initiator knows."""

    key: bytes
    outcasts: tuple[Outcast, ...]
    members: tuple[PeerId, ...] = ()
    live: tuple[PeerId, ...] = ()  # Those who shall have it now.


@dataclass(frozen=True, slots=True)
class Saved:
    """The ring that was to be saved is on the disk."""


@dataclass(frozen=True, slots=True)
class Linked:
    """There is a link to a member; `tag` names the key under which it proved that, `stated` is what HELLO says."""

    peer: PeerId
    tag: bytes
    stated: bytes


@dataclass(frozen=True, slots=True)
class Unlinked:
    """There is no link to it any more."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Stated:
    """A live member's record says which ring it has."""

    peer: PeerId
    stated: bytes


@dataclass(frozen=True, slots=True)
class Down:
    """A member is gone for now."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Met:
    """A peer has proved to be a member, under the key that the tag names."""

    peer: PeerId
    tag: bytes


@dataclass(frozen=True, slots=True)
class Heard:
    """A message came over a link."""

    peer: PeerId
    message: RingMessage


@dataclass(frozen=True, slots=True)
class Tick:
    """Some time has passed."""


RingEvent = Begin | Saved | Linked | Unlinked | Stated | Down | Met | Heard | Tick


# Effects.


@dataclass(frozen=True, slots=True)
class Save:
    """Put the ring on the disk, then say Saved."""

    ring: Keyring


@dataclass(frozen=True, slots=True)
class Adopt:
    """Work with this ring from now on; these peers are newly expelled."""

    ring: Keyring
    expelled: Mapping[PeerId, Statement]


@dataclass(frozen=True, slots=True)
class TellPeer:
    """Send a message over the link to a member."""

    peer: PeerId
    message: RingMessage


@dataclass(frozen=True, slots=True)
class Dial:
    """Make a link to a member."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Shut:
    """End the link to a peer that is no member for us, and tell it why."""

    peer: PeerId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class CastOut:
    """This peer itself was expelled: stop, and say so."""

    statement: Statement


@dataclass(frozen=True, slots=True)
class Refused:
    """A member does not take us for one."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class WantKey:
    """Begin a roll-over that expels nobody."""


@dataclass(frozen=True, slots=True)
class BlamePeer:
    """A message had no sense; nothing of it was taken in."""

    peer: PeerId
    reason: str


RingEffect = Save | Adopt | TellPeer | Dial | Shut | CastOut | Refused | WantKey | BlamePeer


@dataclass(slots=True)
class _Partner:
    """The other end of a link."""

    tag: bytes
    stated: bytes
    offered: tuple[bytes, bytes] | None = None  # Our digest and its own, when we offered it our ring.
    offered_at: Millis = 0


@dataclass(slots=True)
class RollOvers:
    """One member's part in roll-overs.

    In:        Begin (an operator), what is heard over links, what records say, ticks
    Out:       Save, then Adopt; offers to members whose ring is another; the end of links to the expelled
    Keeps:     the ring on the disk, and the one that is on its way there
    Invariant: nothing is adopted, said or offered before it is on the disk; statements are never taken back
    """

    identity: Identity
    ring: Keyring
    rng: random.Random
    may_expel: MayExpel = anybody_may
    cast_out: Statement | None = None  # That expels us.
    awaited: dict[PeerId, None] = field(default_factory=dict)  # Who is to have the key of the last Begin.
    _wanted: Keyring = field(init=False)
    _is_saving: bool = False
    _being_saved: Keyring | None = None
    _is_initiator: bool = False
    _begun_at: Millis = 0
    _fresh_due_at: Millis | None = None
    _partners: dict[PeerId, _Partner] = field(default_factory=dict)
    _stated: dict[PeerId, tuple[bytes, Millis]] = field(default_factory=dict)  # And when; oldest first.
    _dialled_at: dict[PeerId, Millis] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._wanted = self.ring
        self.cast_out = self.ring.expelled.get(self.identity.peer_id)

    def handle(self, event: RingEvent, now: Millis) -> list[RingEffect]:  # noqa: C901 - one branch for each event
        if self.cast_out is not None:
            return self._saved_outside(event)
        match event:
            case Begin():
                return self._begin(event, now)
            case Saved():
                return self._saved(now)
            case Linked(peer, tag, stated):
                if self.ring.refusal(peer, tag):
                    return [Shut(peer, self.refusal_of(peer, tag))]
                self._partners[peer] = _Partner(tag, stated)
                return self._offer(peer, now)
            case Unlinked(peer):
                self._partners.pop(peer, None)
            case Stated(peer, stated):
                self._stated.pop(peer, None)
                self._stated[peer] = stated, now
                if len(self._stated) > BEHIND_MAX:
                    del self._stated[next(iter(self._stated))]
            case Down(peer):
                self._stated.pop(peer, None)
                self._dialled_at.pop(peer, None)
            case Met(peer, tag):
                return self._want(self._wanted.met(peer, tag, now))
            case Heard(peer, message):
                return self._heard(peer, message, now)
            case Tick():
                return self._tick(now)
        return []

    # What is known of others.

    def ring_of(self, peer: PeerId) -> bytes:
        """What a member has said of its ring last: over its link, or in its record; empty if nothing."""
        partner = self._partners.get(peer)
        return partner.stated if partner and partner.stated else self._stated.get(peer, (b"", 0))[0]

    def has_ours(self, peer: PeerId) -> bool:
        partner, stated = self._partners.get(peer), self._stated.get(peer, (b"", 0))[0]
        if not stated and not self.ring.statements:  # A release that knows of no rings has the first key.
            return True
        return self.ring.stated in (stated, partner.stated if partner else b"")

    def behind(self) -> list[PeerId]:
        """The live members that have another ring, or cannot have one since their release is too old."""
        return [peer for peer in self._stated if not self.has_ours(peer) and peer not in self.ring.expelled]

    # Inside.

    def _begin(self, event: Begin, now: Millis) -> list[RingEffect]:
        generation = self._wanted.current.generation
        listed = [Listed(bytes(peer), now, generation) for peer in event.members]
        ring = self._wanted.merged((), (), listed, now).rolled_over(self.identity, event.key, event.outcasts, now)
        self._is_initiator, self._begun_at = True, now
        self._fresh_due_at = None
        self.awaited = {peer: None for peer in event.live if peer not in ring.expelled}
        return self._want(ring)

    def _want(self, ring: Keyring) -> list[RingEffect]:
        self._wanted = ring
        if self._is_saving or ring is self.ring:
            return []
        self._is_saving, self._being_saved = True, ring
        return [Save(ring)]

    def _saved(self, now: Millis) -> list[RingEffect]:
        assert self._being_saved is not None, "nothing was to be saved"
        before, self.ring = self.ring, self._being_saved
        self._is_saving, self._being_saved = False, None
        effects: list[RingEffect] = []
        if self.ring.stated != before.stated or self.ring.keys.keys() != before.keys.keys():
            effects += self._adopt(before, now)
        return effects if self.cast_out is not None else [*effects, *self._want(self._wanted)]

    def _adopt(self, before: Keyring, now: Millis) -> list[RingEffect]:
        expelled = {peer: each for peer, each in self.ring.expelled.items() if peer not in before.expelled}
        if (statement := expelled.get(self.identity.peer_id)) is not None:
            self.cast_out = statement
            self._partners.clear()
            return [CastOut(statement)]
        effects: list[RingEffect] = [Adopt(self.ring, expelled)]
        for peer, partner in list(self._partners.items()):
            if self.ring.refusal(peer, partner.tag):
                del self._partners[peer]
                effects.append(Shut(peer, self.refusal_of(peer, partner.tag)))
            elif partner.stated:
                effects.append(TellPeer(peer, Have(self.ring.stated)))
        for peer in expelled:
            self._stated.pop(peer, None)
        if self._is_initiator:
            self._is_initiator = False
            for peer in list(self._partners):
                effects += self._offer(peer, now)
            effects += self._dial(self.awaited, now)
        return effects

    def refusal_of(self, peer: PeerId, tag: bytes) -> Refusal:
        """What a peer is told that is no member for us."""
        is_told = self.cast_out is not None or peer in self.ring.expelled
        raws = [statement.raw for statement in self.ring.statements.values()] if is_told else []
        reason = "it was expelled itself" if self.cast_out is not None else self.ring.refusal(peer, tag)
        return Refusal(reason, raws)

    def _offer(self, peer: PeerId, now: Millis) -> list[RingEffect]:
        """Offer our ring to a partner that has another one, once, and again if it has not answered for long."""
        partner = self._partners[peer]
        if not partner.stated or partner.stated == self.ring.stated or self.ring.refusal(peer, partner.tag):
            return []
        offered = self.ring.stated, partner.stated
        if partner.offered == offered and now - partner.offered_at < AGAIN_MS:
            return []
        partner.offered, partner.offered_at = offered, now
        raws = [statement.raw for statement in self.ring.statements.values()]
        return [TellPeer(peer, Offer(raws, self.ring.shared_keys(), list(self.ring.roster.values())))]

    def _heard(self, peer: PeerId, message: RingMessage, now: Millis) -> list[RingEffect]:
        partner = self._partners.get(peer)
        match message:
            case Offer() if partner is not None:
                return self._offered(peer, message, now)
            case Have(stated) if partner is not None and len(stated) == STATED_BYTES:
                partner.stated = stated
                return self._offer(peer, now)
            case Refusal():
                return self._refused(peer, message, now)
        return [BlamePeer(peer, f"{type(message).__name__} out of turn")]

    def _offered(self, peer: PeerId, message: Offer, now: Millis) -> list[RingEffect]:
        try:
            statements = self._verified(message.statements)
            ring = self._wanted.merged(statements, message.keys, message.roster, now)
        except KeyringError as error:
            return [BlamePeer(peer, str(error))]
        if ring.digest == self._wanted.digest and ring.keys.keys() == self._wanted.keys.keys():
            if ring.roster.keys() != self._wanted.roster.keys():
                return [*self._want(ring), TellPeer(peer, Have(self.ring.stated))]
            return [TellPeer(peer, Have(self.ring.stated))]
        return self._want(ring)

    def _verified(self, raws: list[bytes]) -> list[Statement]:
        known = {statement.raw: statement for statement in self._wanted.statements.values()}
        statements = [known.get(raw) or Statement.verify(raw) for raw in raws]
        for statement in statements:
            if statement.raw not in known and statement.body.outcasts and not self.may_expel(statement.maker):
                raise KeyringError(f"peer {statement.maker.short} may not expel others")
        return statements

    def _refused(self, peer: PeerId, message: Refusal, now: Millis) -> list[RingEffect]:
        try:
            ring = self._wanted.merged(self._verified(message.statements), (), (), now)
        except KeyringError as error:
            return [BlamePeer(peer, str(error))]
        # Perhaps only the refused have heard of an expulsion: then the others learn of it here.
        effects = self._want(ring) if ring.digest != self._wanted.digest else []
        return effects if self.identity.peer_id in ring.expelled else [*effects, Refused(peer, message.reason)]

    def _tick(self, now: Millis) -> list[RingEffect]:
        effects = self._want(self._wanted.forgotten(now))
        while self._stated and now - next(iter(self._stated.values()))[1] > STATED_LIFE_MS:
            del self._stated[next(iter(self._stated))]
        for peer in list(self._partners):
            effects += self._offer(peer, now)
        missing = self.awaited if now - self._begun_at < AWAITED_MS else {}
        behind = [peer for peer in missing if not self.has_ours(peer)]
        behind += [peer for peer in self.behind() if self.ring_of(peer)]
        effects += self._dial(dict.fromkeys(behind), now)
        if not self.ring.wants_a_key:
            self._fresh_due_at = None
        elif self._fresh_due_at is None:
            self._fresh_due_at = now + self.rng.randint(*FRESH_AFTER_MS)
        elif now >= self._fresh_due_at:
            self._fresh_due_at = None
            effects.append(WantKey())
        return effects

    def _dial(self, peers: Mapping[PeerId, None], now: Millis) -> list[RingEffect]:
        due = [
            peer
            for peer in peers
            if peer not in self._partners and now - self._dialled_at.get(peer, -AGAIN_MS) >= AGAIN_MS
        ]
        for peer in due[:DIALS_AT_ONCE]:
            self._dialled_at[peer] = now
        return [Dial(peer) for peer in due[:DIALS_AT_ONCE]]

    def _saved_outside(self, event: RingEvent) -> list[RingEffect]:
        """An expelled peer does nothing more."""
        if isinstance(event, Saved):
            self._is_saving, self._being_saved = False, None
        return []

    def validate(self) -> None:
        assert self.cast_out is not None or not set(self._partners) & set(self.ring.expelled)
        assert self._is_saving == (self._being_saved is not None)
