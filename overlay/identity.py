"""Who a peer is and which network it belongs to: keys, peer ids, join tokens, signed peer records.

A peer is its Ed25519 key; its id is a hash of the public half. A network is a secret key that all members hold: it
seals datagrams (seal.py) and signs the members' link certificates (tls.py). A join token carries that key and a few
addresses. A record is a peer's own signed statement of where it can be reached; nobody else can make one for its id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from overlay.room import Room, StatedRoom
from protocols.ids import PeerId
from protocols.versions import VERSIONS, Span, Versions

Address = tuple[str, int]

RECORD_LIFE_S: Final = 3600
CLOCK_SKEW_MAX_S: Final = 60
VERSION_CHARS_MAX: Final = 24
FAMILIES_MAX: Final = 16
_RECORD_CONTEXT: Final = b"peerd record 1\0"
StatedVersions = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=24)], Span], msgspec.Meta(max_length=FAMILIES_MAX)
]
"""The versions of a peer as they travel: by the name of the family, so that older peers skip those they do not know."""
_TOKEN_PREFIX: Final = "peer1-"
NETWORK_KEY_BYTES: Final = 32
TAG_BYTES: Final = 4
ID_OF_KEY_BYTES: Final = 16


class IdentityError(ValueError):
    """A key, token or record that is not what it should be; the message is meant for people."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One peer's key pair and the id that follows from it."""

    private_key: Ed25519PrivateKey
    public_key: bytes
    peer_id: PeerId

    @classmethod
    def generate(cls) -> Identity:
        return cls.from_seed(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        private_key = Ed25519PrivateKey.from_private_bytes(seed)
        public_key = private_key.public_key().public_bytes_raw()
        return cls(private_key, public_key, PeerId.of_public_key(public_key))

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read the key at path, or create one there (mode 0600)."""
        try:
            seed = read_secret(path)
        except FileNotFoundError:
            seed = secrets.token_bytes(32)
            write_secret(path, seed)
        if len(seed) != 32:
            raise IdentityError(f'"{path}" is not a peer key: it has {len(seed)} bytes instead of 32')
        return cls.from_seed(seed)


@dataclass(frozen=True, slots=True, repr=False)
class Network:
    """The secret that makes peers members of one network, under a name for people.

    An expulsion replaces the key by one of the next generation (keyring.py); the id of the network stays.
    """

    name: str
    key: bytes
    generation: int = 1
    origin: bytes = b""  # The id of the network, from generation 2 on: the first key is not known to everybody then.

    @property
    def id(self) -> bytes:
        """Names the network through all generations of its key; public."""
        return self.origin or self.derive("peerd net id")[:ID_OF_KEY_BYTES]

    @property
    def key_id(self) -> bytes:
        """Names the key and reveals nothing of it."""
        return self.derive("peerd key id")[:ID_OF_KEY_BYTES]

    @property
    def tag(self) -> bytes:
        """The beginning of the key's id, as it travels."""
        return self.key_id[:TAG_BYTES]

    @classmethod
    def create(cls, name: str) -> Network:
        return cls(name, secrets.token_bytes(NETWORK_KEY_BYTES))

    def derive(self, purpose: str, salt: bytes = b"") -> bytes:
        """Derive 32 bytes for one purpose; knowing one of them reveals nothing of the others."""
        return hashlib.blake2b(salt, key=self.key, digest_size=32, person=purpose.encode()).digest()

    def __repr__(self) -> str:
        return f"Network({self.name!r}, key hidden)"


class TokenBody(msgspec.Struct, array_like=True):
    """What a join token says."""

    name: str
    key: bytes
    seeds: list[tuple[str, int]]
    generation: Annotated[int, msgspec.Meta(ge=1)] = 1
    origin: Annotated[bytes, msgspec.Meta(max_length=ID_OF_KEY_BYTES)] = b""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """All that a new peer needs to become a member, in one string that survives copy and paste.

    >>> token = JoinToken(Network("demo", bytes(32)), (("127.0.0.1", 7400),))
    >>> JoinToken.parse(str(token)) == token
    True
    """

    network: Network
    seeds: tuple[Address, ...]

    def __str__(self) -> str:
        network = self.network
        fields = (network.name, network.key, list(self.seeds))
        # A network whose key was never replaced has the token that it had in earlier releases.
        body = msgspec.msgpack.encode(
            fields if network.generation == 1 else TokenBody(*fields, network.generation, network.origin)
        )
        return _TOKEN_PREFIX + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        text = "".join(text.split())
        if not text.startswith(_TOKEN_PREFIX):
            raise IdentityError(f'this is not a join token: a token starts with "{_TOKEN_PREFIX}"')
        encoded = text.removeprefix(_TOKEN_PREFIX)
        try:
            raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise IdentityError("the join token has characters that do not belong there") from error
        body, checksum = raw[:-4], raw[-4:]
        if _checksum(body) != checksum:
            raise IdentityError("the join token is damaged: its checksum does not match; was it cut when copied?")
        try:
            token = msgspec.msgpack.decode(body, type=TokenBody)
        except msgspec.DecodeError as error:
            raise IdentityError("the join token was made by a version this one cannot read") from error
        if len(token.key) != NETWORK_KEY_BYTES:
            raise IdentityError(f"the join token holds a key of {len(token.key)} bytes instead of {NETWORK_KEY_BYTES}")
        if token.generation > 1 and len(token.origin) != ID_OF_KEY_BYTES:
            raise IdentityError("the join token does not say which network it is of")
        origin = token.origin if token.generation > 1 else b""
        network = Network(token.name, token.key, token.generation, origin)
        return cls(network, tuple(token.seeds))


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:4]


