"""The seeds of each scenario: which of them `make test` plays at a commit, and which `make soak` plays.

`make soak` plays the seeds 1 to `soaked` of every series. `make test` plays those that failed once (seeds.toml) and a
window of `tested` seeds. The window rotates with the commit: the hash of HEAD says where it begins among the soaked
ones. PEER_SEED=17 lets every window begin at seed 17.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from overlay.sim.oracle import Violation
from overlay.sim.run import Verdict, run
from overlay.sim.scenario import parse_scenario, scenario_text
from overlay.sim.surroundings import PeerFailed
from tests.sim import shelf

HERE = Path(__file__).parent
KNOWN = tomllib.loads((HERE / "seeds.toml").read_text())
ALGORITHMS = ("sai", "dai-q", "dai-t", "dai-v")

STORE = "store alone"  # The scenarios of shelf.py; all others are files.
HARD = "store alone, peers crash all the time"
DISK_LOSS = "store alone, with a disk lost"
POWER_CUTS = "store alone, the power fails everywhere"
LEAVING = "store alone, peers leave"
STORE_PLAYS: dict[str, Callable[[int], shelf.ShelfWorld]] = {
    STORE: shelf.play,
    HARD: lambda seed: shelf.play(seed, is_hard=True),
    DISK_LOSS: lambda seed: shelf.play(seed, is_hard=True, with_disk_loss=True),
    POWER_CUTS: shelf.play_power_cuts,
    LEAVING: shelf.play_leaving,
}


class Played(NamedTuple):
    """What came of one seed."""

    verdict: Verdict
    problem: str
    accepted: int = 0  # Publishes that were acknowledged,
    delivered: int = 0  # and rows that reached a reader.
    moves: int = 0
    joins_apart: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Series:
    """A scenario and how many of its seeds are played."""

    name: str
    tested: int
    soaked: int = 500
    scenario: str = ""  # Where it is not the name: of the file that is played,
    algorithm: str = ""  # with this algorithm instead of SAI.
    moves_least: float = 0.0  # For each seed, in the mean.
    joins_apart_least: float = 0.0
    refused_least: float = 0.0

    def command(self, seed: int) -> str:
        """What plays one seed again."""
        if self.name in STORE_PLAYS or self.algorithm:
            return f'python -c "from tests.sim.series import play; print(play({self.name!r}, {seed}))"'
        return f"peer simulate {self.name} --seed {seed}"

    def window(self) -> range:
        """The seeds of `make test`."""
        first = int(os.environ.get("PEER_SEED") or 1 + int(commit(), 16) % (self.soaked - self.tested + 1))
        return range(first, first + self.tested)


def _all() -> list[Series]:
    found = [
        Series("altered", 4, 200),
        Series("apart", 25, joins_apart_least=1 / 3),
        Series("admission", 15, refused_least=1 / 3),
        Series("churn", 200, 1000),
        Series("moves", 30, moves_least=1 / 2),
        Series("queries", 60),
        Series("takeover", 15),
        Series("placement", 60),
        Series("sharing", 10),
        Series("relays", 5),
        *(Series(f"join-{each}", 50) for each in ALGORITHMS),
        *(Series(name, 40) for name in ("disk-loss", "join-restarts", "long", "query-restarts", "restarts")),
        *(Series(name, 40) for name in ("short-lived", "wrong-clocks")),
        Series("large", 0, 1),  # Ten thousand peers: it shows how large a network may be.
    ]
    for name in ("join-windows", "join-skew", "join-replicas"):
        found.append(Series(name, 12))
        others = [each for each in ALGORITHMS if each != "sai"]
        found += [Series(f"{name} by {each}", 12, 100, scenario=name, algorithm=each) for each in others]
    return [*found, *(Series(name, 0) for name in STORE_PLAYS)]  # test_store.py plays some.


SERIES = {each.name: each for each in _all()}


def play(name: str, seed: int) -> Played:
    """Play one seed of a series."""
    series = SERIES[name]
    if name in STORE_PLAYS:
        return _play_store(STORE_PLAYS[name], seed)
    text = scenario_text(series.scenario or name)
    if series.algorithm:
        text = text.replace('"sai"', f'"{series.algorithm}"')
    outcome = run(parse_scenario(text), seed)
    counts = (outcome.accepted, outcome.delivered, outcome.moves, outcome.joins_apart, outcome.refused)
    return Played(outcome.verdict, outcome.problem, *counts)


def _play_store(scenario: Callable[[int], shelf.ShelfWorld], seed: int) -> Played:
    try:
        world = scenario(seed)
    except Violation as violation:
        return Played(Verdict.CORRECTNESS, str(violation))
    except PeerFailed as failure:
        return Played(Verdict.CRASH, str(failure))
    if world.unanswered > 0:
        return Played(Verdict.LIVENESS, f"{world.unanswered} questions are not answered", world.put, world.got)
    return Played(Verdict.OK, "", world.put, world.got)


@cache
def commit() -> str:
    """The hash of HEAD, or zero where there is no repository."""
    asked = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    try:
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "0"
