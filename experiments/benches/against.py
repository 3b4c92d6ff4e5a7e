"""An older state of this repository beside the present one, measured in turns on the same machine.

    python -m experiments.benches.against f8da66c              # delivery_bench, join_bench and spark_bench, twice.
    python -m experiments.benches.against f8da66c join_bench   # Some of them.

The older state is checked out into a folder for the while, and gets the benchmarks of today. Each figure is the better
of its rounds: whatever else the machine does makes a figure worse, never better.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from experiments.benches.all import readable
from experiments.benches.figures import FILE, Figure, better, noted

ROOT: Final = Path(__file__).resolve().parents[2]
BENCHES: Final = ("delivery_bench", "join_bench", "spark_bench")
ROUNDS: Final = 2

Found = dict[tuple[str, str], float]
"""The best of each figure, by what it is of and its unit."""


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with that revision and with the benchmarks of today."""
    with tempfile.TemporaryDirectory(prefix="bench-against-") as folder:
        older = Path(folder) / "older"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", older, revision], cwd=ROOT, check=True)
        try:
            benches = Path("experiments") / "benches"
            shutil.copytree(ROOT / benches, older / benches, dirs_exist_ok=True)
            yield older
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", older], cwd=ROOT, check=True)


def run(bench: str, root: Path, found: Found) -> None:
    """Run one benchmark with the code in a folder, and take what it found if that is better."""
    with tempfile.TemporaryDirectory(prefix="bench-figures-") as folder:
        file = Path(folder) / "figures"
        environment = {**os.environ, FILE: str(file), "PYTHONPATH": str(root)}
        subprocess.run([sys.executable, "-m", f"experiments.benches.{bench}"], cwd=root, env=environment, check=False)
        for each in noted(file):
            keep_better(found, each)


def keep_better(found: Found, figure: Figure) -> None:
    name = figure.what, figure.unit
    if name not in found or better(figure.unit, figure.ours, found[name]) > 1:
        found[name] = figure.ours


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    revision, *benches = sys.argv[1:]
    before: Found = {}
    after: Found = {}
    with checked_out(revision) as older:
        for bench in benches or BENCHES:
            for number in range(ROUNDS):
                for root, found, title in ((older, before, revision), (ROOT, after, "now")):
                    print(f"\n=== {bench}, round {number + 1} of {ROUNDS}: {title}", flush=True)
                    run(bench, root, found)
    print(f"\n{'best of both rounds; above 1, now is better':<44} {revision[:12]:>12} {'now':>12}   ratio")
    for (what, unit), value in after.items():
        if (what, unit) in before:
            ratio = better(unit, value, before[what, unit])
            figures = f"{readable(before[what, unit]):>12} {readable(value):>12}"
            print(f"{f'{what} [{unit}]':<44} {figures} {ratio:>7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
