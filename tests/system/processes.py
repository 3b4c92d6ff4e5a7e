"""What processes of this machine use of it."""

from __future__ import annotations

import re
from pathlib import Path

from spark_jobs.room import processor_s

__all__ = ["peak_bytes", "processor_s", "resident_bytes"]


def resident_bytes(pid: int) -> int:
    return _memory(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had so far."""
    return _memory(pid, "VmHWM")


def _memory(pid: int, what: str) -> int:
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
