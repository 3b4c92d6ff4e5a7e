"""Our live join beside Pathway and beside one centralised Spark Structured Streaming query: one run, the same rows.

    python -m experiments.benches.join_comparison

Ours are five daemons, which have every acknowledged tuple on disk and survive the death of any of them; the others are
one process with everything in memory, and nothing of theirs travels over a network. Each is measured by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from experiments.benches.daemons import daemons
from experiments.benches.figures import note
from experiments.benches.join_bench import ALGORITHMS, BATCH_ROWS, PEERS, measure
from experiments.benches.join_rows import Shape

PATIENCE_S: Final = 200.0
OURS: Final = "peerd, five daemons, on disk"
SHAPE: Final = Shape(batch_rows=BATCH_ROWS, warm_batches=20, fast_batches=400, steady_s=8.0, steady_per_s=1000)
BENCH_PYTHON: Final = ".venv-bench/bin/python"  # Made by deploy/bench-venv.


def ours() -> dict[str, Any]:
    """By the algorithm that is chosen where nobody chooses."""
    with daemons(PEERS) as folder:
        return measure(folder, ALGORITHMS[0])


def other(python: str, module: str) -> dict[str, Any]:
    """Figures of a program that tells them in its last line."""
    command = [python, "-m", module, json.dumps(SHAPE._asdict())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} failed: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    print(f"One join, batches of {SHAPE.batch_rows}; latency at {SHAPE.steady_per_s:,} tuples/s", flush=True)
    systems: dict[str, Callable[[], dict[str, Any]]] = {
        OURS: ours,
        "Pathway, one process, in memory": lambda: other(BENCH_PYTHON, "experiments.benches.join_pathway"),
        "Spark, one process, in memory": lambda: other(sys.executable, "experiments.benches.join_spark"),
    }
    seen: dict[str, dict[str, Any]] = {}
    for name, run in systems.items():
        try:
            seen[name] = run()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            print(f"  {name:<32} not measured: {error}", flush=True)
            continue
        rate, p50_ms, p99_ms = (seen[name][each] for each in ("tuples_per_s", "ms_p50", "ms_p99"))
        times = f"publication to result {p50_ms:>7.1f} ms p50 {p99_ms:>7.1f} ms p99"
        print(f"  {name:<32} {rate:>9,.0f} tuples/s in   {times}", flush=True)
    if (mine := seen.pop(OURS, None)) is None:
        return 1
    for name, theirs in seen.items():
        system = name.partition(",")[0]
        note("join of five daemons", mine["tuples_per_s"], "tuples/s", system, theirs["tuples_per_s"])
        note("join, to a result", mine["ms_p50"], "ms", system, theirs["ms_p50"])
    return 0 if len(seen) == len(systems) - 1 else 1


if __name__ == "__main__":
    sys.exit(main())
