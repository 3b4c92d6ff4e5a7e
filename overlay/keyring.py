"""The keys of a network, generation by generation, and who was expelled from it: a value that two members can merge.

An expulsion is one signed statement: its maker puts a new network key in place of the present one, and names who must
not have it. A keyring is a set of statements, with the keys that go with them. Merging is the union of both sets, so
members that merge in any order end with the same ring. The present key follows from the set: the highest generation,
and of several keys of one generation the one with the lowest id. A key that an expelled peer may know is passed over.

The roster lists who has proved to be a member, and when. Whoever shows an older key is believed only if it is listed:
an expelled member can make certificates for any number of new peers with the old key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from overlay.identity import ID_OF_KEY_BYTES, NETWORK_KEY_BYTES, TAG_BYTES, Address, Identity, Network
from overlay.members import Member
from protocols.ids import MILLIS_MAX, Millis, PeerId

STATEMENTS_MAX: Final = 256
OUTCASTS_MAX: Final = 16  # Expelled by one statement.
ROSTER_MAX: Final = 10_000
KEYS_MAX: Final = 16
OVERLAP_MS: Final = 60_000  # For so long datagrams under a replaced key are read.
REMEMBERED_MS: Final = 7 * 24 * 3_600_000  # For so long a replaced key lets a listed member come back over TLS.
_CONTEXT: Final = b"peerd roll-over 1\0"
_FORMAT: Final = 1

_Id = Annotated[bytes, msgspec.Meta(min_length=20, max_length=20)]
_KeyId = Annotated[bytes, msgspec.Meta(min_length=ID_OF_KEY_BYTES, max_length=ID_OF_KEY_BYTES)]
_Key = Annotated[bytes, msgspec.Meta(min_length=NETWORK_KEY_BYTES, max_length=NETWORK_KEY_BYTES)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=MILLIS_MAX)]
_Generation = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
Raw = Annotated[bytes, msgspec.Meta(max_length=4096)]


class KeyringError(ValueError):
    """A statement or a stored ring that is not what it should be."""


class Outcast(msgspec.Struct, array_like=True, frozen=True):
    """Who is expelled, and where it was seen last."""

    peer_id: _Id
    host: Annotated[str, msgspec.Meta(max_length=45)] = ""
    port: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = 0

    @property
    def peer(self) -> PeerId:
        return PeerId(self.peer_id)

    @property
    def address(self) -> Address:
        return self.host, self.port


class RollOver(msgspec.Struct, array_like=True, frozen=True):
    """What the maker of a new key signs. Naming nobody it only replaces the key."""

    network: _KeyId
    generation: _Generation
    key_id: _KeyId
    maker: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]  # Its public key.
    at_ms: _Time
    outcasts: Annotated[tuple[Outcast, ...], msgspec.Meta(max_length=OUTCASTS_MAX)]
    without: _KeyId  # A digest of all who are expelled for its maker now: whom the key was not handed to.


_encode = msgspec.msgpack.Encoder().encode
_decode_roll_over = msgspec.msgpack.Decoder(RollOver).decode


@dataclass(frozen=True, slots=True)
class Statement:
    """A roll-over with its maker's signature; made with sign(), trusted after verify()."""

    body: RollOver
    maker: PeerId
    raw: bytes  # The signed bytes, then the signature: what travels.

    @property
    def id(self) -> bytes:
        """Of what was signed: a signature can be written in more than one way."""
        return hashlib.sha256(self.raw[:-64]).digest()[:ID_OF_KEY_BYTES]

    @classmethod
    def sign(
        cls,
        identity: Identity,
        network: Network,
        at_ms: Millis,
        outcasts: tuple[Outcast, ...],
        before: Iterable[PeerId] = (),
    ) -> Statement:
        """State that `network`, with its new key, goes on without some peers, and those expelled before."""
        without = _digest_of([*before, *(outcast.peer for outcast in outcasts)])
        named = (network.id, network.generation, network.key_id)
        body = RollOver(*named, identity.public_key, at_ms, outcasts, without)
        signed = _encode(body)
        return cls(body, identity.peer_id, signed + identity.private_key.sign(_CONTEXT + signed))

    @classmethod
    def verify(cls, raw: bytes) -> Statement:
        """Raise KeyringError unless the maker has signed it."""
        signed, signature = raw[:-64], raw[-64:]
        try:
            body = _decode_roll_over(signed)
            Ed25519PublicKey.from_public_bytes(body.maker).verify(signature, _CONTEXT + signed)
        except (msgspec.DecodeError, InvalidSignature, ValueError) as error:
            raise KeyringError("a roll-over is altered or malformed") from error
        if body.generation < 2:
            raise KeyringError("a roll-over to the first generation")
        return cls(body, PeerId.of_public_key(body.maker), raw)


