"""What the names in a WXQuery mean: variables, the elements on a path, and the conditions on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from queries import binder
from queries.catalogue import Stream, Streams, named
from queries.errors import QueryError, Span, TypeMismatch, nearest
from queries.expressions import Column, Constant, Expression, ValueType
from queries.functions import call
from queries.schema import Field
from queries.wx_syntax import Comparison, Condition, Literal, Name, Path, PathOperand, Step, StreamCall


@dataclass(frozen=True, slots=True)
class Element:
    """A variable's meaning: one element, either an item of a stream or an element inside one."""

    alias: str  # The row that holds it.
    path: tuple[str, ...]  # Its place in that row; empty for the item itself.
    tag: str
    type: ValueType
    nullable: bool
    fields: tuple[Field, ...]

    @property
    def column(self) -> Column:
        assert self.path, "an item as a whole is no column"
        return Column(self.alias, self.path, self.type, self.nullable, self.fields)

    def child(self, field: Field) -> Element:
        nullable = self.nullable or field.nullable
        return Element(self.alias, (*self.path, field.name), field.name, field.type, nullable, field.fields)


@dataclass(frozen=True, slots=True)
class WindowItems:
    """A variable's meaning: the items of a window. `item` stands for each of them, `fields` are those of a row.

    `alias` is that of the windows' own rows, which hold the aggregates.
    """

    item: Element
    fields: tuple[Field, ...]
    alias: str


@dataclass(frozen=True, slots=True)
class Value:
    """A variable's meaning: the result of an aggregate."""

    column: Column


Meaning = Element | WindowItems | Value
Scope = Mapping[str, Meaning]


