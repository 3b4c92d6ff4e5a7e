"""Folders in which Spark's files find no room or may not be run: small file systems of their own, or as if."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOMY = "size=1g"
FULL = "size=1m"
NOEXEC = f"{ROOMY},noexec"


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[bool]:
    """A file system in memory at a folder; False if this process may not mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    is_mounted = os.getuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def scratch(tmp_path: Path, options: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The scratch folder of this process and of those it starts. Where none can be mounted, statvfs tells the same."""
    folder = tmp_path / "scratch"
    with mounted(folder, options) as is_mounted:
        monkeypatch.setenv("TMPDIR", str(folder))
        if not is_mounted:
            real = os.statvfs(folder)
            free = (1 << 20 if options == FULL else 1 << 30) // real.f_frsize
            flags = real.f_flag | (os.ST_NOEXEC if options == NOEXEC else 0)
            told = os.statvfs_result((*real[:4], free, *real[5:8], flags, *real[9:]))
            monkeypatch.setattr(os, "statvfs", lambda _: told)
        yield folder
