"""The properties of a query (StreamGlobe, section 3.1): what it needs of each input stream, and what its result holds.

Queries and derived streams are described alike: the result stream of a query has the properties of the query. Each
input has a selection in minimal form, the elements that the query reads and those it returns, its window, and its
aggregates with the filter on their results. All come from the canonical plan, with paths from the item of the stream,
so aliases and the query language do not show. Conditions over several inputs, and an aggregate over a join, are kept
apart: the paper combines streams at the subscriber's peer and shares each of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from queries.canonical import canonical
from queries.expressions import (
    Column,
    Expression,
    columns_of,
    conjunction,
    conjuncts,
    inputs_of,
    rewritten,
)
from queries.plan import (
    Aggregate,
    AggregateFunction,
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
from queries.predicates import minimised, satisfiable
from queries.simplify import order_of

Path = tuple[str, ...]


class AggregateProperties(msgspec.Struct, frozen=True, array_like=True):
    """One aggregate: the operator and the element it is computed of; None: the items themselves."""

    function: AggregateFunction
    argument: Expression | None
    distinct: bool = False
    elements: tuple[str, ...] = ()  # What is kept of collected items.

    def __str__(self) -> str:
        inner = (", ".join(self.elements) or "*") if self.argument is None else str(self.argument)
        return f"{self.function}({'distinct ' if self.distinct else ''}{inner})"


class Grouping(msgspec.Struct, frozen=True, array_like=True):
    """What an aggregating query does with the items: their window, their groups, and the filter on the results.

    `having` names a result by its meaning, as avg(en), not by its name in the query.
    """

    window: Window
    keys: tuple[Expression, ...]
    aggregates: tuple[AggregateProperties, ...]
    having: Expression | None = None


class InputProperties(msgspec.Struct, frozen=True, array_like=True):
    """What a query does with one input stream."""

    stream: str
    predicate: Expression | None  # In minimal form: no part follows from the rest.
    referenced: tuple[Path, ...]  # Every element that the query reads.
    returned: tuple[Path, ...]  # The elements that the result holds unchanged.
    window: Window | None = None  # The window through which a join sees the stream.
    grouping: Grouping | None = None


class Properties(msgspec.Struct, frozen=True, array_like=True):
    """What a query does with all its inputs; the conditions call them s0, s1, … in this order."""

    inputs: tuple[InputProperties, ...]
    conditions: tuple[Expression, ...] = ()  # Over several inputs.
    grouping: Grouping | None = None  # Of an aggregate over several inputs.

    @property
    def satisfiable(self) -> bool:
        """Whether the query can have a result; if not, it need not run."""
        own = (
            _under(each.predicate, f"s{number}")
            for number, each in enumerate(self.inputs)
            if each.predicate is not None
        )
        return satisfiable(conjunction((*self.conditions, *own)))


def properties(plan: Operator) -> tuple[Properties, ...]:
    """The properties of a query, one for each branch of a union.

    >>> from queries import sql
    >>> from queries.catalogue import Stream
    >>> from queries.schema import Schema
    >>> streams = {"photons": Stream("photons", Schema.parse("ra decimal, en decimal, phc int"))}
    >>> (query,) = properties(sql.plan("SELECT en FROM photons WHERE ra >= 120.0 AND ra > 100", streams).plan)
    >>> query.inputs[0].returned, query.inputs[0].referenced, str(query.inputs[0].predicate)
    ((('en',),), (('en',), ('ra',)), '120 <= ra')
    """
    return tuple(_of_branch(branch) for branch in _branches(canonical(plan)))


def _branches(plan: Operator) -> Iterator[Operator]:
    match plan:
        case Union(branches=branches):
            for branch in branches:
                yield from _branches(branch)
        case Restructure(input=inner):
            yield from _branches(inner)
        case _:
            yield plan


def _of_branch(plan: Operator) -> Properties:
    inputs = sources(plan)
    meanings = _meanings(plan)
    of_rows, of_windows = _conditions(plan)
    conditions = [_expanded(part, meanings) for part in of_rows]
    across = [_expanded(part, meanings) for part, owner in of_windows if owner is None]
    groupings: dict[str, Grouping] = {}  # By input; an aggregate over several inputs has the key "".
    for each in walk(plan):
        if isinstance(each, WindowAggregate):
            having = [part for part, owner in of_windows if owner is each]
            below = sources(each)
            groupings[below[0].alias if len(below) == 1 else ""] = _grouping(each, having, meanings)
    outputs = [_expanded(each, meanings) for each in _outputs(plan)]
    read = [*outputs, *conditions, *across, *(_expanded(each, meanings) for each in _listed(plan))]
    read += [each for grouping in groupings.values() for each in _expressions_of(grouping)]
    parts = tuple(_of_input(source, conditions, outputs, read, groupings.get(source.alias)) for source in inputs)
    if len(inputs) == 1:
        return Properties(parts)
    several = (*(part for part in conditions if len(inputs_of(part)) != 1), *across)
    return Properties(parts, several, groupings.get(""))


def _of_input(
    source: Source,
    conditions: list[Expression],
    outputs: list[Expression],
    read: list[Expression],
    grouping: Grouping | None,
) -> InputProperties:
    own = tuple(_own(part) for part in conditions if inputs_of(part) == (source.alias,))
    returned = [column.path for column in outputs if isinstance(column, Column) and column.input == source.alias]
    referenced = [column.path for each in read for column in columns_of(each) if column.input == source.alias]
    windows = [source.window, None if grouping is None else grouping.window]
    if grouping is not None:
        referenced += [(element,) for each in grouping.aggregates for element in each.elements]
    for window in windows:
        if window is not None and window.kind != "rows":
            by_time = (source.event_time,) if source.event_time is not None else ()
            referenced.append(window.by or by_time)
    return InputProperties(
        source.stream,
        minimised(conjunction(own)),
        _outermost(referenced),
        _outermost(returned),
        source.window,
        None if grouping is None else _own_grouping(grouping),
    )


def _outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths in order, without those inside another path."""
    kept: list[Path] = []
    for path in sorted(path for path in paths if path):
        if not kept or path[: len(kept[-1])] != kept[-1]:
            kept.append(path)
    return tuple(kept)


