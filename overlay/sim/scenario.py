"""A scenario: which network, which clients, which faults; a TOML file that says what matters and leaves the rest open.

peers = [12, 40]
for_s = 20
workload = { name = "streams", publishers = [2, 5] }
faults = [{ name = "crash", times = 10 }, { name = "loss", share = 0.05 }]
"""

from __future__ import annotations

from importlib import resources
from typing import Final, Literal

import msgspec

from overlay.sim.faults import FaultRule
from overlay.sim.query_workload import QueriesWorkload
from overlay.sim.ranges import IntRange
from overlay.sim.topology import TopologyName, TransitStubShape
from overlay.sim.workload import StreamsWorkload

SCENARIOS: Final = resources.files(__package__) / "scenarios"
"""The scenarios that come with the package, one TOML file each."""


class ScenarioError(ValueError):
    """A scenario cannot be read; says where."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is made of, the seed apart. Ranges and everything left open are drawn from the seed."""

    peers: IntRange
    for_s: float = 20.0  # How long faults last.
    heal_s: float = 120.0  # How much later everything due must have happened.
    settle_s: float = 4.0  # How long to watch for what should not happen any more.
    topology: TopologyName | Literal["any"] = "any"
    transit_stub: TransitStubShape = TransitStubShape()
    workload: StreamsWorkload | QueriesWorkload = StreamsWorkload()
    faults: Literal["all"] | tuple[FaultRule, ...] = "all"
    small_limits_share: float = 0.3  # Of the seeds: their queues, windows and segments are tiny.
    validate_every: int = 1  # Of the steps of a peer: how often it states its invariants.


def parse_scenario(text: str) -> Scenario:
    """Read a scenario.

    >>> parse_scenario("peers = 5").peers
    5
    >>> parse_scenario("pears = 5")
    Traceback (most recent call last):
    ...
    overlay.sim.scenario.ScenarioError: Object contains unknown field `pears`
    """
    try:
        return msgspec.toml.decode(text, type=Scenario)
    except msgspec.DecodeError as error:
        raise ScenarioError(str(error)) from error


def scenario_names() -> list[str]:
    """The scenarios that come with the package.

    >>> "churn" in scenario_names()
    True
    """
    return sorted(file.name.removesuffix(".toml") for file in SCENARIOS.iterdir() if file.name.endswith(".toml"))


def scenario_text(name: str) -> str:
    """The text of a scenario that comes with the package.

    >>> parse_scenario(scenario_text("churn")).for_s > 0
    True
    """
    return (SCENARIOS / f"{name}.toml").read_text(encoding="utf-8")
