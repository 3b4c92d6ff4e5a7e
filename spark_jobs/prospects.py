"""Whether Spark could be started here: Java, memory, scratch folder, master; found out without starting anything.

A daemon looks when it starts, and again every few seconds, before it tells others that they can have Spark here. The
worker looks once more before it starts Spark, and `peer doctor` shows what was found.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_jobs.java import NoJava, find_java
from spark_jobs.room import available_mb, missing_room, needed_mb
from spark_jobs.scratch import free_mb, scratch_folder, unusable_scratch

if TYPE_CHECKING:
    from spark_jobs.session import SessionSettings

MASTER_TIMEOUT_S: Final = 3.0
LOOPBACK: Final = "127.0.0.1"


class Finding(NamedTuple):
    """One thing that Spark needs: what there is of it, or why it is not enough and what to do."""

    what: str
    found: str
    reason: str = ""
    step: str = ""


class Prospects(NamedTuple):
    """All that Spark needs."""

    findings: tuple[Finding, ...]
    java_home: Path | None
    java: str  # Its version.
    own_address: str  # Ours as a cluster sees it; empty if Spark has to find out.

    @property
    def reason(self) -> str:
        """Why Spark cannot be started; empty if it can."""
        return next((each.reason for each in self.findings if each.reason), "")


def prospects(settings: SessionSettings) -> Prospects:
    """Look at everything. This takes milliseconds, and seconds if the master of a cluster does not answer."""
    home, version, java = _java(settings.java_home)
    own_address, master = _master(settings.master)
    findings = [java, _memory(settings.heap_mb), _scratch()]
    return Prospects((*findings, *(() if master is None else (master,))), home, version, own_address)


def _java(home: str) -> tuple[Path | None, str, Finding]:
    try:
        found, version = find_java(home)
    except NoJava as error:
        step = 'install one, for instance Debian\'s openjdk-17-jre-headless; in the repository, "make java" does'
        return None, "", Finding("Java", "", str(error), step)
    return found, version, Finding("Java", f"{version} at {found}")


def _memory(heap_mb: int) -> Finding:
    free = available_mb()
    found = f"needs {needed_mb(heap_mb)} MB, {'nobody knows how many' if free is None else free} MB are free"
    step = "end something else, raise the limit of this container, or take a smaller --spark-memory"
    return Finding("Spark memory", found, missing_room(heap_mb), step)


def _scratch() -> Finding:
    folder = scratch_folder()
    if reason := unusable_scratch():
        step = "make room there, or set TMPDIR to a folder with room on a file system without noexec"
        return Finding("Spark scratch", "", reason, step)
    return Finding("Spark scratch", f"{folder}, {free_mb(folder) / 1024:.1f} GiB free")


def _master(master: str) -> tuple[str, Finding | None]:
    """Our address as the machines of a cluster see it; and whether its master answers, if there is one to ask.

    Spark itself would try for minutes.
    """
    if master.startswith("local"):  # This includes a cluster of processes that Spark starts here.
        return LOOPBACK, None
    address = re.fullmatch(r"spark://\[?([^/,\]]+)\]?:(\d+)", master)
    if not address:
        return "", None
    try:
        with socket.create_connection((address[1], int(address[2])), MASTER_TIMEOUT_S) as reached:
            return str(reached.getsockname()[0]), Finding("Spark master", f"{master} answers")
    except OSError as error:
        reason = f'the Spark master "{master}" cannot be reached: {error.strerror or error}'
        return "", Finding("Spark master", "", reason, "start it, or name another with --spark-master")
