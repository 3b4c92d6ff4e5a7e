"""Which algorithm runs a join that nobody has chosen one for, by what is known of its streams, and why.

A tuple costs one message to an evaluator in SAI and DAI-V, two in DAI-Q and DAI-T. Rewriters send on what queries want;
SAI's other side, and both in DAI-Q and DAI-T, send everything, which serves all queries of an attribute. Queries of one
condition share all of it if their algorithm is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from protocols.catalogue.statistics import StreamStatistics
from protocols.join_index.condition import CompiledJoin
from protocols.join_index.heavy import heavy_values, meetings
from protocols.join_index.known import SideKnown, both
from protocols.join_index.messages import LEFT, RIGHT, Attribute, Side
from protocols.subgraphs import ALGORITHMS, Algorithm, Skew

BUSY_PER_S: Final = 5000.0  # Tuples and triggers that an evaluator can well take.


class Cost(NamedTuple):
    """What an algorithm would do, in a second."""

    messages: float  # To evaluators.
    busiest: float  # Of them, at the evaluator that has most to do.


class Chosen(NamedTuple):
    """An algorithm, and why it is the one."""

    algorithm: Algorithm
    why: str


def rewriting(algorithm: Algorithm, known: tuple[SideKnown, SideKnown]) -> tuple[bool, bool]:
    """SAI rewrites by the side of which more need not be sent on, else by the slower (section 4.1); others by both."""
    if algorithm != "sai":
        return True, True
    left, right = ((each.triggers_per_s - each.rate_per_s, each.rate_per_s) for each in known)
    return left <= right, left > right


def cost(
    algorithm: Algorithm,
    attributes: tuple[Attribute, Attribute],
    known: tuple[SideKnown, SideKnown],
    evaluators: int,
    skew: Skew = "auto",
) -> Cost:
    """What an algorithm would cost, with its heavy values spread."""
    rewrites = rewriting(algorithm, known)
    grids = {
        (each.at, each.value): each for each in heavy_values(algorithm, attributes, rewrites, known, evaluators, skew)
    }
    places = meetings(algorithm, attributes, rewrites, known)
    triggers_per_s = sum(side.triggers_per_s for side, rewrites_it in zip(known, rewrites, strict=True) if rewrites_it)
    tuples_per_s = sum(
        side.rate_per_s for side, is_kept in zip(known, _indexed(algorithm, rewrites), strict=True) if is_kept
    )
    messages = rest = triggers_per_s + tuples_per_s
    most = 0.0
    for at, values in places:
        for value, (triggers, tuples) in values.items():
            grid = grids.get((at, value))
            rows, columns = (grid.rows, grid.columns) if grid is not None else (1, 1)
            messages += triggers * (columns - 1) + tuples * (rows - 1)
            rest -= triggers + tuples
            most = max(most, triggers / rows + tuples / columns)
    return Cost(messages, most + max(rest, 0.0) / evaluators)


def _indexed(algorithm: Algorithm, rewrites: tuple[bool, bool]) -> tuple[bool, bool]:
    """Of which sides all tuples go to the value level."""
    match algorithm:
        case "sai":
            return not rewrites[LEFT], not rewrites[RIGHT]
        case "dai-v":
            return False, False
    return True, True


def choose(costs: Mapping[Algorithm, Cost], shared: Mapping[Algorithm, int]) -> Chosen:
    """Of the algorithms that can run a join, one that others with its condition have, or the cheapest that is bearable.

    >>> choose({"dai-v": Cost(10.0, 5.0)}, {})
    Chosen(algorithm='dai-v', why='no other algorithm can run it')
    >>> light = {"sai": Cost(10.0, 5.0), "dai-t": Cost(20.0, 4.0), "dai-v": Cost(10.0, 5.0)}
    >>> choose(light, {})
    Chosen(algorithm='sai', why='it sends least: 10 messages a second, 5 of them to the busiest evaluator')
    >>> choose(light, {"dai-t": 3})
    Chosen(algorithm='dai-t', why='it shares tuples and messages with 3 other queries')
    >>> choose({"sai": Cost(20_000.0, 9000.0), "dai-t": Cost(40_000.0, 4000.0)}, {})
    Chosen(algorithm='dai-t', why='the busiest evaluator would have 4000 messages a second, with sai 9000')
    """
    able = [algorithm for algorithm in ALGORITHMS if algorithm in costs]
    alike = max(able, key=lambda each: shared.get(each, 0))
    if count := shared.get(alike, 0):
        return Chosen(alike, f"it shares tuples and messages with {count} other {'query' if count == 1 else 'queries'}")
    if len(able) == 1:
        return Chosen(able[0], "no other algorithm can run it")
    cheapest = min(able, key=lambda each: costs[each].messages)
    best = min(able, key=lambda each: (max(costs[each].busiest, BUSY_PER_S), costs[each].messages))
    busy = costs[best].busiest
    if best != cheapest:
        other = f"with {cheapest} {costs[cheapest].busiest:.0f}"
        return Chosen(best, f"the busiest evaluator would have {busy:.0f} messages a second, {other}")
    if not costs[best].messages:
        return Chosen(best, "it sends least, and nothing is known of its streams yet")
    return Chosen(
        best,
        f"it sends least: {costs[best].messages:.0f} messages a second, {busy:.0f} of them to the busiest evaluator",
    )


def chosen(
    join: CompiledJoin,
    statistics: Mapping[Side, Iterable[StreamStatistics]],
    evaluators: int,
    skew: Skew = "auto",
    shared: Mapping[Algorithm, int] | None = None,
) -> Chosen:
    """The algorithm for a join, by what publishers say of its streams and how many queries share its condition."""
    shared = shared or {}
    able = [each for each in ALGORITHMS if join.condition.type == "T1" or each == "dai-v"]
    if any(shared.values()):
        return choose(dict.fromkeys(able, Cost(0.0, 0.0)), shared)
    costs: dict[Algorithm, Cost] = {}
    for algorithm in able:
        known = both(join.by(algorithm), statistics)
        costs[algorithm] = cost(algorithm, join.attributes, known, evaluators, skew)
    return choose(costs, shared)
