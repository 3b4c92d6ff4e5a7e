"""The bytes of every message, record, command and answer: they round-trip, they are golden, and rubbish is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocols.errors import RemoteProtocolError
from protocols.wire import ANSWERS, COMMANDS, MESSAGES, RECORDS, Codec
from tests.protocols.things import make

GOLDEN = Path(__file__).parent / "golden" / "wire.txt"
CODECS: dict[str, Codec[Any]] = {"message": MESSAGES, "record": RECORDS, "command": COMMANDS, "answer": ANSWERS}
KINDS = [(family, kind) for family, codec in CODECS.items() for kind in codec.kinds]
SEED = 11


def tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


@pytest.mark.parametrize(("family", "kind"), KINDS, ids=lambda each: each if isinstance(each, str) else tag(each))
def test_what_is_encoded_is_decoded_again(family: str, kind: type[msgspec.Struct]) -> None:
    luck = random.Random(f"{SEED} {family} {tag(kind)}")
    for _ in range(50):
        thing = make(kind, luck)
        assert CODECS[family].decode(CODECS[family].encode(thing)) == thing, f"seed={SEED}"


def test_the_bytes_are_those_that_other_versions_know(rewrite: bool) -> None:
    """A difference here is a change on the wire: it needs a heading of its own in the change log."""
    now = "".join(f"{family} {tag(kind)} {CODECS[family].encode(make(kind)).hex()}\n" for family, kind in KINDS)
    if rewrite:
        GOLDEN.write_text(now)
    assert GOLDEN.read_text() == now


def test_no_two_kinds_of_a_family_share_a_name() -> None:
    names = [(family, tag(kind)) for family, kind in KINDS]
    assert len(set(names)) == len(names)
    assert len(names) > 30


@pytest.mark.parametrize("family", CODECS)
def test_rubbish_is_a_remote_protocol_error_and_nothing_else(family: str) -> None:
    luck = random.Random(SEED)
    codec = CODECS[family]
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
