"""Ports for networks of daemons, each begun at the next ten.

They and the HTTP ports that go with them lie below those that the kernel gives to whoever connects: a port in that
range may be somebody's own end of a connection in the moment in which a killed daemon comes back to it. For the same
reason each worker of a run has a range of its own.
"""

from __future__ import annotations

import itertools
import os

RANGES, RANGE = 11, 2000  # From 10,000 to 32,000; of a range, the upper half is for HTTP.
worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
PORTS = itertools.count(10_000 + (run * 4 + int(worker)) % RANGES * RANGE, 10)
