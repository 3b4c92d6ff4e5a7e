"""Without file descriptors: what needs one waits, and the log says so once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from peerd import descriptors
from peerd.descriptors import Descriptors, patiently
from peerd.disk import FileDisk


async def test_what_finds_no_descriptor_is_done_once_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "RETRY_S", 0.0)
    tried: list[str] = []
    really_open = os.open

    def scarce(path: Path, *arguments: int, **more: int) -> int:
        if len(tried) < 3 and str(path).endswith("b"):
            tried.append(str(path))
            raise OSError(errno.EMFILE, "Too many open files")
        return really_open(path, *arguments, **more)

    with FileDisk(tmp_path) as disk:
        disk.append("a", b"before")
        monkeypatch.setattr(os, "open", scarce)
        await patiently(None, disk.append, "b", b"patience")
        assert len(tried) == 3
        assert (disk.read("a"), disk.read("b")) == (b"before", b"patience"), "written once"


async def test_any_other_trouble_is_told(tmp_path: Path) -> None:
    with FileDisk(tmp_path) as disk, pytest.raises(FileNotFoundError):
        await patiently(None, disk.read, "gone")


def test_the_log_says_once_that_there_is_none_and_once_that_there_are_again(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Descriptors()
    really_open = os.open

    def scarce(*_: object) -> int:
        raise OSError(errno.ENFILE, "Too many open files in system")

    with capture_logs() as told:
        watched.look()
        monkeypatch.setattr(os, "open", scarce)
        watched.look()
        watched.look()
        monkeypatch.setattr(os, "open", really_open)
        watched.look()
    assert [each["log_level"] for each in told] == ["warning", "info"]
    assert "ulimit -n" in told[0]["hint"]
