"""Cells: the evaluators that share one value, more of them the heavier it is.

Ours, beyond the paper. A light value has one evaluator for all attributes that are looked for by it, so what a tuple
has for many of them travels in one BUNDLE. A heavy one is split: its attributes are spread over 2^depth cells by their
hash. Every attribute of a value is in exactly one cell, and its tuples and rewritten queries meet there:

- A cell that gets too much has the first cell raise the depth; the first cell tells all the others.
- A cell whose depth rises hands over (MOVED) what belongs to a new cell; what had met there does not meet again.
- What comes to a cell by an older depth is passed on to the cell it belongs to, and its sender is told the new depth.

So no order of arrival loses a pair, or has it meet twice: what comes to the new cell before that which is handed over
meets it then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar

from protocols.ids import Key, Millis
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import Asked, Attribute, JoinQuery, Opened, Rewritten, Side, ValueText
from queries.plan import Operator

DEPTH_MAX: Final = 12
FIRST: Final = 0
STEP: Final = 2  # Four cells for one: those who send have less to relearn than if it were two.
_KEYS_MAX: Final = 1 << 18
T = TypeVar("T")


@lru_cache(maxsize=_KEYS_MAX)
def cell_key(value: ValueText, cell: int) -> Key:
    """Whose cell it is: the peer nearest to this key."""
    return Key.of("cell", value, str(cell))


@lru_cache(maxsize=_KEYS_MAX)
def _bits(at: Attribute) -> int:
    return int.from_bytes(Key.of("cell of", at.relation, *at.path)[:4], "big")


def cell_of(at: Attribute, depth: int) -> int:
    """The cell of an attribute among 2^depth."""
    return _bits(at) & ((1 << depth) - 1)


def by_cell(parts: Iterable[tuple[Attribute, T]], depth: int) -> dict[int, tuple[tuple[Attribute, T], ...]]:
    """What belongs to which cell."""
    found: dict[int, list[tuple[Attribute, T]]] = {}
    for part in parts:
        found.setdefault(cell_of(part[0], depth), []).append(part)
    return {cell: tuple(each) for cell, each in found.items()}


def together(every: Iterable[Rewritten]) -> tuple[Opened, ...]:
    """Rewritten queries as they travel to a cell."""
    found: dict[tuple[Operator, Side], list[Asked]] = {}
    for each in every:
        query = each.query
        asked = Asked(query.id, query.subscriber, query.inserted_at, query.retention_ms, query.is_set)
        found.setdefault((query.plan, each.side), []).append(asked)
    return tuple(Opened(plan, side, tuple(queries)) for (plan, side), queries in found.items())


def apart(every: Iterable[Opened]) -> tuple[Rewritten, ...]:
    """The same again, one by one."""
    return tuple(
        Rewritten(
            JoinQuery(of.id, of.subscriber, of.inserted_at, "cells", each.plan, of.retention_ms, of.is_set), each.side
        )
        for each in every
        for of in each.queries
    )


@dataclass(slots=True, eq=False)
class _Cell:
    depth: int
    since: Millis = 0
    load: int = 0  # Since then.


@dataclass(slots=True)
class Cells:
    """The cells of one peer: how deep their values are split, and how much comes to them."""

    limits: JoinLimits
    _cells: dict[tuple[ValueText, int], _Cell] = field(default_factory=dict)

    def depth(self, value: ValueText, cell: int) -> int:
        """How deep a value is split, as far as this cell knows; a cell is there from its own depth on."""
        found = self._cells.get((value, cell))
        return cell.bit_length() if found is None else found.depth

    def deepen(self, value: ValueText, cell: int, depth: int) -> None:
        found = self._cells.setdefault((value, cell), _Cell(depth))
        found.depth, found.load = max(found.depth, depth), 0

    def is_heavy(self, value: ValueText, cell: int, load: int, now: Millis) -> bool:
        """Count what has come; whether it is too much for one cell."""
        found = self._cells.get((value, cell))
        if found is None:
            found = self._cells[value, cell] = _Cell(cell.bit_length(), now)
        if now - found.since > self.limits.split_ms:
            found.since, found.load = now, 0
        found.load += load
        return found.load > self.limits.split_above and found.depth < DEPTH_MAX
