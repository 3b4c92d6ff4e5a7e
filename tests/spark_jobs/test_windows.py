"""What random SQL does not have: queries of the papers, windows of values, lists of records, rows of one time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from queries.aggregates import aggregate
from queries.expressions import EPOCH, Column, Constant, Named
from queries.functions import call
from queries.plan import Join, Nest, Operator, Project, Restructure, Select, Source, Window, WindowAggregate
from queries.reference import Streams, Tuple, evaluate, same_rows
from queries.schema import Schema
from spark_jobs.compile import compiled
from spark_jobs.runner import INTERPRETED
from tests.queries.papers import FILES, planned, tuples_of
from tests.seeds import draw_seed
from tests.spark_jobs.frames import source_frames, told

SCHEMA = Schema.parse("v decimal null, g int, f float null, spot record(x int, y int null) null")
PLANS = 30

pytestmark = pytest.mark.system


def check(spark: Any, plan: Operator, streams: Streams, said: str) -> int:
    """Compare the results of Spark with the reference's: how many there are."""
    ours = [each.row for each in evaluate(plan, streams)]
    theirs = told(compiled(plan, source_frames(spark, plan, streams)), plan)
    assert same_rows(ours, theirs), (
        f"{said}\n{plan}\nonly ours {difference(ours, theirs)}\nonly Spark {difference(theirs, ours)}"
    )
    return len(ours)


def difference(some: list[Any], others: list[Any]) -> list[Any]:
    return [row for row in some if not any(same_rows([row], [other]) for other in others)][:3]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_query_of_the_papers(spark: Any, path: Path) -> None:
    plan = planned(path).plan
    check(spark, plan.input if isinstance(plan, Restructure) else plan, tuples_of(path.parent), str(path))


def test_random_windows_of_values_rows_and_time(spark: Any) -> None:
    seed = draw_seed()
    source = random.Random(seed)
    found = 0
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
    for number in range(PLANS):
        plan = next(plans(source))
        streams = {name: list(rows(source, 14)) for name in ("p", "q")}
        found += check(spark, plan, streams, f"seed {seed}, plan {number}")
    assert found > PLANS, "the plans find something"


