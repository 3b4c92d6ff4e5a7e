"""The bytes of the paper's messages, which the experiments count: they round-trip, and each message has its line."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from experiments import cqdht
from experiments.cqdht.codec import CODEC
from protocols.wire import MESSAGES
from tests.protocols.codecs import check_round_trip, check_rubbish, golden_lines, tag

GOLDEN = Path(__file__).parent / "wire.txt"


@pytest.mark.parametrize("kind", CODEC.kinds, ids=tag)
def test_what_is_encoded_is_decoded_again(kind: type[msgspec.Struct]) -> None:
    check_round_trip(CODEC, "message", kind)


def test_the_bytes_are_those_that_the_figures_of_the_experiments_count(rewrite: bool) -> None:
    now = golden_lines(CODEC, "message")
    if rewrite:
        GOLDEN.write_text(now)
    assert GOLDEN.read_text() == now


def test_rubbish_is_refused() -> None:
    check_rubbish(CODEC)


def test_every_message_has_its_line_in_the_docstring_of_the_package() -> None:
    named = re.findall(r"^\| ([A-Z_]+) \|", cqdht.__doc__ or "", flags=re.MULTILINE)
    assert sorted(named) == sorted(map(tag, CODEC.kinds))


def test_no_peer_understands_what_only_the_papers_machines_say() -> None:
    shared = {"QUERY", "QUERY_INDEXED", "QUERY_REFUSED", "REMOVE_QUERY"}
    assert {tag(kind) for kind in CODEC.kinds} & {tag(kind) for kind in MESSAGES.kinds} == shared
