"""What SELECT gives: its items, and the name of each column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sqlglot import exp

from queries.binder import NOW, Name, Scope
from queries.errors import QueryError, Span
from queries.expressions import Call, Column, Expression, Named
from queries.schema import FIELDS_MAX, TYPES, can_name_a_field
from queries.sql_expressions import Aggregation, Expressions, only
from queries.sql_parser import place

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
_NO_RESULT: Final = {
    "interval": "EXTRACT(EPOCH FROM …) gives its seconds",
    "null": "say of which type: CAST(NULL AS int)",
}


class Output(NamedTuple):
    """One column of the result; its name may follow later."""

    expression: Expression
    span: Span
    name: str = ""  # What AS says.


def aliases_of(node: exp.Select) -> Mapping[str, exp.Expr]:
    """The names that SELECT gives with AS, folded to lower case."""
    return {each.alias.lower(): each.this for each in node.expressions if isinstance(each, exp.Alias)}


def outputs_of(
    node: exp.Select, text: str, scope: Scope, expressions: Expressions, aggregation: Aggregation | None = None
) -> list[Output]:
    """The items of SELECT as expressions; a star becomes its columns."""
    outputs: list[Output] = []
    for item in node.expressions:
        span = place(item)
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            outputs += _starred(item, text, scope, span)
            continue
        name, value = "", item
        if isinstance(item, exp.Alias):
            name, value = item.alias, item.this
            if not isinstance(item.args["alias"], exp.Identifier) or not _NAME.fullmatch(name):
                hint = 'a letter or "_", then letters, digits, "_" or "-"'
                raise QueryError(f'"{name}" cannot name a column', text, place(item.args["alias"], span), hint=hint)
        outputs.append(Output(expressions.read(value, where="SELECT", aggregation=aggregation), span, name))
    if len(outputs) > FIELDS_MAX:
        raise QueryError(f"there are {len(outputs)} columns", text, place(node), expected=f"at most {FIELDS_MAX}")
    for output in outputs:
        kind = output.expression.type
        if kind not in TYPES:
            problem = f"the type of this column, {kind}, has no place in a result"
            raise QueryError(problem, text, output.span, hint=_NO_RESULT.get(kind, ""))
        if kind == "record" and not isinstance(output.expression, Column):
            hint = "name its fields one by one"
            raise QueryError("a record can only be given as it is in its stream", text, output.span, hint=hint)
    return outputs


def _starred(item: exp.Expr, text: str, scope: Scope, span: Span) -> list[Output]:
    star = item if isinstance(item, exp.Star) else item.this
    only(text, star)
    table = item.args.get("table")
    if isinstance(item, exp.Column):
        only(text, item, "this", "table")
    name = None if table is None else Name(table.name, place(table))
    return [Output(column, span) for column in scope.all_of(name)]


def names_of(outputs: Sequence[Output], text: str) -> list[str]:
    """A name for each column: from AS, else the column's own, with its alias if two columns share it."""
    given: dict[str, None] = {}
    for output in outputs:
        if output.name in given:
            raise QueryError(f'two columns are called "{output.name}"', text, output.span)
        if output.name:
            given[output.name] = None
    own = Counter(_own_name(output.expression) for output in outputs if not output.name)
    names = []
    for output in outputs:
        name = output.name
        if not name:
            name = _own_name(output.expression)
            if (own[name] > 1 or name in given) and isinstance(output.expression, Column):
                alias = output.expression.input  # In quotes it may be any text.
                name = f"{alias}_{name}" if can_name_a_field(alias) else name
            name = unique(name, given)
        names.append(name)
    return names


def named(outputs: Sequence[Output], text: str) -> tuple[Named, ...]:
    return tuple(Named(name, each.expression) for name, each in zip(names_of(outputs, text), outputs, strict=True))


def unique(name: str, taken: dict[str, None]) -> str:
    """The name, with a number if it is taken; from then on it is taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken[found] = None
    return found


def _own_name(expression: Expression) -> str:
    match expression:
        case _ if expression == NOW:
            return "now"
        case Column(path=path):
            return path[-1].lstrip("$")
        case Call(function="cast", arguments=(inner,)):
            return _own_name(inner)
        case Call(function=function) if function.isidentifier():
            return function
    return "value"