class RecordBody(msgspec.Struct, array_like=True, frozen=True):
    """What a peer signs about itself. Of two records of one peer the higher incarnation counts.

    The signature is over the bytes: a newer release may add fields, and an older one still verifies them.
    """

    public_key: bytes
    host: str
    port: int
    incarnation: int
    expires_at: int
    version: str
    left: bool
    has_engine: bool
    versions: StatedVersions = {}
    generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    ring: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    room: StatedRoom = b""


_encode_body = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(RecordBody).decode


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """A peer's signed statement of where it is and what it can do; made with sign(), trusted after verify()."""

    peer_id: PeerId
    address: Address
    incarnation: int
    expires_at: int
    version: str
    left: bool
    has_engine: bool  # It can run operators with state.
    versions: Versions  # The protocol versions it speaks.
    raw: bytes  # The signed bytes, then the signature: what travels.
    generation: int = 0  # Of the network key that it has; 0 for a release that cannot replace it.
    ring: bytes = b""  # Which key and which expulsions it knows, see keyring.py.
    room: Room = Room()

    @classmethod
    def sign(
        cls,
        identity: Identity,
        address: Address,
        *,
        incarnation: int,
        now_s: float,
        version: str,
        left: bool = False,
        has_engine: bool = False,
        versions: Versions = VERSIONS,
        generation: int = 0,
        ring: bytes = b"",
        room: Room = Room(),
        life_s: int = RECORD_LIFE_S,
    ) -> PeerRecord:
        version = version[:VERSION_CHARS_MAX]
        expires_at = int(now_s) + life_s
        dates = (incarnation, expires_at)
        body = RecordBody(
            identity.public_key,
            *address,
            *dates,
            version,
            left,
            has_engine,
            dict(versions),
            generation,
            ring,
            room.told(),
        )
        signed = _encode_body(body)
        raw = signed + identity.private_key.sign(_RECORD_CONTEXT + signed)
        return cls(identity.peer_id, address, *dates, version, left, has_engine, versions, raw, generation, ring, room)

    @classmethod
    def verify(cls, raw: bytes, now_s: float) -> PeerRecord:
        """Check the signature and the dates; raise IdentityError on anything that is not right."""
        signed, signature = raw[:-64], raw[-64:]
        try:
            body = _decode_body(signed)
            Ed25519PublicKey.from_public_bytes(body.public_key).verify(signature, _RECORD_CONTEXT + signed)
            ipaddress.ip_address(body.host)
        except (msgspec.DecodeError, InvalidSignature, ValueError) as error:
            raise IdentityError("a peer record is altered or malformed") from error
        if not 0 < body.port < 65536 or len(body.version) > VERSION_CHARS_MAX:
            raise IdentityError("a peer record has a port or version out of bounds")
        if not now_s - CLOCK_SKEW_MAX_S < body.expires_at < now_s + RECORD_LIFE_S + CLOCK_SKEW_MAX_S:
            raise IdentityError("a peer record has expired, or a clock is wrong")
        if not 0 <= body.incarnation <= highest_incarnation(now_s, 3 * CLOCK_SKEW_MAX_S):
            raise IdentityError("a peer record is numbered ahead of its time")
        peer_id = PeerId.of_public_key(body.public_key)
        address = (body.host, body.port)
        dates = (body.incarnation, body.expires_at)
        return cls(
            peer_id,
            address,
            *dates,
            body.version,
            body.left,
            body.has_engine,
            body.versions,
            raw,
            body.generation,
            body.ring,
            Room.stated(body.room),
        )


def highest_incarnation(now_s: float, ahead_s: float) -> int:
    """The highest possible incarnation now: incarnations follow the clock, in ms, and clocks agree within seconds."""
    return int((now_s + ahead_s) * 1000)


def read_secret(path: Path) -> bytes:
    """Read a secret, refusing a file that others may read."""
    mode = path.stat().st_mode
    if mode & 0o077:
        raise IdentityError(f'"{path}" is open to others (mode {mode & 0o777:o}); run: chmod 600 {path}')
    return path.read_bytes()


def write_secret(path: Path, secret: bytes) -> None:
    """Write a secret atomically, readable by its owner alone: after a crash the file is the old one or the new one."""
    scratch = path.with_name(path.name + ".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # Otherwise a power failure may bring the old file back.
    finally:
        os.close(folder)


def parse_address(text: str, default_port: int) -> Address:
    """Read "host", "host:port" or "[v6]:port".

    >>> parse_address("[::1]:7401", 7400), parse_address("peer1", 7400)
    (('::1', 7401), ('peer1', 7400))
    """
    host, port = text, str(default_port)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise IdentityError(f'"{text}" is not an address; write host:port, or [ipv6]:port')
    return host, int(port)


def format_address(address: Address | Sequence[object]) -> str:
    """Write an address so that parse_address reads it back."""
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
