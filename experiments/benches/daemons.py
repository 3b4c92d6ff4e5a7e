"""Daemons of this machine, started for a benchmark and stopped after it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def peer(folder: Path, *arguments: str) -> str:
    """What the command `peer` prints about the daemons in a folder."""
    command = [sys.executable, "-m", "peerd.cli", *arguments, "--data-dir", str(folder)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def daemons(count: int) -> Iterator[Path]:
    """Run so many daemons, all in one network; gives the folder they keep their data in."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        peer(folder, "up", "--peers", str(count), "--detach")
        try:
            yield folder
        finally:
            peer(folder, "down")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
