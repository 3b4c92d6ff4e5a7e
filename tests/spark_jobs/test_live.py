"""Random plans with state on a live session, many at a time, fed piece by piece: the results are the reference's."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

pytest.importorskip("pyspark")

from protocols.execution.cut import is_stateful
from queries import sql
from queries.plan import Operator, sources
from queries.reference import Streams, _Evaluation, evaluate, same_rows
from queries.schema import Row
from spark_jobs.java import NoJava, find_java
from spark_jobs.runner import INTERPRETED
from spark_jobs.session import SessionSettings
from spark_jobs.stages import mode
from tests.queries.random_queries import Queries
from tests.queries.random_sql import STREAMS, data
from tests.seeds import draw_seed
from tests.soaking import many
from tests.spark_jobs.frames import _rows as timed_rows
from tests.spark_jobs.live import Live

GROUPS, PLANS = many(2, 8), 16  # Times that sessions are filled, and runs in one at a time.
ROWS = 12
END_US = 400 * 86_400_000_000  # Behind all windows.

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    try:
        find_java("")
    except NoJava as error:
        pytest.skip(str(error))
    engine = Live(SessionSettings(extra=INTERPRETED))
    yield engine
    engine.close()


class Piece(NamedTuple):
    """Rows of a source that come together, and the watermark behind them."""

    alias: str
    rows: list[Row]
    watermark_us: int | None


def pieces(source: random.Random, plan: Operator, streams: Streams) -> Iterator[Piece]:
    """What a peer would feed a run with: rows in the order of arrival, some at once and some alone."""
    evaluation, inputs = _Evaluation(streams, final=True), sources(plan)
    arrived = sorted(
        (hidden[0], each.alias, own) for each in inputs for own, hidden in timed_rows(evaluation, each, inputs)
    )
    rows: list[Row] = []
    for place, (arrival, alias, row) in enumerate(arrived):
        rows.append(row)
        is_last = place + 1 == len(arrived) or arrived[place + 1][1] != alias
        if is_last or source.random() < 0.4:
            watermark = evaluation.watermark(inputs, arrival)
            yield Piece(alias, rows, None if math.isinf(watermark) else int(watermark))
            rows = []


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_plans_with_state_tell_what_the_reference_does(live: Live, group: int) -> None:
    seed = draw_seed()
    modes, found = compare(live, seed, f"{group}")
    print(f"{found} rows; {dict(modes)}")
    assert modes.total() > PLANS * 0.8, "nearly every plan has a form in Spark"
    assert found > PLANS, "the plans find something"


def is_formless(reason: str) -> bool:
    """Whether a plan was refused for want of a form in Spark; what Spark itself says has a word in brackets."""
    return reason.startswith("Spark refused the plan: ") and "[" not in reason


def counts_one_stream_twice(plan: Operator) -> bool:
    """Whether a stream joins itself under a window of rows: a row reaches the query twice, once for each side, and its
    two times are the same, so that which came first shows in the results (docs/guarantees.md)."""
    names = [each.stream for each in sources(plan)]
    by_rows = any(each.window is not None and each.window.kind == "rows" for each in sources(plan))
    return by_rows and len(names) > len(set(names))


def compare(live: Live, seed: int, group: str) -> tuple[Counter[str], int]:
    """Compare the results of as many plans as run together: how many ran in each way, and how many rows they told."""
    source = random.Random(seed)
    streams, queries = data(source, ROWS), Queries(source)
    runs: dict[str, tuple[str, Operator]] = {}
    modes: Counter[str] = Counter()
    while len(runs) < PLANS:
        text = queries.query().ours
        plan = sql.plan(text, STREAMS).plan
        if is_stateful(plan) and not counts_one_stream_twice(plan):
            runs[f"{group}/{len(runs)}"] = text, plan
    for run, (_, plan) in runs.items():
        live.start(run, plan)
    ends = {}
    for run, (_, plan) in runs.items():
        told = live.told[run]
        live.until(lambda told=told: told.is_started or told.reason)
        if is_formless(told.reason):
            continue
        modes[mode(plan)] += 1
        number = 0
        for number, piece in enumerate(pieces(source, plan, streams), 1):
            live.feed(run, number, piece.alias, piece.rows, piece.watermark_us, floor_us=piece.watermark_us)
        ends[run] = number + 1
        live.feed(run, number + 1, sources(plan)[0].alias, [], END_US, floor_us=END_US)
    found = 0
    for run, end in ends.items():
        text, plan = runs[run]
        told = live.told[run]
        live.until(lambda told=told, end=end: told.number >= end or told.reason)
        assert not told.reason, f"seed {seed}: {text}: {told.reason}"
        ours = [each.row for each in evaluate(plan, streams)]
        assert same_rows(told.rows, ours), f"seed {seed}: {text}\n{told.rows}\nis not\n{ours}"
        found += len(ours)
        live.stop(run)
    return modes, found
