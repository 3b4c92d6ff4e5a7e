"""What a daemon costs that has nothing to do: processor time and memory, in networks of 5, 16 and 64 peers.

    python -m experiments.benches.idle_bench [PEERS...]

All daemons are on this machine. After a while to settle in, each one's processor time is read twice, 30 s apart. The
goal is half a percent of one core for each daemon among 64.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from experiments.benches.daemons import daemons
from experiments.benches.figures import GOAL_MISSED, note

PEERS: Final = (5, 16, 64)
QUIET_SHARE: Final = 0.05  # Of one core, for each daemon: then it has loaded what it loads after its start.
SETTLE_S: Final = 240.0
MEASURED_S: Final = 30.0
GOAL_PEERS: Final = 64
GOAL_SHARE: Final = 0.005


def processor_s(pid: int) -> float:
    """What a process has used of the processors since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def shares(pids: list[int], during_s: float) -> list[float]:
    """Which share of one core each process uses."""
    before, began = [processor_s(pid) for pid in pids], time.monotonic()
    time.sleep(during_s)
    passed_s = time.monotonic() - began
    return [(processor_s(pid) - then) / passed_s for pid, then in zip(pids, before, strict=True)]


def measure(peers: int) -> float:
    """Print a line for a network of so many peers; returns the mean share of a core."""
    with daemons(peers) as folder:
        pids = [int(path.read_text()) for path in sorted(folder.glob("up/*/peer.pid"))]
        until = time.monotonic() + SETTLE_S
        while max(shares(pids, 5.0)) > QUIET_SHARE and time.monotonic() < until:
            pass
        used = shares(pids, MEASURED_S)
        memory = statistics.fmean(resident_mb(pid) for pid in pids)
    mean = statistics.fmean(used)
    print(f"{peers:>5} {mean:>11.2%} {max(used):>11.2%} {memory:>9.1f} MB", flush=True)
    note(f"idle daemon among {peers}", mean * 100, "% of a core")
    return mean


def main() -> None:
    counts = [int(each) for each in sys.argv[1:]] or PEERS
    print(f"processor time of an idle daemon, over {MEASURED_S:g} s; memory\npeers        mean     busiest    memory")
    found = {peers: measure(peers) for peers in counts}
    if found.get(GOAL_PEERS, 0.0) > GOAL_SHARE:
        print(f"{found[GOAL_PEERS]:.2%} of a core among {GOAL_PEERS}, the goal is {GOAL_SHARE:.1%}")
        sys.exit(GOAL_MISSED)


if __name__ == "__main__":
    main()