class HeldKey(msgspec.Struct, array_like=True, frozen=True):
    """A network key; once another is in its place, since when that is."""

    generation: _Generation
    key: _Key
    spare_since_ms: _Time | None = None

    def __repr__(self) -> str:
        return f"HeldKey(generation {self.generation}, key hidden)"


class Listed(msgspec.Struct, array_like=True, frozen=True):
    """A member on the roster: when it first proved to be one, and with a key of which generation."""

    peer_id: _Id
    met_at_ms: _Time
    generation: _Generation


class _Stored(msgspec.Struct, array_like=True):
    """A ring as it is kept on the disk."""

    format: int
    name: str
    network_id: _KeyId
    keys: list[HeldKey]
    statements: list[Raw]
    roster: list[Listed]


@dataclass(frozen=True, repr=False)
class Keyring:
    """One member's view of the keys and expulsions of its network; every change makes a new one."""

    name: str
    network_id: bytes
    keys: Mapping[bytes, HeldKey]  # By the id of the key.
    statements: Mapping[bytes, Statement] = field(default_factory=dict)  # By their id.
    roster: Mapping[PeerId, Listed] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network) -> Keyring:
        """The ring of a peer that has nothing but a join token."""
        return cls(network.name, network.id, {network.key_id: HeldKey(network.generation, network.key)})

    # What follows from the set of statements.

    @cached_property
    def expelled(self) -> dict[PeerId, Statement]:
        """Everybody who is expelled, with the first statement that says so."""
        found: dict[PeerId, Statement] = {}
        for statement in sorted(self.statements.values(), key=_order):
            for outcast in statement.body.outcasts:
                found.setdefault(outcast.peer, statement)
        return found

    @cached_property
    def current(self) -> Network:
        """The network with its present key."""
        return self._network(self.keys[self.current_id])

    @cached_property
    def current_id(self) -> bytes:
        """The id of the present key: clean before the others, then by generation, then the lowest id."""
        return max(
            self.keys,
            key=lambda key_id: (self._is_clean(key_id), self.keys[key_id].generation, -int.from_bytes(key_id, "big")),
        )

    @property
    def wants_a_key(self) -> bool:
        """Whether an expelled peer may know the present key, because two expelled at once, or each other."""
        is_behind = self.keys[self.current_id].generation < self.top
        return is_behind or not self._is_clean(self.current_id)

    @property
    def top(self) -> int:
        """The highest generation that we have heard of."""
        stated = [statement.body.generation for statement in self.statements.values()]
        return max([*stated, *(held.generation for held in self.keys.values())])

    @cached_property
    def digest(self) -> bytes:
        """Two rings with one digest have the same statements."""
        return hashlib.sha256(b"".join(sorted(self.statements))).digest()[:TAG_BYTES]

    @cached_property
    def stated(self) -> bytes:
        """What a peer says of its ring in its record and in HELLO: the tag of its key, and the digest."""
        return self.current_id[:TAG_BYTES] + self.digest

    def network_of(self, tag: bytes) -> Network | None:
        """The network with the key that this tag names."""
        for key_id, held in self.keys.items():
            if key_id[:TAG_BYTES] == tag[:TAG_BYTES]:
                return self._network(held)
        return None

    def networks(self, spare_for_ms: Millis, now: Millis) -> list[Network]:
        """The network with each key that was replaced no longer ago than this; the present one first."""
        current = self.current_id
        spare = [
            (-held.generation, key_id, held)
            for key_id, held in self.keys.items()
            if key_id != current and held.spare_since_ms is not None and now - held.spare_since_ms < spare_for_ms
        ]
        spare.sort(key=lambda entry: entry[:2])
        return [self.current, *(self._network(held) for _, _, held in spare)]

    def refusal(self, peer: PeerId, tag: bytes) -> str:
        """Why a peer that proved its id under a key of ours is no member; empty if it is one."""
        if (statement := self.expelled.get(peer)) is not None:
            return f"expelled by peer {statement.maker.short}"
        if tag[:TAG_BYTES] == self.current_id[:TAG_BYTES] or peer in self.roster:
            return ""
        return "its network key was replaced, and it is not known as a member from before"

    def _is_clean(self, key_id: bytes) -> bool:
        """Whether no expelled peer can know a key: its maker knew of all who are expelled, and is not one of them."""
        made_by = [statement for statement in self.statements.values() if statement.body.key_id == key_id]
        without = _digest_of(self.expelled)
        if not made_by:  # The first one; or from a token, and we have yet to hear how it came about.
            newest = max((each.body.generation for each in self.statements.values()), default=0)
            return not self.expelled or self.keys[key_id].generation > newest
        return any(each.maker not in self.expelled and each.body.without == without for each in made_by)

    def _network(self, held: HeldKey) -> Network:
        return Network(self.name, held.key, held.generation, self.network_id if held.generation > 1 else b"")

    def expelled_members(self) -> list[Member]:
        """The expelled, as `peer members` lists them."""
        return [
            Member(outcast.peer, outcast.address, "", "expelled", statement.body.at_ms / 1000, None)
            for peer, statement in self.expelled.items()
            for outcast in statement.body.outcasts
            if outcast.peer == peer
        ]

    # Changes.

    def rolled_over(self, identity: Identity, key: bytes, outcasts: tuple[Outcast, ...], now: Millis) -> Keyring:
        """With a new key of the next generation, that the outcasts must not have."""
        network = Network(self.name, key, self.top + 1, self.network_id)
        statement = Statement.sign(identity, network, now, outcasts, self.expelled)
        return self.merged([statement], [key], (), now)

    def merged(
        self, statements: Iterable[Statement], keys: Iterable[bytes], listed: Iterable[Listed], now: Millis
    ) -> Keyring:
        """With what another member says; raises KeyringError if that cannot be the ring of a member."""
        union = {**self.statements, **{statement.id: statement for statement in statements}}
        if len(union) > STATEMENTS_MAX:
            raise KeyringError(f"over {STATEMENTS_MAX} roll-overs")
        if any(statement.body.network != self.network_id for statement in union.values()):
            raise KeyringError("a roll-over of another network")
        generations = sorted({statement.body.generation for statement in union.values()})
        if generations and generations != list(range(2, generations[-1] + 1)):
            raise KeyringError("a roll-over without those before it")
        held = dict(self.keys)
        generation_of = {statement.body.key_id: statement.body.generation for statement in union.values()}
        for key in keys:
            key_id = Network("", key).key_id
            if key_id not in generation_of:
                raise KeyringError("a key that no roll-over names")
            held.setdefault(key_id, HeldKey(generation_of[key_id], key))
        roster = {**self.roster}
        for each in listed:
            known = roster.get(PeerId(each.peer_id))
            roster[PeerId(each.peer_id)] = each if known is None else _earlier(known, each)
        ring = replace(self, keys=held, statements=dict(sorted(union.items())), roster=roster)
        return _tidied(ring, now)

    def with_token(self, network: Network, now: Millis) -> Keyring:
        """With the key of a newer join token of the same network."""
        if network.key_id in self.keys:
            return self
        keys = {**self.keys, network.key_id: HeldKey(network.generation, network.key)}
        return _tidied(replace(self, keys=keys), now)

    def met(self, peer: PeerId, tag: bytes, now: Millis) -> Keyring:
        """With a peer on the roster that has just proved to be a member."""
        network = self.network_of(tag)
        if peer in self.roster or network is None:
            return self
        entry = Listed(bytes(peer), now, network.generation)
        return _tidied(replace(self, roster={**self.roster, peer: entry}), now)

    def forgotten(self, now: Millis) -> Keyring:
        """Without the keys that were replaced long ago."""
        kept = {
            key_id: held
            for key_id, held in self.keys.items()
            if held.spare_since_ms is None or now - held.spare_since_ms < REMEMBERED_MS
        }
        return self if len(kept) == len(self.keys) else replace(self, keys=kept)

    # To others, and to the disk.

    def shared_keys(self) -> list[bytes]:
        """The keys that a partner may lack: the present one, and those of the highest generation."""
        top = max(held.generation for held in self.keys.values())
        named = {statement.body.key_id for statement in self.statements.values()}
        return [
            held.key
            for key_id, held in sorted(self.keys.items())
            if key_id in named and (key_id == self.current_id or held.generation == top)
        ]

    def encode(self) -> bytes:
        raws = [statement.raw for statement in self.statements.values()]
        kept = _Stored(_FORMAT, self.name, self.network_id, list(self.keys.values()), raws, list(self.roster.values()))
        return _encode(kept)

    @classmethod
    def decode(cls, raw: bytes) -> Keyring:
        try:
            stored = msgspec.msgpack.decode(raw, type=_Stored)
        except msgspec.DecodeError as error:
            raise KeyringError("it is damaged, or a newer release wrote it") from error
        if stored.format != _FORMAT or not stored.keys:
            raise KeyringError("a newer release wrote it")
        keys = {Network("", held.key).key_id: held for held in stored.keys}
        statements = [Statement.verify(each) for each in stored.statements]
        roster = {PeerId(each.peer_id): each for each in stored.roster}
        return cls(stored.name, stored.network_id, keys, {each.id: each for each in statements}, roster)