@dataclass(frozen=True, slots=True)
class Names:
    """Looks names up, and reports a wrong one with its place in the text."""

    text: str
    streams: Streams

    def error(self, problem: str, span: Span, hint: str = "", expected: str = "") -> QueryError:
        return QueryError(problem, self.text, span, expected=expected, hint=hint)

    def stream(self, origin: StreamCall) -> Stream:
        if origin.function.text != "stream":
            hint = 'the input of a query is a stream: stream("name")'
            raise self.error(f'unknown function "{origin.function.text}"', origin.function.span, hint)
        return binder.stream_of(binder.Name(origin.stream.text, origin.stream.span), self.streams, self.text)

    def item(self, path: Path, stream: Stream, alias: str) -> tuple[Element, tuple[Step, ...]]:
        """The items of a stream, and the steps that lead on from them."""
        if len(path.steps) < 2:
            hint = f'for example: stream("{stream.name}")/{stream.name}/item'
            raise self.error("the path of a stream names its document, then its items", path.span, hint)
        document, item = path.steps[:2]
        if document.condition:
            hint = f"put the condition behind the item: /{document.name.text}/{item.name.text}[…]"
            raise self.error("a document that never ends cannot be tested", document.condition[0].span, hint)
        whole = Element(alias, (), item.name.text, "record", nullable=False, fields=stream.schema.fields)
        return whole, (Step(Name("", item.name.span), item.condition), *path.steps[2:])

    def variable(self, name: Name, scope: Scope) -> Meaning:
        if name.text not in scope:
            known = nearest(name.text, scope).replace('"', '"$', 1) if scope else ""
            hint = known.replace("there is ", "there is $").replace(", ", ", $")
            raise self.error(f'unknown variable "${name.text}"', name.span, hint)
        return scope[name.text]

    def walk(self, start: Element, steps: Iterable[Step], scope: Scope) -> tuple[Element, tuple[Expression, ...]]:
        """The element at the end of a path, and the conditions on the way. An unnamed step stays in place."""
        conditions: list[Expression] = []
        for step in steps:
            start = self._child(start, step.name) if step.name.text else start
            conditions += self.conditions(step.condition, scope, start)
        return start, tuple(conditions)

    def conditions(self, condition: Condition, scope: Scope, about: Element | None = None) -> tuple[Expression, ...]:
        """The predicates of a condition; a path without a variable begins at the element `about`."""
        return tuple(self._predicate(each, scope, about) for each in condition)

    def _predicate(self, comparison: Comparison, scope: Scope, about: Element | None) -> Expression:
        if isinstance(comparison.left, Literal) and isinstance(comparison.right, Literal):
            raise self.error("the comparison has no path", comparison.span, "one side is a path, like $p/en")
        left = self._operand(comparison.left, scope, about)
        right = self._operand(comparison.right, scope, about)
        try:
            return call(comparison.operator, left, right)
        except TypeMismatch as mismatch:
            raise self.error(mismatch.problem, comparison.span, _without_cast(left, right)) from None

    def _operand(self, operand: PathOperand | Literal, scope: Scope, about: Element | None) -> Expression:
        if isinstance(operand, Literal):
            return Constant.of(operand.value)
        column = self._column(operand, scope, about)
        if operand.shift is None:
            return column
        try:
            return call(operand.sign, column, Constant.of(operand.shift.value))
        except TypeMismatch as mismatch:
            raise self.error(mismatch.problem, operand.span, "a number can only be added to a number") from None

    def _column(self, operand: PathOperand, scope: Scope, about: Element | None) -> Column:
        if operand.variable is None:
            if about is None:
                first = operand.names[0]
                hint = f"for example ${next(iter(scope), 'p')}/{first.text}"
                raise self.error(f'"{first.text}" does not say whose it is', first.span, hint, "a variable")
            meaning: Meaning = about
        else:
            meaning = self.variable(operand.variable, scope)
        match meaning:
            case WindowItems():
                assert operand.variable is not None
                variable = operand.variable.text
                hint = f"put it before the window, as in /item[en >= 1], or go through it: for $x in ${variable}"
                raise self.error(f'"${variable}" is a window of many items, not one', operand.span, hint)
            case Value(column=column):
                self.no_steps(operand.names, operand.span)
                return column
            case Element():
                for name in operand.names:
                    meaning = self._child(meaning, name)
        if meaning.type == "record":
            hint = f"name one inside: {', '.join(field.name for field in meaning.fields[:12])}"
            raise self.error(f'"{meaning.tag}" holds elements, no value', operand.span, hint)
        return meaning.column

    def reference(self, names: tuple[Name, ...], item: Element) -> Element:
        """The element that controls a window."""
        for name in names:
            item = self._child(item, name)
        return item

    def no_steps(self, names: tuple[Name, ...], span: Span) -> None:
        if names:
            raise self.error("an aggregate is a value and has no elements inside", span)

    def _child(self, element: Element, name: Name) -> Element:
        known = [field.name for field in element.fields]
        if not known:
            raise self.error(f'"{element.tag}" holds a {element.type} and no elements', name.span)
        found = named(name.text, known)
        if found is None:
            before, minus, after = name.text.partition("-")
            is_difference = minus and named(before, known) is not None
            hint = (
                f"a minus sign has space around it: {before} - {after}" if is_difference else nearest(name.text, known)
            )
            raise self.error(f'unknown element "{name.text}" in "{element.tag}"', name.span, hint)
        return element.child(element.fields[known.index(found)])


def within(items: WindowItems, alias: str) -> Element:
    """One item of a window, under an alias of its own."""
    return replace(items.item, alias=alias)


def there(element: Element) -> tuple[Expression, ...]:
    """The condition that an optional element is present; none if it always is."""
    if not element.path or not element.nullable:
        return ()
    return (call("not", call("is_null", element.column)),)


def _without_cast(left: Expression, right: Expression) -> str:
    kinds = {left.type, right.type}
    if "string" in kinds and isinstance(right, Constant):
        return "a text stands in quotes, a number does not"
    if "bool" in kinds:
        return "a truth value is compared with true() or false()"
    return ""
