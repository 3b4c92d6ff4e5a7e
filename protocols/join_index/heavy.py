"""Which evaluators a value has: one of the attempt's, or several where the value is frequent.

The evaluators of a heavy value form a grid. A trigger goes to every evaluator of one row, a tuple to every one of a
column; its origin and sequence choose which. So any trigger and any tuple meet at exactly one evaluator. DAI-V has
triggers only: those of the left side go to rows, those of the right side to columns. For each attempt the subscriber
names the evaluators and the heavy values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.statistics import FREQUENT_KEPT
from protocols.delivery.messages import Origin
from protocols.ids import Key, PeerId
from protocols.join_index.keys import value_points
from protocols.join_index.known import SideKnown
from protocols.join_index.messages import LEFT, RIGHT, Attribute, Heavy, Load, ValueText
from protocols.subgraphs import Algorithm, Skew

PLACES_MAX: Final = 100_000  # Values of one attribute whose evaluator is cached.
HEAVY_PER_S: Final = 100.0  # A value with fewer tuples and triggers a second is no burden for any peer.
HEAVY_MAX: Final = 16  # Heavy values of one query.
_MIX: Final = 0x9E3779B97F4A7C15  # Consecutive numbers go all over the grid.
_MASK: Final = (1 << 64) - 1


def evaluators_of(key: Key, evaluators: Sequence[PeerId], count: int = 1) -> list[PeerId]:
    """The evaluators of a key: `count` of the attempt's, beginning with the one at the key modulo their number."""
    first = key.number % len(evaluators)
    return [evaluators[(first + place) % len(evaluators)] for place in range(count)]


@dataclass(slots=True, eq=False)
class Spread:
    """Which evaluators of an attempt get a tuple."""

    evaluators: tuple[PeerId, ...]
    heavy: tuple[Heavy, ...]
    _heavy: dict[Attribute | None, dict[ValueText, Heavy]] = field(default_factory=dict)
    _firsts: dict[Attribute | None, dict[ValueText, int]] = field(default_factory=dict)  # Places among the evaluators.

    def __post_init__(self) -> None:
        for each in self.heavy:
            if 0 < each.rows * each.columns <= len(self.evaluators):
                self._heavy.setdefault(each.at, {})[each.value] = each

    def shares(self, load: Load) -> dict[PeerId, list[int]]:
        """Which tuples of a load go to which evaluator, by their places in the load."""
        firsts, heavy = self._firsts.setdefault(load.at, {}), self._heavy.get(load.at, {})
        if len(firsts) > PLACES_MAX:
            firsts.clear()
        point, evaluators = value_points(load.at), len(self.evaluators)
        by_place: list[list[int]] = [[] for _ in self.evaluators]
        for number, value in enumerate(load.values):
            first = firsts.get(value)
            if first is None:
                first = firsts[value] = point(value) % evaluators
            if value in heavy:
                for cell in _cells(heavy[value], load, number):
                    by_place[(first + cell) % evaluators].append(number)
            else:
                by_place[first].append(number)
        return {peer: numbers for peer, numbers in zip(self.evaluators, by_place, strict=True) if numbers}


def _cells(heavy: Heavy, load: Load, number: int) -> range:
    """The cells of a grid, row after row, that one tuple of a load goes to."""
    drawn = _drawn(load.origin, load.sequences[number])
    if load.group and (load.at is not None or load.side == LEFT):
        first = drawn % heavy.rows * heavy.columns
        return range(first, first + heavy.columns)
    return range(drawn % heavy.columns, heavy.rows * heavy.columns, heavy.columns)


def _drawn(origin: Origin, sequence: int) -> int:
    """A number for a tuple that every peer derives alike."""
    mixed = ((sequence ^ origin.publisher.number ^ origin.epoch) * _MIX) & _MASK
    return ((mixed ^ mixed >> 29) * _MIX & _MASK) >> 32


def heavy_values(
    algorithm: Algorithm,
    attributes: tuple[Attribute, Attribute],
    rewrites: tuple[bool, bool],
    known: tuple[SideKnown, SideKnown],
    evaluators: int,
    skew: Skew = "auto",
) -> tuple[Heavy, ...]:
    """Values that are more than half of an evaluator's mean load, each with a grid whose cells have less than that."""
    if skew == "whole" or evaluators < 2:
        return ()
    places = meetings(algorithm, attributes, rewrites, known)
    total = sum(each.rate_per_s for each in known) * len(places)
    goal = max(total / evaluators / 2, total / FREQUENT_KEPT)  # Statistics name no rarer values.
    least = max(goal, HEAVY_PER_S if skew == "auto" else 0.0)
    found: list[tuple[float, Heavy]] = []
    for at, values in places:
        for value, (triggers, tuples) in values.items():
            if triggers + tuples > least:
                rows, columns = _sized(triggers, tuples, goal, evaluators)
                if rows * columns > 1:
                    found.append((triggers + tuples, Heavy(at, value, rows, columns)))
    found.sort(key=lambda each: (-each[0], str(each[1].at), each[1].value))
    return tuple(heavy for _, heavy in found[:HEAVY_MAX])


def meetings(
    algorithm: Algorithm,
    attributes: tuple[Attribute, Attribute],
    rewrites: tuple[bool, bool],
    known: tuple[SideKnown, SideKnown],
) -> list[tuple[Attribute | None, dict[ValueText, tuple[float, float]]]]:
    """By which attributes tuples meet, and how many triggers and tuples a second each frequent value has there."""
    left, right = known
    if algorithm == "dai-v":
        return [(None, _meeting(left, right.triggers_per_s, right.asked))]
    found: list[tuple[Attribute | None, dict[ValueText, tuple[float, float]]]] = []
    if rewrites[LEFT]:
        found.append((attributes[RIGHT], _meeting(left, right.rate_per_s, right.own)))
    if rewrites[RIGHT]:
        found.append((attributes[LEFT], _meeting(right, left.rate_per_s, left.own)))
    return found


def _meeting(one: SideKnown, rate: float, shares: Mapping[ValueText, float]) -> dict[ValueText, tuple[float, float]]:
    """Triggers of one side and tuples of the other, a second, by value."""
    return {
        value: (one.triggers_per_s * one.asked.get(value, 0.0), rate * shares.get(value, 0.0))
        for value in (*one.asked, *shares)
    }


def _sized(triggers: float, tuples: float, goal: float, cells_max: int) -> tuple[int, int]:
    """Rows and columns: the cheapest grid whose cells reach the goal, or the one with the least loaded cells."""
    powers = [1 << power for power in range(cells_max.bit_length()) if 1 << power <= cells_max]
    sizes = [(rows, columns) for rows in powers for columns in powers if rows * columns <= cells_max]

    def worth(size: tuple[int, int]) -> tuple[float, float, int]:
        rows, columns = size
        load = triggers / rows + tuples / columns
        return max(load, goal), triggers * columns + tuples * rows, rows

    return min(sizes, key=worth)
