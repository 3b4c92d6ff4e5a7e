"""What processes of this machine use of it."""

from __future__ import annotations

import os
import re
from pathlib import Path


def processor_s(pid: int) -> float:
    """What a process has used of the processors since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return _memory(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had so far."""
    return _memory(pid, "VmHWM")


def _memory(pid: int, what: str) -> int:
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
