"""IFLOW's figure 15: how many plans are examined as the network grows, beside exhaustive search and the bounds.

    python -m experiments.iflow.figure_15 [--scale 0.1] [--seed N] [--master local[2]]

100 queries over four of ten streams, max_cs 32, networks of 64 to 510 peers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from experiments import plots, sweep
from experiments.iflow.deploy import TELLS, Measured, bounds_claim, cells, mean, over, percent, run_all
from experiments.iflow.model import size_of, size_told
from experiments.report import Claim, print_claims, print_table
from protocols.planning.planners import Planner
from protocols.planning.problem import lemma_1

QUERIES: Final = 100
PEERS: Final = (64, 128, 256, 510)
JOINED: Final = 4
MAX_CS: Final = 32
PLANNERS: Final[tuple[Planner, ...]] = ("exact", "top-down", "bottom-up")
CLUSTERED: Final = PLANNERS[1:]
CUT: Final = 0.99

Figures = dict[int, list[Measured]]
"""By peers."""


def figure(chosen: sweep.Options) -> Figures:
    planners = list(PLANNERS)
    asked = {peers: cells(chosen, QUERIES, peers=peers, joined=JOINED, planners=planners) for peers in PEERS}
    return run_all("iflow_15", asked, chosen)


def per_query(results: list[Measured], planner: Planner, scale: float) -> float:
    return mean(results, planner, "examined") / size_of(scale, QUERIES)[1]


def claims(found: Figures, scale: float) -> Iterator[Claim]:
    kept = {
        peers: max(per_query(results, name, scale) for name in CLUSTERED) / lemma_1(JOINED, peers)
        for peers, results in found.items()
    }
    yield Claim(
        "fig 15",
        "both look at 99 % fewer plans than exhaustive search, at the least",
        ", ".join(f"{peers} peers: {share:.2%} are left" for peers, share in kept.items()),
        max(kept.values()) <= 1 - CUT,
    )
    less = {peers: over(results, "bottom-up", "top-down", "examined") for peers, results in found.items()}
    yield Claim(
        "fig 15",
        "Bottom-Up looks at fewer plans than Top-Down (paper: 45 %)",
        ", ".join(f"{peers} peers: {percent(ratio)}" for peers, ratio in less.items()),
        max(less.values()) < 1,
    )
    yield bounds_claim("theorems", [each for results in found.values() for each in results])


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("IFLOW, figure 15", scale=0.1).parse_args(arguments))
    found = figure(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale, QUERIES)} of each size")
    curves = {"exhaustive (Lemma 1)": [(float(peers), lemma_1(JOINED, peers)) for peers in PEERS]}
    for name in CLUSTERED:
        curves[TELLS[name]] = [(float(peers), per_query(r, name, chosen.scale)) for peers, r in found.items()]
    curves["one level of full clusters"] = [(float(peers), lemma_1(JOINED, MAX_CS)) for peers in PEERS]
    print_table(
        ("peers", *(f"plans, {name}" for name in curves), *(f"cost over exact, {TELLS[name]}" for name in CLUSTERED)),
        [
            (
                str(peers),
                *(f"{curve[number][1]:.3g}" for curve in curves.values()),
                *(over(results, name) for name in CLUSTERED),
            )
            for number, (peers, results) in enumerate(found.items())
        ],
    )
    print_claims(claims(found, chosen.scale))
    path = chosen.out / "iflow_15.png"
    plots.lines(path, curves, title="IFLOW, figure 15", x="peers", y="plans of a query", log="xy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
