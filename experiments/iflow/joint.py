"""Ours, beyond IFLOW: how much is lost by planning queries one after the other, each exactly.

    python -m experiments.iflow.joint [--scale 0.1] [--seed N] [--master local[2]]

128 peers, 60 queries of the synthetic workload. A sweep plans each query again beside the others; what it saves is a
lower bound of what lies between one query after the other and the joint optimum, which is not known at this size.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Final

from experiments import sweep
from experiments.iflow.model import make_world, size_of, size_told
from experiments.report import Claim, print_claims, print_table
from protocols.planning.problem import Origin, Stream
from protocols.planning.together import Together, Wanted

QUERIES: Final = 60
STREAMS: Final = (10, 20)
SWEEPS_MAX: Final = 20


def measure(seed: int, network: int, queries: int, streams: int) -> dict[str, float]:
    """The cost one after the other, after one sweep, and when nothing moves any more; what that took."""
    world = make_world(seed, network, 128, "synthetic", queries, streams=streams)
    base = tuple(
        Stream(f"s{number}", (Origin(peer, world.beta(1 << number)),)) for number, peer in enumerate(world.publishers)
    )
    together = Together(world.view, world.view.peers, base, world.graph, world.beta)
    for number, query in enumerate(world.queries):
        together.add(Wanted(f"q{number}", query.streams, query.sink))
    sequential = together.cost()
    began = time.process_time()
    moved = together.sweep()
    first_s, once = time.process_time() - began, together.cost()
    sweeps = 1 + together.settle(SWEEPS_MAX)
    together.validate()
    return {
        "once": once / sequential,
        "settled": together.cost() / sequential,
        "moved": moved,
        "sweeps": sweeps,
        "ms of a sweep": first_s * 1000,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("queries planned together", scale=0.1).parse_args(arguments))
    networks, queries = size_of(chosen.scale, QUERIES)
    asked = [
        {"seed": chosen.seed, "network": network, "queries": queries, "streams": streams}
        for streams in STREAMS
        for network in range(networks)
    ]
    results = sweep.run("iflow_joint", measure, asked, chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {size_told(chosen.scale, QUERIES)} for each number of streams")
    names = list(results[0])
    rows, settled = [], []
    for streams in STREAMS:
        own = [result for cell, result in zip(asked, results, strict=True) if cell["streams"] == streams]
        rows.append((str(streams), *(statistics.fmean(result[name] for result in own) for name in names)))
        settled += [result["settled"] for result in own]
    print_table(("streams", *names), rows)
    measured = f"{min(settled):.3f} to {max(settled):.3f} of the cost one after the other"
    print_claims([Claim("ours", "planning queries again never costs more", measured, max(settled) <= 1)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
