"""Bytes that another peer wrote, in the store or beside a copy: read as what they should be, or not at all."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def read(decoder: msgspec.msgpack.Decoder[T], raw: bytes | None) -> T | None:
    """What the bytes say; None if there are none, or none that make sense.

    A reader skips fields that it does not know. Whoever nests these a thousand deep exhausts the stack of the decoder.
    """
    try:
        return decoder.decode(raw) if raw is not None else None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
