"""What a WXQuery returns, as templates: elements, values, choices, and loops over the items of a window."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from queries.aggregates import aggregate
from queries.errors import QueryError, TypeMismatch
from queries.expressions import Column, Constant, Expression, columns_of, conjunction
from queries.functions import call
from queries.plan import Aggregate, Choice, Each, Output, Template
from queries.plan import Element as XmlElement
from queries.wx_names import Element, Names, Scope, Value, WindowItems, there, within
from queries.wx_syntax import Condition as ConditionText
from queries.wx_syntax import (
    Conditional,
    ElementConstructor,
    Flwr,
    For,
    Let,
    Name,
    Path,
    PathOutput,
    StreamCall,
)
from queries.wx_syntax import Expression as ExpressionText

ITEMS: Final = "items"  # The column that holds a window's items.
_FUNCTIONS: Final = ("min", "max", "sum", "count", "avg")


@dataclass(slots=True)
class Content:
    """Builds the templates of one branch of a query, and collects the aggregates of windows that they need."""

    names: Names
    aliases: list[str]  # Those of the whole query so far.
    nested: Callable[[Flwr, Scope], tuple[Template, ...]]  # Turns a stream inside a result into templates.
    aggregates: dict[str, dict[str, Aggregate]] = field(default_factory=dict)  # By window, by name.

    def alias(self, wanted: str) -> str:
        """An alias that nothing else in the query has."""
        self.aliases.append(unused(wanted.replace(".", "_"), self.aliases))
        return self.aliases[-1]

    def aggregate(self, let: Let, scope: Scope) -> Value:
        """The column of an aggregate over a window; a repeated aggregate is computed once."""
        if let.function.text not in _FUNCTIONS:
            hint = f"there is {', '.join(_FUNCTIONS)}"
            raise self.names.error(f'unknown aggregate "{let.function.text}"', let.function.span, hint)
        items = self._window(let, scope)
        argument = self._argument(let, items, scope)
        window = self.aggregates.setdefault(items.alias, {})
        try:
            made = aggregate(unused(let.variable.text, [ITEMS, *window]), let.function.text, argument)
        except TypeMismatch as mismatch:
            raise self.names.error(mismatch.problem, let.path.span) from None
        for known in window.values():
            if (known.function, known.argument) == (made.function, made.argument):
                made = known
        window[made.name] = made
        return Value(Column(items.alias, (made.name,), made.type, made.nullable))

    def _window(self, let: Let, scope: Scope) -> WindowItems:
        origin = let.path.origin
        if isinstance(origin, StreamCall):
            hint = "for $w in stream(…)/… |count 20 step 10| let $a := avg($w/…)"
            raise self.names.error("an aggregate of a whole stream is never finished", let.path.span, hint)
        meaning = self.names.variable(origin, scope)
        if not isinstance(meaning, WindowItems):
            problem = f'"${origin.text}" is not a window, so there is nothing to aggregate'
            hint = f"give it one: for ${origin.text} in … |count 20 step 10|"
            raise self.names.error(problem, let.path.span, hint)
        return meaning

    def _argument(self, let: Let, items: WindowItems, scope: Scope) -> Expression | None:
        element, conditions = self.names.walk(items.item, let.path.steps, scope)
        if any(column.input != items.item.alias for each in conditions for column in columns_of(each)):
            hint = "compare with it where the items are gone through: for $x in $w where …"
            raise self.names.error("an aggregate is computed from its window alone", let.path.span, hint)
        if element.path and element.type != "record":
            counted: Expression = element.column
        elif let.function.text != "count":
            assert isinstance(let.path.origin, Name)
            hint = f"name one: {let.function.text}(${let.path.origin.text}/…)"
            raise self.names.error(f"{let.function.text} needs an element with a value", let.path.span, hint)
        else:  # count needs no value, only the element's presence.
            counted, conditions = Constant.of(1), there(element) + conditions
            if not conditions:
                return None
        only_where = conjunction(conditions)
        return counted if only_where is None else call("case", only_where, counted, Constant.of(None))

    def of(self, text: ExpressionText, scope: Scope) -> tuple[Template, ...]:
        """The templates of an expression."""
        match text:
            case ElementConstructor(tag=tag, content=content):
                return (XmlElement(tag.text, self._all(content, scope)),)
            case Flwr(clauses=clauses, where=where, result=result):
                return self.loop(clauses, where, result, scope)
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                test = conjunction(self.names.conditions(condition, scope))
                assert test is not None
                return (Choice(test, self.of(then, scope), self.of(otherwise, scope)),)
            case PathOutput(path=path):
                return self._output(path, scope)
        return self._all(text.items, scope)

    def loop(
        self, clauses: Sequence[For | Let], where: ConditionText, result: ExpressionText, scope: Scope
    ) -> tuple[Template, ...]:
        """The templates of for and let clauses from the first one on, then of where and return."""
        if not clauses:
            return _guarded(self.names.conditions(where, scope), self.of(result, scope))
        clause, rest = clauses[0], clauses[1:]
        origin = clause.path.origin
        if isinstance(clause, Let):
            return self.loop(rest, where, result, {**scope, clause.variable.text: self.aggregate(clause, scope)})
        if isinstance(origin, StreamCall):
            return self.nested(Flwr(tuple(clauses), where, result, clause.path.span), scope)
        if clause.window is not None:
            raise self.refused(clause, scope)
        match self.names.variable(origin, scope):
            case WindowItems() as items:
                alias = self.alias(clause.variable.text)
                element, conditions = self.names.walk(within(items, alias), clause.path.steps, scope)
                scope = {**scope, clause.variable.text: element}
                conditions = there(element) + conditions
                if not rest:  # So the loop itself can filter its items.
                    conditions, where = conditions + self.names.conditions(where, scope), ()
                inner = self.loop(rest, where, result, scope)
                return (Each(alias, _items(items), conjunction(conditions), inner),)
            case Element() as start:
                element, conditions = self.names.walk(start, clause.path.steps, scope)
                scope = {**scope, clause.variable.text: element}
                return _guarded(there(element) + conditions, self.loop(rest, where, result, scope))
        raise self.refused(clause, scope)

    def refused(self, clause: For, scope: Scope) -> QueryError:
        """Why there is nothing for a clause to loop over."""
        assert isinstance(clause.path.origin, Name)
        if clause.window is not None:
            hint = "a window stands behind the path of a stream"
            return self.names.error("only a stream has windows", clause.window.span, hint)
        meaning = self.names.variable(clause.path.origin, scope)
        assert isinstance(meaning, Value)
        problem = f'"${clause.path.origin.text}" is a single value'
        return self.names.error(problem, clause.path.span, "use it as it is, without for")

    def _all(self, texts: Sequence[ExpressionText], scope: Scope) -> tuple[Template, ...]:
        return tuple(template for text in texts for template in self.of(text, scope))

    def _output(self, path: Path, scope: Scope) -> tuple[Template, ...]:
        if isinstance(path.origin, StreamCall):
            return self.nested(as_flwr(path), scope)
        match self.names.variable(path.origin, scope):
            case Value(column=column):
                self.names.no_steps(tuple(step.name for step in path.steps), path.span)
                return (Output(column),)
            case WindowItems() as items:
                alias = self.alias(items.item.tag)
                element, conditions = self.names.walk(within(items, alias), path.steps, scope)
                return (Each(alias, _items(items), conjunction(conditions), _shown(element)),)
            case Element() as start:
                element, conditions = self.names.walk(start, path.steps, scope)
                return _guarded(conditions, _shown(element))


def as_flwr(path: Path) -> Flwr:
    """A path alone abbreviates a loop that returns what it leads to."""
    each = path.steps[-1].name if path.steps else Name("item", path.span)
    return Flwr((For(each, path, None),), (), PathOutput(Path(each, (), path.span), path.span), path.span)


def unused(wanted: str, used: Collection[str]) -> str:
    """The name, with the lowest number that makes it unique if it is used."""
    numbered = (f"{wanted}_{number}" for number in count(2))
    return wanted if wanted not in used else next(name for name in numbered if name not in used)


def _items(items: WindowItems) -> Column:
    return Column(items.alias, (ITEMS,), "list", nullable=False, fields=items.fields)


def _shown(element: Element) -> tuple[Template, ...]:
    if element.path:
        return (Output(element.column, element.tag),)
    children = (element.child(each) for each in element.fields)
    return (XmlElement(element.tag, tuple(Output(child.column, child.tag) for child in children)),)


def _guarded(conditions: tuple[Expression, ...], content: tuple[Template, ...]) -> tuple[Template, ...]:
    test = conjunction(conditions)
    return content if test is None else (Choice(test, content),)
