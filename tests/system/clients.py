"""How system tests speak to the peers of a network: by the Python client, and by the command line."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable

from peerd.client import Client
from peerd.cluster import Cluster

DEADLINE_S = 60.0  # A busy machine makes a test slow, not wrong.


def client(cluster: Cluster, number: int, patience_s: float = DEADLINE_S) -> Client:
    return Client(cluster.base.embedded(number).path, patience_s=patience_s)


def peer(
    cluster: Cluster, *arguments: str, code: int = 0, typed: str = "", within_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Type a command."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PEER_")}
    done = subprocess.run(
        [sys.executable, "-m", "peerd.cli", *arguments],
        env={**environ, "PEER_DATA_DIR": str(cluster.base.path)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done


async def until(condition: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> None:
    deadline_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_at, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.02)
