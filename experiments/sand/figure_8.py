"""SAND's figure 8: how much bandwidth can be saved as sources are laid farther apart.

    python -m experiments.sand.figure_8 [--scale 0.01] [--seed N] [--master local[2]]

The sources of a cluster stay as far from the proxy (90 ms on average, 120 at most), and their distance to each other
grows: with it APD over ASD falls. Were APD to grow as well, nothing but the unit of distance would change without a
bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, told
from experiments.sand.model import (
    BOUNDS,
    DIAMETER_MS,
    TIGHT_MS,
    Lines,
    gathered,
    measure,
    optimum_claim,
    size_told,
    slices,
)
from protocols.placement.place import Algorithm

APD_MS: Final = 90.0
SHARES: Final = (0.06, 0.1, 0.14, 0.18, 0.22)  # ASD over the diameter.
DEPTHS: Final = (3, 4)  # 32 sources do not fit so near to each other.
SHOWN: Final[tuple[Algorithm, ...]] = ("edge", "edge+", "in-network", "exact")


def cells(chosen: sweep.Options) -> list[dict[str, Any]]:
    return [
        {
            "seed": chosen.seed,
            **each._asdict(),
            "layout_ms": [APD_MS, share * DIAMETER_MS],
            "reach_ms": TIGHT_MS,
            "depths": list(DEPTHS),
            "bounds_ms": list(BOUNDS.values()),
            "algorithms": list(SHOWN),
        }
        for each in slices(chosen.scale)
        for share in SHARES
    ]


def figure(chosen: sweep.Options) -> Lines:
    asked = cells(chosen)
    found = gathered(asked, sweep.run("sand_8", measure, asked, chosen), lambda cell: cell["layout_ms"][1])
    return {
        (bound, name): {share: found[share * DIAMETER_MS, bound_ms, name] for share in SHARES}
        for bound, bound_ms in BOUNDS.items()
        for name in SHOWN
    }


def claims(found: Lines) -> Iterator[Claim]:
    ratio = {bound: {share: each.ratio for share, each in found[bound, "in-network"].items()} for bound in BOUNDS}
    for bound, line in ratio.items():
        values = list(line.values())
        yield Claim(
            "fig 8",
            f"the ratio grows with ASD (In-Network, {bound})",
            told(line),
            values == sorted(values),
        )
    middle = SHARES[len(SHARES) // 2]
    growth = {bound: line[middle] - line[SHARES[0]] for bound, line in ratio.items()}
    whole = {bound: line[SHARES[-1]] - line[SHARES[0]] for bound, line in ratio.items()}
    yield Claim(
        "fig 8",
        "it grows faster under the tight bound, while there is something to gain",
        f"growth up to {middle:g}: {told(growth)}; in all: {told(whole)}",
        growth["tight"] > growth["loose"],
    )
    left = {bound: 1 - line[SHARES[-1]] for bound, line in ratio.items()}
    yield Claim(
        "fig 8",
        "far apart, a tight bound leaves little beyond the baseline, a loose one still something",
        f"left to gain at the largest ASD: {told(left)}",
        left["tight"] < left["loose"],
    )
    yield optimum_claim(found)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("SAND, figure 8", scale=0.01, seed=8).parse_args(arguments))
    found = figure(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale)} at each distance")
    print_table(
        ("bound", "algorithm", "ASD/diameter", "ASD ms", "APD ms", "ratio", "stretch", "over optimum"),
        [
            (bound, name, share, each.asd_ms, each.apd_ms, each.ratio, each.stretch, f"{each.over_optimum:.1%}")
            for (bound, name), line in found.items()
            for share, each in line.items()
        ],
    )
    print_claims(claims(found))
    plots.lines(
        chosen.out / "sand_8.png",
        {
            f"{name}, {bound}": [(each.asd_ms / DIAMETER_MS, each.ratio) for each in line.values()]
            for (bound, name), line in found.items()
        },
        title="SAND, figure 8: sources farther apart",
        x="ASD over the diameter",
        y="bandwidth consumption ratio",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
