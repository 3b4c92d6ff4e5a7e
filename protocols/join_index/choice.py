"""Which algorithm runs a join where the user has named none, and why.

A tuple costs one message to an evaluator in SAI and DAI-V, two in DAI-Q and DAI-T. Triggers are sent only for tuples
that queries want. Plain tuples are all sent: by SAI's other side, and by both sides in DAI-Q and DAI-T. Queries with
the same condition and the same algorithm share all these messages.
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

BUSY_PER_S: Final = 5000.0  # Tuples and triggers a second that an evaluator handles with ease.


class Cost(NamedTuple):
    """What an algorithm would send in a second."""

    messages: float  # To evaluators.
    busiest: float  # Of these, to the busiest evaluator.


class Chosen(NamedTuple):
    """An algorithm, and the reason for it."""

    algorithm: Algorithm
    why: str


def rewriting(algorithm: Algorithm, known: tuple[SideKnown, SideKnown]) -> tuple[bool, bool]:
    """By which sides an algorithm rewrites.

    SAI rewrites by the side whose selections save more messages, else by the slower one (section 4.1).
    """
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
    """The cost of an algorithm, with its heavy values spread over grids."""
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
    """The sides whose tuples all go to evaluators."""
    match algorithm:
        case "sai":
            return not rewrites[LEFT], not rewrites[RIGHT]
        case "dai-v":
            return False, False
    return True, True


def best_of(costs: Mapping[Algorithm, Cost], shared: Mapping[Algorithm, int]) -> Chosen:
    """The algorithm that most queries with this condition have, or the cheapest that overloads no evaluator.

    >>> best_of({"dai-v": Cost(10.0, 5.0)}, {})
    Chosen(algorithm='dai-v', why='no other algorithm can run it')
    >>> light = {"sai": Cost(10.0, 5.0), "dai-t": Cost(20.0, 4.0), "dai-v": Cost(10.0, 5.0)}
    >>> best_of(light, {})
    Chosen(algorithm='sai', why='it sends least: 10 messages a second, 5 of them to the busiest evaluator')
    >>> best_of(light, {"dai-t": 3})
    Chosen(algorithm='dai-t', why='it shares tuples and messages with 3 other queries')
    >>> best_of({"sai": Cost(20_000.0, 9000.0), "dai-t": Cost(40_000.0, 4000.0)}, {})
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


def choose(
    join: CompiledJoin,
    statistics: Mapping[Side, Iterable[StreamStatistics]],
    evaluators: int,
    skew: Skew = "auto",
    shared: Mapping[Algorithm, int] | None = None,
) -> Chosen:
    """The algorithm for a join, by the statistics of its streams and by how many queries share its condition."""
    shared = shared or {}
    able = [each for each in ALGORITHMS if join.condition.type == "T1" or each == "dai-v"]
    if any(shared.values()):
        return best_of(dict.fromkeys(able, Cost(0.0, 0.0)), shared)
    costs: dict[Algorithm, Cost] = {}
    for algorithm in able:
        known = both(join.by(algorithm), statistics)
        costs[algorithm] = cost(algorithm, join.attributes, known, evaluators, skew)
    return best_of(costs, shared)
