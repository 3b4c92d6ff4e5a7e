"""The search for a planted bug: seed after seed of the scenario that is to find it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from overlay.sim.run import Verdict
from tests.sim import (  # noqa: F401 - the bugs they plant
    planted,
    planted_admission,
    planted_queries,
    planted_sharing,
    planted_slices,
    planted_takeover,
)
from tests.sim.bugs import BUGS
from tests.sim.series import play


@dataclass(frozen=True, slots=True)
class Found:
    """The seed that shows a bug."""

    seed: int
    verdict: Verdict
    problem: str
    took_s: float


def hunt(name: str, first: Iterable[int] = ()) -> Found | None:
    """Plant a bug and play its scenario, seed after seed, until one fails that does not fail without the bug.

    The seeds in `first` are tried before all others: those that have found it before.
    """
    bug = BUGS[name]
    started = time.process_time()
    for seed in (*first, *range(1, bug.seeds + 1)):
        with bug.plant():
            played = play(bug.scenario, seed)
        if played.verdict is not Verdict.OK and play(bug.scenario, seed).verdict is Verdict.OK:
            return Found(seed, played.verdict, played.problem, time.process_time() - started)
    return None
