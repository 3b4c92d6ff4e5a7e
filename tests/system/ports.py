"""Ports for networks of daemons, each begun at the next ten.

They and the HTTP ports that go with them lie below those that the kernel gives to whoever connects: a port in that
range may be somebody's own end of a connection in the moment in which a killed daemon comes back to it.
"""

from __future__ import annotations

import itertools
import os

PORTS = itertools.count(10_000 + os.getpid() % 1000 * 20, 10)
