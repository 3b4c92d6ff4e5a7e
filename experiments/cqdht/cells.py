"""Cells, an algorithm of ours beyond the paper: a busy evaluator hands load on to others, in units of cells.

A cell is what queries look for in one attribute by one value. All cells of a value begin at one evaluator, so that what
a tuple has for several of them travels in one BUNDLE. A peer with more load than others hands cells on to peers with
less; while it has more, new cells go to them, too. A cell with more load than a peer should have is halved: a hash
spreads its queries over the parts, and tuples go to each part. A part that is cut off has a first holder of its own.

A peer compares its load with the mean of a few others. It asks them whenever its load has grown by half and is above
the mean it last heard. Load counts the comparisons of all cells that are here now, wherever they were made, and the
tuples that came to the rewriter: so it foretells what is to come. Peers count anew from time to time.

A cell moves with all its contents (MOVED). Pairs that have met at the old holder do not meet again. The old holder
passes on what still arrives for the cell, and tells the sender (HANDED_ON, HALVED). What reaches the new holder before
the contents do meets them when they come. So no order of arrival loses a pair or tells it twice. Holders of a cell are
numbered, and a cell is only ever halved, never joined: so nothing is passed on in circles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from experiments.cqdht.messages import CellName
from protocols.ids import Key, PeerId
from protocols.join_index.messages import JoinId, ValueText

_KEYS_MAX: Final = 1 << 18


@lru_cache(maxsize=_KEYS_MAX)
def _key(value: ValueText) -> Key:
    return Key.of("cells", value)


def cell_key(value: ValueText, cell: CellName) -> Key:
    """The key of a cell's first holder. All cells of a value that are not cut off have one key."""
    return _key(value) if not cell.part else Key.of("cell", value, cell.at.relation, *cell.at.path, str(cell.part))


@lru_cache(maxsize=_KEYS_MAX)
def _bits(query: JoinId) -> int:
    return int.from_bytes(Key.of("part", query)[:4], "big")


def part_of(query: JoinId, part: int, before: int, after: int) -> int:
    """The part that a query belongs to once its part, halved `before` times then, is halved `after` times.

    A part keeps the queries that agree with it in one bit more each time, and cuts off the others.
    """
    for bit in range(before, after):
        if _bits(query) >> bit & 1:
            return part | 1 << bit
    return part


def cut_off(part: int, before: int, after: int) -> list[int]:
    """The parts that halving has cut off meanwhile. Each counts as halved as often as it has binary digits."""
    return [part | 1 << bit for bit in range(before, after)]


@dataclass(slots=True)
class Parts:
    """The parts of one cell, and how often each has been halved, as far as a peer knows."""

    bits: dict[int, int] = field(default_factory=lambda: {0: 0})

    def learn(self, part: int, bits: int) -> None:
        before = self.bits.setdefault(part, part.bit_length())
        for other in cut_off(part, before, bits):
            self.bits.setdefault(other, other.bit_length())
        self.bits[part] = max(before, bits)

    def of(self, query: JoinId) -> int:
        """The part that a query belongs to."""
        part = 0
        while (deeper := part_of(query, part, part.bit_length(), self.bits[part])) != part:
            part = deeper
        return part


@dataclass(slots=True, eq=False)
class Cell:
    """A cell at one of its holders."""

    value: ValueText
    name: CellName
    bits: int  # So often has it been halved.
    holder: int = 0  # The how many-th this peer is,
    next: PeerId | None = None  # and the one after it, if it has been handed on.
    queries_load: int = 0  # Rewritten queries that were compared,
    tuples_load: int = 0  # and tuples.
    width: int = 0  # The most queries that one tuple has brought.

    @property
    def load(self) -> int:
        return self.queries_load + self.tuples_load


@dataclass(slots=True)
class Cells:
    """The cells that are, or have been, at one peer."""

    load: int = 0  # Of those that are here.
    _cells: dict[tuple[ValueText, CellName], Cell] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self._cells

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())

    def at(self, value: ValueText, name: CellName, holder: int) -> Cell:
        """The cell that a message is for. A message for a later holder means that the cell has come back here."""
        found = self._cells.get((value, name))
        if found is None:
            found = self._cells[value, name] = Cell(value, name, name.part.bit_length())
        if found.holder < holder:
            found.holder, found.next = holder, None
        return found

    def add(self, cell: Cell, queries: int, tuples: int) -> None:
        cell.queries_load += queries
        cell.tuples_load += tuples
        self.load += queries + tuples

    def heaviest(self) -> list[Cell]:
        """All cells with load, the heaviest first."""
        return sorted((cell for cell in self._cells.values() if cell.load), key=lambda cell: -cell.load)

    def elsewhere(self) -> list[Cell]:
        """Those that have been handed on."""
        return [cell for cell in self._cells.values() if cell.next is not None]

    def count_anew(self, is_empty: Callable[[Cell], bool]) -> None:
        """Forget loads, and cells that are here, whole and empty: this is what an unknown cell is taken for."""
        for name, cell in list(self._cells.items()):
            self.add(cell, -cell.queries_load, -cell.tuples_load)
            if cell.next is None and cell.bits == cell.name.part.bit_length() and is_empty(cell):
                del self._cells[name]

    def validate(self) -> None:
        assert self.load == sum(cell.load for cell in self._cells.values())
        assert not any(cell.load for cell in self.elsewhere())
