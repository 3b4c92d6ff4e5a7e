"""Runs on a cluster, whose executors see nothing of the peer: one that is killed costs no row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from queries.reference import Tuple, evaluate, same_rows
from queries.schema import Row
from spark_jobs.java import NoJava, find_java
from spark_jobs.session import SessionSettings
from tests.seeds import draw_seed
from tests.spark_jobs.cluster import Cluster, cluster
from tests.spark_jobs.feeder import START, Feeder, arrived, plan_of, us
from tests.spark_jobs.live import PATIENCE_S, Live

pytestmark = pytest.mark.system

PLANS = {
    "select": "SELECT k, v * 2 AS w, d, s, at, raw FROM a WHERE v > 0.5 OR b",
    "aggregate": "SELECT k, count(*) AS n, sum(d) AS d FROM a [RANGE 10 SECONDS SLIDE 5 SECONDS] GROUP BY k",
    "join": "SELECT a.k, a.s, b.v FROM a [RANGE 5 SECONDS], b [RANGE 8 SECONDS] WHERE a.k = b.k",
    "rows": "SELECT a.k, b.s FROM a [ROWS 3], b [ROWS 2] WHERE a.k = b.k",
}
INPUTS = 20
KILL = 10  # The input that is on its way while an executor dies.
END_US = us(START) + 10**12


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    try:
        find_java("")
    except NoJava as error:
        pytest.skip(str(error))
    with cluster(tmp_path, monkeypatch) as running:
        yield running


class Fed:
    """A run, and what it was fed with."""

    def __init__(self, live: Live, name: str, seed: int) -> None:
        self.name, self._live, self._plan = name, live, plan_of(PLANS[name])
        self._feeder = Feeder(self._plan, seed)
        self._fed: dict[str, list[Tuple]] = {each.stream: [] for each in self._feeder.inputs}
        self._told = live.start(name, self._plan)
        self._number = 0

    def feed(self) -> None:
        alias, rows, watermark_us = self._feeder.next()
        stream = next(each.stream for each in self._feeder.inputs if each.alias == alias)
        self._fed[stream] += arrived(self._number + 1, rows)
        self._feed(alias, rows, watermark_us)

    def end(self) -> None:
        """Let all windows end, and compare."""
        self._feed(self._feeder.inputs[0].alias, [], END_US)
        self.wait()
        expected = [result.row for result in evaluate(self._plan, self._fed)]
        assert expected, "the plan finds something"
        assert same_rows(self._told.rows, expected), f"{self.name}: {self._told.rows} is not {expected}"

    def wait(self) -> None:
        self._live.until(lambda: self._told.number == self._number or self._told.reason)
        assert not self._told.reason, f"{self.name}: {self._told.reason}"

    def _feed(self, alias: str, rows: list[Row], watermark_us: int) -> None:
        self._number += 1
        self._live.feed(self.name, self._number, alias, rows, watermark_us, floor_us=watermark_us)


def test_a_killed_executor_neither_loses_nor_repeats_a_row(spark: Cluster) -> None:
    live = Live(SessionSettings(spark.master))
    seed = draw_seed()
    runs = [Fed(live, name, seed + place) for place, name in enumerate(PLANS)]
    for number in range(1, INPUTS + 1):
        for run in runs:
            run.feed()
        if number == KILL:
            spark.kill_executor()
        if number == KILL or number % 3 == 0:
            for run in runs:
                run.wait()
    for run in runs:
        run.end()
    assert [live.engine.status().runs[name].mode for name in PLANS] == ["micro-batch"] * 3 + ["batch"]
    live.close()
    deadline = time.monotonic() + PATIENCE_S
    while spark.executors():
        assert time.monotonic() < deadline, "executors end with their peer"
        time.sleep(0.1)
