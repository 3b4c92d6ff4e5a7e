"""A hundred joins with windows over five pairs of streams in the join index: how many of them run, and what they do.

    python -m experiments.benches.join_sharing

Queries are those of `experiments.streamglobe.joins`, half of them with their streams the other way round. They go
through the attribute and value levels of five peers in one process, once together and once each for itself. A join that
runs is a group of the index: its queries have one condition, whatever their windows and selections.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from experiments.benches.figures import GOAL_MISSED, note
from experiments.benches.join_queries import Index
from experiments.streamglobe.joins import GOAL, JOINS, STREAMS, Side, asked, text_of
from protocols.join_index.messages import LEFT, RIGHT
from protocols.join_index.tables import Tables
from queries import sql
from queries.schema import Row

SEED: Final = 1
ROWS: Final = 200  # Of each stream.
VALUES: Final = 50


class Work(NamedTuple):
    """What evaluators have done."""

    joins: int = 0
    stored: int = 0  # Tuples and triggers.
    pairs: int = 0  # That met.
    results: int = 0

    def plus(self, other: Work) -> Work:
        return Work(*(one + more for one, more in zip(self, other, strict=True)))


Asked = tuple[Side, Side]


def posed(seed: int) -> list[Asked]:
    luck = random.Random(seed)
    return [
        (left, right) if luck.random() < 0.5 else (right, left) for left, right in (asked(luck) for _ in range(JOINS))
    ]


def worked(queries: Sequence[Asked]) -> Work:
    """The queries of one pair of streams, in one order, over the same rows."""
    streams = [side.stream for side in queries[0]]
    index = Index((sql.plan(text_of(*each), STREAMS).plan for each in queries), STREAMS)
    met = 0
    pair = Tables._pair  # noqa: SLF001 - what it counts has no other name

    def counting(tables: Tables, members: Collection[Any], *which: Any) -> None:
        nonlocal met
        met += 1
        pair(tables, members, *which)

    with patch.object(Tables, "_pair", counting):
        for number in range(ROWS):
            for side, stream in zip((LEFT, RIGHT), streams, strict=True):
                index.publish(side, stream, number, [row(stream, number)])
    tables = [each.tables for each in index.evaluators.values()]
    groups = {member.group for each in tables for member in each.queries.values()}
    return Work(len(groups), sum(each.stored for each in tables), met, index.results)


def row(stream: str, number: int) -> Row:
    luck = random.Random(f"{stream}/{number}")
    return (luck.randrange(VALUES), luck.random(), number, "some words")


def measure(queries: Sequence[Asked], *, is_shared: bool) -> Work:
    by_streams: dict[tuple[str, ...], list[Asked]] = {}
    for each in queries:
        by_streams.setdefault(tuple(side.stream for side in each), []).append(each)
    whole = Work()
    for group in by_streams.values():
        for some in [group] if is_shared else [[each] for each in group]:
            whole = whole.plus(worked(some))
    return whole


def main() -> int:
    queries = posed(SEED)
    shared, alone = measure(queries, is_shared=True), measure(queries, is_shared=False)
    assert shared.results == alone.results, "each query has its results, whoever shares with it"
    print(f"{JOINS} joins over five pairs of streams in the join index, {ROWS} rows of each stream, seed={SEED}")
    print(f"  {'':8} {'joins that run':>14} {'tuples stored':>14} {'pairs that met':>15}")
    for name, each in (("together", shared), ("alone", alone)):
        print(f"  {name:8} {each.joins:14,} {each.stored:14,} {each.pairs:15,}")
    note(f"joins that run for {JOINS} queries", float(shared.joins), "joins", "each alone", float(alone.joins))
    return 0 if shared.joins <= GOAL else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