def _own(expression: Expression) -> Expression:
    """An expression over one input, with paths from its items."""
    return _under(expression, "")


def _under(expression: Expression, alias: str) -> Expression:
    def change(node: Expression) -> Expression:
        return msgspec.structs.replace(node, input=alias) if isinstance(node, Column) else node

    return rewritten(expression, change)


def _own_grouping(grouping: Grouping) -> Grouping:
    results = (
        msgspec.structs.replace(each, argument=None if each.argument is None else _own(each.argument))
        for each in grouping.aggregates
    )
    having = None if grouping.having is None else _own(grouping.having)
    return Grouping(grouping.window, tuple(map(_own, grouping.keys)), tuple(results), having)


# The meaning of columns of derived rows.

_Meanings = Mapping[tuple[str, str], Expression]


def _meanings(plan: Operator) -> _Meanings:
    """For each named column of an operator, its meaning in columns of sources; results of aggregates by their text."""
    known: dict[tuple[str, str], Expression] = {}
    is_alone = len(sources(plan)) == 1
    for each in walk(plan):
        match each:
            case Project(outputs=outputs, alias=alias):
                known |= {(alias, named.name): _expanded(named.expression, known) for named in outputs}
            case WindowAggregate(keys=keys, aggregates=results, alias=alias):
                known |= {(alias, named.name): _expanded(named.expression, known) for named in keys}
                known |= {(alias, result.name): _result(result, known, is_alone) for result in results}
    return known


def _expanded(expression: Expression, meanings: _Meanings) -> Expression:
    def change(node: Expression) -> Expression:
        if not isinstance(node, Column) or (node.input, node.path[0]) not in meanings:
            return node
        meaning = meanings[node.input, node.path[0]]
        if isinstance(meaning, Column) and len(node.path) > 1:
            return msgspec.structs.replace(node, input=meaning.input, path=meaning.path + node.path[1:])
        return meaning

    return rewritten(expression, change)


def _described(result: Aggregate, meanings: _Meanings) -> AggregateProperties:
    argument = None if result.argument is None else _expanded(result.argument, meanings)
    elements = tuple(each.name for each in result.fields) if argument is None else ()
    return AggregateProperties(result.function, argument, result.distinct, elements)


def _result(result: Aggregate, meanings: _Meanings, is_alone: bool) -> Column:
    """A result of an aggregate as a column of no input; its text says what it is, and of which input."""
    described = _described(result, meanings)
    if described.argument is not None and is_alone:
        described = msgspec.structs.replace(described, argument=_own(described.argument))
    return Column("", (str(described),), result.type, result.nullable, result.fields)


def _conditions(plan: Operator) -> tuple[list[Expression], list[tuple[Expression, WindowAggregate | None]]]:
    """The conditions of a plan: those on rows of streams, in order, and those on windows, each with its window."""
    windows = {each.alias: each for each in walk(plan) if isinstance(each, WindowAggregate)}
    lists: dict[tuple[str, str], Expression] = {}
    for each in walk(plan):
        if isinstance(each, Nest) and isinstance(each.nested, Project):
            lists |= {(each.nested.alias, named.name): named.expression for named in each.nested.outputs}
    of_rows: list[Expression] = []
    of_windows: list[tuple[Expression, WindowAggregate | None]] = []
    for each in walk(plan):
        for part in conjuncts(each.predicate if isinstance(each, Select | Join | Nest) else None):
            part = _expanded(part, lists)
            aliases = inputs_of(part)
            if any(alias in windows for alias in aliases):
                of_windows.append((part, windows[aliases[0]] if len(aliases) == 1 else None))
            else:
                of_rows.append(part)
    return sorted(of_rows, key=order_of), of_windows


def _listed(plan: Operator) -> list[Expression]:
    """What the lists in the result of a plan consist of; the plan needs it, but nobody else can read it there."""
    nests = [each.nested for each in walk(plan) if isinstance(each, Nest)]
    return [expression for nested in nests for expression in _outputs(nested)]


def _outputs(plan: Operator) -> list[Expression]:
    """What the result of a plan consists of."""
    if isinstance(plan, Project):
        return [named.expression for named in plan.outputs]
    return list(plan.columns)


def _grouping(aggregate: WindowAggregate, having: list[Expression], meanings: _Meanings) -> Grouping:
    keys = tuple(_expanded(key.expression, meanings) for key in aggregate.keys)
    results = tuple(_described(each, meanings) for each in aggregate.aggregates)
    kept = tuple(_expanded(part, meanings) for part in having)
    return Grouping(aggregate.window, keys, results, minimised(conjunction(kept)))


def _expressions_of(grouping: Grouping) -> Iterator[Expression]:
    yield from grouping.keys
    yield from (each.argument for each in grouping.aggregates if each.argument is not None)
    if grouping.having is not None:
        yield grouping.having
