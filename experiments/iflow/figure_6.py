"""IFLOW's figures 6 to 11: what the size of clusters does to cost and search space; NPC at max_cs 16.

    python -m experiments.iflow.figure_6 [--scale 0.1] [--seed N] [--master local[2]]

128 peers, the synthetic workload with ten streams. Plans are counted as Lemma 1 does: all that a coordinator decides
among, though our programme does not make each.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from experiments import plots, sweep
from experiments.iflow.deploy import TELLS, Measured, bounds_claim, cells, mean, over, percent, run_all
from experiments.iflow.model import size_told
from experiments.report import Claim, print_claims, print_table, told
from protocols.planning.planners import CLUSTERED, Planner

QUERIES: Final = 100
SIZES: Final = (4, 8, 16, 32, 64)
PLANNERS: Final[tuple[Planner, ...]] = ("exact", *CLUSTERED)
FEWER: Final = 0.67  # Of Top-Down's plans are not looked at by Bottom-Up, on average.
LIKE: Final = 0.05  # Costs that the paper calls close.

Figures = dict[int, list[Measured]]
"""By max_cs."""


def figure(chosen: sweep.Options) -> Figures:
    asked = {size: cells(chosen, QUERIES, max_cs=size, planners=list(PLANNERS)) for size in SIZES}
    return run_all("iflow_6", asked, chosen)


def claims(found: Figures) -> Iterator[Claim]:
    yield from _search_claims(found)
    bottom_up = {size: over(results, "bottom-up") for size, results in found.items()}
    yield Claim(
        "fig 8",
        "Bottom-Up's cost falls as clusters grow (paper: by 21 % from 8 to 64)",
        f"from 8 to 64 {percent(bottom_up[64] / bottom_up[8])}; over exact: {told(bottom_up)}",
        bottom_up[64] < bottom_up[32] < bottom_up[16] < bottom_up[8],
    )
    top_down = {size: over(results, "top-down") for size, results in found.items()}
    large = [cost for size, cost in top_down.items() if size > 4]
    yield Claim(
        "fig 9",
        f"Top-Down's costs above max_cs 4 are close to each other (within {LIKE:.0%}), and 4 is worst",
        f"over exact: {told(top_down)}",
        max(large) <= min(large) * (1 + LIKE) and top_down[4] == max(top_down.values()),
    )
    for npc in ("npc", "npc-inputs"):
        cost = over(found[16], npc, "top-down")
        plans = over(found[16], npc, "top-down", "examined")
        yield Claim(
            "figs 10, 11",
            f"{TELLS[npc]} costs within 1 % of Top-Down, and looks at fewer plans (paper: 14 %; max_cs 16)",
            f"cost {percent(cost)}, plans {percent(plans)}",
            cost <= 1.015 and plans < 1,
        )
    yield bounds_claim("theorems", [each for results in found.values() for each in results])


def _search_claims(found: Figures) -> Iterator[Claim]:
    for name, where in (("bottom-up", "fig 6"), ("top-down", "fig 7")):
        plans = {size: mean(results, name, "examined") for size, results in found.items()}
        counted = ", ".join(f"{size}: {count:.2g}" for size, count in plans.items())
        yield Claim(where, f"{TELLS[name]}: fewer plans with max_cs 32 than with 16", counted, plans[32] < plans[16])
        yield Claim(where, f"{TELLS[name]}: most plans with max_cs 64", counted, plans[64] == max(plans.values()))
    less = {size: over(results, "bottom-up", "top-down", "examined") for size, results in found.items()}
    average = statistics.fmean(ratio for size, ratio in less.items() if size < 64)
    each = ", ".join(f"{size}: {percent(ratio)}" for size, ratio in less.items())
    yield Claim(
        "fig 6",
        "Bottom-Up looks at fewer plans than Top-Down on average (paper: 67 %)",
        f"{percent(average)} over 4 to 32; {each}",
        average < 1,
    )
    yield Claim("fig 6", "but at more with max_cs 64", each, less[64] > 1)


def draw(found: Figures, chosen: sweep.Options) -> None:
    for number, field, y in ((6, "examined", "plans examined"), (8, "cost", "cost over exact")):
        series = {}
        for name in CLUSTERED:
            values = [mean(r, name, field) if field == "examined" else over(r, name) for r in found.values()]
            series[TELLS[name]] = list(zip(map(float, found), values, strict=True))
        path = chosen.out / f"iflow_{number}.png"
        log = "xy" if field == "examined" else "x"
        plots.lines(path, series, title=f"IFLOW, figures {number} and {number + 1}", x="max_cs", y=y, log=log)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("IFLOW, figures 6 to 11", scale=0.1).parse_args(arguments))
    found = figure(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale, QUERIES)} for each max_cs")
    print_table(
        ("max_cs", *(f"{TELLS[name]}, over exact" for name in CLUSTERED), *(f"{TELLS[n]}, plans" for n in CLUSTERED)),
        [
            (
                str(size),
                *(over(results, name) for name in CLUSTERED),
                *(f"{mean(results, name, 'examined'):.2g}" for name in CLUSTERED),
            )
            for size, results in found.items()
        ],
    )
    print_claims(claims(found))
    draw(found, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
