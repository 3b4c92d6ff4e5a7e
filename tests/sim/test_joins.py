"""Joins through the join index: exact where nothing breaks, and what they leave behind; test_seeds.py breaks much."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from overlay.sim.query_texts import WINDOWED
from overlay.sim.run import Run, Verdict, run
from overlay.sim.scenario import Scenario, parse_scenario, scenario_text
from protocols.execution.messages import StopQuery
from protocols.ids import Millis
from protocols.join_index.evaluator import LAPSE_MS
from protocols.join_index.messages import Load
from protocols.join_index.rewriter import RELEASED_MS
from protocols.join_index.tables import Tables
from protocols.messages import Answer, Done
from protocols.peer import Peer
from tests.sim.series import ALGORITHMS
from tests.soaking import many

NAMES = (*ALGORITHMS, "replicas")
MINUTES = many(20, soaked=60)
ROWS = MINUTES * 15
LONG = f"""
peers = 5
for_s = {MINUTES * 60}
faults = []
small_limits_share = 0.0

[workload]
name = "queries"
publishers = 2
join = "sai"
windowed = true
queries = 3
rows = {ROWS}
every_ms = 4000
"""


def scenario(name: str, *, with_faults: bool) -> Scenario:
    text = scenario_text(f"join-{name}")
    return parse_scenario(text if with_faults else text.partition("faults = [")[0] + "faults = []\n")


@pytest.mark.parametrize("name", NAMES)
def test_joins_in_a_network_where_nothing_breaks(name: str):
    outcome = run(scenario(name, with_faults=False), 1)
    assert outcome.verdict is Verdict.OK, outcome.problem
    assert outcome.delivered > 0


def machines(trial: Run) -> dict[str, Peer]:
    return {repr(peer): peer.machine for peer in trial.world.peers if isinstance(peer.machine, Peer)}


def left_behind(peer: Peer) -> dict[str, object]:
    """What a peer still has of any query."""
    joins = peer.joins
    tables: dict[str, object] = {
        "queries of its clients": peer.proxy.queries,
        "attempts": joins.subscriber.attempts,
        "readers": joins.rewriter.readers,
        "queries of others": joins.evaluator.tables.queries,
        "tuples and triggers": joins.evaluator.tables.stored,
        "all of the index": not joins.is_empty(),
        "derived streams and results": [name for name in peer.publisher.outboxes if not name.endswith("_side")],
        "questions": [role for role in peer.inside.roles.values() if role in ("joins", "queries")],
    }
    return {name: table for name, table in tables.items() if table}


@pytest.mark.slow
@pytest.mark.parametrize("with_faults", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_queries_that_are_stopped_leave_nothing_at_any_machine(name: str, with_faults: bool):
    """Not even at evaluators that nobody told: they let go of what nobody has mentioned for a while."""
    for seed in range(1, 6 if with_faults else 2):
        trial = Run(scenario(name, with_faults=with_faults), seed)
        assert trial().verdict is Verdict.OK
        trial.world.run_for(60_000)  # Whoever is away comes back.
        answers = list[Answer | None]()

        def answered(answer: Answer | None, last: bool, answers: list[Answer | None] = answers) -> None:
            answers.append(answer)

        for peer in trial.world.peers:
            if isinstance(peer.machine, Peer):
                for query in list(peer.machine.proxy.queries):
                    peer.request(StopQuery(query=query), answered)
        trial.world.run_for(RELEASED_MS + LAPSE_MS + 15_000)  # Evaluators are told of released queries until then.
        assert answers, "there was nothing to stop"
        assert [type(answer) for answer in answers] == [Done] * len(answers), f"seed={seed}"
        left = {name: found for name, peer in machines(trial).items() if (found := left_behind(peer))}
        assert not left, f"seed={seed}: {left}"


@pytest.mark.slow
def test_in_an_hour_evaluators_keep_no_more_than_windows_allow(monkeypatch: pytest.MonkeyPatch):
    """Windows are of 6 s at most, and then there are 30 s for those who are late."""
    most = 0
    take = Tables.take

    def taken(tables: Tables, load: Load, now: Millis) -> Iterator[None]:
        nonlocal most
        yield from take(tables, load, now)
        most = max(most, tables.stored)

    monkeypatch.setattr(Tables, "take", taken)
    monkeypatch.setattr("overlay.sim.query_workload.WINDOWED", WINDOWED[:3])  # Where both sides have one.
    outcome = run(parse_scenario(LONG), 1)
    assert outcome.verdict is Verdict.OK, outcome.problem
    assert outcome.accepted == 2 * (ROWS + ROWS // 2), "two publishers of each stream"
    rows = 2 * 2 * (6 + 30 + 2) / 4  # A row in four seconds of each; tables are swept once a second.
    # Three queries, and all may be at one evaluator.
    assert 10 < most <= 3 * rows, f"{most} tuples and triggers at one evaluator"
