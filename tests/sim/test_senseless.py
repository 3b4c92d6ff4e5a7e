"""Members that send well-formed messages without sense: no peer ends, honest work stays exact, memory stays bounded."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Collection, Iterator

import msgspec
import pytest

from overlay.sim.run import Run, Verdict, run
from overlay.sim.scenario import Scenario, parse_scenario, scenario_text
from protocols.effects import Blame
from protocols.peer import Peer
from protocols.versions import Family
from tests.sim.senseless import Manner, SenselessMember
from tests.soaking import IS_SOAK, many

WORK = ("churn", "queries", "join-sai", "join-dai-v", "placement", "apart")
MANNERS: tuple[Manner, ...] = ("stranger", "knows", "lies")
SOAKED = 1_000_000  # Messages in all.
EVERY_MS = 50
AT_ONCE = 5
HELD_UP_S = 14.0


def work(name: str) -> Scenario:
    """A scenario where nothing breaks of itself."""
    lines = [line for line in scenario_text(name).splitlines() if not line.startswith(("    {", "]"))]
    return parse_scenario("\n".join("faults = []" if line.startswith("faults") else line for line in lines))


def played(
    name: str, seed: int, manner: Manner, families: Collection[Family] = (), at_once: int = AT_ONCE
) -> tuple[Run, Verdict, str, Counter[str]]:
    """One network with such a member. Where it may hold work up, nobody waits for the end of the work."""
    scenario = work(name)
    if manner != "stranger" and "delivery" not in families:
        scenario = msgspec.structs.replace(scenario, peers=(4, 6), for_s=HELD_UP_S, heal_s=0.0)
    trial = Run(scenario, seed)
    member = SenselessMember(trial.world, manner, EVERY_MS, at_once, families)
    gc.disable()  # As overlay.sim.run.run() does, for speed.
    try:
        outcome = trial()
    finally:
        gc.enable()
    return trial, outcome.verdict, f"{name} seed={seed} {manner}: {outcome.problem}", member.counters


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK[: many(3, soaked=len(WORK))])
def test_a_stranger_harms_nobody(name: str) -> None:
    """It names nothing that runs. All that honest peers promise holds."""
    for seed in range(1, 1 + many(1, soaked=10)):
        _, verdict, problem, counters = played(name, seed, "stranger")
        assert verdict is Verdict.OK, problem
        assert counters["sent"] > 500, "it was there"


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("manner", [pytest.param("knows", marks=pytest.mark.slow), "lies"])
def test_no_peer_ends_whatever_a_member_says_of_running_work(name: str, manner: Manner) -> None:
    """A member that lies plausibly may hold work up. It ends nobody: every peer keeps its own rules."""
    for seed in range(1, 1 + many(1, soaked=30)):
        trial, verdict, problem, counters = played(name, seed, manner)
        assert verdict is not Verdict.CRASH, problem
        assert counters["sent"] > 500
        for peer in trial.world.peers:
            assert peer.is_up
            assert peer.machine is not None
            peer.machine.validate()


@pytest.mark.parametrize("name", ["queries", "join-sai"])
def test_no_peer_ends_whatever_a_member_writes_into_the_store(name: str) -> None:
    """Entries are messages, too: of streams, of who publishes and reads them, of queries."""
    for seed in range(1, 1 + many(1, soaked=30)):
        _, verdict, problem, counters = played(name, seed, "knows", ("store",))
        assert verdict is not Verdict.CRASH, problem
        assert counters["sent"] > 500


@pytest.mark.slow
@pytest.mark.parametrize("name", ["churn", "queries", "join-sai"])
def test_nobody_reads_or_acknowledges_for_another(name: str) -> None:
    """A member that knows every name, and repeats what readers and publishers say to each other, changes nothing."""
    for seed in range(1, 1 + many(1, soaked=20)):
        _, verdict, problem, _ = played(name, seed, "knows", ("delivery",))
        assert verdict is Verdict.OK, problem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["churn", "queries", "join-sai", "placement"])
def test_honest_peers_are_blamed_for_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the network loses, doubles and delays, and peers crash: out of turn is not senseless."""
    blamed: list[Blame] = []
    handle = Peer.handle

    def noted(peer: Peer, event: object, now: int) -> list[object]:
        effects = handle(peer, event, now)  # type: ignore[arg-type]
        blamed.extend(effect for effect in effects if isinstance(effect, Blame))
        return effects  # type: ignore[return-value]

    monkeypatch.setattr(Peer, "handle", noted)
    for seed in range(1, 1 + many(1, soaked=40)):
        outcome = run(parse_scenario(scenario_text(name)), seed)
        assert outcome.verdict is Verdict.OK, outcome.problem
        assert blamed == [], f"seed={seed}"


def soak() -> Iterator[tuple[str, int, Manner]]:
    seed = 100
    while True:
        for name in WORK:
            for manner in MANNERS:
                yield name, seed, manner
        seed += 1


@pytest.mark.slow
@pytest.mark.skipif(not IS_SOAK, reason="a million messages take an hour")
def test_a_million_senseless_messages_end_nobody_and_leave_nothing_behind() -> None:
    """Each run has new peers. What lasts from one run to the next is the process: its memory stays flat."""
    sent, runs, marks = 0, 0, list[int]()
    tracemalloc.start()
    try:
        for name, seed, manner in soak():
            _, verdict, problem, counters = played(name, seed, manner, at_once=4 * AT_ONCE)
            assert verdict is not Verdict.CRASH, problem
            assert manner != "stranger" or verdict is Verdict.OK, problem
            sent, runs = sent + counters["sent"], runs + 1
            if runs % len(WORK) == 0:
                gc.collect()
                marks.append(tracemalloc.get_traced_memory()[0])
            if sent >= SOAKED:
                break
    finally:
        tracemalloc.stop()
    print(f"{sent:,} senseless messages in {runs} networks; {marks[0] >> 20} MiB at first, {marks[-1] >> 20} at last")
    assert marks[-1] < 1.5 * marks[len(marks) // 2] + (16 << 20)
