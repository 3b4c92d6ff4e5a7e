"""One branch of a WXQuery: the streams it reads, their windows, and its result for each combination.

Every `for` over a stream is an input of a join: its items, or its windows if it has any. Nested loops of XQuery go
through all combinations, and so does a join. Loops over the items of a window are part of a result. A stream inside a
result becomes a Nest: what had come of that stream when the result was due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec

from queries import decimals
from queries.aggregates import aggregate
from queries.binder import joined
from queries.catalogue import Stream
from queries.expressions import TIME, Column, Expression, Named, columns_of, conjunction, inputs_of
from queries.expressions import rewritten as expression_rewritten
from queries.functions import NUMBERS
from queries.plan import (
    Each,
    Nest,
    Operator,
    Project,
    Restructure,
    Source,
    Template,
    Window,
    WindowAggregate,
    list_of,
    sources,
)
from queries.restructure import columns_in, expressions_in, loops_in, rewritten
from queries.schema import Field
from queries.wx_content import ITEMS, Content, unused
from queries.wx_names import Element, Names, Scope, WindowItems, there
from queries.wx_syntax import (
    Comparison,
    DataWindow,
    Flwr,
    For,
    Let,
    Literal,
    Name,
    Path,
    PathOperand,
    StreamCall,
)

_MICROSECONDS: Final = 1_000_000


@dataclass(slots=True)
class _Input:
    """A stream that a branch reads; with a window, its rows are the windows, under an alias of their own."""

    source: Source
    alias: str
    window: Window | None = None
    conditions: tuple[Expression, ...] = ()  # On the items, before windows are formed.


class _Nested(NamedTuple):
    """The parts of a Nest beside its input."""

    nested: Operator
    predicate: Expression | None
    name: str


@dataclass(slots=True)
class Branch:
    """A branch while it is being read."""

    names: Names
    aliases: list[str]  # Of the whole query.
    outer: Branch | None = None  # The branch in whose result this one stands.
    inputs: list[_Input] = field(default_factory=list)
    conditions: list[Expression] = field(default_factory=list)
    loops: list[For | Let] = field(default_factory=list)  # Loops over items of windows: part of the result.
    loop_conditions: list[Comparison] = field(default_factory=list)
    nests: list[_Nested] = field(default_factory=list)
    templates: tuple[Template, ...] = ()
    content: Content = field(init=False)

    def __post_init__(self) -> None:
        self.content = Content(self.names, self.aliases, self._nested)

    @property
    def sources(self) -> int:
        """How many streams it reads."""
        return len(self.inputs) + sum(len(sources(nest.nested)) for nest in self.nests)

    def read(self, text: Flwr, scope: Scope) -> None:
        """Put the clauses about streams into the plan, and the others into the content of a result."""
        for clause in text.clauses:
            scope = self._clause(clause, scope)
        inside = self._loop_variables()
        outside = tuple(each for each in text.where if not _names_any(each, inside))
        self.conditions += self.names.conditions(outside, scope)
        self.loop_conditions += [each for each in text.where if _names_any(each, inside)]
        inner = text.result
        # Two loops with nothing in between are one loop.
        if isinstance(inner, Flwr) and any(map(_is_of_stream, inner.clauses)):
            self.read(inner, scope)
            return
        if not self.inputs:
            raise self.names.error("the query reads no stream", text.span, "for $x in stream(…)/… return …")
        self.templates = self.content.loop(self.loops, tuple(self.loop_conditions), inner, scope)

    def _clause(self, clause: For | Let, scope: Scope) -> Scope:
        variable, origin = clause.variable.text, clause.path.origin
        inside = self._loop_variables()
        if isinstance(origin, Name) and (origin.text in inside or self._is_loop(clause, origin, scope)):
            self.loops.append(clause)
            return scope
        if variable in inside:
            problem = f'"${variable}" goes through a window already'
            raise self.names.error(problem, clause.variable.span, "give it another name")
        match clause:
            case Let():
                return {**scope, variable: self.content.aggregate(clause, scope)}
            case For(path=Path(origin=StreamCall())):
                return {**scope, variable: self._stream(clause, scope)}
            case For(window=None):
                assert isinstance(origin, Name)
                start = self.names.variable(origin, scope)
                if isinstance(start, Element):
                    element, conditions = self.names.walk(start, clause.path.steps, scope)
                    self.conditions += there(element) + conditions
                    return {**scope, variable: element}
        raise self.content.refused(clause, scope)

    def _is_loop(self, clause: For | Let, origin: Name, scope: Scope) -> bool:
        is_windows = isinstance(self.names.variable(origin, scope), WindowItems)
        return isinstance(clause, For) and clause.window is None and is_windows

    def _loop_variables(self) -> list[str]:
        return [loop.variable.text for loop in self.loops]

    # Streams and windows.

    def _stream(self, clause: For, scope: Scope) -> Element | WindowItems:
        assert isinstance(clause.path.origin, StreamCall)
        stream = self.names.stream(clause.path.origin)
        inside = self._loop_variables()
        for each in (part for step in clause.path.steps for part in step.condition):
            if _names_any(each, inside):
                raise self.names.error("a condition on the items of a window stands in where", each.span)
        alias = self.content.alias(clause.variable.text)
        whole, steps = self.names.item(clause.path, stream, alias)
        element, conditions = self.names.walk(whole, steps, scope)
        conditions = there(element) + conditions
        source = stream.source(alias)
        if clause.window is None:
            self.inputs.append(_Input(source, alias))
            self.conditions += conditions
            return element
        if any(inputs_of(each) != (alias,) for each in conditions):
            problem = "the items of a window are chosen by what is in them alone"
            raise self.names.error(problem, clause.path.span, "compare with other variables in where")
        window = self._window(clause.window, element, stream)
        windows = self.content.alias(f"{clause.variable.text}_window")
        self.inputs.append(_Input(source, windows, window, conditions))
        return WindowItems(element, stream.schema.fields, windows)

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
        return int(value) if value == int(value) else decimals.plain(Decimal(value))

    def _microseconds(self, seconds: Literal) -> int:
        exact = Fraction(self._positive(seconds)) * _MICROSECONDS
        if exact.denominator > 1 or exact > _MICROSECONDS * 10**9:
            problem = "a window of time has seconds, from a microsecond to 30 years"
            raise self.names.error(problem, seconds.span)
        return int(exact)

    # The plan.

    def operator(self, envelope: tuple[str, ...]) -> Restructure:
        """The branch as a plan. A lone window needs no alias, since its rows are all there is."""
        lone = self.inputs[0].alias if len(self.inputs) == 1 and not self.nests and self.inputs[0].window else None
        leaves = [self._leaf(each, "" if each.alias == lone else each.alias) for each in self.inputs]
        collected = {each.alias: self._needed(each) for each in self.inputs}

        def change(node: Expression) -> Expression:
            if not isinstance(node, Column):
                return node
            fields = collected[node.input] if node.type == "list" and node.input in collected else node.fields
            return msgspec.structs.replace(node, input="" if node.input == lone else node.input, fields=fields)

        below = joined(leaves, [expression_rewritten(each, change) for each in self.conditions])
        for nest in self.nests:
            below = Nest(below, *nest)
        return _restructured(below, rewritten(self.templates, change), envelope)

    def _leaf(self, each: _Input, alias: str) -> Source | WindowAggregate:
        if each.window is None:
            return each.source
        aggregates = tuple(self.content.aggregates.get(each.alias, {}).values())
        if any(self._loops_over([each.alias])):
            aggregates += (aggregate(ITEMS, "collect", None, fields=self._needed(each)),)
        return WindowAggregate(joined([each.source], each.conditions), each.window, (), aggregates, alias)

    def _needed(self, each: _Input) -> tuple[Field, ...]:
        """The fields of a window's items that the result uses; the others need not be kept."""
        variables = [loop.variable for loop in self._loops_over([each.alias])]
        columns = [column for part in expressions_in(self.templates) for column in columns_of(part)]
        names = {column.path[0] for column in columns if column.input in variables}
        return tuple(field for field in each.source.schema.fields if field.name in names)

    def _loops_over(self, windows: list[str]) -> Iterator[Each]:
        for loop in loops_in(self.templates):
            assert isinstance(loop.over, Column)
            if loop.over.input in windows:
                yield loop

    # A stream inside a result.

    def _nested(self, text: Flwr, scope: Scope) -> tuple[Template, ...]:
        """The content that loops over what had come of a stream; the conditions on it go into the plan."""
        if self.outer is not None:
            problem = "a stream inside a result holds no stream of its own"
            raise self.names.error(problem, text.span, "put both into one loop: for $a in stream(…)/… for $b in …")
        inner = Branch(self.names, self.aliases, self)
        inner.content.aggregates = self.content.aggregates
        inner.read(text, scope)
        own, mine = ([each.alias for each in branch.inputs] for branch in (inner, self))
        if any(inner._loops_over(own)):
            problem = "inside a result a window shows its aggregates, not its items"
            raise self.names.error(problem, text.span, "put the window before return: for $w in stream(…)/… |…| for …")
        apart = [each for each in inner.conditions if not set(inputs_of(each)) <= {*own}]
        below = joined(
            [inner._leaf(each, each.alias) for each in inner.inputs],
            [each for each in inner.conditions if each not in apart],
        )
        read = (*columns_in(inner.templates), *(column for each in apart for column in columns_of(each)))
        variable = self.content.alias(f"{text.clauses[0].variable.text}_nested")
        project, moved = _projected(below, tuple(dict.fromkeys(each for each in read if each.input in own)), variable)
        apart = [expression_rewritten(each, lambda node: moved.get(node, node)) for each in apart]
        known = {*mine, variable}
        of_rows = tuple(each for each in apart if set(inputs_of(each)) <= known)
        of_loops = tuple(each for each in apart if each not in of_rows)
        self.nests.append(_Nested(project, conjunction(of_rows), variable))
        content = rewritten(inner.templates, lambda node: moved.get(node, node))
        return (Each(variable, list_of(variable, project), conjunction(of_loops), content),)


