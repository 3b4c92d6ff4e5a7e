"""IFLOW's figure 2: order, places and reuse decided together, beside plan-then-deploy, on 64 peers.

    python -m experiments.iflow.figure_2 [--scale 0.1] [--seed N] [--master local[2]]

100 queries over five streams each. The text does not say whether the two that plan first reuse what flows, so both
readings are run. model.py says what networks and queries are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from experiments import plots, sweep
from experiments.iflow.deploy import TELLS, Measured, bounds_claim, cells, over, run_all
from experiments.iflow.model import size_told
from experiments.report import Claim, print_claims, print_table, told
from protocols.planning.planners import Planner

QUERIES: Final = 100
STREAMS: Final = (10, 20)
SAVED: Final = 0.5
PLANNERS: Final[tuple[Planner, ...]] = ("exact", "top-down", "phased", "relaxation")
READINGS: Final = {"all reuse": True, "phased reuse nothing": False}

Figures = dict[tuple[str, int], list[Measured]]
"""By reading, and streams of the workload."""


def figure(chosen: sweep.Options) -> Figures:
    usual = {"peers": 64, "joined": 5, "planners": list(PLANNERS)}
    asked = {
        (reading, streams): cells(chosen, QUERIES, streams=streams, phased_reuse=phased_reuse, **usual)
        for reading, phased_reuse in READINGS.items()
        for streams in STREAMS
    }
    return run_all("iflow_2", asked, chosen)


def claims(found: Figures) -> Iterator[Claim]:
    for reading in READINGS:
        for beside in ("relaxation", "phased"):
            saved = {
                f"{streams} streams": 1 - 1 / over(results, beside)
                for (each, streams), results in found.items()
                if each == reading
            }
            yield Claim(
                "fig 2",
                f"over half of the cost of {TELLS[beside]} is saved ({reading})",
                f"saved: {told(saved)}",
                min(saved.values()) > SAVED,
            )
    yield bounds_claim("theorems", [each for results in found.values() for each in results])


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("IFLOW, figure 2", scale=0.1).parse_args(arguments))
    found = figure(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale, QUERIES)} in each row")
    print_table(
        ("reading", "streams", *(f"{TELLS[name]}, cost over exact" for name in PLANNERS[1:])),
        [
            (reading, str(streams), *(over(results, name) for name in PLANNERS[1:]))
            for (reading, streams), results in found.items()
        ],
    )
    print_claims(claims(found))
    groups = [f"{reading}\n{streams} streams" for reading, streams in found]
    series = {TELLS[name]: [over(results, name) for results in found.values()] for name in PLANNERS}
    plots.bars(chosen.out / "iflow_2.png", groups, series, title="IFLOW, figure 2", y="cost over exact")
    return 0


if __name__ == "__main__":
    sys.exit(main())
