"""What a subgraph needs of its host, and what a host has not got: said in DEPLOY and in DEPLOY_REFUSED."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from protocols.ids import Measured

ResourceName = Literal["cpu", "core", "uplink", "downlink"]
"""What a peer has only so much of. The core is that of the daemon, which is one thread: what runs inline needs both."""
RESOURCES: Final[tuple[ResourceName, ...]] = get_args(ResourceName)
HOSTING: Final = "hosting"  # What a peer lacks that hosts nothing for others.


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    """What is expected to flow over one edge of a plan, in a second."""

    rows: Measured
    bytes: Measured  # That leave a peer or come to it; 0 where both ends are at one peer.


class Demand(msgspec.Struct, frozen=True, array_like=True):
    """What a proxy expects to flow through a subgraph. What a row costs there, only its host knows."""

    inputs: tuple[Traffic, ...]  # As the inputs of the subgraph.
    output: Traffic


class Lack(msgspec.Struct, frozen=True, array_like=True):
    """A resource that a subgraph would overload.

    CPU is in µs a second of all cores together, links are in bytes a second.
    """

    resource: str  # ResourceName, or HOSTING; a later release may have others.
    needed: Measured = 0.0
    free: Measured = 0.0
    limit: Measured = 0.0
    whole: Measured = 0.0  # Of CPU: what all cores of the host could do.
