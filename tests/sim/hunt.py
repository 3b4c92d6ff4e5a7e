"""The search for a planted bug: seed after seed of the scenario that is to find it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from overlay.sim.oracle import Violation
from overlay.sim.peer import PeerFailed
from overlay.sim.run import Verdict, run
from overlay.sim.scenario import parse_scenario, scenario_text
from tests.sim import planted, planted_queries, shelf  # noqa: F401 - the bugs they plant
from tests.sim.bugs import BUGS, DISK_LOSS, LEAVING, POWER_CUTS, STORE


@dataclass(frozen=True, slots=True)
class Found:
    """The seed that shows a bug."""

    seed: int
    verdict: Verdict
    problem: str
    took_s: float


def hunt(name: str) -> Found | None:
    """Plant a bug and run its scenario, seed after seed, until one fails that does not fail without the bug."""
    bug = BUGS[name]
    started = time.process_time()
    for seed in range(1, bug.seeds + 1):
        with bug.plant():
            verdict, problem = _play(bug.scenario, seed)
        if verdict is not Verdict.OK and _play(bug.scenario, seed)[0] is Verdict.OK:
            return Found(seed, verdict, problem, time.process_time() - started)
    return None


def _play(scenario: str, seed: int) -> tuple[Verdict, str]:
    if scenario == STORE:
        return _play_store(lambda: shelf.play(seed, is_hard=True))
    if scenario == DISK_LOSS:
        return _play_store(lambda: shelf.play(seed, is_hard=True, with_disk_loss=True))
    if scenario == POWER_CUTS:
        return _play_store(lambda: shelf.play_power_cuts(seed))
    if scenario == LEAVING:
        return _play_store(lambda: shelf.play_leaving(seed))
    outcome = run(parse_scenario(scenario_text(scenario)), seed)
    return outcome.verdict, outcome.problem


def _play_store(play: Callable[[], shelf.ShelfWorld]) -> tuple[Verdict, str]:
    try:
        unanswered = play().unanswered
    except Violation as violation:
        return Verdict.CORRECTNESS, str(violation)
    except PeerFailed as failure:
        return Verdict.CRASH, str(failure)
    return (Verdict.LIVENESS, f"{unanswered} questions are not answered") if unanswered > 0 else (Verdict.OK, "")
