"""Cells: what is looked for in one attribute by one value; a busy peer hands cells on, and halves heavy ones.

Ours, beyond the paper. All cells of a value, one for each attribute, begin at one evaluator, so what a tuple has for
many of them travels in one BUNDLE. A peer that has more to do than others hands cells on to peers that have less, and
as long as it has, it gives them those that are new. A cell that is more than a peer should have is halved: queries are
spread over its parts by their hash, tuples go to each part. A part that is cut off has a first holder of its own.

What is much goes by the mean of a few peers, asked whenever the own load has grown by half, and is above the mean of
the last time. Load is what the cells that are here now have had to compare, wherever they were, and the tuples that
came to the rewriter: so it tells what is still to come. Peers count anew from time to time.

What leaves a holder goes with all that is in it (MOVED), and what had met there does not meet again. What comes to
where a cell was is passed on to where it is, and its sender is told: HANDED_ON, HALVED. So no order of arrival loses a
pair, or has it meet twice: what comes to the new holder before that which is handed over meets it then. Holders of a
cell are numbered, and it is only halved, never joined: nothing is passed on in circles.
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
    """The peer nearest to it is the first holder: one for all cells of a value that have not been cut off."""
    return _key(value) if not cell.part else Key.of("cell", value, cell.at.relation, *cell.at.path, str(cell.part))


@lru_cache(maxsize=_KEYS_MAX)
def _bits(query: JoinId) -> int:
    return int.from_bytes(Key.of("part", query)[:4], "big")


def part_of(query: JoinId, part: int, before: int, after: int) -> int:
    """Where a query of a part that had been halved `before` times is when it has been so `after` times.

    A part keeps the queries that agree with it in one bit more each time, and cuts off the others.
    """
    for bit in range(before, after):
        if _bits(query) >> bit & 1:
            return part | 1 << bit
    return part


def cut_off(part: int, before: int, after: int) -> list[int]:
    """The parts that it has cut off meanwhile; each begins halved as often as it has digits."""
    return [part | 1 << bit for bit in range(before, after)]


@dataclass(slots=True)
class Parts:
    """The parts of an attribute's share of a value, and how often each has been halved, as far as somebody knows."""

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
        """A cell that something has come for. Who comes for a later holder than this peer was, means it again."""
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
        """All that have had something to compare, the heaviest first."""
        return sorted((cell for cell in self._cells.values() if cell.load), key=lambda cell: -cell.load)

    def elsewhere(self) -> list[Cell]:
        """Those that have been handed on."""
        return [cell for cell in self._cells.values() if cell.next is not None]

    def count_anew(self, is_empty: Callable[[Cell], bool]) -> None:
        """Forget loads, and cells of which nothing else is known: one that was here and whole is so when it is back."""
        for name, cell in list(self._cells.items()):
            self.add(cell, -cell.queries_load, -cell.tuples_load)
            if cell.next is None and cell.bits == cell.name.part.bit_length() and is_empty(cell):
                del self._cells[name]

    def validate(self) -> None:
        assert self.load == sum(cell.load for cell in self._cells.values())
        assert not any(cell.load for cell in self.elsewhere())
