"""Ours: what a planner knows of StreamGlobe's selections, by guess, by advertised quantiles, and in truth.

    python -m experiments.streamglobe.estimates [--scale 0.2] [--seed N]

A publisher's sketch sees the sample of photons as it sees tuples. The share of photons that each selection of set-up 2
keeps is estimated from what it advertises; our trees are planned by that, and what then flows is counted by the truth.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table
from experiments.streamglobe import ours
from experiments.streamglobe.measure import SEEDS
from experiments.streamglobe.trees import Forest
from experiments.streamglobe.world import World, stream_of, world
from protocols.catalogue.statistics import SAMPLE_MAX, StatisticsSketch
from queries.expressions import Column, Expression, rewritten
from queries.functions import call
from queries.selectivity import Columns, ColumnStatistics, selected

WAYS: Final = ("guess", "quantiles", "truth")
MORE: Final = 1.1  # How much more may flow than with the truth.

Shares = Callable[[int, Sequence[Expression | None]], float]


class Estimated(NamedTuple):
    """One run: how far estimates were off, and what flowed where trees were planned by them."""

    error: dict[str, float]
    mbps: dict[str, float]


def advertised(asked: World, stream: int) -> Columns:
    """What the publisher of a stream tells of it."""
    rows, sketch = asked.samples[stream], StatisticsSketch.of(stream_of(stream).schema.fields)
    for first in range(0, len(rows), SAMPLE_MAX):
        batch = rows[first : first + SAMPLE_MAX]
        sketch.add(batch, count=len(batch), size=len(batch), now=0)
    told = sketch.summary(now=0).numbers
    return {("", each.path): ColumnStatistics(quantiles=each.quantiles, nulls=each.nulls) for each in told}


def share(columns: Columns, predicates: Sequence[Expression | None]) -> float:
    """The share of rows that meet any of some conditions."""
    if any(each is None for each in predicates):
        return 1.0
    parts = [_plain(each) for each in predicates if each is not None]
    return selected(parts[0] if len(parts) == 1 else call("or", *parts), columns)[0]


def _plain(predicate: Expression) -> Expression:
    """The condition with columns of no input, as properties have them."""
    return rewritten(predicate, lambda n: msgspec.structs.replace(n, input="") if isinstance(n, Column) else n)


def estimated(seed: int, setup: int = 2) -> Estimated:
    asked = world(setup, seed, is_tight=False)
    known = [advertised(asked, stream) for stream in range(len(asked.samples))]
    ways: dict[str, Shares] = {
        "guess": lambda _, predicates: share({}, predicates),
        "quantiles": lambda stream, predicates: share(known[stream], predicates),
        "truth": lambda stream, predicates: asked.rows_per_s(stream, predicates) / asked.per_s,
    }
    error = {
        name: statistics.fmean(
            abs(way(each.stream, [each.needs.predicate]) - ways["truth"](each.stream, [each.needs.predicate]))
            for each in asked.queries
            if each.needs.predicate is not None
        )
        for name, way in ways.items()
    }
    return Estimated(error, {name: _traffic(asked, way, ways["truth"]) for name, way in ways.items()})


def _traffic(asked: World, way: Shares, truth: Shares) -> float:
    """What flows in trees that were planned by one way to know, in Mbit/s."""
    forest = ours.forest_of(asked, moves=True)
    _believe(forest, asked, way)
    for query in asked.queries:
        forest.add(ours.reader_of(asked, forest.trees[query.stream].facts, query))
    forest.improve()
    planned = [each.needs() for each in forest.trees]
    _believe(forest, asked, truth)
    total = 0.0
    for tree, needs in zip(forest.trees, planned, strict=True):
        total += sum(8 * tree.facts.flow(need).bytes_per_s for node in tree.parents for need in needs[node])
    return total / 1e6


def _believe(forest: Forest, asked: World, way: Shares) -> None:
    for stream, tree in enumerate(forest.trees):
        tree.facts.learn(partial(_rate, asked.per_s, way, stream))


def _rate(per_s: float, way: Shares, stream: int, predicates: Sequence[Expression | None]) -> float:
    return per_s * way(stream, predicates)


def claims(found: Sequence[Estimated]) -> Iterator[Claim]:
    error = {name: statistics.fmean(each.error[name] for each in found) for name in WAYS}
    mbps = {name: statistics.fmean(each.mbps[name] for each in found) for name in WAYS}
    yield Claim(
        "ours",
        "advertised quantiles are nearer than guesses to the share of rows that a selection keeps",
        f"off by {error['quantiles']:.3f} of all rows on average, guesses by {error['guess']:.3f};"
        " conditions on several elements count as independent",
        error["quantiles"] < error["guess"],
    )
    yield Claim(
        "ours",
        f"trees planned by them carry at most {MORE} times what they carry if all is known",
        f"{mbps['quantiles'] / mbps['truth']:.3f} times; by guesses {mbps['guess'] / mbps['truth']:.3f} times",
        mbps["quantiles"] <= MORE * mbps["truth"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("what planners know of selections", scale=0.2).parse_args(arguments))
    seeds = range(chosen.seed, chosen.seed + max(1, round(SEEDS * chosen.scale)))
    found = [estimated(seed) for seed in seeds]
    print(f"seed={chosen.seed}, {len(found)} seeds; set-up 2, rows of trees alone")
    error = [statistics.fmean(each.error[name] for each in found) for name in WAYS]
    mbps = [statistics.fmean(each.mbps[name] for each in found) for name in WAYS]
    print_table(("planned by", "mean error of a share", "Mbit/s"), list(zip(WAYS, error, mbps, strict=True)))
    print_claims(claims(found))
    title = "Trees of set-up 2, planned by what is known of selections"
    plots.bars(chosen.out / "streamglobe_estimates.png", list(WAYS), {"ours": mbps}, title=title, y="Mbit/s, all links")
    return 0


if __name__ == "__main__":
    sys.exit(main())
