"""What is left of a query once it reads a shared stream: a residual plan, or how the stream must be widened first.

The rules are exact where the paper's are sufficient: a condition that the shared stream has tested is not tested again,
and only the elements that the rest reads must be in it. Rows of a residual equal those of the query, but for rows that
come later than a stream's lateness allows, which a window may count that is still open and a shorter one not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import permutations
from typing import Final

import msgspec

from experiments.streamglobe.shapes import (
    PIECE_END,
    PIECE_START,
    Pairs,
    Pieces,
    Shape,
    Sieve,
    aggregates_in,
    chain,
    chained,
    column_at,
    is_chain,
    is_mergeable,
    is_same,
    outermost,
    pairs_of,
    parts_of,
    pieces_of,
    schema_of,
    sieve_of,
    under,
)
from experiments.streamglobe.windows import divides, edges, extent, is_alike, is_cut_by
from queries.aggregates import aggregate as aggregate_of
from queries.expressions import (
    END,
    START,
    TIME,
    Column,
    Constant,
    Expression,
    Named,
    ValueType,
    columns_of,
    conjunction,
    conjuncts,
    rewritten,
)
from queries.functions import call, cast
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
    sources,
    walk,
)
from queries.predicates import implies
from queries.properties import Path
from queries.simplify import simplified

PERMUTED_MAX: Final = 4  # A join with more inputs is compared in one order only.


class Residual(msgspec.Struct, frozen=True):
    """The query as it reads the shared stream."""

    plan: Operator


class Widening(msgspec.Struct, frozen=True):
    """What the shared stream would have to be."""

    shape: Shape


Match = Residual | Widening | None


def match(shape: Shape, stream: str, plan: Operator, alias: str = "s0") -> Match:
    """How a query with this canonical plan can read a shared stream of this name; of a sieve, in place of one source.

    None: they have nothing to do with each other.
    """
    if any(isinstance(each, Nest | Union) for each in walk(plan)):
        return None  # The branches of a union are matched one by one. A list shows whole rows at one instant.
    match shape:
        case Sieve():
            return _of_sieve(shape, stream, plan, alias)
        case Pieces():
            return _of_pieces(shape, stream, plan)
        case Pairs():
            return _of_pairs(shape, stream, plan)


# Rows.


def _of_sieve(shape: Sieve, stream: str, plan: Operator, alias: str) -> Match:
    base = next((each for each in sources(plan) if each.alias == alias), None)
    if base is None or _as_published(base) != _as_published(shape.source):
        return None
    wanted = sieve_of(plan, alias)
    predicate = chained(plan, alias)
    own = _under_alias(shape, alias)
    left = [part for part in conjuncts(predicate) if not _is_tested(part, own)]
    paths = [*wanted.paths, *(column.path for part in left for column in columns_of(part))]
    if not is_inside(wanted.selections, own.selections) or not _has_all(shape.paths, paths):
        return Widening(widened(shape, _under_alias(wanted, shape.source.alias), paths))
    source = shape.read(stream, alias, base.window)
    kept = conjunction(tuple(_Renamed(alias, shape.names)(part) for part in left))

    def swap(each: Operator) -> Operator | None:
        return chain(source, kept) if is_chain(each) and sources(each)[0].alias == alias else None

    return Residual(_replaced(plan, swap, _Renamed(alias, shape.names)))


def is_inside(wanted: Sequence[Expression], given: Sequence[Expression]) -> bool:
    """Whether every row of some selections meets one of others; none of them stand for all rows."""
    return not given or (bool(wanted) and all(any(implies(one, other) for other in given) for one in wanted))


def widened(shape: Sieve, more: Sieve, paths: Sequence[Path] = ()) -> Sieve:
    """The sieve that serves all readers of both; `paths` are what the new reader needs beside its own.

    A reader tests its own selection again unless all rows meet it, so the elements of each selection come along.
    """
    selections = absorbed([*shape.selections, *more.selections]) if shape.selections and more.selections else ()
    tested = [column.path for each in (*shape.selections, *more.selections) for column in columns_of(each)]
    return Sieve(shape.source, selections, outermost([*shape.paths, *more.paths, *paths, *tested]))


def absorbed(selections: Sequence[Expression]) -> tuple[Expression, ...]:
    """The selections without those that lie in another one."""
    kept: list[Expression] = []
    for each in dict.fromkeys(selections):
        if not any(implies(each, other) for other in kept):
            kept = [other for other in kept if not implies(other, each)] + [each]
    return tuple(kept)


def _is_tested(part: Expression, sieve: Sieve) -> bool:
    return bool(sieve.selections) and all(implies(each, part) for each in sieve.selections)


def _as_published(source: Source) -> Source:
    return msgspec.structs.replace(source, alias="", window=None)


def _under_alias(sieve: Sieve, alias: str) -> Sieve:
    if sieve.source.alias == alias:
        return sieve
    selections = tuple(under(each, alias) for each in sieve.selections)
    source = msgspec.structs.replace(sieve.source, alias=alias)
    return Sieve(source, selections, sieve.paths)


def _has_all(given: Sequence[Path], wanted: Sequence[Path]) -> bool:
    return all(any(path[: len(each)] == each for each in given) for path in wanted)


class _Renamed:
    """Columns of a base stream as columns of the shared one."""

    def __init__(self, alias: str, names: Mapping[Path, str]) -> None:
        self._alias, self._names = alias, names

    def path(self, path: Path) -> Path:
        for given, name in self._names.items():
            if path[: len(given)] == given:
                return (name, *path[len(given) :])
        return path

    def __call__(self, expression: Expression) -> Expression:
        def change(node: Expression) -> Expression:
            if isinstance(node, Column) and node.input == self._alias:
                return msgspec.structs.replace(node, path=self.path(node.path))
            return node

        return rewritten(expression, change)


# Window aggregates.


def _of_pieces(shape: Pieces, stream: str, plan: Operator) -> Match:
    wanted = pieces_of(plan)
    if wanted is None or _as_published(wanted.source) != _as_published(shape.source):
        return None
    alike = is_alike(wanted.windows[0], shape.windows[0]) and is_same(wanted.predicate, shape.predicate)
    if not alike or not all(each in shape.keys for each in wanted.keys):
        return None
    (aggregate,), window = aggregates_in(plan), wanted.windows[0]
    known = {msgspec.structs.replace(each, name=""): each for each in shape.parts}
    missing = [each for each in map(_unnamed, wanted.parts) if each not in known]
    is_same_window = not shape.are_slices and extent(window) == extent(shape.windows[0])
    if not missing and is_same_window and len(wanted.keys) == len(shape.keys):
        return Residual(_with_aggregate(plan, _results(shape, stream, aggregate, known)))
    if not all(map(is_mergeable, wanted.parts)):
        return None
    is_cut = is_cut_by(window, shape.windows) if shape.are_slices else divides(shape.windows[0], window)
    if not missing and is_cut:
        return Residual(_with_aggregate(plan, _put_together(shape, stream, aggregate, known)))
    if edges([*shape.windows, window]) is None or not all(map(is_mergeable, shape.parts)):
        return None
    every = [*shape.parts, *missing]
    parts = tuple(msgspec.structs.replace(each, name=f"p{number}") for number, each in enumerate(every))
    windows = tuple(dict.fromkeys([*shape.windows, window]))
    return Widening(Pieces(shape.source, shape.predicate, shape.keys, parts, windows, are_slices=True))


def _unnamed(each: Aggregate) -> Aggregate:
    return msgspec.structs.replace(each, name="")


def _with_aggregate(plan: Operator, made: Operator) -> Operator:
    """A plan with something else in place of its window aggregate."""
    return _replaced(plan, lambda each: made if isinstance(each, WindowAggregate) else None, _Renamed("", {}))


def _results(shape: Pieces, stream: str, aggregate: WindowAggregate, known: Mapping[Aggregate, Aggregate]) -> Operator:
    """Windows that are shared as they are."""
    source = shape.read(stream, "m", by_start=False)
    columns = {each.path[0]: each for each in source.columns}
    keys = {key: columns[f"k{number}"] for number, key in enumerate(shape.keys)}
    parts = {part: columns[each.name] for part, each in known.items()}
    bounds = (Named(START, columns[PIECE_START]), Named(END, columns[PIECE_END]))
    return _as_aggregate(aggregate, source, keys, parts, (*bounds, Named(TIME, columns[TIME])))


def _put_together(
    shape: Pieces, stream: str, aggregate: WindowAggregate, known: Mapping[Aggregate, Aggregate]
) -> Operator:
    """Windows made of shorter ones.

    Of sliding windows only every k-th counts, those that lie end to end and end where the new window does. They are
    grouped by where they begin, modulo their size, and the one group that fits each new window is kept.
    """
    source = shape.read(stream, "m", by_start=True)
    columns = {each.path[0]: each for each in source.columns}
    keys = [Named(f"k{number}", columns[f"k{number}"]) for number, key in enumerate(shape.keys)]
    keys = [
        each for each, key in zip(keys, shape.keys, strict=True) if key in [own.expression for own in aggregate.keys]
    ]
    merged = tuple(_merged(part, columns[each.name], each.name) for part, each in known.items())
    window = msgspec.structs.replace(aggregate.window, by=(PIECE_START,) if aggregate.window.by else ())
    size, slide = extent(shape.windows[0])
    overlap = not shape.are_slices and size > slide
    tiles = [Named("tile", _residue(columns[PIECE_START], size))] if overlap else []
    made: Operator = WindowAggregate(source, window, (*keys, *tiles), merged, "t")
    own = {each.path[0]: each for each in made.columns}
    if overlap:
        made = Select(made, call("=", own["tile"], _residue(own[END], size)))
    places = {key: own[f"k{number}"] for number, key in enumerate(shape.keys) if f"k{number}" in own}
    parts: dict[Aggregate, Expression] = {
        part: call("coalesce", own[each.name], Constant.of(0)) if part.function == "count" else own[each.name]
        for part, each in known.items()
    }
    return _as_aggregate(aggregate, made, places, parts, tuple(Named(each, own[each]) for each in (START, END, TIME)))


def _merged(part: Aggregate, column: Column, name: str) -> Aggregate:
    return aggregate_of(name, "sum" if part.function == "count" else part.function, column)


def _residue(place: Expression, size: Fraction) -> Expression:
    """Where a time or a number lies between the multiples of a size; from 0 on, also for negative numbers."""
    if place.type == "timestamp":
        seconds = call("extract", Constant.of("epoch"), place)
        place = cast(call("round", call("*", seconds, Constant.of(1e6))), "int")
        whole: Constant = Constant.of(int(size))
    else:
        whole = Constant.of(Decimal(size.numerator) / Decimal(size.denominator))
    return call("%", call("+", call("%", place, whole), whole), whole)


def _as_aggregate(
    aggregate: WindowAggregate,
    made: Operator,
    keys: Mapping[Expression, Expression],
    parts: Mapping[Aggregate, Expression],
    bounds: tuple[Named, ...],
) -> Operator:
    """The columns of a window aggregate, from rows that have its keys and parts."""
    outputs = [Named(key.name, keys[key.expression]) for key in aggregate.keys]
    for each in aggregate.aggregates:
        own = [parts[part] for part in parts_of(each)]
        outputs.append(Named(each.name, own[0] if len(own) == 1 else _mean(own[0], own[1], each.type)))
    return Project(made, (*outputs, *bounds), aggregate.alias)


def _mean(total: Expression, count: Expression, kind: ValueType) -> Expression:
    return call("/", cast(total, kind), cast(count, kind))


# Pairs of joins.


def _of_pairs(shape: Pairs, stream: str, plan: Operator) -> Match:
    wanted = pairs_of(plan)
    if wanted is None or len(wanted.inputs) != len(shape.inputs) or any(each.window.by for each in aggregates_in(plan)):
        return None
    found: list[Match] = []
    for aliases in _pairings(wanted, shape):
        found.append(_paired(shape, stream, plan, wanted, aliases))
        if isinstance(found[-1], Residual):
            return found[-1]
    return next((each for each in found if each is not None), None)


def _pairings(wanted: Pairs, shape: Pairs) -> Iterator[dict[str, str]]:
    """For each alias of the query one of the shared join, over the same stream."""
    orders = permutations(shape.inputs) if len(shape.inputs) <= PERMUTED_MAX else [shape.inputs]
    for order in orders:
        pairs = list(zip(wanted.inputs, order, strict=True))
        if all(_as_published(own.source) == _as_published(other.source) for own, other in pairs):
            yield {own.source.alias: other.source.alias for own, other in pairs}


def _paired(shape: Pairs, stream: str, plan: Operator, wanted: Pairs, aliases: Mapping[str, str]) -> Match:
    def moved(expression: Expression) -> Expression:
        def change(node: Expression) -> Expression:
            return msgspec.structs.replace(node, input=aliases[node.input]) if isinstance(node, Column) else node

        return simplified(rewritten(expression, change))

    windows = {aliases[each.source.alias]: own for each, own in zip(wanted.inputs, wanted.windows, strict=True)}
    given = {each.source.alias: own for each, own in zip(shape.inputs, shape.windows, strict=True)}
    if windows != given and any(
        each is not None and each.slide is not None for each in (*windows.values(), *given.values())
    ):
        return None
    asked = [moved(part) for part in wanted.conditions]
    tested = conjunction((*shape.conditions, *(each.predicate for each in shape.inputs if each.predicate is not None)))
    own = [*asked, *(moved(part) for each in wanted.inputs for part in conjuncts(each.predicate))]
    left = [part for part in own if not implies(tested, part)]
    left += list(_within(shape, windows, given))
    inputs = {aliases[each.source.alias]: _under_alias(each, aliases[each.source.alias]) for each in wanted.inputs}
    read = {alias: [*each.paths, *_read(left, alias)] for alias, each in inputs.items()}
    is_wide = all(_is_shorter(windows[alias], given[alias]) for alias in given)
    has_all = all(_has_all([*each.paths, (TIME,)], read[each.source.alias]) for each in shape.inputs)
    if is_wide and has_all and implies(conjunction(tuple(own)), tested):
        source = Source(stream, "j", schema_of(shape.plan))
        names = shape.names

        def change(node: Expression) -> Expression:
            if not isinstance(node, Column) or node.input not in given:
                return node
            path = next(path for alias, path in names if alias == node.input and node.path[: len(path)] == path)
            return msgspec.structs.replace(node, input="j", path=(names[node.input, path], *node.path[len(path) :]))

        kept = chain(source, conjunction(tuple(rewritten(part, change) for part in left)))
        moves = _Moved(lambda expression: rewritten(moved(expression), change))
        return Residual(_replaced(plan, lambda each: kept if isinstance(each, Join) else None, moves))
    common = tuple(each for each in shape.conditions if implies(conjunction(tuple(asked)), each))
    if not common:
        return None  # Every pair of rows would be made.
    others = [each for each in (*shape.conditions, *asked) if each not in common]
    wide = tuple(
        widened(each, inputs[each.source.alias], [*read[each.source.alias], *_read(others, each.source.alias)])
        for each in shape.inputs
    )
    wide = tuple(
        msgspec.structs.replace(each, paths=tuple(path for path in each.paths if path != (TIME,))) for each in wide
    )
    longest = tuple(_longer(windows[each.source.alias], given[each.source.alias]) for each in shape.inputs)
    return Widening(Pairs(wide, longest, common))


def _read(parts: Sequence[Expression], alias: str) -> list[Path]:
    return [column.path for part in parts for column in columns_of(part) if column.input == alias]


def _within(
    shape: Pairs, windows: Mapping[str, Window | None], given: Mapping[str, Window | None]
) -> Iterator[Expression]:
    """Where the query's window is shorter: every other row came while the row was in it."""
    times = {each.source.alias: column_at(each.source, (TIME,)) for each in shape.inputs}
    for alias, window in windows.items():
        if window is None or window == given[alias]:
            continue
        length = Constant.of(timedelta(microseconds=int(window.size)))
        for other, time in times.items():
            if other != alias:
                yield call("<=", call("-", time, times[alias]), length)


