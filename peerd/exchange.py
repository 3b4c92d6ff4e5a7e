"""What travels over a peer's data socket, between the peer (gateway.py) and its clients (client/session.py).

A frame is a length (u32, little-endian) and a msgpack array. The client sends [request id, command]; the peer answers
[request id, answer, last], once for most commands and repeatedly for a subscription. An empty command withdraws a
request: the client ignores further answers. Requests are answered in any order.

The peer speaks first: its answer to request 0 names the life of its disk. In the same life the peer remembers what it
was asked; a client that comes back to another life cannot know the outcome of its last requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

_LENGTH: Final = struct.Struct("<I")
REQUEST_BYTES_MAX: Final = 2 << 20
RESPONSE_BYTES_MAX: Final = 64 << 20  # A peer trusts no client; a client has chosen its peer.
GREETING: Final = 0


class MalformedFrame(ValueError):
    """The other side does not follow this format; the connection is useless."""


class Request(msgspec.Struct, array_like=True, frozen=True):
    """What a client sends."""

    id: int
    command: bytes


class Response(msgspec.Struct, array_like=True, frozen=True):
    """What a peer sends back."""

    id: int
    answer: bytes
    last: bool


Frame = TypeVar("Frame", Request, Response)
_encode = msgspec.msgpack.Encoder().encode


def frame(body: Request | Response) -> bytes:
    """One frame, ready to be written."""
    raw = _encode(body)
    return _LENGTH.pack(len(raw)) + raw


class FrameReader(Generic[Frame]):
    """Cuts a byte stream into frames.

    >>> reader = FrameReader(Request, REQUEST_BYTES_MAX)
    >>> sent = frame(Request(1, b"first")) + frame(Request(2, b"second"))
    >>> list(reader.feed(sent[:7])), [request.command for request in reader.feed(sent[7:])]
    ([], [b'first', b'second'])
    """

    def __init__(self, kind: type[Frame], bytes_max: int) -> None:
        self._decode: Callable[[bytes], Frame] = msgspec.msgpack.Decoder(kind).decode
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take in what arrived; yields the frames that are now complete."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > self._bytes_max:
                    raise MalformedFrame(f"a frame of {length} bytes, where {self._bytes_max} are allowed")
                end = start + _LENGTH.size + length
                if end > len(buffer):
                    break
                try:
                    body = self._decode(bytes(memoryview(buffer)[start + _LENGTH.size : end]))
                except (msgspec.DecodeError, RecursionError) as error:
                    raise MalformedFrame(f"a frame that cannot be read: {error}") from error
                start = end
                yield body
        finally:
            del buffer[:start]
