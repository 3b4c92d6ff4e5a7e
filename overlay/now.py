"""The two clocks that a peer reads: the wall's, which somebody may set, and a steady one."""

from __future__ import annotations

import time


def wall_ms() -> float:
    return time.time() * 1000


def steady_ms() -> float:
    """A monotonic clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000
