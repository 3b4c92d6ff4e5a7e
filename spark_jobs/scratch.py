"""Where Spark's files go, and whether they can.

Rows for Spark go through a private folder, in memory if there is room. Java's own files, native libraries among them,
go to the scratch folder, which TMPDIR names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")  # noqa: S108  A file system in memory; our folder in it is ours alone.
ROOM_MIN_MB: Final = 256  # Free space that rows and files of Spark need at first.
PREFIX: Final = "peerd-spark-"


def scratch_folder() -> Path:
    """For temporary files. Not tempfile's choice: where that finds a folder full, it silently takes another."""
    return Path(os.environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108  Files in it are private or in our folder.


def free_mb(folder: Path) -> int:
    """Space that is free for us, in MB; raises OSError."""
    space = os.statvfs(folder)
    return (space.f_bavail * space.f_frsize) >> 20


def unusable_scratch() -> str:
    """Why Spark cannot use the scratch folder; empty if it can."""
    folder = scratch_folder()
    name = f'the scratch folder "{folder}"'
    try:
        flags, room_mb = os.statvfs(folder).f_flag, free_mb(folder)
    except OSError as error:
        return f"{name} cannot be used: {(error.strerror or str(error)).lower()}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{name} cannot be written"
    if flags & os.ST_NOEXEC:
        return f"{name} is mounted noexec, and Spark loads native libraries from there"
    if room_mb < ROOM_MIN_MB:
        return f"{name} is too full for Spark: it needs {ROOM_MIN_MB} MB, {room_mb} MB are free"
    return ""


def private_folder() -> Path:
    """A new private folder, in memory if there is room; removes those that dead daemons left. Raises OSError."""
    parent = scratch_folder()
    with suppress(OSError):
        if os.access(MEMORY, os.W_OK) and free_mb(MEMORY) >= ROOM_MIN_MB:
            parent = MEMORY
    for each in parent.glob(f"{PREFIX}*"):
        pid = each.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(each, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
