"""How fast compiled predicates and projections run beside a Python lambda written by hand; how long planning takes.

    python -m experiments.benches.query_bench

Each figure is the best of a few runs over the same batches of rows, in processor time; the lambda and the compiled form
take turns, so what else the machine does meets both. A ratio above one means that the compiled form is the quicker.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from experiments.benches.figures import GOAL_MISSED, note
from queries.catalogue import Stream
from queries.compile import predicate_on_batch, project_on_batch
from queries.expressions import Call, Column, Constant, Expression
from queries.functions import call
from queries.plan import Source
from queries.schema import Row, Schema
from queries.sql import plan

SEED: Final = 4
BATCH_ROWS: Final = 1_000
BATCHES: Final = 100
RUNS: Final = 7
PLANS: Final = 30
GOAL_ROWS_PER_S: Final = 1_000_000
GOAL_PLAN_MS: Final = 20.0

FLIGHTS: Final = Schema.parse(
    "num int, departing string, destination string, delay float, gate string null, seats int null, price decimal"
)
AIRPORTS: Final = ("FRA", "JFK", "ATL", "LHR", "MUC")
FIVE_WAY: Final = """
SELECT fl.num, we.forecast, ch.seat, ba.weight, ga.gate
FROM flights fl [RANGE 5 MINUTES], weathers we [RANGE 5 MINUTES], checkins ch [RANGE 5 MINUTES],
     bags ba [RANGE 5 MINUTES], gates ga [RANGE 5 MINUTES]
WHERE fl.departing = 'ATL' AND fl.destination = we.city AND ch.flnum = fl.num AND ba.flnum = ch.flnum
  AND ga.flnum = fl.num AND ba.weight > 20.5 AND we.forecast LIKE '%snow%'
"""
STREAMS: Final = {
    name: Stream(name, Schema.parse(schema))
    for name, schema in {
        "flights": "num int, departing string, destination string",
        "weathers": "city string, forecast string",
        "checkins": "flnum int, seat string",
        "bags": "flnum int, weight float",
        "gates": "flnum int, gate string",
    }.items()
}


class Case(NamedTuple):
    """One thing done to rows in two ways."""

    name: str
    compiled: Callable[[Sequence[Row]], Sequence[Row]]
    by_hand: Callable[[Sequence[Row]], Sequence[Row]]


def make_batches() -> list[list[Row]]:
    luck = random.Random(SEED)
    return [[_flight(luck) for _ in range(BATCH_ROWS)] for _ in range(BATCHES)]


def _flight(luck: random.Random) -> Row:
    values = {
        "num": luck.randrange(10_000),
        "departing": luck.choice(AIRPORTS),
        "destination": luck.choice(AIRPORTS),
        "delay": luck.random() * 60,
        "gate": luck.choice(("A1", "B2", None)),
        "seats": luck.choice((None, 100, 180, 300)),
        "price": str(luck.randrange(10_000) / 100),
    }
    return (*FLIGHTS.row(values), None)  # No TIME: no case reads it.


def make_cases() -> list[Case]:
    columns = Source("flights", "fl", FLIGHTS).columns
    by_name = {column.path[0]: column for column in columns}

    def column(name: str) -> Column:
        return by_name[name]

    def compared(name: str, sign: str, value: Any) -> Call:
        return call(sign, column(name), Constant.of(value))

    typical = call("and", compared("delay", ">", 10.0), compared("departing", "=", "FRA"), compared("num", "<", 9_000))
    nullable = call("and", compared("seats", ">=", 150), compared("gate", "<>", "B2"), compared("delay", ">", 10.0))
    mixed = call(
        "and",
        call(">", call("+", call("*", column("delay"), Constant.of(2)), column("num")), Constant.of(100)),
        call("or", compared("departing", "=", "FRA"), compared("destination", "=", "JFK")),
        call("like", column("departing"), Constant.of("%A%")),
    )
    outputs: list[Expression] = [
        column("num"),
        call("||", column("departing"), column("destination")),
        call("/", column("delay"), Constant.of(60)),
    ]
    picked = [column("num"), column("delay"), column("gate")]
    return [
        Case(
            "3 comparisons", _kept(typical, columns), _where(lambda r: r[3] > 10.0 and r[1] == "FRA" and r[0] < 9_000)
        ),
        Case(
            "3 comparisons, 2 nullable",
            _kept(nullable, columns),
            _where(lambda r: r[5] is not None and r[5] >= 150 and r[4] is not None and r[4] != "B2" and r[3] > 10.0),
        ),
        Case(
            "arithmetic, OR, LIKE",
            _kept(mixed, columns),
            _where(lambda r: r[3] * 2 + r[0] > 100 and (r[1] == "FRA" or r[2] == "JFK") and "A" in r[1]),
        ),
        Case("projection of 3 columns", project_on_batch(picked, columns), _each(lambda r: (r[0], r[3], r[4]))),
        Case(
            "projection, 2 computed",
            project_on_batch(outputs, columns),
            _each(lambda r: (r[0], r[1] + r[2], r[3] / 60)),
        ),
    ]


def _kept(predicate: Expression, columns: Sequence[Column]) -> Callable[[Sequence[Row]], Sequence[Row]]:
    return predicate_on_batch(predicate, columns)


def _where(holds: Callable[[Row], bool]) -> Callable[[Sequence[Row]], Sequence[Row]]:
    return lambda rows: [row for row in rows if holds(row)]


def _each(change: Callable[[Row], Row]) -> Callable[[Sequence[Row]], Sequence[Row]]:
    return lambda rows: [change(row) for row in rows]


def rows_per_s(work: Callable[[Sequence[Row]], Sequence[Row]], batches: list[list[Row]]) -> float:
    begin = time.process_time()
    for batch in batches:
        work(batch)
    return BATCH_ROWS * len(batches) / (time.process_time() - begin)


def measure(case: Case, batches: list[list[Row]]) -> tuple[float, float]:
    """Rows per second: compiled, and by hand."""
    assert all(list(case.compiled(batch)) == list(case.by_hand(batch)) for batch in batches), case.name
    pairs = [(rows_per_s(case.compiled, batches), rows_per_s(case.by_hand, batches)) for _ in range(RUNS)]
    return max(compiled for compiled, _ in pairs), max(by_hand for _, by_hand in pairs)


def planning_ms() -> list[float]:
    """How long text takes to become a plan, run by run."""
    took = []
    for _ in range(PLANS):
        begin = time.process_time()
        plan(FIVE_WAY, STREAMS)
        took.append((time.process_time() - begin) * 1_000)
    return took


def main() -> int:
    batches = make_batches()
    print(f"queries: batches of {BATCH_ROWS} rows, seed={SEED}")
    slowest = float("inf")
    for case in make_cases():
        compiled, by_hand = measure(case, batches)
        slowest = min(slowest, compiled)
        print(
            f"  {case.name:26} {compiled / 1e6:6.2f} M rows/s   lambda {by_hand / 1e6:6.2f} M rows/s"
            f"   ratio {compiled / by_hand:.2f}"
        )
        note(case.name, compiled, "rows/s", "lambda", by_hand)
    took = planning_ms()
    median = statistics.median(took[1:])
    print(f"  plan of a 5-way join        {median:6.2f} ms (first {took[0]:.1f} ms, goal {GOAL_PLAN_MS:.0f} ms)")
    return 0 if slowest >= GOAL_ROWS_PER_S and median <= GOAL_PLAN_MS else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
