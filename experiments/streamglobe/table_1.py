"""StreamGlobe's table 1: what it costs to register a query under each strategy.

    python -m experiments.streamglobe.table_1 [--scale 0.1] [--seed N]

The paper's times are those of its prototype from registration until the query runs. Peers do not share streams yet, so
here it is the CPU time until the plan is there: the text is parsed, described, matched and planned. What can be
compared is by how much sharing is slower than the two simple strategies.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, told
from experiments.streamglobe.measure import PAPERS, SEEDS, STRATEGIES, posed
from experiments.streamglobe.world import World, stream_of, world
from queries.canonical import canonical
from queries.properties import properties
from queries.query import parse

PAPER: Final = {  # Average, minimum and maximum in milliseconds, for set-ups 1 and 2.
    "data shipping": ((931, 390, 2078), (1363, 265, 4953)),
    "query shipping": ((890, 284, 2032), (1287, 250, 4802)),
    "SUBSCRIBE": ((2153, 509, 5025), (3558, 672, 11855)),
}
WITHIN: Final = 3.0
GOAL_MS: Final = 50.0

Times = dict[str, list[float]]


def described_ms(asked: World) -> list[float]:
    """CPU to understand each query, the same under every strategy."""
    found = []
    for query in asked.queries:
        known = {f"photons{query.stream}": stream_of(query.stream)}
        begun = time.process_time()
        properties(canonical(parse(query.text, known).plan))
        found.append(1000 * (time.process_time() - begun))
    return found


def times(setup: int, chosen: sweep.Options) -> Times:
    found: Times = {}
    for seed in range(chosen.seed, chosen.seed + max(1, round(SEEDS * chosen.scale))):
        asked = world(setup, seed, is_tight=False)
        understood = described_ms(asked)
        for name in STRATEGIES:
            posed(asked, name)  # What flows is looked up in a sample here, and advertised on a network: not counted.
            plans = posed(asked, name)[2]
            found.setdefault(name, []).extend(map(sum, zip(understood, plans, strict=True)))
    return found


def claims(found: dict[int, Times]) -> Iterator[Claim]:
    for setup, each in found.items():
        average = {name: statistics.fmean(took) for name, took in each.items()}
        simple = min(average[name] for name in PAPERS[:2])
        yield Claim(
            f"table 1, set-up {setup}",
            f"sharing stays within a factor of {WITHIN:g} of the others",
            f"ms: {told(average)}; SUBSCRIBE {average['SUBSCRIBE'] / simple:.2f} times the faster of the others",
            average["SUBSCRIBE"] <= WITHIN * simple,
        )
        worst = max(each["ours"])
        yield Claim(
            f"ours, set-up {setup}",
            f"a plan takes less CPU time than {GOAL_MS:g} ms for every query",
            f"{worst:.1f} ms at most, {statistics.fmean(each['ours']):.1f} on average",
            worst < GOAL_MS,
        )


def draw(found: dict[int, Times], chosen: sweep.Options) -> None:
    series = {
        f"paper, set-up {setup}": [PAPER[name][setup - 1][0] / PAPER["query shipping"][setup - 1][0] for name in PAPERS]
        for setup in found
    }
    for setup, each in found.items():
        simple = statistics.fmean(each["query shipping"])
        series[f"here, set-up {setup}"] = [statistics.fmean(each[name]) / simple for name in PAPERS]
    title = "StreamGlobe, table 1: time to register a query"
    path = chosen.out / "streamglobe_table_1.png"
    plots.bars(path, list(PAPERS), series, title=title, y="average, over that of query shipping")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("StreamGlobe, table 1", scale=0.1).parse_args(arguments))
    found = {setup: times(setup, chosen) for setup in (1, 2)}
    print(f"seed={chosen.seed}, {max(1, round(SEEDS * chosen.scale))} seeds; average, minimum, maximum in ms")
    rows = []
    for name in STRATEGIES:
        for setup, each in found.items():
            paper = " ".join(map(str, PAPER[name][setup - 1])) if name in PAPER else "-"
            took = each[name]
            rows.append((name, str(setup), paper, statistics.fmean(took), min(took), max(took)))
    print_table(("strategy", "set-up", "paper, until it runs", "average", "minimum", "maximum"), rows)
    print_claims(claims(found))
    draw(found, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
