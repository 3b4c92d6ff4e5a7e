"""How much a test does: enough for every commit, or more, in `make soak`."""

from __future__ import annotations

import os

IS_SOAK = bool(os.environ.get("PEER_SOAK"))


def many(tested: int, soaked: int) -> int:
    return soaked if IS_SOAK else tested
