"""What flows out of each operator, in rows per second and bytes per row: the common vocabulary of all planners.

* SAND's β of an edge of the tree is the bandwidth out of its lower end, in bytes per second: `Estimate.beta`.
* StreamGlobe's size(p) and freq(p) are `row_bytes` and `rate_per_s`: a projection takes away the elements it leaves
  out, a selection multiplies the frequency by its selectivity, a window divides it by its step, counted in items.
* A join lets a row of one side meet those of the other that are in their window: λ₁ λ₂ (W₁ + W₂) pairs per second
  times the selectivity, and a pair stays for 1 / (1/W₁ + 1/W₂). So the rate of a join of any number of streams is the
  same in whatever order they are joined, and a planner may ask for any subset (IFLOW).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final, assert_never

import msgspec

from queries.binder import joined
from queries.canonical import flattened
from queries.expressions import RANK, Expression, ValueType, conjuncts, inputs_of
from queries.plan import (
    Aggregate,
    Join,
    Nest,
    Operator,
    Project,
    Restructure,
    Select,
    Source,
    Union,
    Window,
    WindowAggregate,
)
from queries.schema import Field
from queries.selectivity import ColumnKey, Columns, ColumnStatistics, known_of, selected

DAY_S: Final = 86_400.0
GROUPS: Final = 10.0  # For a key without statistics.
LIST_BYTES: Final = 3.0  # Overhead around the items of a collected window.
TYPE_BYTES: Final[Mapping[ValueType, float]] = {
    "int": 5.0,
    "float": 9.0,
    "decimal": 8.0,
    "string": 16.0,
    "bool": 1.0,
    "timestamp": 10.0,
    "bytes": 32.0,
    "interval": 9.0,
    "null": 1.0,
    "record": 3.0,
    "list": LIST_BYTES,
}


class StreamRates(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a stream; columns are named by their path, also those inside records."""

    rate_per_s: float
    row_bytes: float
    columns: Mapping[tuple[str, ...], ColumnStatistics] = {}
    retention_s: float = DAY_S  # How long a row without a window can find partners.


