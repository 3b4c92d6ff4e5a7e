"""The text of a WXQuery as a syntax tree, each part with its place; names and types are resolved later.

The grammar is wxquery.lark. Its parser keeps its own stack, so the depth of a text is measured, and refused if too
large, before any code here recurses into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Final

from lark import Lark, Token, Tree, UnexpectedInput

from queries import decimals
from queries.errors import QueryError, Span
from queries.size import check_size
from queries.values import INT_MAX
from queries.wx_errors import syntax_error

DEPTH_MAX: Final = 64
DIGITS_MAX: Final = 38


@dataclass(frozen=True, slots=True)
class Name:
    """A word of the text: a variable without its dollar sign, an element, a tag."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: int | Decimal | str | bool
    span: Span


@dataclass(frozen=True, slots=True)
class PathOperand:
    """A path in a condition, from a variable or from the element under test, plus an optional number."""

    variable: Name | None
    names: tuple[Name, ...]
    sign: str
    shift: Literal | None
    span: Span


@dataclass(frozen=True, slots=True)
class Comparison:
    """An atomic predicate."""

    left: PathOperand | Literal
    operator: str
    right: PathOperand | Literal
    span: Span


Condition = tuple[Comparison, ...]  # All of them hold.


@dataclass(frozen=True, slots=True)
class Step:
    """One step down to a child, with the conditions that child must meet."""

    name: Name
    condition: Condition


@dataclass(frozen=True, slots=True)
class StreamCall:
    """stream("name"); any other function name is kept so that it can be refused."""

    function: Name
    stream: Name
    span: Span


