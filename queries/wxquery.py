"""WXQuery to a plan: StreamGlobe's language for continuous queries over streams of XML.

    Source ─▶ Select ─▶ (Join) ─▶ (WindowAggregate ─▶ Select) ─▶ Project ─▶ Restructure

A query is one such branch, or the union of several: a sequence has one for each stream it starts from. All but the last
operator work on records in the network; Restructure builds the XML at the subscriber's peer. Elements around a branch
are its envelope: they open once, before the first result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Final

import msgspec

from queries.aggregates import aggregate
from queries.binder import classify, joined
from queries.catalogue import Stream, Streams
from queries.expressions import TIME, Column, Expression, Named, columns_of, conjunction
from queries.functions import NUMBERS
from queries.plan import Operator, Project, Restructure, Select, Source, Template, Union, Window, WindowAggregate
from queries.query import Query
from queries.restructure import columns_in, expressions_in, loops_in, rewritten
from queries.schema import Field
from queries.wx_content import ITEMS, Content, unused
from queries.wx_names import Element, Names, Scope, WindowItems, there
from queries.wx_syntax import (
    Comparison,
    Conditional,
    DataWindow,
    ElementConstructor,
    Flwr,
    For,
    Let,
    Literal,
    Name,
    Path,
    PathOperand,
    PathOutput,
    StreamCall,
    parse,
)
from queries.wx_syntax import Expression as ExpressionText

SOURCES_MAX: Final = 32
_MICROSECONDS: Final = 1_000_000


def plan(text: str, streams: Streams) -> Query:
    """The query of a text; raises QueryError.

    >>> from queries.schema import Schema
    >>> streams = {"photons": Stream("photons", Schema.parse("en decimal, det_time decimal"))}
    >>> text = (
    ...     '<hits>{ for $p in stream("photons")/photons/photon where $p/en >= 1.3 return <hit>{ $p/en }</hit> }</hits>'
    ... )
    >>> print(plan(text, streams).plan)
    Restructure into hits/…
    """
    planner = _Planner(Names(text, streams))
    branches = tuple(planner.branches(parse(text), ()))
    whole: Operator = branches[0] if len(branches) == 1 else Union(branches)
    return Query(text, "wxquery", whole, classify(whole))


@dataclass(slots=True)
class _Planner:
    """Finds the branches of a query: the expressions that start from a stream, and the elements around them."""

    names: Names
    aliases: list[str] = field(default_factory=list)
    sources: int = 0
    envelope: tuple[str, ...] | None = None

    def branches(self, text: ExpressionText, envelope: tuple[str, ...]) -> Iterator[Restructure]:
        match text:
            case ElementConstructor(tag=tag, content=()):
                hint = "put what belongs to each result into return" if envelope else "for $x in stream(…)/… return …"
                raise self.names.error(f'"<{tag.text}/>" holds no stream, so it has no results', text.span, hint)
            case ElementConstructor(tag=tag, content=content):
                for part in content:
                    yield from self.branches(part, (*envelope, tag.text))
            case Conditional():
                hint = "put it into return, or its condition into where"
                raise self.names.error("a condition outside of for has nothing to test", text.span, hint)
            case Flwr():
                yield self._branch(text, envelope)
            case PathOutput(path=path):
                yield self._branch(self._as_flwr(path), envelope)
            case _:
                if not text.items:
                    raise self.names.error("an empty sequence has no results", text.span, "leave it out")
                for item in text.items:
                    yield from self.branches(item, envelope)

    def _as_flwr(self, path: Path) -> Flwr:
        """A path alone is short for a loop that returns what it leads to."""
        if isinstance(path.origin, Name):
            self.names.variable(path.origin, {})
        each = path.steps[-1].name if path.steps else Name("item", path.span)
        return Flwr((For(each, path, None),), (), PathOutput(Path(each, (), path.span), path.span), path.span)

    def _branch(self, text: Flwr, envelope: tuple[str, ...]) -> Restructure:
        branch = _Branch(self.names, Content(self.names, self.aliases))
        branch.read(text)
        self.sources += len(branch.sources)
        if self.sources > SOURCES_MAX:
            problem = f"the query reads {self.sources} streams; at most {SOURCES_MAX} are allowed"
            raise self.names.error(problem, text.span)
        if self.envelope is not None and envelope != self.envelope:
            outer, inner = "/".join(self.envelope) or "no element", "/".join(envelope) or "no element"
            problem = f"one branch is in {outer}, another in {inner}: the first never ends, so the second never begins"
            raise self.names.error(problem, text.span, "put both into the same element: <a> { … } { … } </a>")
        self.envelope = envelope
        return branch.operator(envelope)


@dataclass(slots=True)
class _Branch:
    """One branch while it is read: its sources, what is known of their rows, its window, and what it returns."""

    names: Names
    content: Content
    sources: list[Source] = field(default_factory=list)
    conditions: list[Expression] = field(default_factory=list)
    window: Window | None = None
    items: WindowItems | None = None
    filters: tuple[Expression, ...] = ()  # On the aggregates of the window.
    templates: tuple[Template, ...] = ()

    def read(self, text: Flwr, scope: Scope | None = None) -> None:
        """Take the clauses that speak of streams into the plan, and the rest as the content of a result."""
        scope = scope or {}
        for number, clause in enumerate(text.clauses):
            match clause:
                case For(path=Path(origin=StreamCall())):
                    scope = {**scope, clause.variable.text: self._stream(clause, scope)}
                case For(path=Path(origin=Name() as origin), window=None):
                    start = self.names.variable(origin, scope)
                    if not isinstance(start, Element):  # A loop through a window is content.
                        self._finish(text, number, scope)
                        return
                    element, conditions = self.names.walk(start, clause.path.steps, scope)
                    self.conditions += there(element) + conditions
                    scope = {**scope, clause.variable.text: element}
                case Let():
                    scope = {**scope, clause.variable.text: self.content.aggregate(clause, scope)}
                case _:
                    self.content.loop((clause,), (), text.result, scope)
                    raise AssertionError("a window of what is no stream was refused")
        inner = text.result
        if isinstance(inner, Flwr) and _starts_with_stream(inner):  # A loop in a loop, and nothing between: one loop.
            self._filter(self.names.conditions(text.where, scope))
            self.read(inner, scope)
        else:
            self._finish(text, len(text.clauses), scope)

    def operator(self, envelope: tuple[str, ...]) -> Restructure:
        below, templates = joined(self.sources, self.conditions), self.templates
        if self.window is not None:
            aggregates = tuple(self.content.aggregates.values())
            if any(loops_in(templates)):
                collected = aggregate(ITEMS, "collect", None, fields=self._needed())
                templates = rewritten(templates, lambda node: _with_fields(node, collected.fields))
                aggregates += (collected,)
            below = WindowAggregate(below, self.window, (), aggregates)
            only = conjunction(self.filters)
            below = below if only is None else Select(below, only)
        return _restructured(below, templates, envelope)

    def _needed(self) -> tuple[Field, ...]:
        """The fields of the window's items that the result speaks of; the others need not be kept."""
        variables = [loop.variable for loop in loops_in(self.templates)]
        columns = [column for each in expressions_in(self.templates) for column in columns_of(each)]
        names = {column.path[0] for column in columns if column.input in variables}
        return tuple(field for field in self.sources[0].schema.fields if field.name in names)

    def _stream(self, clause: For, scope: Scope) -> Element | WindowItems:
        assert isinstance(clause.path.origin, StreamCall)
        stream = self.names.stream(clause.path.origin)
        if self.sources and (self.window is not None or clause.window is not None):
            at = clause.window.span if clause.window is not None else clause.path.span
            problem = "a window holds the items of one stream, so it cannot be combined with another"
            raise self.names.error(problem, at, "in SQL, both sides of a join have windows")
        alias = self.content.alias(clause.variable.text)
        whole, steps = self.names.item(clause.path, stream, alias)
        element, conditions = self.names.walk(whole, steps, scope)
        self.sources.append(stream.source(alias))
        self.conditions += there(element) + conditions
        if clause.window is None:
            return element
        self.window = self._window(clause.window, element, stream)
        self.items = WindowItems(element, stream.schema.fields)
        return self.items

    def _window(self, text: DataWindow, item: Element, stream: Stream) -> Window:
        size, step = self._positive(text.size), None if text.step is None else self._positive(text.step)
        if not text.reference:
            for part in (text.size, text.step):
                if part is not None and not isinstance(part.value, int):
                    raise self.names.error("a number of items is whole", part.span)
            return Window("rows", size, step)
        element = self.names.reference(text.reference, item)
        path, span = "/".join(element.path), text.reference[-1].span
        if element.nullable:
            raise self.names.error(f'"{path}" may be missing, so it cannot control a window', span)
        if element.type in NUMBERS:
            return Window("value", size, step, element.path)
        if element.type != "timestamp":
            problem = f'"{path}" is a {element.type}; a window is controlled by a number or a time'
            raise self.names.error(problem, span)
        if element.path != (stream.event_time,):
            problem = f'"{path}" is not the time of stream "{stream.name}", so its order is not known'
            known = f'its time is "{stream.event_time}"' if stream.event_time else "a stream can have an event time"
            raise self.names.error(problem, span, known)
        return Window(
            "time", self._microseconds(text.size), None if text.step is None else self._microseconds(text.step)
        )

    def _positive(self, number: Literal) -> int | Decimal:
        value = number.value
        assert isinstance(value, int | Decimal)
        if value <= 0:
            raise self.names.error("a window and its step are larger than zero", number.span)
        return int(value) if value == int(value) else Decimal(str(value).rstrip("0"))

    def _microseconds(self, seconds: Literal) -> int:
        exact = Fraction(self._positive(seconds)) * _MICROSECONDS
        if exact.denominator > 1 or exact > _MICROSECONDS * 10**9:
            problem = "a window of time has seconds, from a microsecond to 30 years"
            raise self.names.error(problem, seconds.span)
        return int(exact)

    def _filter(self, conditions: tuple[Expression, ...]) -> None:
        if self.window is None:
            self.conditions += conditions
        else:
            self.filters += conditions

    def _finish(self, text: Flwr, taken: int, scope: Scope) -> None:
        """Where and return, and before them the clauses that go through the items of the window."""
        if not self.sources:
            raise self.names.error("the query reads no stream", text.span, "for $x in stream(…)/… return …")
        rest = text.clauses[taken:]
        inner = [clause.variable.text for clause in rest]
        outside = tuple(each for each in text.where if not _names_any(each, inner))
        self._filter(self.names.conditions(outside, scope))
        inside = tuple(each for each in text.where if _names_any(each, inner))
        self.templates = self.content.loop(rest, inside, text.result, scope)


