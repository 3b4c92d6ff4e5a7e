"""The transitive closure of bounds between terms: the least weight of a path from each term to each other.

An edge from v to w with weight c says v <= w + c (or v < w + c). Bounds contradict each other if and only if some cycle
has a negative sum (Rosenkrantz and Hunt, 1980). Weights between integral terms are rounded down to integers; decimal
and float terms keep strict and non-strict bounds apart. Where both kinds meet, a path through the others is summed
first and rounded afterwards. That is enough for an exact answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from queries.atoms import INTEGRAL, Bound
from queries.expressions import Constant, Expression
from queries.simplify import order_of

# A weight encodes c (non-strict) as 2c, and c (strict) as 2c - 1. So the tighter of two bounds is the smaller number,
# and a sum is strict if one of its weights is. c counts in units of 1 / scale, so everything is an integer.
Weights = list[list[int | None]]


def _plus(a: int, b: int) -> int:
    return a + b + (a & b & 1)


def _shortest(weights: Weights) -> bool:
    """All shortest paths (Floyd and Warshall); False if a cycle is negative."""
    for middle, onward in enumerate(weights):
        steps = [(at, step) for at, step in enumerate(onward) if step is not None]
        for row in weights:
            first = row[middle]
            if first is None:
                continue
            for at, step in steps:
                there, found = row[at], first + step + (first & step & 1)  # _plus, without the cost of a call.
                if there is None or found < there:
                    row[at] = found
    return all((row[at] or 0) >= 0 for at, row in enumerate(weights))


def _rounded(weight: int, scale: int) -> int:
    """The tightest equivalent bound between integral terms."""
    bound, strict = (weight + 1) >> 1, weight & 1
    return 2 * scale * (-(-bound // scale) - 1 if strict else bound // scale)


@dataclass(frozen=True, slots=True)
class Closure:
    """Every bound between two nodes that follows from the given ones."""

    nodes: dict[Expression, int]
    scale: int
    weights: Weights

    @classmethod
    def of(cls, nodes: dict[Expression, int], bounds: Iterable[Bound]) -> Closure | None:
        """The closure of some bounds; None if they contradict each other."""
        bounds = list(bounds)
        scale = math.lcm(*(bound.offset.denominator for bound in bounds))
        weights: Weights = [[0 if row == at else None for at in range(len(nodes))] for row in range(len(nodes))]
        for bound in bounds:
            row, at = weights[nodes[bound.left]], nodes[bound.right]
            weight = 2 * int(bound.offset * scale) - bound.strict
            there = row[at]
            row[at] = weight if there is None else min(weight, there)
        if not _shortest(weights):
            return None
        integral = [number for node, number in nodes.items() if node.type in INTEGRAL]
        rounded = False
        for row in (weights[number] for number in integral):
            for at in integral:
                known = row[at]
                if known is not None and (tightest := _rounded(known, scale)) != known:
                    row[at] = tightest
                    rounded = True
        if rounded and not _shortest(weights):
            return None
        return cls(nodes, scale, weights)

    def weight(self, left: Expression, right: Expression) -> tuple[Fraction, bool] | None:
        """The tightest offset of left <= right + offset, and whether it is strict."""
        weight = self._weight(left, right)
        return None if weight is None else (Fraction((weight + 1) >> 1, self.scale), bool(weight & 1))

    def has(self, bound: Bound) -> bool:
        """Whether some path is at least as tight as the bound."""
        known = self.weight(bound.left, bound.right)
        return known is not None and (known[0], not known[1]) <= (bound.offset, not bound.strict)

    def _weight(self, left: Expression, right: Expression) -> int | None:
        return self.weights[self.nodes[left]][self.nodes[right]]

    # The smallest set of bounds that says the same.

    def heads(self) -> dict[Expression, Expression]:
        """For each node its head: the first node (constants first) from which it always differs by the same number."""
        ordered = sorted(self.nodes, key=lambda node: (not isinstance(node, Constant), order_of(node)))
        heads: dict[Expression, Expression] = {}
        for node in ordered:
            heads[node] = next((head for head in heads.values() if self._is_fixed(node, head)), node)
        return heads

    def fixed(self) -> Iterator[Bound]:
        """Nodes that equal another node plus an offset: the bound holds in both directions."""
        for node, head in self.heads().items():
            if node != head and not isinstance(node, Constant):
                known = self.weight(node, head)
                assert known is not None, "a node is bound to its head"
                yield Bound(node, head, known[0])

    def reduced(self) -> Iterator[Bound]:
        """Bounds between heads of which none follows from the others (transitive reduction)."""
        heads = [node for node, head in self.heads().items() if node == head]
        for left in heads:
            for right in heads:
                known = self.weight(left, right)
                constant = isinstance(left, Constant) and isinstance(right, Constant)
                if known is not None and not constant and not self._has_way_round(left, right, heads):
                    yield Bound(left, right, *known)

    def _is_fixed(self, one: Expression, other: Expression) -> bool:
        there, back = self._weight(one, other), self._weight(other, one)
        return there is not None and back is not None and _plus(there, back) == 0

    def _has_way_round(self, left: Expression, right: Expression, nodes: list[Expression]) -> bool:
        """Whether a path over another node is as tight as the edge between two."""
        weight = self._weight(left, right)
        for middle in nodes:
            first, second = self._weight(left, middle), self._weight(middle, right)
            if middle in (left, right) or first is None or second is None:
                continue
            if weight is None or _plus(first, second) <= weight:
                return True
        return left == right
