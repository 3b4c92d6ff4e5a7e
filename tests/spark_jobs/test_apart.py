"""Joins of several streams taken apart, each on Spark: attempt after attempt every result once."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyspark")

from protocols.execution.engine import FeedRun, StartRun
from queries.schema import Row
from tests.protocols.execution.attempts import ROWS, THREE, WINDOWED, attempts
from tests.seeds import draw_seed
from tests.spark_jobs.live import Live

pytestmark = pytest.mark.system


class OnSpark:
    """A live session that is asked one thing after the other."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def start(self, effect: StartRun) -> None:
        self._live.started(effect.run, effect.plan, effect.closed_until_us)

    def feed(self, effect: FeedRun) -> tuple[Row, ...]:
        told = self._live.told[effect.run]
        before = len(told.rows)
        self._live.feed(
            effect.run, effect.number, effect.alias, effect.rows, effect.watermark_us, effect.is_new, effect.floor_us
        )
        self._live.until(lambda: told.number >= effect.number or told.reason)
        assert not told.reason, told.reason
        return tuple(told.rows[before:])

    def stop(self, run: str) -> None:
        self._live.stop(run)


@pytest.mark.parametrize("text", [THREE, WINDOWED])
def test_joins_that_run_apart_tell_what_the_reference_does(live: Live, text: str) -> None:
    seed = draw_seed()
    print(f"seed {seed}")
    (told, expected), _ = attempts(text, random.Random(seed), OnSpark(live), ends=(5, ROWS))
    assert told == expected, f"seed {seed}"
