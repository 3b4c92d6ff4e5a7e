"""What a shared stream holds, in one canonical form for SQL and WXQuery: rows, window aggregates, or pairs of a join.

A shape is what several queries can read instead of their base streams. Each has a plan, so any engine can make it, and
columns with names of their own. Windows of rows are not shared: they count from where a query begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, cast

import msgspec

from experiments.streamglobe.windows import panes
from queries.expressions import (
    END,
    START,
    TIME,
    Column,
    Expression,
    Named,
    columns_of,
    conjunction,
    conjuncts,
    rewritten,
)
from queries.functions import call
from queries.plan import (
    Aggregate,
    Join,
    Operator,
    Project,
    Restructure,
    Select,
    Source,
    Window,
    WindowAggregate,
    sources,
    walk,
)
from queries.predicates import implies
from queries.properties import Path
from queries.restructure import expressions_in
from queries.schema import Field, FieldType, Schema

PIECE_START: Final = "start"
PIECE_END: Final = "end"


class Sieve(msgspec.Struct, frozen=True, array_like=True, tag="sieve", tag_field="kind"):
    """Rows of a stream that meet any of some conjunctions, with some elements."""

    source: Source  # Without a window: windows are those of the readers.
    selections: tuple[Expression, ...]  # None of them: every row.
    paths: tuple[Path, ...]  # None inside another.

    @property
    def predicate(self) -> Expression | None:
        if len(self.selections) < 2:
            return self.selections[0] if self.selections else None
        return call("or", *self.selections)

    @property
    def names(self) -> dict[Path, str]:
        return field_names(self.paths)

    @property
    def plan(self) -> Operator:
        columns = (Named(name, column_at(self.source, path)) for path, name in self.names.items())
        return Project(chain(self.source, self.predicate), tuple(columns))

    def read(self, stream: str, alias: str, window: Window | None = None) -> Source:
        """The shared stream as a reader has it in place of the base stream."""
        source = self.source
        return Source(stream, alias, schema_of(self.plan), window, source.event_time, source.lateness_ms)


class Pieces(msgspec.Struct, frozen=True, array_like=True, tag="pieces", tag_field="kind"):
    """Window aggregates in parts from which other windows can be put together.

    With one window these are its results, as the paper shares them; an average is kept as sum and count. As slices they
    are cut only where one of the windows begins or ends.
    """

    source: Source
    predicate: Expression | None
    keys: tuple[Expression, ...]
    parts: tuple[Aggregate, ...]  # Named p0, p1, …
    windows: tuple[Window, ...]
    are_slices: bool = False

    @property
    def window(self) -> Window:
        """The only window; of slices, the panes that all of them are made of."""
        if not self.are_slices:
            return self.windows[0]
        return panes(self.windows)

    @property
    def plan(self) -> Operator:
        """Its rows; those of slices are finer than need be, as plans know no windows of changing length."""
        keys = tuple(Named(f"k{number}", each) for number, each in enumerate(self.keys))
        made = WindowAggregate(chain(self.source, self.predicate), self.window, keys, self.parts, "w")
        own = {column.path[0]: column for column in made.columns}
        known = [Named(name, column) for name, column in own.items() if not name.startswith("$")]
        return Project(made, (*known, Named(PIECE_START, own[START]), Named(PIECE_END, own[END])))

    def read(self, stream: str, alias: str, *, by_start: bool) -> Source:
        """The pieces as a stream: in the order of their starts to be put together, else as results of windows."""
        is_time = self.windows[0].kind == "time"
        event_time = PIECE_START if is_time and by_start else None
        return Source(stream, alias, schema_of(self.plan), None, event_time)


class Pairs(msgspec.Struct, frozen=True, array_like=True, tag="pairs", tag_field="kind"):
    """The rows of a join, each with the times of the rows it is made of, so that shorter windows are a condition."""

    inputs: tuple[Sieve, ...]
    windows: tuple[Window | None, ...]
    conditions: tuple[Expression, ...]

    @property
    def names(self) -> dict[tuple[str, Path], str]:
        every = [(each.source.alias, path) for each in self.inputs for path in (*each.paths, (TIME,))]
        shown = field_names([(alias, *(name.lstrip("$") for name in path)) for alias, path in every])
        return dict(zip(every, shown.values(), strict=True))

    @property
    def plan(self) -> Operator:
        waiting = list(self.conditions)
        made: Operator | None = None
        bound: list[str] = []
        windows = dict(zip((each.source.alias for each in self.inputs), self.windows, strict=True))
        for each in self.inputs:
            alias = each.source.alias
            own = chain(msgspec.structs.replace(each.source, window=windows[alias]), each.predicate)
            bound.append(alias)
            due = tuple(part for part in waiting if all(c.input in bound for c in columns_of(part)))
            waiting = [part for part in waiting if part not in due]
            made = own if made is None else Join(made, own, conjunction(due))
        assert made is not None, "a join has inputs"
        by_alias = {each.source.alias: each.source for each in self.inputs}
        columns = (Named(name, column_at(by_alias[alias], path)) for (alias, path), name in self.names.items())
        return Project(made, tuple(columns))


Shape = Sieve | Pieces | Pairs


# What a query wants.


def sieve_of(plan: Operator, alias: str) -> Sieve:
    """The rows and elements that a canonical plan needs of one of its sources."""
    source = next(each for each in sources(plan) if each.alias == alias)
    predicate = chained(plan, alias)
    paths = [*_paths(plan, alias, with_joins=True)]
    paths += [
        (name,) for each in aggregates_in(plan) for one in each.aggregates for name in (f.name for f in one.fields)
    ]
    paths += [each.window.by for each in aggregates_in(plan) if each.window.by]
    paths += [(source.event_time,)] if source.event_time is not None else []
    kept = outermost(paths)
    plain = msgspec.structs.replace(source, window=None)
    is_ranked = source.window is not None and source.window.kind == "rows"
    selections = () if predicate is None or is_ranked else (predicate,)
    return Sieve(plain, selections, kept or ((source.schema.fields[0].name,),))


def pieces_of(plan: Operator) -> Pieces | None:
    """The window aggregate of a canonical plan over one stream, as others could share it; None if it is none."""
    made = aggregates_in(plan)
    if len(made) != 1 or len(sources(plan)) != 1 or made[0].window.kind == "rows":
        return None
    (aggregate,), (source,) = made, sources(plan)
    if source.window is not None or not is_chain(aggregate.input):
        return None
    parts: dict[Aggregate, None] = {}
    for each in aggregate.aggregates:
        parts |= dict.fromkeys(parts_of(each))
    named = tuple(msgspec.structs.replace(each, name=f"p{number}") for number, each in enumerate(parts))
    keys = tuple(each.expression for each in aggregate.keys)
    return Pieces(source, chained(plan, source.alias), keys, named, (aggregate.window,))


def pairs_of(plan: Operator) -> Pairs | None:
    """The join of a canonical plan, as others could share it; None if it has none, or windows of rows."""
    inputs = sources(plan)
    joins = [each for each in walk(plan) if isinstance(each, Join)]
    if len(inputs) < 2 or len(joins) != len(inputs) - 1 or not all(is_chain_or_join(each) for each in joins):
        return None
    if any(each.window is not None and each.window.kind == "rows" for each in inputs):
        return None
    conditions = tuple(part for each in joins for part in conjuncts(each.predicate))
    inner = [sieve_of(plan, each.alias) for each in inputs]
    for number, each in enumerate(inner):  # Conditions are tested in the join, and need not be read from its pairs.
        inner[number] = msgspec.structs.replace(each, paths=_paths(plan, each.source.alias, with_joins=False))
    return Pairs(tuple(inner), tuple(each.window for each in inputs), conditions)


def _paths(plan: Operator, alias: str, *, with_joins: bool) -> tuple[Path, ...]:
    read = (
        column.path
        for each in above(plan, alias, with_joins=with_joins)
        for column in columns_of(each)
        if column.input == alias
    )
    return outermost(path for path in read if not path[0].startswith("$"))


def parts_of(each: Aggregate) -> tuple[Aggregate, ...]:
    """What an aggregate is kept as: an average travels as sum and count, and so serves those as well."""
    plain = msgspec.structs.replace(each, name="")
    if each.function != "avg" or each.distinct or each.argument is None or each.argument.type == "interval":
        return (plain,)
    count = Aggregate("", "count", each.argument, "int")
    return (msgspec.structs.replace(plain, function="sum", type=each.argument.type, nullable=True), count)


def is_mergeable(each: Aggregate) -> bool:
    """Whether parts of it add up: the values of two windows give that of both."""
    return each.function in ("count", "sum", "min", "max") and not each.distinct


# Looking at canonical plans.


def aggregates_in(plan: Operator) -> list[WindowAggregate]:
    return [each for each in walk(plan) if isinstance(each, WindowAggregate)]


def is_chain(plan: Operator) -> bool:
    while isinstance(plan, Select):
        plan = plan.input
    return isinstance(plan, Source)


def is_chain_or_join(join: Join) -> bool:
    return all(is_chain(each) or isinstance(each, Join) for each in join.inputs)


def chain(source: Operator, predicate: Expression | None) -> Operator:
    return source if predicate is None else Select(source, predicate)


def chained(plan: Operator, alias: str) -> Expression | None:
    """The selections on a source."""
    parts = [each.predicate for each in walk(plan) if isinstance(each, Select) and _reads_only(each, alias)]
    return conjunction(tuple(part for each in parts for part in conjuncts(each)))


def _reads_only(select: Select, alias: str) -> bool:
    return is_chain(select) and sources(select)[0].alias == alias


def above(plan: Operator, alias: str, *, with_joins: bool = True) -> Iterator[Expression]:
    """The expressions of a plan, but for the selections on one source."""
    for each in walk(plan):
        match each:
            case Select(predicate=predicate) if not _reads_only(each, alias):
                yield predicate
            case Join(predicate=predicate) if predicate is not None and with_joins:
                yield predicate
            case Project(outputs=outputs):
                yield from (named.expression for named in outputs)
            case WindowAggregate(keys=keys, aggregates=aggregates):
                yield from (key.expression for key in keys)
                yield from (one.argument for one in aggregates if one.argument is not None)
            case Restructure(content=content):
                yield from expressions_in(content)


# Columns and windows.


def outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths in order, without those inside another."""
    kept: list[Path] = []
    for path in sorted(paths):
        if not kept or path[: len(kept[-1])] != kept[-1]:
            kept.append(path)
    return tuple(kept)


