"""Random rows for the sources of a plan, as a peer would feed them to a run."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from decimal import Decimal

from queries import query
from queries.catalogue import Stream
from queries.expressions import EPOCH, MICROSECOND
from queries.plan import Operator, Restructure, sources
from queries.reference import Tuple
from queries.schema import Row, Schema

SCHEMA = Schema.parse(
    "k int, v float null, d decimal, s string, b bool, at timestamp, raw bytes null,"
    " place record(lat float, n int null)"
)
STREAMS = {name: Stream(name, SCHEMA, "at", 0, 0) for name in ("a", "b", "c")}
START = datetime.fromisoformat("2026-01-01T00:00:00Z")


def plan_of(text: str) -> Operator:
    """What an engine runs of a query: all but the shape of its results."""
    plan = query.parse(text, STREAMS).plan
    return plan.input if isinstance(plan, Restructure) else plan


def us(time: datetime) -> int:
    return (time - EPOCH) // MICROSECOND


def row(source: random.Random, time: datetime) -> Row:
    return (
        source.randrange(3),
        source.choice([None, source.random(), 0.25]),
        Decimal(source.randrange(-(10**6), 10**6)).scaleb(-source.randrange(4)),
        source.choice(["", "ä", "LH-17", "x" * 40]),
        source.random() < 0.5,
        time,
        source.choice([None, b"", b"\x00\xff"]),
        (source.random(), source.choice([None, 7])),
    )


class Feeder:
    """Random inputs for the sources of a plan, in the order of time each."""

    def __init__(self, plan: Operator, seed: int) -> None:
        print(f"seed={seed}")
        self.random, self.inputs = random.Random(seed), sources(plan)
        self.times = dict.fromkeys((each.alias for each in self.inputs), START)
        self.ranks = dict.fromkeys(self.times, 0)

    def next(self) -> tuple[str, list[Row], int]:
        """A source, its next rows, and the watermark behind them."""
        each = self.random.choice(self.inputs)
        alias, rows = each.alias, []
        for _ in range(self.random.choice([0, 1, 1, 4, 20])):
            self.times[alias] += timedelta(milliseconds=self.random.choice([0, 1, 200, 2000]))
            by_rows = each.window is not None and each.window.kind == "rows"
            hidden = (self.times[alias], self.ranks[alias]) if by_rows else (self.times[alias],)
            rows.append((*row(self.random, self.times[alias]), *hidden))
            self.ranks[alias] += 1
        return alias, rows, us(min(self.times.values()))


def arrived(number: int, rows: list[Row]) -> list[Tuple]:
    """Rows as they were fed: those of one time, in two streams, count in the order in which they came."""
    at = EPOCH + timedelta(microseconds=number)
    return [Tuple(at, row[: len(SCHEMA.fields)], f"{number}/{place}") for place, row in enumerate(rows)]
