"""Our live join beside Pathway and beside one centralised Spark Structured Streaming query: one run, the same data.

    python -m experiments.join_comparison

Ours are five daemons, which have every acknowledged tuple on disk and survive the death of any of them; the others are
one process with everything in memory, and nothing of theirs travels over a network. Each is measured by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from experiments import join_bench
from experiments.join_bench import Figures, measure
from experiments.join_rows import Shape
from peerd.cluster import Cluster
from peerd.datadir import DataDir

PORT: Final = join_bench.FIRST_PORT + 20
PATIENCE_S: Final = 600.0
SHAPE: Final = Shape(
    join_bench.BATCH_ROWS,
    join_bench.WARM_BATCHES,
    join_bench.FAST_BATCHES,
    join_bench.STEADY_S,
    join_bench.STEADY_PER_S,
)
BENCH_PYTHON: Final = Path(".venv-bench/bin/python")  # Made by deploy/bench-venv.


async def ours() -> Figures:
    folder = Path(tempfile.mkdtemp(prefix="join-comparison-"))
    cluster = Cluster(DataDir(folder))
    try:
        cluster.start(join_bench.PEERS, first_port=PORT)
        try:
            cluster.wait_until_up()
            return await measure(cluster, "auto", itertools.count())
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def other(python: str, module: str) -> Figures:
    command = [python, "-m", module, json.dumps(SHAPE._asdict())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} failed: {done.stderr[-2000:]}")
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    print(f"One join, batches of {SHAPE.batch_rows}; latency at {SHAPE.steady_per_s:,} tuples/s", flush=True)
    systems: dict[str, Callable[[], Figures]] = {
        "peerd, five daemons, durable": lambda: asyncio.run(ours()),
        "Pathway, one process": lambda: other(str(BENCH_PYTHON), "experiments.join_pathway"),
        "Spark, one process": lambda: other(sys.executable, "experiments.join_spark"),
    }
    for name, run in systems.items():
        seen = run()
        print(
            f"  {name:<30} {seen.tuples_per_s:>9,.0f} tuples/s in   "
            f"publication to result {seen.ms_p50:>7.1f} ms p50 {seen.ms_p99:>7.1f} ms p99",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
