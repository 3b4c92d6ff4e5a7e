"""Names become columns, conditions find their place in the plan, plans get their class; both languages use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from queries import functions
from queries.catalogue import Stream, Streams, named
from queries.errors import QueryError, Span, TypeMismatch, nearest
from queries.expressions import TIME, Call, Column, Expression, conjunction, conjuncts, inputs_of, rewritten
from queries.linear import is_t1
from queries.plan import (
    Join,
    Nest,
    Operator,
    Project,
    Restructure,
    Select,
    Source,
    Union,
    WindowAggregate,
    sources,
    walk,
)
from queries.query import QueryClass
from queries.schema import Field

# Stands for the time of a row until it is known which row: see `timed`.
NOW: Final = Column("", ("$now",), "timestamp")


class Name(NamedTuple):
    """One word of a dotted name, and where it stands."""

    name: str
    span: Span


def stream_of(name: Name, streams: Streams, text: str) -> Stream:
    """The stream that a name means."""
    found = named(name.name, streams)
    if found is None:
        hint = nearest(name.name, streams) or '"peer stream ls" shows the streams there are'
        raise QueryError(f'unknown stream "{name.name}"', text, name.span, hint=hint)
    return streams[found]


class Scope:
    """The columns that names can mean in one SELECT, by the names that it gives their sources.

    In the plan a source may have another alias, which is unique over all branches of a union.
    """

    def __init__(self, text: str, sources: Mapping[str, Source]) -> None:
        self._text = text
        self._fields = {name: each.schema.fields for name, each in sources.items()}
        self._aliases = {name: each.alias for name, each in sources.items()}

    def has(self, name: str) -> bool:
        """Whether a single word names a column of some source."""
        return any(named(name, _names(fields)) for fields in self._fields.values())

    def column(self, words: Sequence[Name]) -> Column:
        """The column meant by `alias.name` or `name`, with or without a path into a record."""
        alias = named(words[0].name, self._fields)
        if alias is not None and len(words) > 1:
            return self._inside(alias, self._fields[alias], words[1:])
        holders = [alias for alias, fields in self._fields.items() if named(words[0].name, _names(fields))]
        if len(holders) > 1:
            ways = " or ".join(f"{each}.{words[0].name}" for each in holders)
            problem = f'"{words[0].name}" could be a column of {" or ".join(holders)}'
            raise QueryError(problem, self._text, words[0].span, hint=f"write {ways}")
        if not holders:
            raise self._unknown(words, alias)
        return self._inside(holders[0], self._fields[holders[0]], words)

    def all_of(self, alias: Name | None) -> list[Column]:
        """The columns that `*` or `alias.*` means."""
        chosen = list(self._fields)
        if alias is not None:
            found = named(alias.name, self._fields)
            if found is None:
                hint = nearest(alias.name, self._fields)
                raise QueryError(f'unknown alias "{alias.name}"', self._text, alias.span, hint=hint)
            chosen = [found]
        return [
            Column(self._aliases[each], (field.name,), field.type, field.nullable, field.fields)
            for each in chosen
            for field in self._fields[each]
        ]

    def _inside(self, alias: str, fields: tuple[Field, ...], words: Sequence[Name]) -> Column:
        path: list[str] = []
        nullable = False
        inside, place = fields, f'"{alias}"'
        for word in words:
            name = named(word.name, _names(inside))
            if name is None:
                raise self._missing(word, inside, place)
            field = next(each for each in inside if each.name == name)
            path.append(name)
            nullable = nullable or field.nullable
            inside, place = field.fields, f'"{".".join((alias, *path))}"'
        return Column(self._aliases[alias], tuple(path), field.type, nullable, field.fields)

    def _missing(self, word: Name, fields: tuple[Field, ...], place: str) -> QueryError:
        if not fields:
            problem = f'{place} is not a record, so it has no "{word.name}"'
            return QueryError(problem, self._text, word.span)
        problem = f'{place} has no column "{word.name}"'
        return QueryError(problem, self._text, word.span, hint=nearest(word.name, _names(fields)))

    def _unknown(self, words: Sequence[Name], alias: str | None) -> QueryError:
        first = words[0]
        if alias is not None:
            problem = f'"{first.name}" is a stream, not a column'
            return QueryError(problem, self._text, first.span, expected="a column", hint=f"for example {alias}.*")
        if len(words) > 1:
            known = [*self._fields, *(name for fields in self._fields.values() for name in _names(fields))]
            problem = f'nothing in FROM is called "{first.name}"'
            return QueryError(problem, self._text, first.span, hint=nearest(first.name, known))
        known = [name for fields in self._fields.values() for name in _names(fields)]
        return QueryError(f'unknown column "{first.name}"', self._text, first.span, hint=nearest(first.name, known))


def _names(fields: Iterable[Field]) -> list[str]:
    return [field.name for field in fields]


def timed(expression: Expression, aliases: Sequence[str]) -> Expression:
    """Replace NOW by the time of the row at hand: the greatest TIME of these aliases."""
    times = [Column(alias, (TIME,), "timestamp") for alias in aliases]
    now: Expression = functions.call("greatest", *times) if len(times) > 1 else times[0]
    return rewritten(expression, lambda node: now if node == NOW else node)


def timed_conjunct(conjunct: Expression, aliases: Sequence[str]) -> Expression:
    """Replace NOW in a condition by the time of the rows it reads: of its own aliases, or of all if it has none."""
    own = [alias for alias in inputs_of(conjunct) if alias != NOW.input]
    return timed(conjunct, own or aliases)


def joined(inputs: Sequence[Source | WindowAggregate], parts: Sequence[Expression]) -> Operator:
    """The plan of a conjunction: each part as low as it can be, the joins left-deep in the given order.

    Inputs are streams, or windows of one stream with their aggregates. Rows of a ROWS window are numbered before any
    selection, so in a join a selection on them stays above the window.
    """
    alone = len(inputs) == 1
    waiting = list(parts)

    def due(available: Sequence[str]) -> Expression | None:
        ready: list[Expression] = []
        later: list[Expression] = []
        for part in waiting:
            (ready if set(inputs_of(part)) <= set(available) else later).append(part)
        waiting[:] = later
        return conjunction(tuple(ready))

    tree: Operator | None = None
    bound: list[str] = []
    for each in inputs:
        ranked = isinstance(each, Source) and each.window is not None and each.window.kind == "rows"
        own = due([each.alias]) if alone or not ranked else None
        right: Operator = each if own is None else Select(each, own)
        bound.append(each.alias)
        tree = right if tree is None else Join(tree, right, due(bound))
    assert tree is not None, "a query has a source"
    assert not waiting, "every alias of a condition is an alias of a source"
    return tree


def classify(plan: Operator) -> QueryClass:
    """The class of a plan; for a union, the hardest class of its branches."""
    match plan:
        case Union(branches=branches):
            return max((classify(branch) for branch in branches), key=_HARDER.index)
        case Restructure(input=inner) | Project(input=inner):
            return classify(inner)
    if any(isinstance(each, Nest) for each in walk(plan)):
        return "nested"
    if any(isinstance(each, WindowAggregate) for each in walk(plan)):
        return "aggregate"
    inputs = sources(plan)
    if len(inputs) > 2:
        return "multi-way"
    if len(inputs) == 1:
        return "select"
    if any(source.window is not None for source in inputs):
        return "windowed"
    return _two_way(plan)


_HARDER: Final[tuple[QueryClass, ...]] = (
    "select",
    "T1",
    "T2",
    "theta",
    "windowed",
    "multi-way",
    "aggregate",
    "nested",
)


def _two_way(plan: Operator) -> QueryClass:
    """CQ-DHT, section 2: T1 if one attribute of each side determines the other, otherwise T2."""
    equalities = [
        part
        for each in walk(plan)
        if isinstance(each, Join)
        for part in conjuncts(each.predicate)
        if isinstance(part, Call) and is_equi_join(part)
    ]
    if not equalities:
        return "theta"
    return "T1" if any(map(is_t1, equalities)) else "T2"


def is_equi_join(part: Call) -> bool:
    """Whether a condition equates an expression over one source with one over another."""
    if part.function != "=":
        return False
    left, right = (inputs_of(side) for side in part.arguments)
    return len(left) == len(right) == 1 and left != right


def built(text: str, span: Span, name: str, *arguments: Expression) -> Call:
    """A function call, or a QueryError at its place in the text."""
    try:
        return functions.call(name, *arguments)
    except TypeMismatch as error:
        raise QueryError(error.problem, text, span, hint=error.hint) from None
