"""SAND's figures 11 and 12: bandwidth, stretch, and where operators go, as operators let more through.

    python -m experiments.sand.figure_11 [--scale 0.01] [--seed N] [--master local[2]]

A selectivity is the upper bound of those of the operators, which are uniform from 0 to it. In-Network, as in the paper,
and the optimum beside it; the same trees at each selectivity. The paper does not say what the delay bound is, so both
are tried; sources lie up to the tight one away from the proxy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, told
from experiments.sand.model import (
    BOUNDS,
    SCENARIOS,
    TIGHT_MS,
    Lines,
    gathered,
    measure,
    optimum_claim,
    size_told,
    slices,
)
from protocols.placement.place import Algorithm

SELECTIVITIES: Final = (0.25, 0.5, 0.75, 1.0)
SHOWN_SCENARIOS: Final = ("cluster", "star")
SHOWN: Final[tuple[Algorithm, ...]] = ("in-network", "exact")


def cells(chosen: sweep.Options) -> list[dict[str, Any]]:
    return [
        {
            "seed": chosen.seed,
            **each._asdict(),
            "apd_over_asd": SCENARIOS[scenario],
            "selectivity": selectivity,
            "reach_ms": TIGHT_MS,
            "bounds_ms": list(BOUNDS.values()),
            "algorithms": list(SHOWN),
        }
        for each in slices(chosen.scale)
        for scenario in SHOWN_SCENARIOS
        for selectivity in SELECTIVITIES
    ]


def figures(chosen: sweep.Options) -> Lines:
    asked = cells(chosen)
    results = sweep.run("sand_11", measure, asked, chosen)
    found = gathered(asked, results, lambda cell: (cell["apd_over_asd"], cell["selectivity"]))
    return {
        (f"{scenario}, {bound}", name): {
            each: found[(SCENARIOS[scenario], each), bound_ms, name] for each in SELECTIVITIES
        }
        for bound, bound_ms in BOUNDS.items()
        for scenario in SHOWN_SCENARIOS
        for name in SHOWN
    }


def claims(found: Lines) -> Iterator[Claim]:
    for bound in BOUNDS:
        yield from _claims_within(bound, found)
    yield optimum_claim(found)


def _claims_within(bound: str, found: Lines) -> Iterator[Claim]:
    def lines(field: str) -> dict[str, dict[float, float]]:
        return {
            scenario: {each: getattr(out, field) for each, out in found[f"{scenario}, {bound}", "in-network"].items()}
            for scenario in SHOWN_SCENARIOS
        }

    ratio, stretch, between, at_proxy = (lines(field) for field in ("ratio", "stretch", "in_network", "at_proxy"))
    for scenario in SHOWN_SCENARIOS:
        place = f"({scenario}, {bound})"
        yield Claim(
            "fig 11", f"the ratio rises with selectivity {place}", told(ratio[scenario]), _rises(ratio[scenario])
        )
        says = f"the stretch falls with selectivity {place}"
        yield Claim("fig 11", says, told(stretch[scenario]), _falls(stretch[scenario]))
    yield Claim(
        "fig 11",
        f"star has the higher ratio ({bound})",
        _both(ratio),
        all(ratio["star"][each] > ratio["cluster"][each] for each in SELECTIVITIES),
    )
    yield Claim(
        "fig 12",
        f"a cluster uses peers in the network more than a star, on average ({bound})",
        _both(between),
        sum(between["cluster"].values()) > sum(between["star"].values()),
    )
    yield Claim(
        "fig 12",
        f"a star uses the proxy more than a cluster, on average ({bound})",
        _both(at_proxy),
        sum(at_proxy["star"].values()) > sum(at_proxy["cluster"].values()),
    )
    for where, shares in (("in the network", between), ("at the proxy", at_proxy)):
        yield Claim(
            "fig 12",
            f"less selective operators are more often {where} ({bound})",
            _both(shares),
            all(line[SELECTIVITIES[-1]] > line[SELECTIVITIES[0]] for line in shares.values()),
        )


def _both(lines: dict[str, dict[float, float]]) -> str:
    return "; ".join(f"{scenario}: {told(line)}" for scenario, line in lines.items())


def _rises(line: dict[float, float]) -> bool:
    return all(a < b for a, b in pairwise(line.values()))


def _falls(line: dict[float, float]) -> bool:
    return all(a > b for a, b in pairwise(line.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("SAND, figures 11 and 12", scale=0.01, seed=11).parse_args(arguments))
    found = figures(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale)} at each selectivity")
    print_table(
        ("case", "algorithm", "selectivity", "ratio", "stretch", "sources", "network", "proxy", "over optimum"),
        [
            (case, name, each, out.ratio, out.stretch, *out[3:6], f"{out.over_optimum:.1%}")
            for (case, name), line in found.items()
            for each, out in line.items()
        ],
    )
    print_claims(claims(found))
    draw(found, chosen)
    return 0


def draw(found: Lines, chosen: sweep.Options) -> None:
    cases = list(dict.fromkeys(case for case, _ in found))
    plots.lines(
        chosen.out / "sand_11.png",
        {
            f"{what}, {case}": [(each, getattr(outcome, what)) for each, outcome in line.items()]
            for what in ("ratio", "stretch")
            for (case, name), line in found.items()
            if name == "in-network"
        },
        title="SAND, figure 11: selectivity",
        x="upper bound of selectivities",
        y="bandwidth consumption ratio, stretch",
    )
    plots.bars(
        chosen.out / "sand_12.png",
        [f"{each:g}\n{case.replace(', ', chr(10)) if each == 0.5 else ''}" for case in cases for each in SELECTIVITIES],
        {
            what.replace("_", " "): [getattr(out, what) for case in cases for out in found[case, "in-network"].values()]
            for what in ("at_sources", "in_network", "at_proxy")
        },
        title="SAND, figure 12: where In-Network's operators go",
        y="share of operators",
    )


if __name__ == "__main__":
    sys.exit(main())
