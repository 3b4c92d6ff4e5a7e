"""SAND's figures 11 and 12: bandwidth, stretch, and where operators go, as operators let more through.

    python -m experiments.sand_11 [--scale 0.01] [--seed N] [--master local[2]]

A selectivity is the upper bound of those of the operators, which are uniform from 0 to it. In-Network with the loose
bound, as in the paper, and the optimum beside it; the same trees at each selectivity.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, told
from experiments.sand import LOOSE_MS, SCENARIOS, Lines, gathered, measure, optimum_claim, size_told, slices
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
            "bounds_ms": [LOOSE_MS],
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
        (scenario, name): {each: found[(SCENARIOS[scenario], each), LOOSE_MS, name] for each in SELECTIVITIES}
        for scenario in SHOWN_SCENARIOS
        for name in SHOWN
    }


def claims(found: Lines) -> Iterator[Claim]:
    def line(scenario: str, field: str) -> dict[float, float]:
        return {each: getattr(outcome, field) for each, outcome in found[scenario, "in-network"].items()}

    for scenario in SHOWN_SCENARIOS:
        ratio, stretch = line(scenario, "ratio"), line(scenario, "stretch")
        yield Claim("fig 11", f"the ratio rises with selectivity ({scenario})", told(ratio), _rises(ratio))
        yield Claim("fig 11", f"the stretch falls with selectivity ({scenario})", told(stretch), _falls(stretch))
    ratios = {scenario: line(scenario, "ratio") for scenario in SHOWN_SCENARIOS}
    yield Claim(
        "fig 11",
        "star has the higher ratio",
        told({scenario: each[1.0] for scenario, each in ratios.items()}),
        all(ratios["star"][each] > ratios["cluster"][each] for each in SELECTIVITIES),
    )
    between = {scenario: line(scenario, "in_network") for scenario in SHOWN_SCENARIOS}
    at_proxy = {scenario: line(scenario, "at_proxy") for scenario in SHOWN_SCENARIOS}
    yield Claim(
        "fig 12",
        "a cluster uses peers in the network more than a star (on average)",
        "; ".join(f"{scenario}: {told(each)}" for scenario, each in between.items()),
        sum(between["cluster"].values()) > sum(between["star"].values()),
    )
    yield Claim(
        "fig 12",
        "a star uses the proxy more than a cluster (on average)",
        "; ".join(f"{scenario}: {told(each)}" for scenario, each in at_proxy.items()),
        sum(at_proxy["star"].values()) > sum(at_proxy["cluster"].values()),
    )
    for scenario in SHOWN_SCENARIOS:
        for where, shares in (("in the network", between), ("at the proxy", at_proxy)):
            says = f"less selective operators are more often {where} ({scenario})"
            yield Claim("fig 12", says, told(shares[scenario]), shares[scenario][1.0] > shares[scenario][0.25])
    yield optimum_claim(found)


def _rises(line: dict[float, float]) -> bool:
    return all(a < b for a, b in pairwise(line.values()))


def _falls(line: dict[float, float]) -> bool:
    return all(a > b for a, b in pairwise(line.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("SAND, figures 11 and 12", scale=0.01, seed=11).parse_args(arguments))
    found = figures(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale)} at each selectivity")
    print_table(
        ("scenario", "algorithm", "selectivity", "ratio", "stretch", "sources", "network", "proxy", "over optimum"),
        [
            (scenario, name, each, out.ratio, out.stretch, *out[3:6], f"{out.over_optimum:.1%}")
            for (scenario, name), line in found.items()
            for each, out in line.items()
        ],
    )
    print_claims(claims(found))
    draw(found, chosen)
    return 0


def draw(found: Lines, chosen: sweep.Options) -> None:
    plots.lines(
        chosen.out / "sand_11.png",
        {
            f"{what}, {scenario}, {name}": [(each, getattr(outcome, what)) for each, outcome in line.items()]
            for what in ("ratio", "stretch")
            for (scenario, name), line in found.items()
        },
        title="SAND, figure 11: selectivity",
        x="upper bound of selectivities",
        y="bandwidth consumption ratio, stretch",
    )
    plots.bars(
        chosen.out / "sand_12.png",
        [f"{scenario}\n{each:g}" for scenario in SHOWN_SCENARIOS for each in SELECTIVITIES],
        {
            what.replace("_", " "): [
                getattr(found[scenario, "in-network"][each], what)
                for scenario in SHOWN_SCENARIOS
                for each in SELECTIVITIES
            ]
            for what in ("at_sources", "in_network", "at_proxy")
        },
        title="SAND, figure 12: where In-Network's operators go",
        y="share of operators",
    )


if __name__ == "__main__":
    sys.exit(main())
