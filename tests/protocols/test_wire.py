"""The bytes of every message, record, command and answer: they round-trip, they are golden, and rubbish is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocols.wire import ANSWERS, COMMANDS, MESSAGES, RECORDS, Codec
from tests.protocols.codecs import check_round_trip, check_rubbish, golden_lines, tag

GOLDEN = Path(__file__).parent / "golden" / "wire.txt"
CODECS: dict[str, Codec[Any]] = {"message": MESSAGES, "record": RECORDS, "command": COMMANDS, "answer": ANSWERS}
KINDS = [(family, kind) for family, codec in CODECS.items() for kind in codec.kinds]


@pytest.mark.parametrize(("family", "kind"), KINDS, ids=lambda each: each if isinstance(each, str) else tag(each))
def test_what_is_encoded_is_decoded_again(family: str, kind: type[msgspec.Struct]) -> None:
    check_round_trip(CODECS[family], family, kind)


def test_the_bytes_are_those_that_other_versions_know(rewrite: bool) -> None:
    """A difference here is a change on the wire: it needs a heading of its own in the change log."""
    now = "".join(golden_lines(codec, family) for family, codec in CODECS.items())
    if rewrite:
        GOLDEN.write_text(now)
    assert GOLDEN.read_text() == now


def test_no_two_kinds_of_a_family_share_a_name() -> None:
    names = [(family, tag(kind)) for family, kind in KINDS]
    assert len(set(names)) == len(names)
    assert len(names) > 30


@pytest.mark.parametrize("family", CODECS)
def test_rubbish_is_a_remote_protocol_error_and_nothing_else(family: str) -> None:
    check_rubbish(CODECS[family])
