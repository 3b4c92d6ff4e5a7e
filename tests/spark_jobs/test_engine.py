"""Plans on a live session, row by row beside the reference; and what happens when something breaks."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from overlay.sim.engine import ReferenceEngine
from protocols.execution.engine import FeedRun, StartRun
from queries.plan import sources
from queries.reference import Tuple, evaluate, same_rows
from queries.schema import Row
from spark_jobs.session import SessionSettings
from tests.seeds import draw_seed
from tests.spark_jobs.feeder import START, Feeder, arrived, plan_of, row, us
from tests.spark_jobs.live import Live

pytestmark = pytest.mark.system

LIVE_PLANS = {
    "select": "SELECT k, v * 2 AS w, d, s, at, raw FROM a WHERE v > 0.5 OR b",
    "everything": "SELECT * FROM a",
    "tumbling": "SELECT k, count(*) AS n, sum(v) AS v, sum(d) AS d, max(s) AS s FROM a [RANGE 10 SECONDS] GROUP BY k",
    "sliding": "SELECT count(*) AS n, min(at) AS first FROM a [RANGE 10 SECONDS SLIDE 5 SECONDS]",
    "having": "SELECT k, sum(v) AS v FROM a [RANGE 10 SECONDS SLIDE 10 SECONDS] GROUP BY k HAVING sum(v) < 1.5",
    "join": "SELECT a.k, a.s, b.v FROM a [RANGE 5 SECONDS], b [RANGE 8 SECONDS] WHERE a.k = b.k",
    "join slides": "SELECT a.k, b.s FROM a [RANGE 6 SECONDS SLIDE 2 SECONDS], b [RANGE 6 SECONDS SLIDE 2 SECONDS]"
    " WHERE a.k = b.k",
    "three": "SELECT a.k, b.s, c.v FROM a [RANGE 4 SECONDS], b [RANGE 4 SECONDS], c [RANGE 4 SECONDS]"
    " WHERE a.k = b.k AND b.k = c.k",
}
# What of a window of rows is a result is known only once no earlier row can come.
ROW_PLANS = {
    "rows": "SELECT a.k, b.s FROM a [ROWS 3], b [ROWS 2] WHERE a.k = b.k",
    "last rows": "SELECT k, count(*) AS n, sum(v) AS v FROM a [ROWS 4 SLIDE 2] GROUP BY k",
    "windows and rows": """for $w in stream("a")/as/a |at diff 10| let $n := count($w) for $b in stream("b")/bs/b
      where $b/k < $n return <r> { $n } { $b/k } { $w/s } </r>""",
    "windows and windows": """for $w in stream("a")/as/a |count 5| let $n := max($w/k)
      for $v in stream("b")/bs/b |at diff 7| let $m := count($v) where $n < $m return <r> { $n } { $m } </r>""",
    "lists": """for $p in stream("a")/as/a[k > 1] return <p> { $p/d } {
      for $q in stream("b")/bs/b where $q/k = $p/k return $q/s } </p>""",
}


@pytest.mark.parametrize("name", LIVE_PLANS)
def test_a_live_run_tells_what_the_reference_does_input_by_input(live: Live, name: str) -> None:
    plan = plan_of(LIVE_PLANS[name])
    feeder, reference = Feeder(plan, draw_seed()), ReferenceEngine()
    reference.start(StartRun(name, plan, None))
    told = live.started(name, plan)
    expected: list[Row] = []
    number = 0
    while number < 40 or not expected:
        number += 1
        alias, rows, watermark_us = feeder.next()
        is_new = number > 8
        expected += reference.feed(FeedRun(name, number, alias, tuple(rows), is_new, watermark_us, watermark_us))
        live.feed(name, number, alias, rows, watermark_us, is_new, watermark_us)
        if feeder.random.random() < 0.5:
            live.until(lambda number=number: told.number >= number or told.reason)
            assert same_rows(told.rows, expected), f"input {number}: {told.rows} is not {expected}"
    live.until(lambda: told.number == number or told.reason)
    assert not told.reason
    assert same_rows(told.rows, expected)
    live.stop(name)


@pytest.mark.parametrize("name", ROW_PLANS)
def test_windows_of_rows_end_with_the_results_of_the_reference(live: Live, name: str) -> None:
    plan = plan_of(ROW_PLANS[name])
    feeder = Feeder(plan, draw_seed())
    told = live.started(name, plan)
    fed: dict[str, list[Tuple]] = {each.stream: [] for each in feeder.inputs}
    for number in range(1, 41):
        alias, rows, watermark_us = feeder.next()
        fed[next(each.stream for each in feeder.inputs if each.alias == alias)] += arrived(number, rows)
        live.feed(name, number, alias, rows, watermark_us, floor_us=watermark_us)
        if feeder.random.random() < 0.5:
            live.until(lambda number=number: told.number >= number or told.reason)
    end_us = us(max(feeder.times.values()) + timedelta(hours=1))
    live.fed(name, 41, alias, [], end_us)
    expected = [result.row for result in evaluate(plan, fed)]
    assert expected, "the plan finds something"
    assert same_rows(unordered(told.rows), unordered(expected))
    live.stop(name)


def unordered(rows: Sequence[Row]) -> list[Row]:
    """Rows whose lists are sorted: rows of one input and one time have no order."""
    return [tuple(tuple(sorted(each)) if isinstance(each, tuple) else each for each in row) for row in rows]


def test_a_join_whose_condition_spark_sees_never_to_hold_finds_nothing_and_goes_on(live: Live) -> None:
    """Here "false" is found in one step of Spark's optimizer, so that the equality is gone before the next one."""
    never = "coalesce(1 = 2, a.k < b.k)"
    plan = plan_of(f"SELECT a.k FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k AND {never}")
    live.started("never", plan)
    source = random.Random(7)
    for number, alias in enumerate(("a", "b", "a"), 1):
        assert live.fed("never", number, alias, [(*row(source, START), START)], us(START)) == []
    live.stop("never")


