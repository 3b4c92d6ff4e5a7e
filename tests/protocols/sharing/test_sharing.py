"""Many readers of few streams at one host: each gets what it would get alone, whatever the others do."""

from __future__ import annotations

import os

import pytest

from tests.protocols.sharing.model import play

FIRST = int(os.environ.get("PEER_SEED") or 1)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 25))
@pytest.mark.parametrize("forgets", [False, True], ids=["on disk", "in memory"])
def test_every_reader_gets_its_tuples_once_and_in_order(seed: int, forgets: bool):
    play(seed, forgets=forgets)
