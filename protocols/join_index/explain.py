"""What the join index would do with a plan, for `peer explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocols.catalogue.statistics import StreamStatistics
from protocols.ids import ID_BYTES, PeerId, StreamName
from protocols.join_index.choice import choose
from protocols.join_index.condition import CompiledJoin, NotIndexed, algorithm_for, check
from protocols.join_index.messages import SIDES, JoinQuery
from protocols.join_index.replicas import replicas_for
from protocols.subgraphs import ALGORITHMS, Algorithm
from queries.catalogue import DAY_MS
from queries.plan import Operator


def messages_per_tuple(algorithm: Algorithm) -> int:
    """Most messages to evaluators for each tuple: as a tuple, as a trigger, or as both.

    >>> {algorithm: messages_per_tuple(algorithm) for algorithm in ALGORITHMS}
    {'sai': 1, 'dai-q': 2, 'dai-t': 2, 'dai-v': 1}
    """
    return 2 if algorithm in ("dai-q", "dai-t") else 1


def as_json(plan: Operator) -> dict[str, Any] | None:
    """Rewriters, and what a tuple costs with each algorithm that can run the plan; None: none can."""
    able: list[Algorithm] = []
    for algorithm in ALGORITHMS:
        try:
            condition = check(plan, algorithm)
        except NotIndexed:
            continue
        able.append(algorithm)
    if not able:
        return None
    return {
        "rewriters": [str(side.attribute) for side in condition.sides],
        "messages_per_tuple": {algorithm: messages_per_tuple(algorithm) for algorithm in able},
        "auto": algorithm_for(plan),
    }


def chosen_text(plan: Operator, streams: Mapping[StreamName, Sequence[StreamStatistics]], peers: int) -> str:
    """Which algorithm would run a plan where the user names none, and why; empty if it would not use the index.

    >>> from queries.catalogue import Stream
    >>> from queries.schema import Schema
    >>> from queries.sql import plan
    >>> known = {name: Stream(name, Schema.parse("a int, b string")) for name in ("R", "S")}
    >>> fast = {"R": [StreamStatistics(rate_per_s=20.0, row_bytes=9.0, fields=())]}
    >>> chosen_text(plan("SELECT R.a FROM R, S WHERE R.b = S.b", known).plan, fast, peers=5)
    'auto     sai: it sends least: 20 messages a second, 4 of them to the busiest evaluator'
    >>> many = {"R": [StreamStatistics(rate_per_s=9e3, row_bytes=9.0, fields=())] * 8}
    >>> chosen_text(plan("SELECT R.a FROM R, S WHERE R.b = S.b", known).plan, many, peers=5).rpartition("; ")[2]
    'R.b is shared by 2 rewriters'
    """
    algorithm = algorithm_for(plan)
    if algorithm is None:
        return ""
    join = CompiledJoin.of(JoinQuery("", PeerId(bytes(ID_BYTES)), 0, algorithm, plan, DAY_MS))
    statistics = {side: streams.get(join.side(side).source.stream, ()) for side in SIDES}
    best = choose(join, statistics, peers)
    counts = {side: replicas_for(0, statistics[side], peers) for side in SIDES}
    shared = [f"{join.side(side).attribute} is shared by {n} rewriters" for side, n in counts.items() if n > 1]
    return "; ".join((f"auto     {best.algorithm}: {best.why}", *shared))


def as_text(plan: Operator) -> str:
    """One line for people; empty for a plan that the index cannot run.

    >>> from queries.catalogue import Stream
    >>> from queries.schema import Schema
    >>> from queries.sql import plan
    >>> known = {name: Stream(name, Schema.parse("a int, b string")) for name in ("R", "S")}
    >>> as_text(plan("SELECT R.a FROM R, S WHERE R.b = S.b", known).plan)
    'index    at R.b and S.b; messages per tuple to evaluators: sai 1 (auto), dai-q 2, dai-t 2, dai-v 1'
    >>> as_text(plan("SELECT R.a FROM R, S WHERE R.b = S.b AND S.a = R.a", known).plan).partition(";")[0]
    'index    at R.(a, b) and S.(a, b)'
    >>> as_text(plan("SELECT R.a FROM R", known).plan)
    ''
    """
    found = as_json(plan)
    if found is None:
        return ""
    costs = ", ".join(
        f"{algorithm} {cost}{' (auto)' if algorithm == found['auto'] else ''}"
        for algorithm, cost in found["messages_per_tuple"].items()
    )
    return f"index    at {' and '.join(found['rewriters'])}; messages per tuple to evaluators: {costs}"
