"""What must hold of the bytes of any family: they round-trip, they are golden, and rubbish is refused."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from protocols.errors import RemoteProtocolError
from protocols.wire import Codec
from tests.protocols.things import make

SEED = 11


def tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def check_round_trip(codec: Codec[Any], family: str, kind: type[msgspec.Struct]) -> None:
    luck = random.Random(f"{SEED} {family} {tag(kind)}")
    for _ in range(50):
        thing = make(kind, luck)
        assert codec.decode(codec.encode(thing)) == thing, f"seed={SEED}"


def golden_lines(codec: Codec[Any], family: str) -> str:
    return "".join(f"{family} {tag(kind)} {codec.encode(make(kind)).hex()}\n" for kind in codec.kinds)


def check_rubbish(codec: Codec[Any]) -> None:
    """Rubbish is a RemoteProtocolError and nothing else."""
    luck = random.Random(SEED)
    good = [codec.encode(make(kind)) for kind in codec.kinds]
    deep = b"\x01" + b"\x91" * 100_000
    for raw in (b"", b"\x00", b"\x02\x90", deep, *(luck.randbytes(luck.randrange(60)) for _ in range(500))):
        with pytest.raises(RemoteProtocolError):
            codec.decode(raw)
    for _ in range(3000):
        raw = bytearray(luck.choice(good))
        raw[luck.randrange(len(raw))] ^= luck.randrange(1, 256)
        try:
            codec.decode(bytes(raw))
        except RemoteProtocolError:
            continue
