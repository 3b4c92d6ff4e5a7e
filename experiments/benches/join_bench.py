"""How fast five daemons on this machine join two streams through the join index.

    python -m experiments.benches.join_bench

`peer bench --join` with batches of 100: orders at one peer, payments and the query at another. Tuples in until every
result is out, then from publication to result at 1,000 tuples a second; each result is checked to have come, once.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from experiments.benches.daemons import daemons, peer
from experiments.benches.figures import GOAL_MISSED, note

PEERS: Final = 5
BATCH_ROWS: Final = 100
RUN_S: Final = 6.0
RUNS: Final = 5
ALGORITHMS: Final = ("sai", "dai-v", "dai-t")
GOAL_PER_S: Final = 20_000
GOAL_MS_P50: Final = 20.0
GOAL_MS_P99: Final = 100.0


def measure(folder: Path, algorithm: str) -> dict[str, float]:
    """Medians of some joins, each of streams with names of their own: where their rewriters are is luck."""
    load = ["--batch", str(BATCH_ROWS), "--for", f"{RUN_S:g}s"]
    runs: list[dict[str, Any]] = []
    for _ in range(RUNS):
        runs += json.loads(peer(folder, "bench", "-p", "2", "--to", "3", "--join", algorithm, *load, "-o", "json"))
    return {name: statistics.median(run[name] for run in runs) for name in ("tuples_per_s", "ms_p50", "ms_p99")}


def main() -> int:
    print(f"{PEERS} daemons, one join, batches of {BATCH_ROWS}, median of {RUNS}; goals: {GOAL_PER_S:,} tuples/s in,")
    print(f"at 1,000 tuples/s {GOAL_MS_P50:g} ms p50 and {GOAL_MS_P99:g} ms p99", flush=True)
    is_good = True
    with daemons(PEERS) as folder:
        for algorithm in ALGORITHMS:
            seen = measure(folder, algorithm)
            rate, p50_ms, p99_ms = seen["tuples_per_s"], seen["ms_p50"], seen["ms_p99"]
            times = f"publication to result {p50_ms:>6.1f} ms p50 {p99_ms:>6.1f} ms p99"
            print(f"{algorithm:<6} {rate:>8,.0f} tuples/s in   {times}", flush=True)
            note(f"join, {algorithm}", rate, "tuples/s")
            note(f"join, {algorithm}, to a result", p50_ms, "ms")
            is_good &= rate >= GOAL_PER_S and p50_ms <= GOAL_MS_P50 and p99_ms <= GOAL_MS_P99
    return 0 if is_good else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