def _restructured(below: Operator, templates: tuple[Template, ...], envelope: tuple[str, ...]) -> Restructure:
    """The last two operators: the columns that the templates need, then the templates."""
    project, moved = _projected(below, columns_in(templates), "")
    return Restructure(project, rewritten(templates, lambda node: moved.get(node, node)), envelope)


def _projected(
    below: Operator, needed: tuple[Column, ...], alias: str
) -> tuple[Project, Mapping[Expression, Expression]]:
    """Rows of just these columns, with the new name of each; if none is needed, of one constant column."""
    needed = needed or tuple(column for column in below.columns if column.path == (TIME,))[:1]
    names: list[str] = []
    for column in needed:
        names.append(unused(column.path[-1].lstrip("$"), names))
    project = Project(below, tuple(Named(name, column) for name, column in zip(names, needed, strict=True)), alias)
    return project, dict(zip(needed, project.columns, strict=True))


def _is_of_stream(clause: For | Let) -> bool:
    return isinstance(clause, For) and isinstance(clause.path.origin, StreamCall)


def _names_any(comparison: Comparison, variables: list[str]) -> bool:
    sides = (comparison.left, comparison.right)
    used = [side.variable.text for side in sides if isinstance(side, PathOperand) and side.variable is not None]
    return any(name in variables for name in used)
