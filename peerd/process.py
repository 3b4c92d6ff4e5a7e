"""Daemons as processes of this machine: start one in the background, wait until it is up, stop some."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from peerd.control_client import ControlClient
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError

POLL_S: Final = 0.03
START_TIMEOUT_S: Final = 60.0  # Until it listens; a busy machine loads programs slowly.
STOP_TIMEOUT_S: Final = 30.0
LOG_TAIL_LINES: Final = 15


@dataclass(slots=True)
class DaemonProcess:
    """A daemon that this process has started, with its log in the data directory."""

    data: DataDir
    process: subprocess.Popen[bytes]
    log_start: int  # Where its own lines begin; the log keeps earlier runs.

    @classmethod
    def start(
        cls,
        data: DataDir,
        arguments: Sequence[str] = (),
        *,
        lifeline: int | None = None,
        environ: dict[str, str] | None = None,
    ) -> DaemonProcess:
        """Start a daemon in its own session, so that Ctrl-C here does not reach it."""
        command = [sys.executable, "-P", "-m", "peerd.daemon", "--data-dir", str(data.path), *arguments]
        if lifeline is not None:
            command += ["--lifeline", str(lifeline)]
        data.prepare()
        with open(data.log_file, "ab", opener=_private) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                pass_fds=() if lifeline is None else (lifeline,),
                start_new_session=True,
            )
            return cls(data, process, log.tell())

    def status(self) -> dict[str, Any] | None:
        """The daemon's status, None while it does not answer yet; raises PeerError once it has died."""
        # Checked first: a process that is alive now was alive when it does not answer below.
        code = self.process.poll()
        if code is not None:
            raise self._death(code)
        if not self.data.socket_path.exists():
            return None
        try:
            answer: dict[str, Any] = ControlClient(self.data).get("/status", timeout_s=5)
        except PeerError as error:
            if error.exit_code not in (Exit.UNREACHABLE, Exit.TIMEOUT):
                raise
            return None
        return answer

    def stop(self) -> None:
        """Ask it to stop, whether it is ready or not. Asking twice would end it without a goodbye."""
        self.process.terminate()

    def ended(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Wait for its end, and kill it when the time is up; returns whether it ended by itself."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True

    def log_lines(self) -> list[str]:
        """What it has logged since it was started."""
        with suppress(OSError), self.data.log_file.open("rb") as file:
            file.seek(self.log_start)
            return file.read().decode(errors="replace").splitlines()
        return []

    def _death(self, code: int) -> PeerError:
        """Why it died: the last error it printed, otherwise the end of its log."""
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in self.log_lines()]
        last_error = max((place for place, line in enumerate(lines) if line.startswith("error: ")), default=None)
        if last_error is not None:
            told = dict(line.split(": ", 1) for line in lines[last_error:] if ": " in line)
            exit_code = Exit(code) if code in Exit.__members__.values() else Exit.FAILED
            return PeerError(told["error"], detail=told.get("detail"), hint=told.get("hint"), exit_code=exit_code)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        tail = "".join(f"\n    {line}" for line in lines[-LOG_TAIL_LINES:])
        return PeerError(
            f"the daemon {how} before it was ready",
            detail=f"The end of its log:{tail}" if tail else "It logged nothing.",
            hint=f'The whole log is "{self.data.log_file}".',
        )


def wait_until_member(daemon: DaemonProcess, timeout_s: float) -> dict[str, Any]:
    """Wait until a daemon is a member of its network. Returns its last status, member or not; raises if it dies.

    The time counts from its first answer, because loading the program says nothing about its network.
    """
    deadline_at = time.monotonic() + START_TIMEOUT_S
    last: dict[str, Any] | None = None
    while True:
        status = daemon.status()
        if status is not None:
            if last is None:
                deadline_at = time.monotonic() + timeout_s
            if status["state"] == "running":
                return status
            last = status
        if time.monotonic() > deadline_at:
            if last is None:
                raise PeerError(
                    f"the daemon is not ready after {START_TIMEOUT_S:.0f} s",
                    hint=f'Its log is "{daemon.data.log_file}".',
                    exit_code=Exit.TIMEOUT,
                )
            return last
        time.sleep(POLL_S)


def stop_daemons(directories: Sequence[DataDir], timeout_s: float = STOP_TIMEOUT_S) -> int:
    """Stop the daemons that hold these directories, all at once; returns how many had to be killed."""
    for data in directories:
        try:
            ControlClient(data).post("/stop", timeout_s=5)
        except PeerError:
            _signal(data, signal.SIGTERM)
    left = wait_until_gone(directories, timeout_s)
    for data in left:
        _signal(data, signal.SIGKILL)
    wait_until_gone(left, timeout_s)
    return len(left)


def wait_until_gone(directories: Sequence[DataDir], timeout_s: float) -> list[DataDir]:
    """Wait until no daemon holds these directories; returns those still held when the time is up."""
    deadline_at = time.monotonic() + timeout_s
    while held := [data for data in directories if data.is_held()]:
        if time.monotonic() > deadline_at:
            break
        time.sleep(POLL_S)
    return held


def _signal(data: DataDir, number: signal.Signals) -> None:
    # The process id counts only while the lock is held; a stale one may belong to any process.
    if data.is_held() and (pid := data.pid()) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