def test_windows_that_were_told_by_an_earlier_attempt_are_not_told_again(live: Live) -> None:
    plan = plan_of("SELECT count(*) AS n FROM a [RANGE 10 SECONDS SLIDE 10 SECONDS]")
    live.started("again", plan, us(START + timedelta(seconds=10)))
    source = random.Random(7)
    rows = [(*row(source, time), time) for n in range(3) for time in [START + timedelta(seconds=n * 10)]]
    assert live.fed("again", 1, "a", rows, us(START + timedelta(seconds=30))) == [(1,), (1,)]
    live.stop("again")


AGAIN = {
    "SELECT count(*) AS n, max(at) AS last FROM a [ROWS 2]": ([], [5], []),
    'for $w in stream("a")/as/a |count 2| let $n := max($w/at) for $b in stream("b")/bs/b return <r> { $n } </r>': (
        [],
        [5],
        [1, 3, 5],
    ),
    'for $p in stream("a")/as/a return <p> { $p/at } { stream("b")/bs/b/k } </p>': ([4], [5], []),
}


@pytest.mark.parametrize("text", AGAIN, ids=lambda text: text[:40])
def test_of_a_batch_only_what_no_earlier_attempt_told_is_told(live: Live, text: str) -> None:
    """Rows of a at seconds 0 to 4 and one of b at 0 are old, and the watermark was at 3; then a has one more, and b.

    As in a peer, no watermark is told before the old rows are back.
    """
    name, plan, source = f"again {text[:20]}", plan_of(text), random.Random(7)
    inputs = {each.stream: each for each in sources(plan)}

    def rows(stream: str, *seconds: int) -> list[Row]:
        times = [START + timedelta(seconds=second) for second in seconds]
        ranked = inputs[stream].window is not None
        return [
            (*row(source, time), time, *((each,) if ranked else ())) for each, time in zip(seconds, times, strict=True)
        ]

    def feed(number: int, stream: str, seconds: list[int], is_new: bool, watermark_s: int | None) -> list[int]:
        watermark_us = None if watermark_s is None else us(START + timedelta(seconds=watermark_s))
        alias = inputs[stream].alias if stream in inputs else sources(plan)[0].alias
        given = rows(stream, *seconds) if stream in inputs else []
        told = live.fed(name, number, alias, given, watermark_us, is_new)
        place = next(place for place, column in enumerate(plan.columns) if column.type == "timestamp")
        return sorted((each[place] - START) // timedelta(seconds=1) for each in told)

    live.started(name, plan, us(START + timedelta(seconds=3)))
    assert feed(1, "b", [0], False, None) == []
    after_old, after_a, after_b = AGAIN[text]
    assert feed(2, "a", [0, 1, 2, 3, 4], False, None) == []
    assert feed(3, "a", [], True, 4) == after_old
    assert feed(4, "a", [5], True, 6) == after_a
    assert feed(5, "b", [6], True, 7) == after_b
    live.stop(name)


def test_one_failing_run_leaves_the_others_alone(live: Live) -> None:
    plan = plan_of("SELECT k FROM a")
    good, bad = live.started("good", plan), live.started("bad", plan)
    folder = live.engine._runs["bad"].folder / "0"
    table = pa.table({"c0": ["text where a number should be"]})
    with pa.OSFile(str(folder / "1"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    with (folder / "HEAD").open("r+b") as head:
        head.write((1).to_bytes(8, "little"))
    live.until(lambda: bad.reason)
    assert "Spark gave up" in bad.reason
    source = random.Random(7)
    assert live.fed("good", 1, "a", [(*row(source, START), START)]) != []
    assert not good.reason
    live.stop("good")


def test_rows_that_cannot_be_written_fail_their_run(live: Live) -> None:
    told = live.started("unwritten", plan_of("SELECT k FROM a"))
    source = random.Random(7)
    live.feed("unwritten", 1, "a", [("text", *row(source, START)[1:], START)])
    live.until(lambda: told.reason)
    assert told.reason.startswith("rows could not be handed to Spark")
    assert "unwritten" not in live.engine.status().runs


def test_rows_and_files_of_a_run_that_ended_are_gone(live: Live) -> None:
    live.started("short", plan_of("SELECT k FROM a"))
    folder = live.engine._runs["short"].folder
    source = random.Random(7)
    live.fed("short", 1, "a", [(*row(source, START), START)])
    live.until_gone(folder / "0" / "1")
    live.stop("short")
    live.until_gone(folder)


def test_status_says_what_runs_and_what_it_takes(live: Live) -> None:
    live.started("seen", plan_of("SELECT k FROM a"))
    status = live.engine.status()
    assert (status.state, status.spark.split(".")[0]) == ("ready", "4")
    assert status.runs["seen"].mode == "real-time"
    print(f"{status.memory_bytes >> 20} MB in worker and Java")
    assert 100 << 20 < status.memory_bytes < 900 << 20
    live.stop("seen")


def test_spark_counts_the_rows_that_a_join_keeps(live: Live) -> None:
    plan = plan_of("SELECT x.k FROM a [RANGE 1 HOUR] x, a [RANGE 1 HOUR] y WHERE x.k = y.k")
    joined = live.started("joined", plan)
    source = random.Random(7)
    for number, alias in enumerate(("x", "x", "y"), start=1):
        live.feed("joined", number, alias, [(*row(source, START), START)])
    live.until(lambda: joined.state_rows == 3)
    live.stop("joined")


def test_what_waits_for_the_end_of_windows_counts_as_state_at_once(live: Live) -> None:
    plan = plan_of("SELECT k, count(*) AS n FROM a [RANGE 1 HOUR SLIDE 1 HOUR] GROUP BY k")
    counted = live.started("counted", plan)
    assert live.engine.status().runs["counted"].mode == "real-time"
    source = random.Random(7)
    rows = [(*row(source, START), START) for _ in range(20)]
    live.feed("counted", 1, "a", rows)
    live.until(lambda: counted.state_rows == len({each[0] for each in rows}))
    live.fed("counted", 2, "a", [], us(START + timedelta(hours=1)))
    live.until(lambda: counted.state_rows == 0)
    live.stop("counted")


def test_what_is_kept_for_the_next_batch_job_counts_as_state(live: Live) -> None:
    plan = plan_of("SELECT count(*) AS n FROM a [ROWS 3 SLIDE 1]")
    ranked = live.started("ranked", plan)
    assert live.engine.status().runs["ranked"].mode == "batch"
    source = random.Random(7)
    rows = [(*row(source, START + timedelta(seconds=n)), START + timedelta(seconds=n), n) for n in range(4)]
    live.fed("ranked", 1, "a", rows)
    live.until(lambda: ranked.state_rows == 4)
    live.stop("ranked")


def test_when_java_is_killed_all_runs_fail_and_the_next_start_brings_up_another(live: Live) -> None:
    plan = plan_of("SELECT k FROM a")
    one, two = live.started("one", plan), live.started("two", plan)
    os.kill(live.engine.status().java_pid, signal.SIGKILL)
    live.until(lambda: one.reason and two.reason)
    assert "SIGKILL" in one.reason
    source = random.Random(7)
    live.started("three", plan)
    assert live.fed("three", 1, "a", [(*row(source, START), START)]) != []
    live.stop("three")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (SessionSettings(java_home="/nowhere"), "no Java was found"),
        (SessionSettings(heap_mb=10_000_000), "too little memory"),
        (SessionSettings(master="spark://127.0.0.1:1"), "cannot be reached"),
    ],
)
def test_a_session_that_cannot_be_had_fails_the_run_with_the_reason(settings: SessionSettings, reason: str) -> None:
    engine = Live(settings)
    told: Any = engine.start("run", plan_of("SELECT k FROM a"))
    engine.until(lambda: told.reason)
    assert reason in told.reason
    assert engine.engine.status().state == "off"
    assert reason in engine.engine.status().last_failure
    engine.close()
