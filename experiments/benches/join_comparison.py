"""Our live join beside Pathway and beside one centralised Spark Structured Streaming query: one run, the same rows.

    python -m experiments.benches.join_comparison

Ours are five daemons, which have every acknowledged tuple on disk and survive the death of any of them; the others are
one process with everything in memory, and nothing of theirs travels over a network. Each is measured by itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from experiments.benches.join_bench import ALGORITHMS, BATCH_ROWS, PEERS, measure, peer
from experiments.benches.join_rows import Shape

PATIENCE_S: Final = 600.0
SHAPE: Final = Shape(batch_rows=BATCH_ROWS, warm_batches=20, fast_batches=400, steady_s=8.0, steady_per_s=1000)
BENCH_PYTHON: Final = ".venv-bench/bin/python"  # Made by deploy/bench-venv.


def ours() -> dict[str, Any]:
    """By the algorithm that is chosen where nobody chooses."""
    folder = Path(tempfile.mkdtemp(prefix="join-comparison-"))
    try:
        peer(folder, "up", "--peers", str(PEERS), "--detach")
        try:
            return measure(folder, ALGORITHMS[0])
        finally:
            peer(folder, "down")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
        "peerd, five daemons, on disk": ours,
        "Pathway, one process, in memory": lambda: other(BENCH_PYTHON, "experiments.benches.join_pathway"),
        "Spark, one process, in memory": lambda: other(sys.executable, "experiments.benches.join_spark"),
    }
    for name, run in systems.items():
        seen = run()
        times = f"publication to result {seen['ms_p50']:>7.1f} ms p50 {seen['ms_p99']:>7.1f} ms p99"
        print(f"  {name:<32} {seen['tuples_per_s']:>9,.0f} tuples/s in   {times}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
