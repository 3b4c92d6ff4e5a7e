"""Values that bring more than their share, spread over several evaluators.

The evaluators of such a value form a grid. A trigger goes to all of one row, a tuple to all of one column, each by its
id: any two of them meet at just one. In DAI-V, where there are only triggers, those of the right side go to columns.
Which values are heavy is agreed on for an attempt, like the evaluators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocols.catalogue.statistics import FREQUENT_KEPT
from protocols.delivery.messages import Origin
from protocols.ids import Key, PeerId
from protocols.join_index.keys import value_key
from protocols.join_index.known import SideKnown
from protocols.join_index.messages import LEFT, RIGHT, Attribute, Heavy, Load, ValueText
from protocols.subgraphs import Algorithm, Skew

PLACES_MAX: Final = 100_000  # Evaluators of values, remembered.
HEAVY_PER_S: Final = 100.0  # What brings less than this is no burden for any peer.
HEAVY_MAX: Final = 16  # Values of one query.
_MIX: Final = 0x9E3779B97F4A7C15  # Consecutive numbers go all over the grid.
_MASK: Final = (1 << 64) - 1

_Where = tuple[Attribute | None, ValueText]


def evaluators_of(key: Key, evaluators: Sequence[PeerId], count: int = 1) -> list[PeerId]:
    """Of the evaluators of an attempt those that a key belongs to: each has as many keys as the others."""
    first = key.number % len(evaluators)
    return [evaluators[(first + place) % len(evaluators)] for place in range(count)]


class _Grid(NamedTuple):
    peers: list[PeerId]  # Row after row.
    rows: int
    columns: int


@dataclass(slots=True, eq=False)
class Spread:
    """Who evaluates what in an attempt: one of its evaluators, or several."""

    evaluators: tuple[PeerId, ...]
    heavy: tuple[Heavy, ...]
    _heavy: dict[_Where, Heavy] = field(init=False)
    _places: dict[_Where, _Grid] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._heavy = {(each.at, each.value): each for each in self.heavy}

    def peers(self, load: Load, number: int) -> list[PeerId]:
        """Where one tuple of a load goes."""
        where = (load.at, load.values[number])
        grid = self._places.get(where)
        if grid is None:
            if len(self._places) > PLACES_MAX:
                self._places.clear()
            grid = self._places[where] = self._grid(where)
        if len(grid.peers) == 1:
            return grid.peers
        drawn = _drawn(load.origin, load.sequences[number])
        if load.group and (load.at is not None or load.side == LEFT):
            row = drawn % grid.rows
            return grid.peers[row * grid.columns : (row + 1) * grid.columns]
        return grid.peers[drawn % grid.columns :: grid.columns]

    def _grid(self, where: _Where) -> _Grid:
        heavy, key = self._heavy.get(where), value_key(*where)
        if heavy is None or not 0 < heavy.rows * heavy.columns <= len(self.evaluators):
            return _Grid(evaluators_of(key, self.evaluators), 1, 1)
        return _Grid(evaluators_of(key, self.evaluators, heavy.rows * heavy.columns), heavy.rows, heavy.columns)


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
