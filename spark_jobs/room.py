"""Whether this machine has memory for another Spark, beside those of other peers that are still growing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

OVERHEAD_MB: Final = 350  # Memory of Java and the worker beside the heap.
WORKER: Final = f"{__package__}.worker"  # The module that a worker runs.
_PROCESSES: Final = Path("/proc")
_MEMORY: Final = _PROCESSES / "meminfo"
_GROUP: Final = Path("/sys/fs/cgroup")
_GROUP_FILES: Final = (  # Of version 2 of control groups, and of version 1.
    ("memory.max", "memory.current", "memory.stat", ""),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
)


class _Heap(msgspec.Struct):
    """The part of another worker's settings that matters here."""

    heap_mb: int


class _Process(NamedTuple):
    """The memory of a process."""

    pid: int
    group: int
    started: int  # In ticks of the machine.
    resident_mb: int


def needed_mb(heap_mb: int) -> int:
    return heap_mb + OVERHEAD_MB


def missing_room(heap_mb: int) -> str:
    """Why a Spark with this heap has no room here; empty if it has."""
    free_mb = available_mb()
    if free_mb is None:
        return ""
    promised_mb = promised_to_others_mb()
    if free_mb - promised_mb >= needed_mb(heap_mb):
        return ""
    promised = f", of which the Sparks of other peers will take {promised_mb} MB" if promised_mb else ""
    parts = f"{heap_mb} MB of heap and about {OVERHEAD_MB} MB beside it"
    return f"too little memory for Spark: it needs {needed_mb(heap_mb)} MB ({parts}), {free_mb} MB are free{promised}"


def available_mb() -> int | None:
    """Memory that is still available, in MB; None if the system does not say."""
    frees = []
    with suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", _MEMORY.read_text())
        if found:
            frees.append(int(found[1]) >> 10)
    frees += [free for files in _GROUP_FILES if (free := _free_in_group_mb(*files)) is not None]
    return min(frees, default=None)


def _free_in_group_mb(limit: str, usage: str, statistics: str, of_all: str) -> int | None:
    """What the limit of our control group, for instance of a container, leaves; None if there is no limit.

    Files that were read count as used, but make way for everything else.
    """
    try:
        most = (_GROUP / limit).read_text().strip()
        used = int((_GROUP / usage).read_text())
        files = re.findall(rf"^{of_all}(?:in)?active_file (\d+)$", (_GROUP / statistics).read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return (int(most) - used + sum(map(int, files))) >> 20 if most.isdigit() else None


def promised_to_others_mb() -> int:
    """What the workers of other peers may still take: a heap grows up to its limit.

    Of two workers that start at once, each would wait for the other: so a worker counts only those older than itself.
    """
    processes = list(_processes())
    own = next((each for each in processes if each.pid == os.getpid()), None)
    is_worker = own is not None and _heap_mb(own.pid) is not None
    promised = 0
    for each in processes:
        heap_mb = _heap_mb(each.pid)
        if heap_mb is None or (is_worker and own is not None and (each.started, each.pid) >= (own.started, own.pid)):
            continue
        # Java is in its process group.
        taken = sum(other.resident_mb for other in processes if other.group == each.pid)
        promised += max(0, needed_mb(heap_mb) - taken)
    return promised


def _processes() -> Iterator[_Process]:
    page = os.sysconf("SC_PAGE_SIZE")
    for folder in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        yield _Process(int(folder.name), int(fields[2]), int(fields[19]), int(fields[21]) * page >> 20)


def _heap_mb(pid: int) -> int | None:
    """The heap limit of a worker; None for a process that is no worker."""
    try:
        words = (_PROCESSES / str(pid) / "cmdline").read_bytes().split(b"\0")
        # Another peer may run from a wheel, where the module has a longer name, or from the repository.
        place = next((number for number, word in enumerate(words) if word.endswith(b"spark_jobs.worker")), None)
        return None if place is None else msgspec.json.decode(words[place + 1], type=_Heap).heap_mb
    except (OSError, IndexError, msgspec.MsgspecError):
        return None


def processor_s(pid: int) -> float:
    """What a process has used of the processors since it began; 0 if it is gone."""
    try:
        fields = (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process; 0 if it is gone."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0
