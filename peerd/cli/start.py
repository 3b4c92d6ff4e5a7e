"""Starting the peer of one data directory in the background, for `peer up -d` and `peer join -d`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peerd.datadir import DataDir
from peerd.options import VALUELESS


def start_detached(
    data: DataDir, flags: Mapping[str, object], config_file: Path | None, timeout_s: float, *, only_member: bool = False
) -> dict[str, Any]:
    """Start a daemon with the flags of this command and wait until it is a member; returns its last status.

    If it is not ready when the time is up, or this is interrupted, it is stopped; with only_member also if it is ready
    but no member yet.
    """
    from peerd.process import DaemonProcess, wait_until_member

    arguments: list[str] = []
    for key, value in flags.items():
        option = "--seed" if key == "seeds" else f"--{key.replace('_', '-')}"
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None:
                arguments += [option] if key in VALUELESS else [option, str(each)]
    if config_file is not None:
        arguments += ["--config", str(config_file)]
    daemon = DaemonProcess.start(data, arguments)
    status = None
    try:
        status = wait_until_member(daemon, timeout_s)
    finally:
        if status is None or (only_member and status["state"] != "running"):
            daemon.stop()
            daemon.ended()
    return status
