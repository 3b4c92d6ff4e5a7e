"""The identifier space that peers and keys share: 160 bits, compared by XOR as in Kademlia."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Annotated, Final, Self

import msgspec

ID_BITS: Final = 160
ID_BYTES: Final = ID_BITS // 8
_NUMBERS_MAX: Final = 1 << 14


def framed(*parts: str | bytes) -> bytes:
    """The parts one after the other, each with its length before it."""
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join([len(each).to_bytes(4, "big") + each for each in raw])


class Key(bytes):
    """A point of the DHT's identifier space.

    >>> Key.of("stream", "flights").hex()[:8]
    '094570c2'
    """

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Self:
        if len(raw) != ID_BYTES:
            raise ValueError(f"an identifier has {ID_BYTES} bytes, not {len(raw)}")
        return super().__new__(cls, raw)

    @classmethod
    def of(cls, *parts: str | bytes) -> Self:
        """Hash the parts to a point; each is preceded by its length, so ("a", "bc") and ("ab", "c") differ."""
        return cls(hashlib.sha256(framed(*parts)).digest()[:ID_BYTES])

    @property
    @lru_cache(maxsize=_NUMBERS_MAX)  # noqa: B019 - the few identifiers around a peer are asked for again and again
    def number(self) -> int:
        return int.from_bytes(self, "big")

    @property
    def short(self) -> str:
        """The first eight hexadecimal digits, as people see it."""
        return self.hex()[:8]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.short})"


class PeerId(Key):
    """A peer's place among the keys: the first 160 bits of SHA-256 of its public key.

    >>> PeerId(bytes(20)).short
    '00000000'
    """

    __slots__ = ()

    @classmethod
    def of_public_key(cls, public_key: bytes) -> Self:
        return cls(hashlib.sha256(public_key).digest()[:ID_BYTES])


def distance(a: Key, b: Key) -> int:
    """How far apart two points are: their XOR, read as a number."""
    return a.number ^ b.number


COUNT_MAX: Final = 1 << 62
MILLIS_MAX: Final = 1 << 53

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
"""A number of things, or the place of one in a sequence. What another peer sends is checked when it is decoded."""


Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e300)]
"""A delay, a rate or a cost. What is not a number is none."""

Measured = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
"""What somebody has counted, measured or estimated: sums and products of a few of them are numbers, too."""

Micros = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=(1 << 63) - 1)]
"""A point of time since 1970 in microseconds, or before it."""

Millis = Annotated[int, msgspec.Meta(ge=0, le=MILLIS_MAX)]
"""A duration, or a point of time since 1970, in milliseconds."""

TimerName = str
NAME_MAX: Final = 1024
StreamName = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
"""Names of streams are far shorter, those of results a little longer. Whatever names something is kept and repeated: so
it is bounded where it is decoded.
"""
RequestId = int
"""One open question of a client, given by the driver and never used again."""

SubscriptionId = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
LogId = str
"""Names one append-only log of batches in a peer's journal."""


def as_count(total: int) -> Count:
    """A sum of what others have said, no larger than what can be told in turn."""
    return min(total, COUNT_MAX)
