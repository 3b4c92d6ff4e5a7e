"""What peers say to each other by datagram: a few small questions, their answers, and two notices.

    peer ── PING ──▶ peer ── PONG ──▶ peer          alive? how do you see me? what time is it?
    peer ── FIND_NODE ──▶ peer ── FOUND ──▶ peer    whom do you know near this key?
    peer ── LIST ──▶ peer ── FOUND ──▶ peer         whom do you know, after this id?
    peer ── OBITUARY ──▶ peer                       this peer is gone; see for yourself

Every datagram carries its sender's signed record. Peers named inside an answer are hints: they are believed only once
they have answered for themselves. The library's STORE and FIND_VALUE do not exist here and cannot be decoded.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from overlay.coordinates import DIMENSIONS, Coordinate
from overlay.identity import Address
from overlay.table import Candidate
from protocols.ids import PeerId

HINTS_MAX: Final = 14  # So many fit a datagram, with the longest hosts and versions.

_Id = Annotated[bytes, msgspec.Meta(min_length=20, max_length=20)]
_Port = Annotated[int, msgspec.Meta(gt=0, lt=65536)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Record = Annotated[bytes, msgspec.Meta(max_length=400)]


class Hint(msgspec.Struct, array_like=True, frozen=True):
    """Where a peer is said to be. The host is packed: 4 or 16 bytes."""

    peer_id: _Id
    host: bytes
    port: _Port
    incarnation: _Count

    def __post_init__(self) -> None:
        if len(self.host) not in (4, 16):
            raise ValueError(f"a host has 4 or 16 bytes, not {len(self.host)}")

    @classmethod
    def of(cls, candidate: Candidate) -> Hint:
        host, port = candidate.address
        return cls(bytes(candidate.peer_id), _pack_host(host), port, candidate.incarnation)

    def candidate(self) -> Candidate:
        return Candidate(PeerId(self.peer_id), (_unpack_host(self.host), self.port), self.incarnation)


class WireCoordinate(msgspec.Struct, array_like=True, frozen=True):
    """A network coordinate, in milliseconds, as it travels."""

    position: Annotated[list[float], msgspec.Meta(min_length=DIMENSIONS, max_length=DIMENSIONS)]
    height: float
    error: float

    @classmethod
    def of(cls, coordinate: Coordinate) -> WireCoordinate:
        return cls(list(coordinate.position), coordinate.height, coordinate.error)

    def coordinate(self) -> Coordinate:
        return Coordinate(tuple(self.position), self.height, self.error)


class Ping(msgspec.Struct, array_like=True, frozen=True, tag="PING"):
    """Are you there?"""


class Pong(msgspec.Struct, array_like=True, frozen=True, tag="PONG"):
    """I am. This is how I see you, and what time it is here."""

    host: Annotated[str, msgspec.Meta(max_length=45)]  # Where the question came from.
    settled: bool  # You are in my table, or it has no place for you: there is nothing more to wait for.
    incarnation: _Count  # The highest of yours that I know. If it is above the one you sent, renew your record.
    at_ms: _Count  # The sender's wall clock.


class FindNode(msgspec.Struct, array_like=True, frozen=True, tag="FIND_NODE"):
    """Whom do you know nearest to this key?"""

    target: _Id
    count: Annotated[int, msgspec.Meta(gt=0, le=HINTS_MAX)]


class ListPeers(msgspec.Struct, array_like=True, frozen=True, tag="LIST"):
    """Whom do you know with an id above this one? The first HINTS_MAX of them, in order."""

    after: _Id


class Found(msgspec.Struct, array_like=True, frozen=True, tag="FOUND"):
    """The peers I know."""

    hints: Annotated[list[Hint], msgspec.Meta(max_length=HINTS_MAX)]


class Obituary(msgspec.Struct, array_like=True, frozen=True, tag="OBITUARY"):
    """This peer is gone. With its own signed farewell it has left; without one the receiver checks for itself."""

    peer_id: _Id
    incarnation: _Count
    farewell: _Record  # The peer's record with `left` set, or empty.
    forced: bool  # An operator declares that this dead peer will not come back.


Message = Ping | Pong | FindNode | ListPeers | Found | Obituary
Answer = Pong | Found


class Outside(msgspec.Struct, array_like=True, frozen=True):
    """What is read first of every datagram. It never changes: the record says whether the rest can be read."""

    call: _Count
    record: _Record


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """One datagram, opened."""

    call: _Count  # An answer repeats the number of its question.
    record: _Record
    coordinate: WireCoordinate
    message: Message


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Envelope).decode
decode_outside = msgspec.msgpack.Decoder(Outside).decode


@lru_cache(maxsize=4096)
def _pack_host(host: str) -> bytes:
    return ipaddress.ip_address(host).packed


@lru_cache(maxsize=4096)
def _unpack_host(host: bytes) -> str:
    return str(ipaddress.ip_address(host))


def plain_host(host: str) -> str:
    """The host as records write it: IPv4 mapped into IPv6 becomes IPv4 again, and a scope is dropped.

    >>> plain_host("::ffff:127.0.0.1")
    '127.0.0.1'
    """
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host.partition("%")[0]


def same_place(a: Address, b: Address) -> bool:
    """Whether two addresses are one."""
    return a[1] == b[1] and plain_host(a[0]) == plain_host(b[0])
