"""What travels over a link: the types of frames, how much each may carry, and the few structured bodies.

A frame is <u32 body length><u8 type><u8 flags><u16 channel>, little-endian, and then the body. Channel 0 is the link
itself; flags are reserved and zero. Structured bodies are msgpack, read into types that allow no depth and no surprise.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, TypeVar

import msgspec

from overlay.identity import VERSION_CHARS_MAX, StatedVersions

# HELLO greets, in both directions, before anything else. CONTROL carries a message to the peer. OPEN, DATA, CREDIT and
# CLOSE make up a channel. PING asks for PONG. GOODBYE says that its sender starts nothing new on this link. RING is
# about the network key and the expelled (rollover.py); only a peer whose HELLO states a ring gets one.
HELLO, CONTROL, OPEN, DATA, CREDIT, CLOSE, PING, PONG, GOODBYE, RING = range(1, 11)

CONTROL_BYTES_MAX: Final = (1 << 20) + (64 << 10)
DATA_BYTES_MAX: Final = 4 << 20
RING_BYTES_MAX: Final = 1 << 20
WINDOW_BYTES: Final = 256 << 10
WINDOW_BYTES_MAX: Final = 16 << 20
CHANNELS_MAX: Final = 1024  # How many each side may have open on one link.
# What a frame takes of its window beyond its body. Without it tiny frames could hold far more memory.
FRAME_OVERHEAD_BYTES: Final = 64

HEADER: Final = struct.Struct("<IBBH")
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
_STRUCTURED_BYTES_MAX: Final = 1024
# The least and the most body bytes, by type; there is no type 0.
BODY_BYTES: Final = (
    (1, 0),
    (1, _STRUCTURED_BYTES_MAX),
    (0, CONTROL_BYTES_MAX),
    (1, _STRUCTURED_BYTES_MAX),
    (0, DATA_BYTES_MAX),
    (U32.size, U32.size),
    (0, 0),
    (U64.size, U64.size),
    (U64.size, U64.size),
    (0, 0),
    (1, RING_BYTES_MAX),
)


class RemoteProtocolError(Exception):
    """The other side sent something malformed or out of turn."""


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """Where the sender listens, and what it speaks; an empty host means "where this connection comes from".

    This frame and its first four fields never change: by them peers of any two releases learn what they share.
    """

    host: Annotated[str, msgspec.Meta(max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    versions: StatedVersions = {}
    release: Annotated[str, msgspec.Meta(max_length=VERSION_CHARS_MAX)] = ""
    ring: Annotated[bytes, msgspec.Meta(max_length=16)] = b""  # Which key and expulsions the sender knows: keyring.py.


class OpenChannel(msgspec.Struct, array_like=True, frozen=True):
    """A new channel: the service it is for, and the window it starts with in both directions."""

    service: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    window: Annotated[int, msgspec.Meta(ge=1, le=WINDOW_BYTES_MAX)]


_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode
_hello_decoder: Final = msgspec.msgpack.Decoder(Hello)
_open_decoder: Final = msgspec.msgpack.Decoder(OpenChannel)


def encode(body: Hello | OpenChannel) -> bytes:
    return _encode(body)


def decode_hello(body: bytes | memoryview) -> Hello:
    return _decode(_hello_decoder, body)


def decode_open(body: bytes | memoryview) -> OpenChannel:
    return _decode(_open_decoder, body)


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes | memoryview) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"a malformed body: {error}") from error
