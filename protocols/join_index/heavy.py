"""Values that bring more than their share, spread over several evaluators.

The evaluators of such a value form a grid. A trigger goes to all of one row, a tuple to all of one column, each by its
id: any two of them meet at just one. In DAI-V, where there are only triggers, those of the right side go to columns.
Which values are heavy is agreed on for an attempt, like the evaluators.
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

PLACES_MAX: Final = 100_000  # Evaluators of values, remembered.
HEAVY_PER_S: Final = 100.0  # What brings less than this is no burden for any peer.
HEAVY_MAX: Final = 16  # Values of one query.
_MIX: Final = 0x9E3779B97F4A7C15  # Consecutive numbers go all over the grid.
_MASK: Final = (1 << 64) - 1


def evaluators_of(key: Key, evaluators: Sequence[PeerId], count: int = 1) -> list[PeerId]:
    """Of the evaluators of an attempt those that a key belongs to: each has as many keys as the others."""
    first = key.number % len(evaluators)
    return [evaluators[(first + place) % len(evaluators)] for place in range(count)]


@dataclass(slots=True, eq=False)
class Spread:
    """Who evaluates what in an attempt: one of its evaluators, or several."""

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
    """A number for a tuple, the same wherever it is made."""
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
    """Values that alone are half of what evaluators do on average, or more, and grids in which no cell has as much."""
    if skew == "whole" or evaluators < 2:
        return ()
    places = meetings(algorithm, attributes, rewrites, known)
    total = sum(each.rate_per_s for each in known) * len(places)
    goal = max(total / evaluators / 2, total / FREQUENT_KEPT)  # Others that bring as much go unnoticed.
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
    """Where tuples meet; of frequent values, how many triggers and tuples in a second."""
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
    """The triggers of a side, and what they meet."""
    return {
        value: (one.triggers_per_s * one.asked.get(value, 0.0), rate * shares.get(value, 0.0))
        for value in (*one.asked, *shares)
    }


def _sized(triggers: float, tuples: float, goal: float, cells_max: int) -> tuple[int, int]:
    """Rows and columns: those that cost least among those where no cell has more than it should, or has the least."""
    powers = [1 << power for power in range(cells_max.bit_length()) if 1 << power <= cells_max]
    sizes = [(rows, columns) for rows in powers for columns in powers if rows * columns <= cells_max]

    def worth(size: tuple[int, int]) -> tuple[float, float, int]:
        rows, columns = size
        load = triggers / rows + tuples / columns
        return max(load, goal), triggers * columns + tuples * rows, rows

    return min(sizes, key=worth)
