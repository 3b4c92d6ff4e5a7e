"""SAND's figures 6 and 7: bandwidth and stretch of each placement, for sources around, across and away from the proxy.

    python -m experiments.sand.figure_6 [--scale 0.01] [--seed N] [--master local[2]]

model.py says what networks, layouts and trees are. The paper's figures are bars without numbers, so its
claims are what is compared; the optimum within the bound stands beside its algorithms.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, span, told
from experiments.sand.model import BOUNDS, REACH_MS, SCENARIOS, Outcome, gathered, measure, size_told, slices
from protocols.placement.place import ALGORITHMS, Algorithm

ALIKE: Final = 0.1  # What the paper's bars do not tell apart.
AWARE: Final[tuple[Algorithm, ...]] = ("edge+", "in-network")

Figures = dict[tuple[str, str], dict[Algorithm, Outcome]]
"""By scenario and bound, the mean of each algorithm."""
Cells = dict[tuple[str, str], dict[Algorithm, float]]
"""The same of one figure."""


def cells(chosen: sweep.Options, reach_ms: float) -> list[dict[str, Any]]:
    return [
        {
            "seed": chosen.seed,
            **each._asdict(),
            "apd_over_asd": apd_over_asd,
            "reach_ms": reach_ms,
            "bounds_ms": list(BOUNDS.values()),
            "algorithms": list(ALGORITHMS),
        }
        for each in slices(chosen.scale)
        for apd_over_asd in SCENARIOS.values()
    ]


def figures(chosen: sweep.Options, reach_ms: float = REACH_MS) -> Figures:
    asked = cells(chosen, reach_ms)
    found = gathered(asked, sweep.run("sand_6", measure, asked, chosen), itemgetter("apd_over_asd"))
    return {
        (scenario, bound): {name: found[apd_over_asd, bound_ms, name] for name in ALGORITHMS}
        for scenario, apd_over_asd in SCENARIOS.items()
        for bound, bound_ms in BOUNDS.items()
    }


def claims(found: Figures) -> Iterator[Claim]:
    """What the paper reads off its figures, and what we add."""
    ratio = {key: {name: each.ratio for name, each in cell.items()} for key, cell in found.items()}
    yield from _bandwidth_claims(ratio)
    yield from _stretch_claims(
        {key: {name: each.stretch for name, each in cell.items()} for key, cell in found.items()}
    )
    gain = [cell["exact"] / cell["in-network"] for cell in ratio.values()]
    yield Claim(
        "ours",
        "exact uses less than In-Network in every cell of figure 6",
        f"over In-Network's: {span(gain)}",
        max(gain) < 1,
    )


def _bandwidth_claims(ratio: Cells) -> Iterator[Claim]:
    yield Claim(
        "fig 6",
        "Edge+ and In-Network use no more than Edge in every cell",
        "over Edge's: " + span([cell[name] / cell["edge"] for cell in ratio.values() for name in AWARE]),
        all(cell[name] <= cell["edge"] for cell in ratio.values() for name in AWARE),
    )
    for bound in BOUNDS:
        by_scenario = {scenario: ratio[scenario, bound]["in-network"] for scenario in SCENARIOS}
        yield Claim(
            "fig 6",
            f"cluster leaves the most to gain (In-Network, {bound})",
            told(by_scenario),
            by_scenario["cluster"] == min(by_scenario.values()),
        )
    apart = [abs(ratio["star", bound][name] - ratio["uniform", bound][name]) for bound in BOUNDS for name in ALGORITHMS]
    yield Claim("fig 6", f"star and uniform are alike (within {ALIKE})", f"apart: {span(apart)}", max(apart) < ALIKE)
    gains = {
        (scenario, bound, name): ratio[scenario, bound][name] / ratio[scenario, bound]["edge"]
        for scenario in ("star", "uniform")
        for bound in BOUNDS
        for name in AWARE
    }
    unlike = [abs(gains["star", bound, name] - gains["uniform", bound, name]) for bound in BOUNDS for name in AWARE]
    yield Claim(
        "fig 6",
        f"or: star and uniform are alike in what is gained over Edge (within {ALIKE})",
        f"apart: {span(unlike)}",
        max(unlike) < ALIKE,
    )
    moved = [
        ratio[scenario, "tight"][name] - ratio[scenario, "loose"][name]
        for scenario in SCENARIOS
        for name in ("edge", *AWARE)
    ]
    yield Claim(
        "fig 6", f"the bound changes little (within {ALIKE})", f"tight less loose: {span(moved)}", max(moved) < ALIKE
    )
    hardly = [
        abs(ratio[scenario, bound]["edge+"] - ratio[scenario, bound]["in-network"])
        for scenario in ("star", "uniform")
        for bound in BOUNDS
    ]
    yield Claim(
        "fig 6",
        f"Edge+ and In-Network can hardly be told apart for star and uniform (within {ALIKE})",
        f"apart: {span(hardly)}",
        max(hardly) < ALIKE,
    )


def _stretch_claims(stretch: Cells) -> Iterator[Claim]:
    loose = {scenario: stretch[scenario, "loose"] for scenario in SCENARIOS}
    tight = {scenario: stretch[scenario, "tight"] for scenario in SCENARIOS}
    yield Claim(
        "fig 7",
        "with the loose bound Edge's stretch is the worst",
        "Edge's over the next: " + span([each["edge"] / max(each[name] for name in AWARE) for each in loose.values()]),
        all(each["edge"] >= max(each[name] for name in AWARE) for each in loose.values()),
    )
    yield Claim(
        "fig 7",
        f"with the tight bound Edge is comparable to the others (within {ALIKE})",
        "apart: " + span([abs(each["edge"] - each[name]) for each in tight.values() for name in AWARE]),
        all(abs(each["edge"] - each[name]) < ALIKE for each in tight.values() for name in AWARE),
    )
    for where, cell, is_less in (("loose", loose, True), ("tight", tight, False)):
        gaps = {scenario: each["in-network"] - each["edge+"] for scenario, each in cell.items()}
        yield Claim(
            "fig 7",
            f"with the {where} bound In-Network's stretch is {'below' if is_less else 'not below'} Edge+'s",
            f"In-Network's less Edge+'s: {told(gaps)}",
            all((gap < 0) == is_less or gap == 0 for gap in gaps.values()),
        )


def draw(found: Figures, chosen: sweep.Options) -> None:
    groups = [f"{scenario}\n{bound}" for scenario, bound in found]
    for number, field, y in ((6, "ratio", "bandwidth consumption ratio"), (7, "stretch", "stretch")):
        series: dict[str, list[float]] = {
            name: [getattr(cell[name], field) for cell in found.values()] for name in ALGORITHMS if name != "baseline"
        }
        path = chosen.out / f"sand_{number}.png"
        plots.bars(path, groups, series, title=f"SAND, figure {number}: {y}", y=y)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = sweep.parser("SAND, figures 6 and 7", scale=0.01, seed=6)
    parser.add_argument("--reach", type=float, default=REACH_MS, help="ms that a source is away from the proxy at most")
    given = parser.parse_args(arguments)
    chosen = sweep.options(given)
    found = figures(chosen, given.reach)
    size = f"{size_told(chosen.scale)}, sources within {given.reach:g} ms"
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size}")
    print_table(
        ("scenario", "bound", "algorithm", "ratio", "stretch", "over optimum", "APD/ASD"),
        [
            (scenario, bound, name, each.ratio, each.stretch, f"{each.over_optimum:.1%}", each.apd_ms / each.asd_ms)
            for (scenario, bound), cell in found.items()
            for name, each in cell.items()
        ],
    )
    print_claims(claims(found))
    draw(found, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
