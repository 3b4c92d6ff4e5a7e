"""Standing by: where a service manager starts a peer again and again, one that has left its network stays away.

`peerd --stand-by` waits in the data directory of such a peer, across restarts of its machine, until `peer up` calls it
back. Otherwise a container that is always restarted would undo `peer leave` at once.
"""

from __future__ import annotations

import signal
import time
from typing import Any, Final

import structlog

from peerd.control_client import ControlClient
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError
from peerd.process import POLL_S, START_TIMEOUT_S

LOOK_EVERY_S: Final = 0.5
ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = structlog.get_logger("peerd")


def stand_by(data: DataDir) -> bool:
    """Wait for as long as this peer is away; False if a signal ends the waiting."""
    if (left := data.left()) is None:
        return True
    log.warning('this peer has left its network and stands by; "peer up" calls it back', network=left[0])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        with data.standing_by():
            while data.left() is not None:
                if (ended := signal.sigtimedwait(ENDS, LOOK_EVERY_S)) is not None:
                    log.info("stopped", reason=signal.Signals(ended.si_signo).name)
                    return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return True


def call_back(data: DataDir, timeout_s: float) -> dict[str, Any]:
    """Have the daemon that stands by run the peer again; its last status, member or not once the time is up."""
    data.clear_left()
    client = ControlClient(data)
    deadline_at = time.monotonic() + START_TIMEOUT_S
    last: dict[str, Any] | None = None
    while time.monotonic() < deadline_at:
        try:
            status: dict[str, Any] = client.get("/status", timeout_s=5)
        except PeerError as error:
            if error.exit_code not in (Exit.UNREACHABLE, Exit.TIMEOUT):
                raise
        else:
            if last is None:
                deadline_at = time.monotonic() + timeout_s
            last = status
            if status["state"] == "running":
                break
        time.sleep(POLL_S)
    if last is None:
        raise PeerError(
            f"the daemon that stood by is not ready after {START_TIMEOUT_S:.0f} s",
            hint="Its log is where its service manager keeps it, for instance docker-compose logs.",
            exit_code=Exit.TIMEOUT,
        )
    return last
