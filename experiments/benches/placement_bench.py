"""How long a placement takes as peers grow: the exact one beside SAND's heuristics.

    python -m experiments.benches.placement_bench [PEERS...]

A binary tree of depth 5: 32 sources, 31 operators. Every peer is a candidate, at a place in a plane behind an access
link of its own, as network coordinates have it. Beyond 1,024 peers only the exact placement is measured. Times are
those of the processor: other processes may want the cores as well.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from experiments.benches.figures import note
from experiments.sand.model import make_tree
from protocols.ids import PeerId
from protocols.placement.place import ALGORITHMS, Placement, place
from protocols.placement.tree import ProcessingTree
from protocols.placement.view import NetworkView

SEED: Final = 8
DEPTH: Final = 5
PEERS: Final = (16, 64, 256, 1024, 4096)
HEURISTICS_MAX: Final = 1024
COMPARED: Final = 256  # Of how many peers the costs are in the table of all benchmarks.
RUNS: Final = 5


def make_view(seed: int, peers: int) -> NetworkView:
    luck = np.random.default_rng(seed)
    x, y = luck.uniform(0, 100, (2, peers))
    access = luck.exponential(2.0, peers)
    rows = np.hypot(x[:, None] - x, y[:, None] - y) + access[:, None] + access
    np.fill_diagonal(rows, 0.0)
    names = [PeerId(number.to_bytes(20, "big")) for number in range(peers)]
    # The exact placement alone looks at arrays only; lists of all numbers would be ten times as large.
    lists = rows.tolist() if peers <= HEURISTICS_MAX else cast("Sequence[Sequence[float]]", rows)
    return NetworkView(names, lists, is_metric=True)


def make_trees(view: NetworkView) -> list[ProcessingTree]:
    trees = []
    for run in range(RUNS):
        luck = random.Random(f"{SEED} {run}")
        sources = luck.choices(view.peers, k=2**DEPTH)
        trees.append(make_tree(luck, DEPTH, luck.choice(view.peers), sources))
    return trees


def main() -> None:
    counts = [int(each) for each in sys.argv[1:]] or PEERS
    print(f"placing a binary tree of depth {DEPTH}, processor time, median of {RUNS}; (cost over that of the optimum)")
    print(f"{'peers':>6}" + "".join(f"{name:>22}" for name in ALGORITHMS))
    exact_ms: dict[int, float] = {}
    for peers in counts:
        view = make_view(SEED, peers)
        assert view.short_matrix.any()  # Made once for all placements on a network.
        trees = make_trees(view)
        costs: dict[str, list[float]] = {}
        took: dict[str, list[float]] = {}
        for algorithm in ALGORITHMS if peers <= HEURISTICS_MAX else ("exact",):
            for tree in trees:
                began = time.process_time()
                found = place(algorithm, tree, view)
                took.setdefault(algorithm, []).append((time.process_time() - began) * 1000)
                assert isinstance(found, Placement)
                costs.setdefault(algorithm, []).append(found.cost)
        line = f"{peers:>6}"
        for algorithm in ALGORITHMS:
            if algorithm in took:
                over = statistics.fmean(a / b for a, b in zip(costs[algorithm], costs["exact"], strict=True))
                line += f"{f'{statistics.median(took[algorithm]):.1f} ms ({over:.2f})':>22}"
                if peers == COMPARED and algorithm != "exact":
                    note(f"cost of a placement, {peers} peers", 1.0, "x", algorithm, over)
            else:
                line += f"{'-':>22}"
        print(line)
        exact_ms[peers] = statistics.median(took["exact"])
    print(growth(exact_ms))


def growth(exact_ms: dict[int, float]) -> str:
    """How much longer the exact placement takes over more peers; it looks at each pair of them."""
    fewest, most = min(exact_ms), max(exact_ms)
    times = exact_ms[most] / exact_ms[fewest]
    span = f"{exact_ms[fewest]:.1f} to {exact_ms[most]:.0f} ms from {fewest:,} to {most:,} peers"
    return f"exact: {span}, {times:,.0f} times as long for {most / fewest:,.0f} times as many"


if __name__ == "__main__":
    main()
