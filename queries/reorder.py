"""The inner joins of a plan in any order: as a graph of sources and conditions, and back to a plan.

A result of a join speaks of all its tuples at once: their stretches must have an instant in common, and all conditions
must hold. So where windows are of time without SLIDE, or where there are none, any tree of the same sources means the
same. Windows of rows, sliding ones, and joins that no condition connects keep the order of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from queries.canonical import flattened
from queries.cost import TYPE_BYTES, Estimate, Rates, joined_estimate
from queries.expressions import Expression, columns_of, conjunction, conjuncts, inputs_of
from queries.plan import Join, Operator, Project, Restructure, Select, Source, Window, WindowAggregate
from queries.reads import Needed, needed_above

Sources = int
"""A set of the sources of a graph, one bit for each."""

Order = int | tuple["Order", "Order"]
"""A tree of joins: the number of a source, or two trees."""


@dataclass(frozen=True)
class JoinGraph:
    """The sources that a plan joins, the conditions on them, and the plan they are part of.

    >>> from queries.catalogue import Stream
    >>> from queries.plan import walk
    >>> from queries.schema import Schema
    >>> from queries.sql import plan
    >>> streams = {name: Stream(name, Schema.parse("k int, v int")) for name in "abc"}
    >>> graph = graph_of(plan("SELECT c.v FROM a, b, c WHERE a.k = b.k AND b.k = c.k AND c.v > 1", streams).plan)
    >>> for operator in walk(graph.ordered((0, (1, 2)))):
    ...     print(operator)
    Source a
    Source b
    Source c
    Select c.v > 1
    Join b.k = c.k
    Join a.k = b.k
    Project c.v
    """

    plan: Operator
    sources: tuple[Source, ...]
    conditions: tuple[tuple[Sources, Expression], ...]  # With the sources that each reads.

    @cached_property
    def neighbours(self) -> tuple[Sources, ...]:
        """For each source those that a condition connects it with."""
        found = [0] * len(self.sources)
        for read, _ in self.conditions:
            if read.bit_count() == 2:
                for number in range(len(found)):
                    if read >> number & 1:
                        found[number] |= read ^ (1 << number)
        return tuple(found)

    def between(self, left: Sources, right: Sources) -> Expression | None:
        """The conditions that a join of two sets is the first to be able to test."""
        both = left | right
        parts = [part for read, part in self.conditions if read | both == both and read & left and read & right]
        return conjunction(tuple(parts))

    def source(self, number: int) -> Operator:
        """A source with its own conditions; those that read nothing are tested at the first."""
        own = [part for read, part in self.conditions if read == 1 << number or (read == 0 and number == 0)]
        predicate = conjunction(tuple(own))
        return self.sources[number] if predicate is None else Select(self.sources[number], predicate)

    def joined(self, order: Order) -> Operator:
        """The joins alone, each condition as low as it can be."""
        if isinstance(order, int):
            return self.source(order)
        left, right = (members(side) for side in order)
        return Join(self.joined(order[0]), self.joined(order[1]), self.between(left, right))

    def ordered(self, order: Order) -> Operator:
        """The whole plan with its joins in another order."""
        assert members(order) == (1 << len(self.sources)) - 1, "an order has every source once"
        return _with_joins(self.plan, self.joined(order))

    @cached_property
    def read_above(self) -> Needed:
        """For each source the fields that are read above all joins."""
        bare: Operator = self.sources[0]
        for each in self.sources[1:]:
            bare = Join(bare, each)
        return needed_above(_with_joins(self.plan, bare))


def graph_of(plan: Operator) -> JoinGraph | None:
    """The graph of a plan's joins; None if they have to keep the order of the text, or if there are none."""
    group = _joins_in(plan)
    if group is None or group is plan:  # A join at the top: its order is that of the result's columns.
        return None
    leaves, parts = flattened(group)
    sources = tuple(leaf for leaf in leaves if isinstance(leaf, Source) and _is_free(leaf.window))
    if len(sources) < len(leaves):
        return None
    numbers = {source.alias: number for number, source in enumerate(sources)}
    each = [part for joint in parts for part in conjuncts(joint)]
    conditions = tuple((sum(1 << numbers[alias] for alias in inputs_of(part)), part) for part in each)
    graph = JoinGraph(plan, sources, conditions)
    return graph if _is_connected(graph) else None


def members(order: Order) -> Sources:
    """The sources in a tree."""
    return 1 << order if isinstance(order, int) else members(order[0]) | members(order[1])


@dataclass(frozen=True, slots=True)
class SetEstimates:
    """What joins of sets of sources give, each from that of a smaller set, worked out once."""

    graph: JoinGraph
    rates: Rates
    _known: dict[Sources, Estimate] = field(default_factory=dict)

    def of(self, sources: Sources) -> Estimate:
        """Rows per second, and the bytes of all their columns."""
        if sources not in self._known:
            self._known[sources] = self._estimate(sources)
        return self._known[sources]

    def beta(self, sources: Sources) -> float:
        """Bytes per second to where a set is read: its rows with their times and the fields that are read above it."""
        estimate = self.of(sources)
        size = sum(
            estimate.columns[self.graph.sources[number].alias, (name,)].row_bytes or 0.0
            for number, name in self.needed(sources)
        )
        return estimate.rate_per_s * (size + TYPE_BYTES["timestamp"])

    def _estimate(self, sources: Sources) -> Estimate:
        last = sources.bit_length() - 1
        rest = sources ^ 1 << last
        if rest == 0:
            return self.rates.estimate(self.graph.source(last))
        return joined_estimate(self.of(rest), self.of(1 << last), self.graph.between(rest, 1 << last))

    def needed(self, sources: Sources) -> Iterator[tuple[int, str]]:
        """The fields of a set that somebody above it reads."""
        later = [part for read, part in self.graph.conditions if read | sources != sources]
        for number, source in enumerate(self.graph.sources):
            if sources >> number & 1:
                names = dict.fromkeys(self.graph.read_above[source.alias])
                for part in later:
                    names |= {each.path[0]: None for each in columns_of(part) if each.input == source.alias}
                yield from ((number, each.name) for each in source.schema.fields if each.name in names)


def _joins_in(plan: Operator) -> Operator | None:
    """The topmost operator that is a join, or that selects from one."""
    while True:
        leaves, _ = flattened(plan)
        if len(leaves) > 1:
            return plan
        match leaves[0]:
            case Project(input=below) | Restructure(input=below):
                plan = below
            case WindowAggregate(input=below, aggregates=aggregates):
                if any(each.function == "collect" for each in aggregates):
                    return None  # It gathers fields by their names alone.
                plan = below
            case _:
                return None


def _with_joins(plan: Operator, joins: Operator) -> Operator:
    leaves, _ = flattened(plan)
    if len(leaves) > 1:
        return joins
    assert isinstance(plan, Select | Project | Restructure | WindowAggregate), "one input leads to the joins"
    return msgspec.structs.replace(plan, input=_with_joins(plan.input, joins))


def _is_free(window: Window | None) -> bool:
    return window is None or (window.kind == "time" and window.slide is None)


def _is_connected(graph: JoinGraph) -> bool:
    found, before = 1, 0
    while found != before:
        before = found
        for number, others in enumerate(graph.neighbours):
            found |= others if found >> number & 1 else 0
    return found == (1 << len(graph.sources)) - 1
