"""Random plans on random rows: Spark, the reference evaluator and the daemon give the same multiset of results."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

from protocols.execution.cut import is_stateful
from protocols.execution.run import pipelines
from queries import spark_able, sql
from queries.aggregates import aggregate
from queries.catalogue import Stream
from queries.decimals import with_all_places
from queries.expressions import EPOCH, Column
from queries.plan import Operator, Source, Window, WindowAggregate, sources
from queries.reference import Streams, Tuple, _Evaluation, evaluate, same_rows
from queries.schema import Row, Schema
from queries.spark_forms import NoForm
from queries.values import INT_MAX, INT_MIN
from spark_jobs.compile import compiled
from spark_jobs.runner import INTERPRETED
from tests.queries.edges import EDGES, edge
from tests.queries.random_queries import Queries
from tests.queries.random_sql import STREAMS, data
from tests.seeds import draw_seed
from tests.soaking import IS_SOAK, many
from tests.spark_jobs.frames import source_frames, told

GROUPS, PLANS = many(5, 20), 50  # Sets of rows, and plans on each.
ROWS = 16

pytestmark = pytest.mark.system


Comparison = tuple[Counter[str], int, Counter[str]]


@pytest.fixture(scope="module")
def interpreted(spark: Any) -> Any:
    """A session as micro-batches and batch jobs have it; real-time mode compiles plans to Java."""
    session = spark.newSession()
    for name, value in INTERPRETED.items():
        session.conf.set(name, value)
    return session


@pytest.fixture(scope="module")
def comparisons(spark: Any, interpreted: Any) -> Iterator[list[tuple[int, Future[Comparison]]]]:
    """All groups with their seeds, two at a time: Spark plans one query on one core. The first is compiled to Java."""
    pool = ThreadPoolExecutor(2)
    seeds = [draw_seed() for _ in range(GROUPS)]
    yield [
        (seed, pool.submit(compare, interpreted if group else spark, seed, PLANS)) for group, seed in enumerate(seeds)
    ]
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_plans_have_the_results_of_the_reference(
    comparisons: list[tuple[int, Future[Comparison]]], group: int
) -> None:
    seed, comparison = comparisons[group]
    print(f"PEER_SEED={seed}")
    shapes, found, formless = comparison.result()
    print(f"{found} rows; {dict(sorted(shapes.items()))}; without a form in Spark: {dict(formless)}")
    assert found > PLANS, "the plans find something"
    assert formless.total() < PLANS / 5, "nearly every plan has a form in Spark"


def compare(spark: Any, seed: int, count: int) -> Comparison:
    """Compare the results of that many random plans: how many of each shape, how many rows, and what was left out."""
    source = random.Random(seed)
    streams, queries = data(source, ROWS, edge if source.random() < 0.5 else None), Queries(source)
    shapes: Counter[str] = Counter()
    formless: Counter[str] = Counter()
    found = 0
    while shapes.total() < count:
        pair = queries.query()
        plan = sql.plan(pair.ours, STREAMS).plan
        try:
            results = compiled(plan, source_frames(spark, plan, streams))
        except NoForm as problem:
            formless[str(problem)] += 1
            assert spark_able.formless(plan) != "", f"seed {seed}: {pair.ours}"
            continue
        assert spark_able.formless(plan) == "", f"seed {seed}: {pair.ours}"
        ours, theirs = [each.row for each in evaluate(plan, streams)], told(results, plan)
        assert same_rows(ours, theirs), difference(seed, pair.ours, ours, theirs)
        if not is_stateful(plan):
            assert same_rows(ours, inline(plan, streams)), f"seed {seed}: the daemon differs: {pair.ours}"
        shapes[pair.shape] += 1
        found += len(ours)
    return shapes, found, formless


def inline(plan: Operator, streams: Streams) -> list[Row]:
    """The results as the daemon computes them."""
    evaluation, steps = _Evaluation(streams, final=True), pipelines(plan)
    rows: list[Row] = []
    for each in sources(plan):
        rows += steps[each.alias]([item.row for item in evaluation._source(each)])
    return rows


def difference(seed: int, text: str, ours: list[Row], theirs: list[Row]) -> str:
    only_ours = [row for row in ours if not any(same_rows([row], [other]) for other in theirs)]
    only_theirs = [row for row in theirs if not any(same_rows([row], [other]) for other in ours)]
    return "\n".join(
        (
            f"seed {seed}: {len(ours)} results, Spark has {len(theirs)}",
            f"  {text}",
            f"  only ours   {only_ours[:5]}",
            f"  only Spark  {only_theirs[:5]}",
        )
    )


NUMBERS = {"n": Stream("n", Schema.parse("a decimal, b decimal, i int, s string, at timestamp, f float"))}
NUMBER_ROWS = {
    "n": [
        Tuple(EPOCH, (Decimal(a), Decimal(b), i, s, EPOCH + timedelta(days=days), f), number)
        for number, (a, b, i, s, days, f) in enumerate(
            (
                ("1", "3", 3, "ab", 0, 0.1),
                ("0.000000000000000001", "7", -7, "", -719_162, -0.0),
                ("1234567.891234567", "0.000000001", 1 << 62, "aaa", 2_932_896, float("nan")),
                ("-99.99", "0", 0, "O'Hare", 20_000, float("inf")),
                ("12345678901234567.25", "2", 1, "é%_", -1, 1e300),
            )
        )
    ]
}
NESTED = "a"
for _ in range(16):
    NESTED = f"({NESTED} * sign(i))"
REPLACED = "s"
for _ in range(24):
    REPLACED = f"replace({REPLACED}, 'a', 'b')"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a + b, a - b, b - a, -a, abs(a), i + b, a % b FROM n",
        "SELECT a * b, a * i, i * b, a * 0.25 FROM n WHERE i < 1000",
        "SELECT a / b, a / 3, a / i, i / b FROM n WHERE i < 1000",
        "SELECT round(a), round(a, 2), floor(a), ceil(a), CAST(a AS int), CAST(i AS decimal) FROM n",
        "SELECT at + INTERVAL '1' DAY, at - INTERVAL '2' DAY, at > '1500-01-01' FROM n",
        "SELECT f + 1, f * f, f = f, f <> f, f < 1, f > 1, sign(f), CAST(f AS int) FROM n",
        "SELECT sum(a), avg(a), sum(DISTINCT a), avg(DISTINCT i), sum(i), avg(i), stddev(b) FROM n [RANGE 1 SECOND]",
        "SELECT sum(b), avg(b), sum(DISTINCT b), avg(DISTINCT b), min(b), max(b) FROM n [RANGE 1 SECOND]",
        "SELECT i, sum(f), min(f), max(f), count(DISTINCT f) FROM n [RANGE 1 SECOND] GROUP BY i",
        "SELECT extract(epoch FROM avg(at - TIMESTAMP '1970-01-01')), sum(at - at) = '0s' FROM n [RANGE 1 SECOND]",
        f"SELECT {NESTED} FROM n",
        f"SELECT length({REPLACED}) FROM n",
        f"SELECT i FROM n WHERE {' OR '.join(f'i = {number}' for number in range(590))}",
    ],
    ids=lambda text: text[:60],
)
def test_numbers_and_times_at_their_edges(spark: Any, text: str) -> None:
    plan = sql.plan(text, NUMBERS).plan
    ours = [each.row for each in evaluate(plan, NUMBER_ROWS)]
    theirs = told(compiled(plan, source_frames(spark, plan, NUMBER_ROWS)), plan)
    assert same_rows(ours, theirs), difference(0, text, ours, theirs)


DECIMALS = {"n": Stream("n", Schema.parse("g int, i int, d decimal, e decimal null, s string, f float"))}
ENDS = (10 - 10**20, 10**20 - 30)
CAST_TEXTS = (
    "0.12345678901234567890",
    "1E-50",
    "9" * 38,
    "1E+9000",
    " -7.50 ",
    "99999999999999999999.9999999999999999995",
)


def decimal_rows(random: random.Random, count: int) -> list[Tuple]:
    """Pairs of decimals at their edges, in groups whose sums are near the edges too."""
    made = []
    for number in range(count):
        d, e = edge(random), edge(random)
        if random.random() < 0.2:  # The whole of one is the other, in other words.
            e = with_all_places(d)
        s = random.choice((str(d), str(e), *CAST_TEXTS))
        i = random.choice((0, 1, -3, 1000, INT_MAX, INT_MIN, random.randint(-(1 << 40), 1 << 40)))
        f = random.choice(
            (float(d), float(e), math.nextafter(float(d), 0), -0.0, 0.1, math.nan, math.inf, 1e300, 5e-324)
        )
        row = (number * 7 // count, i, d, e if random.random() < 0.9 else None, s, f)
        made.append(Tuple(EPOCH + timedelta(seconds=number % 50), row, number))
    return made


@pytest.mark.parametrize(
    "text",
    [
        "SELECT d + e, d - e, d * e, d / e, d % e, e / d, d * 0.5, d / 3, 1 / d FROM n",
        "SELECT i + d, d - i, i * d, d / i, i / d, d % i, mod(i, d), -d, abs(d), sign(d), d + e + d - e FROM n",
        "SELECT floor(d), ceil(d), round(d), round(d, 17), round(d, 2), round(d, -20), round(d, 30) FROM n",
        "SELECT CAST(d AS int), CAST(d AS float), CAST(d AS string), CAST(i AS decimal), CAST(s AS decimal) FROM n",
        "SELECT d = e, d < e, d <= e, d <> e, d = i, d > i, d IN (1, 0.5, 7), nullif(d, e), greatest(d, e, i) FROM n",
        "SELECT d = f, f < e, d <= f, f <> d, d > f, e >= f, d IN (f, 1, 2e0), nullif(e, f), greatest(d, f) FROM n",
        "SELECT coalesce(e, d), CASE WHEN d > e THEN d ELSE e END, d BETWEEN e AND 9.5, least(d, i) FROM n",
        "SELECT g, sum(d), avg(d), sum(DISTINCT e), avg(DISTINCT e), min(d), max(e), count(DISTINCT d) FROM n"
        " GROUP BY g, TUMBLE(INTERVAL '10' MINUTE)",
        "SELECT g, sum(d * e), avg(d / 7), avg(i) FROM n GROUP BY g, TUMBLE(INTERVAL '10' SECOND)",
        "SELECT d, CAST(e AS string), count(*) FROM n [RANGE 1 MINUTE] GROUP BY d, CAST(e AS string)",
        "SELECT a.d, b.e FROM n [RANGE 5 SECONDS] a, n [RANGE 5 SECONDS] b WHERE a.d = b.e",
        "SELECT a.i, b.d FROM n a, n b WHERE a.i = b.d",
    ],
    ids=lambda text: text[:60],
)
def test_decimals_at_their_edges(spark: Any, interpreted: Any, text: str) -> None:
    seed = draw_seed()
    source = random.Random(seed)
    rows, plan = {"n": decimal_rows(source, many(300, 3000))}, sql.plan(text, DECIMALS).plan
    ours = [each.row for each in evaluate(plan, rows)]
    assert len(ours) > 5
    sessions = (spark, interpreted)
    for session in sessions if IS_SOAK or not is_stateful(plan) else (source.choice(sessions),):
        theirs = told(compiled(plan, source_frames(session, plan, rows)), plan)
        assert same_rows(ours, theirs), difference(seed, text, ours, theirs)
    if not is_stateful(plan):
        assert same_rows(ours, inline(plan, rows)), f"seed {seed}: the daemon differs: {text}"


@pytest.mark.parametrize(("size", "step"), [("10", "4"), ("3E-18", "2E-18"), ("5E+19", "3E+19"), ("1", "7")])
def test_windows_of_values_at_the_edges_of_decimals(interpreted: Any, size: str, step: str) -> None:
    near = (each + distance for each in ENDS for distance in range(0, 21, 5))
    values = sorted(Decimal(each) for each in (*EDGES, *(each.copy_negate() for each in EDGES), *near))
    rows = {"n": [Tuple(EPOCH, (1, 1, each, None, "", 0.0), number) for number, each in enumerate(values)]}
    source = Source("n", "n", DECIMALS["n"].schema)
    window = Window("value", Decimal(size), Decimal(step), ("d",))
    plan = WindowAggregate(source, window, (), (aggregate("s", "sum", Column("n", ("d",), "decimal")),))
    ours = [each.row for each in evaluate(plan, rows)]
    theirs = told(compiled(plan, source_frames(interpreted, plan, rows)), plan)
    assert len(ours) > 2
    assert same_rows(ours, theirs), difference(0, f"{size} {step}", ours, theirs)


STAMPS = (
    "2026-01-31",
    " 2026-01-31 12:30 ",
    "2026-01-31T12:30:59.1234567z",
    "2026-01-31 12:30:59.5+01",
    "2026-01-31 12:30:59.5-0530",
    "2026-01-31 12:30:59 +23:59",
    "2026-01-31 12:30+24:00",
    "2026-01-31Z",
    "2026-02-30",
    "0000-01-01",
    "0001-01-01 00:00+01:00",
    "9999-12-31 23:59:59.999999",
    "9999-12-31 23:59:59-01:00",
    "2026-01-31 24:00",
    "2026-01-31 12:60",
    "2026-1-31",
    "12026-01-31",
    "2026-01-31 12:30:59,5",
    "1500-02-28 12:00",
    "now",
    "",
)


def test_timestamps_are_read_alike(spark: Any) -> None:
    rows = {"n": [Tuple(EPOCH, (text,), number) for number, text in enumerate(STAMPS)]}
    plan = sql.plan("SELECT s, CAST(s AS timestamp) AS at FROM n", {"n": Stream("n", Schema.parse("s string"))}).plan
    ours = [each.row for each in evaluate(plan, rows)]
    assert dict(told(compiled(plan, source_frames(spark, plan, rows)), plan)) == dict(ours)