MayExpel = Callable[[PeerId], bool]


def anybody_may(_maker: PeerId) -> bool:
    """Who may expel others: any member. Asked where an expulsion begins, and at each member that hears of it."""
    return True


def _tidied(ring: Keyring, now: Millis) -> Keyring:
    current = ring.current_id
    keys = {}
    for key_id, held in ring.keys.items():
        spare_since_ms = now if held.spare_since_ms is None else held.spare_since_ms
        is_spare = key_id != current
        keys[key_id] = msgspec.structs.replace(held, spare_since_ms=spare_since_ms if is_spare else None)
    if len(keys) > KEYS_MAX:  # The present one, and the newest of the others.
        newest = sorted(keys, key=lambda key_id: (key_id != current, -keys[key_id].generation, key_id))[:KEYS_MAX]
        keys = {key_id: keys[key_id] for key_id in newest}
    roster = {peer: each for peer, each in ring.roster.items() if not _came_too_late(ring, each)}
    if len(roster) > ROSTER_MAX:
        newest_met = sorted(roster.values(), key=lambda each: (-each.met_at_ms, each.peer_id))[:ROSTER_MAX]
        roster = {PeerId(each.peer_id): each for each in newest_met}
    return replace(ring, keys=keys, roster=roster)


def _came_too_late(ring: Keyring, each: Listed) -> bool:
    """Whether it was let in with an old key after that key was replaced: perhaps the expelled sent it."""
    return any(
        each.met_at_ms > statement.body.at_ms and each.generation < statement.body.generation
        for statement in ring.statements.values()
    )


def _digest_of(peers: Iterable[PeerId]) -> bytes:
    return hashlib.sha256(b"".join(sorted(dict.fromkeys(peers)))).digest()[:ID_OF_KEY_BYTES]


def _order(statement: Statement) -> tuple[int, bytes]:
    return statement.body.generation, statement.id


def _earlier(one: Listed, other: Listed) -> Listed:
    return Listed(one.peer_id, min(one.met_at_ms, other.met_at_ms), max(one.generation, other.generation))