def rows(source: random.Random, count: int) -> Iterator[Tuple]:
    """Few times, so that many rows have the same; values that mostly rise."""
    for number in range(count):
        value = Decimal(number * 2 + source.randint(-6, 2)) / 4 if source.random() < 0.9 else None
        ratio = source.choice((None, 0.5, -0.0, 0.0, 2.25, float("nan"), float("inf")))
        spot = None if source.random() < 0.2 else (source.randint(0, 3), source.choice((None, 1)))
        time = EPOCH + timedelta(seconds=source.randint(-5, 5) + number // 2)
        yield Tuple(time, (value, source.randint(0, 2), ratio, spot), number)


def plans(source: random.Random) -> Iterator[Operator]:
    while True:
        yield source.choice((aggregated, aggregated, joined, joined_windows, nested))(source)


def aggregated(source: random.Random) -> Operator:
    window = source.choice(
        (
            Window(
                "value", Decimal(source.choice(("1", "2.5", "4"))), source.choice((None, Decimal("0.5"), 3)), ("v",)
            ),
            Window("value", source.choice((1, 2)), None, ("spot", "x")),
            Window("rows", source.randint(1, 6), source.choice((None, 1, 2, 9))),
            Window("time", source.randint(1, 6) * 1_000_000, source.choice((None, 700_000, 4_000_000))),
        )
    )
    rows: Operator = Source("p", "p", SCHEMA, window)
    v, g, f = (Column("p", (each.name,), each.type, each.nullable) for each in SCHEMA.fields[:3])
    x = Column("p", ("spot", "x"), "int", True)
    if source.random() < 0.4:
        rows = Select(rows, call("<", g, call("coalesce", x, g)))
    of = (
        aggregate("n", "count", None),
        aggregate("all", "collect", None, fields=SCHEMA.fields),
        aggregate("a", "avg", v, source.random() < 0.5),
        aggregate("b", "stddev", f, source.random() < 0.5),
        aggregate("c", "sum", x, source.random() < 0.5),
        aggregate("d", "max", f),
        aggregate("e", "count", f, distinct=True),
    )
    chosen = tuple(source.sample(of, source.randint(1, 4)))
    keys = source.choice(((), (Named("g", g),), (Named("f", f), Named("x", x))))
    return WindowAggregate(rows, window, keys, chosen)


def joined_windows(source: random.Random) -> Operator:
    """The windows of a stream joined with the rows, or the windows, of another."""
    left = msgspec.structs.replace(aggregated(source), alias="w")
    right: Operator = Source("q", "r", SCHEMA)
    key = Column("r", ("g",), "int")
    if source.random() < 0.5:
        of = (aggregate("m", "max", key),)
        right = WindowAggregate(right, Window("rows", source.randint(1, 3)), (), of, "v")
        key = Column("v", ("m",), "int", True)
    if source.random() < 0.5:
        left = Select(left, call("not", call("is_null", Column("w", ("$time",), "timestamp"))))
    condition = call(source.choice(("<", "=")), key, Constant.of(source.randint(0, 2)))
    return Join(left, right, condition)


def nested(source: random.Random) -> Operator:
    """Rows, pairs or windows, each with a list of rows or windows."""
    rows = source.choice((aggregated, joined_windows, lambda _: Source("p", "p", SCHEMA)))(source)
    if isinstance(rows, WindowAggregate):
        rows = msgspec.structs.replace(rows, alias="w")
    window = source.choice((None, None, Window("time", 2_000_000), Window("rows", 2)))
    listed: Operator = Source("q", "l", SCHEMA, window)
    g, v = Column("l", ("g",), "int"), Column("l", ("v",), "decimal", True)
    if window is None and source.random() < 0.4:
        of = (aggregate("g", "max", g), aggregate("v", "min", v))
        listed = WindowAggregate(listed, Window("rows", source.randint(1, 3)), (), of, "k")
        g, v = Column("k", ("g",), "int", True), Column("k", ("v",), "decimal", True)
    listed = Project(listed, (Named("g", g), Named("v", v)), "list")
    own = rows.columns[0]
    limit = call("coalesce", own, Constant.of(1)) if own.type == "int" else Constant.of(source.randint(0, 2))
    condition = call("<=", Column("list", ("g",), "int", True), limit)
    return Nest(rows, listed, condition if source.random() < 0.7 else None, "found")


def joined(source: random.Random) -> Operator:
    """Two to five streams, of which most are seen through windows, and rows of one time in several of them."""
    names = [f"s{number}" for number in range(source.randint(2, 5))]
    windows = (
        None,
        Window("time", 1_000_000),
        Window("time", 0),
        Window("time", 2_000_000, 1_500_000),
        Window("time", 1_000_000, 3_000_000),
        Window("rows", 1),
        Window("rows", 3),
    )
    streams = [Source(source.choice("pq"), name, SCHEMA, source.choice(windows[len(names) > 2 :])) for name in names]
    plan: Operator = streams[0]
    for one, other in pairwise(names):
        right = next(each for each in streams if each.alias == other)
        together = call("=", Column(one, ("g",), "int"), Column(other, ("g",), "int"))
        also = call("<", Column(names[0], ("v",), "decimal", True), Column(other, ("v",), "decimal", True))
        plan = Join(plan, right, call("and", together, also) if source.random() < 0.6 else together)
    outputs = tuple(
        Named(f"{name}_{field}", Column(name, (field,), kind, True))
        for name in names
        for field, kind in (("v", "decimal"), ("$time", "timestamp"))
    )  # type: ignore[arg-type]
    return Project(plan, outputs)
