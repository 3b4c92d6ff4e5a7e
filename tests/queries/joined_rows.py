"""Streams that are joined on a key, and a few random rows of each."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.reference import Tuple
from queries.schema import Schema

STREAMS = {name: Stream(name, Schema.parse("k int null, v int, w int")) for name in "abcd"}


def make_streams(luck: Random) -> dict[str, list[Tuple]]:
    """A few rows of each stream, so that some meet and some keys are null."""

    def row() -> tuple[int | None, int, int]:
        return luck.choice((None, 0, 1, 1, 2)), luck.randint(0, 5), luck.randint(0, 3)

    made = {}
    for name in STREAMS:
        times = sorted(luck.randint(0, 30) for _ in range(luck.randint(2, 7)))
        made[name] = [Tuple(EPOCH + timedelta(seconds=at), row(), number) for number, at in enumerate(times)]
    return made
