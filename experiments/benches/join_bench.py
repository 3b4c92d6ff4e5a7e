"""How fast five daemons on this machine join two streams through the join index.

    python -m experiments.benches.join_bench

`peer bench --join` with batches of 100: orders at one peer, payments and the query at another. Tuples in until every
result is out, then from publication to result at 1,000 tuples a second; each result is checked to have come, once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

PEERS: Final = 5
BATCH_ROWS: Final = 100
RUN_S: Final = 12.0
ALGORITHMS: Final = ("sai", "dai-v", "dai-t")
GOAL_PER_S: Final = 20_000
GOAL_MS_P50: Final = 20.0
GOAL_MS_P99: Final = 100.0


def peer(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "peerd.cli", *arguments, "--data-dir", str(folder)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(folder: Path, algorithm: str) -> dict[str, Any]:
    load = ["--batch", str(BATCH_ROWS), "--for", f"{RUN_S:g}s"]
    told = peer(folder, "bench", "-p", "2", "--to", "3", "--join", algorithm, *load, "-o", "json")
    figures: list[dict[str, Any]] = json.loads(told)
    return figures[0]


def main() -> int:
    print(f"{PEERS} daemons, one join, batches of {BATCH_ROWS}; goals: {GOAL_PER_S:,} tuples/s in,", end=" ")
    print(f"at 1,000 tuples/s {GOAL_MS_P50:g} ms p50 and {GOAL_MS_P99:g} ms p99", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="join-bench-"))
    is_good = True
    try:
        peer(folder, "up", "--peers", str(PEERS), "--detach")
        try:
            for algorithm in ALGORITHMS:
                seen = measure(folder, algorithm)
                rate, p50_ms, p99_ms = seen["tuples_per_s"], seen["ms_p50"], seen["ms_p99"]
                times = f"publication to result {p50_ms:>6.1f} ms p50 {p99_ms:>6.1f} ms p99"
                print(f"{algorithm:<6} {rate:>8,.0f} tuples/s in   {times}", flush=True)
                is_good &= rate >= GOAL_PER_S and p50_ms <= GOAL_MS_P50 and p99_ms <= GOAL_MS_P99
        finally:
            peer(folder, "down")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