MOST: Final = 1e15  # Rows per second, or bytes in a row: products of a few of these are still numbers.
UNKNOWN: Final = StreamRates(rate_per_s=100.0, row_bytes=100.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What flows out of an operator."""

    rate_per_s: float
    row_bytes: float
    columns: Columns = field(default_factory=dict, repr=False)
    alive_s: float = DAY_S  # For how long a row can find partners in a join.
    arrivals_per_s: float = 0.0  # Rows of the source before any selection; ROWS windows count these.

    @property
    def beta(self) -> float:
        """Bytes per second: SAND's β of the edge above the operator, StreamGlobe's size times freq."""
        return self.rate_per_s * self.row_bytes


@dataclass(frozen=True, slots=True)
class Rates:
    """Estimates for plans over some streams; a guess for a stream without statistics."""

    streams: Mapping[str, StreamRates]
    unknown: StreamRates = UNKNOWN

    def estimate(self, plan: Operator) -> Estimate:
        """What flows out of a plan. Nobody knows so much of the results of many joins that a bound would mislead."""
        found = self._estimate(plan)
        rate, arrivals = min(found.rate_per_s, MOST), min(found.arrivals_per_s, MOST)
        return replace(found, rate_per_s=rate, row_bytes=min(found.row_bytes, MOST), arrivals_per_s=arrivals)

    def _estimate(self, plan: Operator) -> Estimate:
        match plan:
            case Source():
                return self._of_source(plan)
            case Select(input=inner, predicate=predicate):
                return _of_select(self.estimate(inner), predicate)
            case Join(left=left, right=right, predicate=condition):
                return joined_estimate(self.estimate(left), self.estimate(right), condition)
            case Project():
                return _of_project(self.estimate(plan.input), plan)
            case Nest(input=inner, nested=nested):
                return _of_nest(self.estimate(inner), self.estimate(nested), plan)
            case WindowAggregate():
                return _of_aggregate(self.estimate(plan.input), plan)
            case Union(branches=branches):
                return _of_union([self.estimate(branch) for branch in branches], plan)
            case Restructure(input=inner):
                return self.estimate(inner)  # Built at the subscriber's peer, so it does not travel.
        assert_never(plan)

    def estimates(self, plan: Operator) -> Iterator[tuple[Operator, Estimate]]:
        """Every operator of a plan with what flows out of it, inputs before what reads them."""
        for each in plan.inputs:
            yield from self.estimates(each)
        yield plan, self.estimate(plan)

    def of_subset(self, plan: Operator, aliases: Collection[str]) -> Estimate:
        """The join of a subset of a join's sources, with the conditions among them; for planners that order joins."""
        leaves, parts = flattened(plan)
        chosen = [leaf for leaf in leaves if isinstance(leaf, Source | WindowAggregate) and leaf.alias in aliases]
        assert len(chosen) == len(aliases), "every alias is that of an input of the join"
        every = [part for each in parts for part in conjuncts(each)]
        return self.estimate(
            joined(chosen, [part for part in every if all(each in aliases for each in inputs_of(part))])
        )

    def _of_source(self, source: Source) -> Estimate:
        known = self.streams.get(source.stream, self.unknown)
        leaves = dict(_leaves(source.schema.fields, ()))
        sizes = _sizes(leaves, known)
        columns = {
            (source.alias, path): msgspec.structs.replace(
                known.columns.get(path, ColumnStatistics()),
                row_bytes=math.fsum(size for leaf, size in sizes.items() if leaf[: len(path)] == path),
            )
            for path in _paths(source.schema.fields, ())
        }
        alive = known.retention_s
        if source.window is not None:
            alive = _seconds(source.window, source.window.size, known.rate_per_s, columns, alive)
        return Estimate(known.rate_per_s, known.row_bytes, columns, alive, known.rate_per_s)


# Sizes.


def _paths(fields: Iterable[Field], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for each in fields:
        yield (*above, each.name)
        yield from _paths(each.fields, (*above, each.name))


def _leaves(fields: Iterable[Field], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ValueType]]:
    for each in fields:
        if each.fields:
            yield from _leaves(each.fields, (*above, each.name))
        else:
            yield (*above, each.name), each.type


def _sizes(leaves: Mapping[tuple[str, ...], ValueType], known: StreamRates) -> dict[tuple[str, ...], float]:
    """The bytes of each field in a row. Fields without statistics share the rest by the sizes of their types."""
    sizes = {}
    for path in leaves:
        size = known.columns[path].row_bytes if path in known.columns else None
        if size is not None:
            sizes[path] = size
    open_ = {path: TYPE_BYTES[kind] for path, kind in leaves.items() if path not in sizes}
    left = max(known.row_bytes - math.fsum(sizes.values()), 0.0)
    return sizes | {path: left * usual / math.fsum(open_.values()) for path, usual in open_.items()}


def _bytes_of(expression: Expression, columns: Columns) -> float:
    known = known_of(expression, columns).row_bytes
    return TYPE_BYTES[expression.type] if known is None else known


def _with_bytes(expression: Expression, columns: Columns) -> ColumnStatistics:
    return msgspec.structs.replace(known_of(expression, columns), row_bytes=_bytes_of(expression, columns))


# Operators.


def _of_select(below: Estimate, predicate: Expression | None) -> Estimate:
    share, columns = selected(predicate, below.columns)
    return Estimate(below.rate_per_s * share, below.row_bytes, columns, below.alive_s, below.arrivals_per_s)


def joined_estimate(left: Estimate, right: Estimate, condition: Expression | None) -> Estimate:
    """What a join of two inputs gives, from what these give."""
    pairs = left.rate_per_s * right.rate_per_s * (left.alive_s + right.alive_s)
    alive = 1 / (1 / left.alive_s + 1 / right.alive_s) if left.alive_s and right.alive_s else 0.0
    columns = {**left.columns, **right.columns}
    whole = Estimate(pairs, left.row_bytes + right.row_bytes, columns, alive)
    met = _of_select(whole, condition)
    return Estimate(met.rate_per_s, met.row_bytes, met.columns, alive, met.rate_per_s)


def _of_nest(below: Estimate, nested: Estimate, plan: Nest) -> Estimate:
    """As many rows as before, each longer by the list rows that are present and match."""
    share, _ = selected(plan.predicate, {**below.columns, **nested.columns})
    size = LIST_BYTES + nested.rate_per_s * nested.alive_s * share * nested.row_bytes
    columns = {**below.columns, ("", (plan.name,)): ColumnStatistics(row_bytes=size)}
    return Estimate(below.rate_per_s, below.row_bytes + size, columns, below.alive_s, below.arrivals_per_s)


def _of_project(below: Estimate, plan: Project) -> Estimate:
    columns: dict[ColumnKey, ColumnStatistics] = {
        (plan.alias, (each.name,)): _with_bytes(each.expression, below.columns) for each in plan.outputs
    }
    size = math.fsum(_bytes_of(each.expression, below.columns) for each in plan.outputs)
    return Estimate(below.rate_per_s, size, columns, below.alive_s, below.arrivals_per_s)


def _of_union(branches: list[Estimate], plan: Union) -> Estimate:
    rate = math.fsum(branch.rate_per_s for branch in branches)
    bytes_per_s = math.fsum(branch.beta for branch in branches)
    size = bytes_per_s / rate if rate else math.fsum(branch.row_bytes for branch in branches) / len(branches)
    columns = {
        (column.input, column.path): ColumnStatistics(row_bytes=TYPE_BYTES[column.type]) for column in plan.columns
    }
    return Estimate(rate, size, columns, max(branch.alive_s for branch in branches), rate)


def _of_aggregate(below: Estimate, plan: WindowAggregate) -> Estimate:
    """One row for each window and group that is not empty; how many are is estimated by Cardenas' formula."""
    ranked = any(column.path == (RANK,) for column in plan.input.columns)
    arrivals = below.arrivals_per_s if ranked or plan.window.kind != "rows" else below.rate_per_s
    step = plan.window.size if plan.window.slide is None else plan.window.slide
    size_s = _seconds(plan.window, plan.window.size, arrivals, below.columns, math.inf)
    step_s = _seconds(plan.window, step, arrivals, below.columns, math.inf)
    rows = below.rate_per_s * size_s if below.rate_per_s else 0.0
    groups = 1.0
    for key in plan.keys:
        distinct = known_of(key.expression, below.columns).distinct
        groups *= GROUPS if distinct is None else max(distinct, 1.0)
    filled = groups * -math.expm1(-rows / groups)
    rate = filled / step_s if step_s and math.isfinite(step_s) else 0.0
    columns: dict[ColumnKey, ColumnStatistics] = {
        (plan.alias, (key.name,)): _with_bytes(key.expression, below.columns) for key in plan.keys
    }
    for result in plan.aggregates:
        size = _result_bytes(result, plan.input, below, rows / max(filled, 1.0))
        columns[plan.alias, (result.name,)] = ColumnStatistics(row_bytes=size)
    size = math.fsum(known.row_bytes or 0.0 for known in columns.values())
    return Estimate(rate, size, columns, below.alive_s, rate)


def _result_bytes(result: Aggregate, below: Operator, estimate: Estimate, rows: float) -> float:
    """A value is as large as its type; a collected window is as large as its items."""
    match result.function:
        case "min" | "max" if result.argument is not None:
            return _bytes_of(result.argument, estimate.columns)
        case "collect":
            wanted = [each.name for each in result.fields]
            items = [column for column in below.columns if column.path[0] in wanted]
            item: list[Expression] = [*items] if result.argument is None else [result.argument]
            return LIST_BYTES + rows * math.fsum(_bytes_of(each, estimate.columns) for each in item)
    return TYPE_BYTES[result.type]


def _seconds(window: Window, extent: int | Decimal, arrivals_per_s: float, columns: Columns, endless: float) -> float:
    """How long an extent of a window lasts. Values without statistics are taken to grow by 1 a second."""
    match window.kind:
        case "time":
            return float(extent) / 1_000_000
        case "rows":
            return float(extent) / arrivals_per_s if arrivals_per_s else endless
    increments = [known.increment for (_, path), known in columns.items() if path == window.by and known.increment]
    growth_per_s = increments[0] * arrivals_per_s if increments else 1.0
    return float(extent) / growth_per_s if growth_per_s else endless
