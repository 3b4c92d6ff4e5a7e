"""Random queries on random rows: the reference evaluator and DuckDB must give the same multiset of results."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from queries import sql
from queries.expressions import EPOCH
from queries.reference import Tuple, evaluate, same_rows
from tests.queries.random_queries import Pair, Queries
from tests.queries.random_sql import STREAMS, data, naive, tables
from tests.seeds import draw_seed

GROUPS, QUERIES = 10, 50  # Sets of rows, and queries on each.
ROWS = 16
# Division by zero is null. The optimizer that is left out takes starts_with(CASE WHEN … THEN 'a' END, 'a') to be true.
SETTINGS = """
SET threads = 1;
SET ieee_floating_point_ops = false;
SET error_on_division_by_zero = false;
SET disabled_optimizers = 'statistics_propagation';
"""
# DuckDB raises where a number leaves its type; we have null. Such queries say nothing and are drawn again.
OUT_OF_RANGE = (duckdb.OutOfRangeException, duckdb.ConversionException, duckdb.InvalidInputException)


def groups() -> list[Any]:
    """Five hundred queries in all; a quick run does with a fifth."""
    return [number if number < 2 else pytest.param(number, marks=pytest.mark.slow) for number in range(GROUPS)]


@pytest.mark.parametrize("group", groups())
def test_random_queries_have_the_results_that_duckdb_has(group: int) -> None:
    seed = draw_seed()
    shapes, found = compare(seed, QUERIES)
    print(f"{found} rows; {dict(sorted(shapes.items()))}")
    assert found > 2 * QUERIES, "the queries find something"


def compare(seed: int, count: int) -> tuple[Counter[str], int]:
    """Compare the results of that many random queries: how many there were of each shape, and how many rows in all."""
    source = random.Random(seed)
    lists = data(source, ROWS)
    queries = Queries(source)
    shapes: Counter[str] = Counter()
    found = drawn = 0
    with duckdb.connect() as duck:
        duck.execute(SETTINGS)
        fill(duck, lists)
        while shapes.total() < count:
            pair = queries.query()
            drawn += 1
            assert drawn < 2 * count, f"seed {seed}: DuckDB refuses too many queries"
            try:
                theirs = [tuple(map(number, row)) for row in duck.execute(pair.duck).fetchall()]
            except OUT_OF_RANGE:
                continue
            ours = results(pair, lists)
            assert same_rows(ours, theirs), difference(seed, pair, ours, theirs)
            shapes[pair.shape] += 1
            found += len(ours)
    return shapes, found


def fill(duck: duckdb.DuckDBPyConnection, lists: dict[str, list[Tuple]]) -> None:
    for (name, _), (statement, rows) in zip(STREAMS.items(), tables(lists), strict=True):
        duck.execute(statement)
        duck.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def results(pair: Pair, lists: dict[str, list[Tuple]]) -> list[tuple[Any, ...]]:
    """Our results, with when each is due as the last column."""
    plan = sql.plan(pair.ours, STREAMS).plan
    return [
        (*(number(naive(value)) for value in each.row), (each.time - EPOCH) / timedelta(microseconds=1))
        for each in evaluate(plan, lists)
    ]


def number(value: Any) -> Any:
    """Numbers are compared as numbers, of whatever type they are."""
    return float(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value


def difference(seed: int, pair: Pair, ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> str:
    only_ours = [row for row in ours if not any(same_rows([row], [other]) for other in theirs)]
    only_theirs = [row for row in theirs if not any(same_rows([row], [other]) for other in ours)]
    return "\n".join(
        (
            f"seed {seed}: {len(ours)} results, DuckDB has {len(theirs)}",
            f"  ours  {pair.ours}",
            f"  duck  {pair.duck}",
            f"  only ours  {only_ours[:5]}",
            f"  only duck  {only_theirs[:5]}",
        )
    )