@dataclass(frozen=True, slots=True)
class Path:
    """Where elements are: a variable or a stream, and the steps from there."""

    origin: Name | StreamCall
    steps: tuple[Step, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class DataWindow:
    """|count size step n| or |reference diff size step n|."""

    reference: tuple[Name, ...]  # Empty for a window of items.
    size: Literal
    step: Literal | None
    span: Span


@dataclass(frozen=True, slots=True)
class For:
    """for $variable in path |window|"""

    variable: Name
    path: Path
    window: DataWindow | None


@dataclass(frozen=True, slots=True)
class Let:
    """let $variable := function(path)"""

    variable: Name
    function: Name
    path: Path


@dataclass(frozen=True, slots=True)
class ElementConstructor:
    """<tag> content </tag>"""

    tag: Name
    content: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Flwr:
    """for and let, where, return."""

    clauses: tuple[For | Let, ...]
    where: Condition
    result: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Conditional:
    """if condition then one else other"""

    condition: Condition
    then: Expression
    otherwise: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class PathOutput:
    """The target of a path, put into the result."""

    path: Path
    span: Span


@dataclass(frozen=True, slots=True)
class Sequence:
    """Several results, one after the other."""

    items: tuple[Expression, ...]
    span: Span


Expression = ElementConstructor | Flwr | Conditional | PathOutput | Sequence


def parse(text: str) -> Expression:
    """The tree of a text; raises QueryError."""
    check_size(text)
    try:
        tree = _grammar().parse(text)
    except UnexpectedInput as error:
        raise syntax_error(text, error) from None
    _check_depth(tree, text)
    return _Reader(text).expression(tree.children[0])


@cache
def _grammar() -> Lark:
    return Lark.open("wxquery.lark", rel_to=__file__, parser="lalr", propagate_positions=True, maybe_placeholders=False)


_NESTING: Final = ("full_element", "conditional", "sequence", "condition")


def _check_depth(tree: Tree[Token], text: str) -> None:
    pending = [(tree, 0)]
    while pending:
        at, depth = pending.pop()
        depth += _levels(at)
        if depth > DEPTH_MAX:
            raise QueryError(f"the query is nested more than {DEPTH_MAX} deep", text, _span(at))
        pending += [(child, depth) for child in at.children if isinstance(child, Tree)]


def _levels(at: Tree[Token]) -> int:
    """How much deeper a part makes the query: each for and each let contains all that follows it."""
    return len(at.children) - 1 if at.data == "flwr" else int(at.data in _NESTING)


def _span(at: Tree[Token] | Token) -> Span:
    place: Any = at if isinstance(at, Token) else at.meta
    return Span(place.start_pos, place.end_pos)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Walks the parser's tree, whose depth is already known to be small."""

    text: str

    def expression(self, at: Any) -> Expression:
        span = _span(at)
        match at.data:
            case "empty_element":
                return ElementConstructor(_name(at.children[0]), (), span)
            case "full_element":
                opened, *content, closed = at.children
                if opened != closed:
                    problem = f'"<{opened}>" is closed by "</{closed}>"'
                    raise QueryError(problem, self.text, _span(closed), expected=f'"</{opened}>"')
                return ElementConstructor(_name(opened), tuple(map(self.expression, content)), span)
            case "flwr":
                *before, result = at.children
                where = self._condition(before.pop().children[0]) if before[-1].data == "where" else ()
                return Flwr(tuple(map(self._clause, before)), where, self.expression(result), span)
            case "conditional":
                condition, then, otherwise = at.children
                return Conditional(self._condition(condition), self.expression(then), self.expression(otherwise), span)
            case "output":
                return PathOutput(self._path(at.children[0]), span)
        assert at.data == "sequence"
        return Sequence(tuple(map(self.expression, at.children)), span)

    def _clause(self, at: Any) -> For | Let:
        if at.data == "let_clause":
            variable, function, path = at.children
            return Let(_variable(variable), _name(function), self._path(path))
        variable, path, *window = at.children
        return For(_variable(variable), self._path(path), self._window(window[0]) if window else None)

    def _window(self, at: Any) -> DataWindow:
        kind, size, *step = at.children
        reference = () if at.data == "count_window" else tuple(map(_name, kind.children))
        every = self._number(step[0].children[0]) if step else None
        return DataWindow(reference, self._number(size), every, _span(at))

    def _path(self, at: Any) -> Path:
        origin, *steps = at.children
        return Path(
            _variable(origin) if isinstance(origin, Token) else _stream(origin),
            tuple(Step(_name(step.children[0]), self._predicates(step.children[1:])) for step in steps),
            _span(at),
        )

    def _predicates(self, predicates: list[Any]) -> Condition:
        return tuple(part for each in predicates for part in self._condition(each.children[0]))

    def _condition(self, at: Any) -> Condition:
        return tuple(self._comparisons(at))

    def _comparisons(self, at: Any) -> Iterator[Comparison]:
        for part in at.children:
            if part.data == "condition":
                yield from self._comparisons(part)
            else:
                left, operator, right = part.children
                yield Comparison(self._operand(left), str(operator), self._operand(right), _span(part))

    def _operand(self, at: Any) -> PathOperand | Literal:
        span = _span(at)
        match at.data:
            case "number":
                return self._number(at)
            case "string":
                return Literal(_unquoted(at.children[0]), span)
            case "truth":
                return self._truth(at)
            case "shifted":
                path, sign, number = at.children
                variable, names = _operand_path(path)
                return PathOperand(variable, names, str(sign), self._constant(str(number), _span(number)), span)
        variable, names = _operand_path(at)
        return PathOperand(variable, names, "", None, span)

    def _truth(self, at: Any) -> Literal:
        (name,) = at.children
        if name not in ("true", "false"):
            hint = "aggregates are computed by let: let $a := avg($w/en)"
            raise QueryError(f'unknown function "{name}" in a condition', self.text, _span(at), hint=hint)
        return Literal(name == "true", _span(at))

    def _number(self, at: Any) -> Literal:
        return self._constant("".join(at.children), _span(at))

    def _constant(self, digits: str, span: Span) -> Literal:
        if len(digits) > DIGITS_MAX + 2:
            raise QueryError(f"a number has at most {DIGITS_MAX} digits", self.text, span)
        if not decimals.is_held(Decimal(digits)):
            raise QueryError("no decimal has so many digits", self.text, span, expected=decimals.BOUNDS)
        if "." in digits:
            return Literal(Decimal(digits), span)
        if abs(int(digits)) > INT_MAX:
            raise QueryError("the number does not fit 64 bits", self.text, span, hint="write it with a decimal point")
        return Literal(int(digits), span)


def _name(token: Token) -> Name:
    return Name(str(token), _span(token))


def _variable(token: Token) -> Name:
    return Name(token[1:], _span(token))


def _stream(at: Any) -> StreamCall:
    function, stream = at.children
    return StreamCall(_name(function), Name(_unquoted(stream), _span(stream)), _span(at))


def _operand_path(at: Any) -> tuple[Name | None, tuple[Name, ...]]:
    if at.data == "variable_path":
        return _variable(at.children[0]), tuple(map(_name, at.children[1:]))
    return None, tuple(map(_name, at.children))


def _unquoted(token: Token) -> str:
    quote = token[0]
    return str(token[1:-1]).replace(quote * 2, quote)