def _restructured(below: Operator, templates: tuple[Template, ...], envelope: tuple[str, ...]) -> Restructure:
    """The last two steps: just the columns that the templates need, then the templates over them."""
    needed = columns_in(templates) or tuple(column for column in below.columns if column.path == (TIME,))[:1]
    names: list[str] = []
    for column in needed:
        names.append(unused(column.path[-1].lstrip("$"), names))
    outputs = tuple(Named(name, column) for name, column in zip(names, needed, strict=True))
    project = Project(below, outputs)
    moved: dict[Expression, Expression] = dict(zip(needed, project.columns, strict=True))
    return Restructure(project, rewritten(templates, lambda node: moved.get(node, node)), envelope)


def _with_fields(node: Expression, fields: tuple[Field, ...]) -> Expression:
    is_items = isinstance(node, Column) and node.type == "list"
    return msgspec.structs.replace(node, fields=fields) if is_items else node


def _starts_with_stream(text: Flwr) -> bool:
    first = text.clauses[0]
    return isinstance(first, For) and isinstance(first.path.origin, StreamCall)


def _names_any(comparison: Comparison, variables: list[str]) -> bool:
    sides = (comparison.left, comparison.right)
    used = [side.variable.text for side in sides if isinstance(side, PathOperand) and side.variable is not None]
    return any(name in variables for name in used)
