"""Every benchmark, one after the other, and one table of what they found beside their baselines.

    python -m experiments.benches.all              # All of them: make bench.
    python -m experiments.benches.all join_bench   # Some of them.

A part that fails or takes too long is named at the end, with the reason; the others run all the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from experiments.benches.figures import FILE, GOAL_MISSED, Figure, noted

LIMITS_S: Final = {  # Several times what each takes on two quiet cores.
    "delivery_bench": 300,
    "journal_bench": 60,
    "link_bench": 180,
    "overlay_bench": 240,
    "query_bench": 120,
    "sharing_bench": 120,
    "join_bench": 300,
    "join_queries": 420,
    "join_sharing": 120,
    "join_skew": 240,
    "placement_bench": 240,
    "planning_bench": 240,
    "idle_bench": 600,
    "window_bench": 60,
    "spark_bench": 600,
    "join_comparison": 600,
}
STOP_S: Final = 20.0  # What a part that took too long has to stop its daemons.


class Part(NamedTuple):
    """One benchmark that has run."""

    name: str
    took_s: float
    trouble: str  # Empty: it ran to its end.


def run(name: str, limit_s: float, file: Path) -> Part:
    """Run one benchmark, its output going where ours goes, and its figures into a file."""
    print(f"\n=== {name}", flush=True)
    # A shell that starts a job in the background has it ignore SIGINT, and what the job starts inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    command = [sys.executable, "-m", f"experiments.benches.{name}"]
    with subprocess.Popen(command, env={**os.environ, FILE: str(file)}) as process:
        try:
            code = process.wait(limit_s)
            trouble = "" if code in (0, GOAL_MISSED) else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            trouble = f"was not done after {limit_s:g} s"
            process.send_signal(signal.SIGINT)  # As Ctrl-C would: it stops its daemons before it ends.
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return Part(name, time.monotonic() - began, trouble)


def show(figures: list[Figure], parts: list[Part]) -> None:
    print(f"\n{'ratios; above 1, ours is better':<50} {'ours':>20} {'baseline':>12}   ratio", flush=True)
    for each in figures:
        if each.baseline:
            title, ours = f"{each.what}, to {each.baseline}", f"{readable(each.ours)} {each.unit}"
            print(f"{title:<50} {ours:>20} {readable(each.theirs):>12} {each.ratio:>7.2f}")
    print(f"{sum(part.took_s for part in parts) / 60:.1f} minutes", flush=True)
    for part in parts:
        if part.trouble:
            print(f"FAILED: {part.name} {part.trouble}", flush=True)


def readable(number: float) -> str:
    """With three digits, or all of a larger number.

    >>> readable(74869.2), readable(6.5501), readable(0.5)
    ('74,869', '6.55', '0.5')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def main() -> int:
    names = sys.argv[1:] or list(LIMITS_S)
    if unknown := [name for name in names if name not in LIMITS_S]:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(LIMITS_S)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="bench-figures-") as folder:
        file = Path(folder) / "figures"
        parts = [run(name, LIMITS_S[name], file) for name in names]
        show(noted(file), parts)
    return 1 if any(each.trouble for each in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
