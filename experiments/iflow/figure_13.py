"""IFLOW's figures 13 and 14: the airline's 300 queries, their cost and how many joins are deployed.

    python -m experiments.iflow.figure_13 [--scale 0.1] [--seed N] [--master local[2]]

80 % gate agents, 15 % terminals, 5 % ad hoc, over the five streams of figure 5; 128 peers, max_cs 32. The text leaves
open where filters are, and says that all planners reuse, so several readings are run; deploy.py says what they are.
With long results a join's are as large as all its records; otherwise they have 100 bytes, as a record has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from experiments import plots, sweep
from experiments.iflow.deploy import TELLS, Measured, bounds_claim, cells, mean, over, percent, print_costs, run_all
from experiments.iflow.model import size_told
from experiments.report import Claim, print_claims, print_table
from protocols.planning.planners import Planner

QUERIES: Final = 300
PLANNERS: Final[tuple[Planner, ...]] = (
    "exact",
    "top-down",
    "npc",
    "npc-inputs",
    "bottom-up",
    "phased",
    "in-network",
    "relaxation",
)
READINGS: Final[dict[str, dict[str, Any]]] = {
    "whole joins": {"filters": "shared"},
    "whole joins, phased reuse nothing": {"filters": "shared", "phased_reuse": False},
    "whole joins, long results": {"filters": "shared", "has_long_results": True},
    "pushed filters": {"filters": "pushed"},
    "pushed filters, phased reuse nothing": {"filters": "pushed", "phased_reuse": False},
}
PAPER: Final[dict[str, float]] = {"exact": 1.0, "top-down": 1.05, "npc": 1.06, "npc-inputs": 1.06, "bottom-up": 1.36}
SAVED: Final = {"top-down": (0.42, 0.96), "npc": (0.41, 0.95), "bottom-up": (0.25, 0.93)}
"""Of In-Network's and of Relaxation's cost."""
FEWER: Final = {"top-down": 0.81, "bottom-up": 0.73, "npc": 0.48}
"""Joins, compared with those that plan first."""

Figures = dict[str, list[Measured]]


def figure(chosen: sweep.Options) -> Figures:
    usual = {"workload": "airline", "planners": list(PLANNERS)}
    asked = {reading: cells(chosen, QUERIES, **usual, **given) for reading, given in READINGS.items()}
    return run_all("iflow_13", asked, chosen)


def claims(found: Figures) -> Iterator[Claim]:
    for reading, results in found.items():
        ratio: dict[str, float] = {name: over(results, name) for name in PLANNERS}
        yield Claim(
            f"fig 13, {reading}",
            "the order is optimum, Top-Down, NPC, Bottom-Up (paper: +5, +6, +36 %)",
            ", ".join(f"{TELLS[name]} {percent(ratio[name])}" for name in PAPER),
            1 <= ratio["top-down"] <= ratio["npc"] <= ratio["bottom-up"],
        )
        saved = {name: [1 - ratio[name] / ratio[other] for other in ("in-network", "relaxation")] for name in SAVED}
        yield Claim(
            f"fig 13, {reading}",
            "all save over In-Network (paper: 42, 41, 25 %) and Relaxation (96, 95, 93 %)",
            "; ".join(f"{TELLS[name]} {a:.0%} and {b:.0%}" for name, (a, b) in saved.items()),
            all(min(each) > 0 for each in saved.values()),
        )
        joins: dict[str, float] = {name: mean(results, name, "joins") for name in PLANNERS}
        phased = (joins["in-network"] + joins["relaxation"]) / 2
        yield Claim(
            f"fig 14, {reading}",
            "all deploy fewer joins than those that plan first (paper: -81, -73, -48 %)",
            ", ".join(f"{TELLS[name]} {percent(joins[name] / phased)}" for name in FEWER),
            all(joins[name] < phased for name in FEWER),
        )
    yield bounds_claim("theorems", [each for results in found.values() for each in results])


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("IFLOW, figures 13 and 14", scale=0.1).parse_args(arguments))
    found = figure(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale, QUERIES)} in each reading")
    print_costs(found, PLANNERS, PAPER)
    print_table(
        ("joins deployed", *found),
        [(TELLS[name], *(f"{mean(results, name, 'joins'):.0f}" for results in found.values())) for name in PLANNERS],
    )
    print_claims(claims(found))
    for number, field, y in ((13, "cost", "cost over exact"), (14, "joins", "joins deployed over exact")):
        series = {TELLS[name]: [over(r, name, "exact", field) for r in found.values()] for name in PLANNERS}
        groups = [reading.replace(", ", ",\n") for reading in found]
        plots.bars(chosen.out / f"iflow_{number}.png", groups, series, title=f"IFLOW, figure {number}", y=y, log="y")
    return 0


if __name__ == "__main__":
    sys.exit(main())