def _is_shorter(window: Window | None, than: Window | None) -> bool:
    return than is None or (window is not None and window.size <= than.size)


def _longer(one: Window | None, other: Window | None) -> Window | None:
    return one if _is_shorter(other, one) else other


class _Moved:
    """Columns of the streams of a join as columns of its pairs."""

    def __init__(self, change: Callable[[Expression], Expression]) -> None:
        self._change = change

    def path(self, path: Path) -> Path:
        return path

    def __call__(self, expression: Expression) -> Expression:
        return self._change(expression)


# Plans.


def _replaced(plan: Operator, swap: Callable[[Operator], Operator | None], change: _Renamed | _Moved) -> Operator:
    """A plan with other parts in place of some, and renamed columns above them."""
    if (other := swap(plan)) is not None:
        return other
    match plan:
        case Source():
            return plan
        case Select():
            return Select(_replaced(plan.input, swap, change), change(plan.predicate))
        case Project():
            outputs = tuple(Named(each.name, change(each.expression)) for each in plan.outputs)
            return msgspec.structs.replace(plan, input=_replaced(plan.input, swap, change), outputs=outputs)
        case Join():
            condition = None if plan.predicate is None else change(plan.predicate)
            return Join(_replaced(plan.left, swap, change), _replaced(plan.right, swap, change), condition)
        case WindowAggregate():
            keys = tuple(Named(each.name, change(each.expression)) for each in plan.keys)
            results = tuple(
                each if each.argument is None else msgspec.structs.replace(each, argument=change(each.argument))
                for each in plan.aggregates
            )
            window = msgspec.structs.replace(plan.window, by=change.path(plan.window.by))
            below = _replaced(plan.input, swap, change)
            return msgspec.structs.replace(plan, input=below, keys=keys, aggregates=results, window=window)
        case Restructure():  # It reads a projection, whose columns keep their names.
            return msgspec.structs.replace(plan, input=_replaced(plan.input, swap, change))
    raise AssertionError(f"no rule for {plan}")