def field_names(paths: Iterable[Path]) -> dict[Path, str]:
    """A name for each path that a schema allows, and that no other has.

    >>> field_names([("en",), ("coord", "ra"), ("coord-ra",)])
    {('en',): 'en', ('coord', 'ra'): 'coord-ra_', ('coord-ra',): 'coord-ra'}
    """
    given = list(paths)
    names: dict[Path, str] = {path: path[0] for path in given if len(path) == 1}
    taken = dict.fromkeys(names.values())
    for path in given:
        if path not in names:
            name = "-".join(path)[:100]
            while name in taken:
                name += "_"
            names[path], taken[name] = name, None
    return {path: names[path] for path in given}


def column_at(source: Source, path: Path) -> Column:
    """The column of a source that has this path; null below a record that can be null."""
    if path == (TIME,):
        return Column(source.alias, path, "timestamp")
    fields, nullable = source.schema.fields, False
    for name in path:
        found = next(each for each in fields if each.name == name)
        fields, nullable = found.fields, nullable or found.nullable
    return Column(source.alias, path, found.type, nullable, found.fields)


def schema_of(plan: Operator) -> Schema:
    columns = (each for each in plan.columns if not each.path[0].startswith("$"))
    return Schema(tuple(Field(c.path[0], cast("FieldType", c.type), c.nullable, c.fields) for c in columns))


def under(expression: Expression, alias: str) -> Expression:
    """Columns of no input become those of an alias."""

    def change(node: Expression) -> Expression:
        return msgspec.structs.replace(node, input=alias) if isinstance(node, Column) else node

    return rewritten(expression, change)


def is_same(one: Expression | None, other: Expression | None) -> bool:
    """Whether two predicates keep the same rows, as far as that is decided."""
    return one == other or (implies(one, other) and implies(other, one))
