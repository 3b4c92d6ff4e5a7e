"""Ours: how many of 100 joins over five pairs of streams run, by what counts as the same join.

    python -m experiments.streamglobe.joins [--scale 0.1] [--seed N]

A join serves a query with the same condition, windows no longer and selections that lie within its own; with widening,
two joins become one that holds both, where that one makes no more pairs than the two.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table
from experiments.streamglobe.residual import Residual, Widening, match
from experiments.streamglobe.shapes import Pairs, pairs_of
from queries.canonical import canonical
from queries.catalogue import Stream
from queries.cost import Rates, StreamRates
from queries.plan import Operator
from queries.query import parse
from queries.schema import Schema
from queries.selectivity import ColumnStatistics

RULES: Final = ("alone", "same", "contained", "widened")
JOINS: Final = 100
DRAWS: Final = 50
"""At scale 1."""
GOAL: Final = 20
RATES: Final = {"flights": 5.0, "checkins": 4.0, "bags": 8.3, "weather": 1.5, "sales": 1.2}
PAIRS: Final = (
    ("flights", "checkins"),
    ("checkins", "bags"),
    ("flights", "weather"),
    ("flights", "bags"),
    ("sales", "checkins"),
)
WINDOWS_S: Final = (60, 120, 300, 600, 900)
SHARES: Final = (1.0, 1.0, 0.5, 0.2, 0.05)  # A smaller selection lies within a larger one.
STREAMS: Final = {name: Stream(name, Schema.parse("k int, x float, a int, b string")) for name in RATES}
KNOWN: Final = Rates(
    {
        name: StreamRates(
            rate_per_s=rate,
            row_bytes=100.0,
            columns={("k",): ColumnStatistics(distinct=100), ("x",): ColumnStatistics(low=0.0, high=1.0)},
        )
        for name, rate in RATES.items()
    }
)


class Side(NamedTuple):
    """One side of a join, and how much of its stream is selected."""

    stream: str
    window_s: int
    share: float


def asked(luck: random.Random) -> tuple[Side, Side]:
    (one, other), windows = luck.choice(PAIRS), [luck.choice(WINDOWS_S) for _ in range(2)]
    shares = [luck.choice(SHARES) for _ in range(2)]
    return Side(one, windows[0], shares[0]), Side(other, windows[1], shares[1])


def text_of(left: Side, right: Side) -> str:
    tests = [f" AND {alias}.x <= {each.share}" for alias, each in (("l", left), ("r", right)) if each.share < 1]
    return (
        f"SELECT l.a, r.a AS other FROM {left.stream} [RANGE {left.window_s} SECONDS] AS l,"  # noqa: S608 (for our own parser)
        f" {right.stream} [RANGE {right.window_s} SECONDS] AS r WHERE l.k = r.k{''.join(tests)}"
    )


def drawn(luck: random.Random) -> Operator:
    return canonical(parse(text_of(*asked(luck)), STREAMS).plan)


def pairs_per_s(shape: Pairs) -> float:
    return KNOWN.estimate(shape.plan).rate_per_s


def rows_per_s(shape: Pairs) -> float:
    return sum(KNOWN.estimate(each.plan).rate_per_s for each in shape.inputs)


def running(rule: str, posed: Sequence[Operator]) -> list[Pairs]:
    """The joins that run once all queries have been posed."""
    found: list[Pairs] = []
    for plan in posed:
        own = pairs_of(plan)
        assert own is not None, "every query is a join"
        if rule == "same" and own in found:
            continue
        alike = [each for each in found if _streams(each) == _streams(own)] if rule in ("contained", "widened") else []
        matches = [(each, match(each, "shared", plan)) for each in alike]
        if any(isinstance(fits, Residual) for _, fits in matches):
            continue
        wider = [(each, fits.shape) for each, fits in matches if isinstance(fits, Widening)]
        hulls = [
            (pairs_per_s(shape) - pairs_per_s(each), number, each, shape)
            for number, (each, shape) in enumerate(wider)
            if isinstance(shape, Pairs) and pairs_per_s(shape) <= pairs_per_s(each) + pairs_per_s(own)
        ]
        if rule != "widened" or not hulls:
            found.append(own)
            continue
        _, _, before, shape = min(hulls, key=lambda each: each[:2])
        others = [each for each in found if each is not before]
        found = [shape, *(each for each in others if not _serves(shape, each))]
    return found


def _serves(shape: Pairs, other: Pairs) -> bool:
    return _streams(shape) == _streams(other) and isinstance(match(shape, "shared", other.plan), Residual)


def _streams(shape: Pairs) -> tuple[str, ...]:
    return tuple(each.source.stream for each in shape.inputs)


def measure(seed: int, rule: str) -> dict[str, float]:
    luck = random.Random(seed)
    made = running(rule, [drawn(luck) for _ in range(JOINS)])
    return {
        "joins": len(made),
        "rows_per_s": sum(map(rows_per_s, made)),
        "pairs_per_s": sum(map(pairs_per_s, made)),
    }


def figures(chosen: sweep.Options) -> dict[str, dict[str, float]]:
    seeds = range(chosen.seed, chosen.seed + max(1, round(DRAWS * chosen.scale)))
    cells: list[dict[str, Any]] = [{"seed": seed, "rule": rule} for rule in RULES for seed in seeds]
    gathered: dict[str, list[dict[str, float]]] = {}
    for cell, found in zip(cells, sweep.run("streamglobe_joins", measure, cells, chosen), strict=True):
        gathered.setdefault(cell["rule"], []).append(found)
    return {
        rule: {name: statistics.fmean(each[name] for each in found) for name in found[0]}
        | {"most": max(each["joins"] for each in found)}
        for rule, found in gathered.items()
    }


def claims(found: dict[str, dict[str, float]]) -> Iterator[Claim]:
    yield Claim(
        "ours",
        f"at most {GOAL} joins run for {JOINS} queries",
        f"{found['widened']['joins']:.1f} on average, {found['widened']['most']:.0f} at most;"
        f" {found['contained']['joins']:.1f} without widening",
        found["widened"]["most"] <= GOAL,
    )
    yield Claim(
        "ours",
        "they read fewer rows and make fewer pairs than the queries alone",
        ", ".join(
            f"{name} {found['widened'][name] / found['alone'][name]:.2f}" for name in ("rows_per_s", "pairs_per_s")
        ),
        all(found["widened"][name] < found["alone"][name] for name in ("rows_per_s", "pairs_per_s")),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("joins that are shared", scale=0.1).parse_args(arguments))
    found = figures(chosen)
    print(f"seed={chosen.seed}, {JOINS} joins over {len(PAIRS)} pairs of streams, means")
    print_table(
        ("rule", "joins that run", "most", "rows read a second", "pairs a second"),
        [(rule, each["joins"], each["most"], each["rows_per_s"], each["pairs_per_s"]) for rule, each in found.items()],
    )
    print_claims(claims(found))
    joins = {"joins that run": [found[rule]["joins"] for rule in RULES]}
    title = f"{JOINS} joins over {len(PAIRS)} pairs of streams"
    plots.bars(chosen.out / "streamglobe_joins.png", list(RULES), joins, title=title, y="joins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
