"""Aggregates in SQL: their window, their keys, and what SELECT and HAVING may use above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from sqlglot import exp

from queries.aggregates import aggregate
from queries.binder import NOW, timed
from queries.errors import QueryError, Span
from queries.expressions import END, START, TIME, Call, Column, Constant, Expression, Named, ValueType, columns_of
from queries.plan import AGGREGATES, Aggregate, Operator, Source, Window, WindowAggregate
from queries.sql_expressions import WINDOW_FUNCTIONS, Expressions, only
from queries.sql_outputs import unique
from queries.sql_parser import place

KEYS_MAX: Final = 64
_BOUND_TYPES: Final[dict[str, ValueType]] = {"time": "timestamp", "rows": "int", "value": "decimal"}


def is_grouped(node: exp.Select) -> bool:
    """Whether a SELECT produces windows and groups, not rows."""
    if node.args.get("group") or node.args.get("having") or node.args.get("distinct"):
        return True
    return any(_called(each) in AGGREGATES for item in node.expressions for each in item.find_all(exp.Anonymous))


def _called(node: exp.Expr) -> str:
    return str(node.this).lower() if isinstance(node, exp.Anonymous) else ""


class Grouping:
    """A WindowAggregate under construction: SELECT and HAVING add aggregates as they name them."""

    def __init__(self, text: str, window: Window, keys: Sequence[Expression]) -> None:
        self._text = text
        self._window = window
        self._taken: dict[str, None] = {}
        self._keys = [Named(unique(_key_name(key), self._taken), key) for key in keys]
        self._aggregates: list[Aggregate] = []

    def aggregate(self, function: str, argument: Expression | None, distinct: bool) -> Column:
        """The column of an aggregate's result; a repeated aggregate is computed once."""
        found = next(
            (a for a in self._aggregates if (a.function, a.argument, a.distinct) == (function, argument, distinct)),
            None,
        )
        if found is None:
            found = aggregate(unique(_aggregate_name(function, argument), self._taken), function, argument, distinct)
            self._aggregates.append(found)
        return Column("", (found.name,), found.type, found.nullable, found.fields)

    def bound(self, name: str) -> Column:
        """The start or the end of the window."""
        return Column("", (START if name == "window_start" else END,), _BOUND_TYPES[self._window.kind])

    def above(self, expression: Expression, span: Span) -> Expression:
        """An expression of SELECT or HAVING, in the columns of the aggregate's output."""
        for key in self._keys:
            if expression == key.expression:
                fields = expression.fields if isinstance(expression, Column) else ()
                return Column("", (key.name,), expression.type, expression.nullable, fields)
        match expression:
            case _ if expression == NOW:
                return Column("", (TIME,), "timestamp")
            case Column(input=alias) if alias:
                problem = f'"{expression}" has many values in a group'
                hint = f"put it into GROUP BY, or into an aggregate: max({expression})"
                raise QueryError(problem, self._text, span, hint=hint)
            case Call(arguments=arguments):
                inner = tuple(self.above(argument, span) for argument in arguments)
                return msgspec.structs.replace(expression, arguments=inner)
        return expression

    def plan(self, rows: Operator, aliases: Sequence[str]) -> WindowAggregate:
        keys = tuple(Named(key.name, timed(key.expression, aliases)) for key in self._keys)
        results = tuple(_timed(each, aliases) for each in self._aggregates)
        return WindowAggregate(rows, self._window, keys, results)


def _timed(each: Aggregate, aliases: Sequence[str]) -> Aggregate:
    return each if each.argument is None else msgspec.structs.replace(each, argument=timed(each.argument, aliases))


def _key_name(key: Expression) -> str:
    return key.path[-1] if isinstance(key, Column) else "key"


def _aggregate_name(function: str, argument: Expression | None) -> str:
    return f"{function}_{argument.path[-1]}" if isinstance(argument, Column) and argument != NOW else function


class GroupBy:
    """Reads GROUP BY: the keys, and the window if there is one."""

    def __init__(self, text: str, expressions: Expressions, inputs: Sequence[Source]) -> None:
        self._text = text
        self._expressions = expressions
        self._inputs = inputs

    def keys(self, node: exp.Select, aliases: Mapping[str, exp.Expr]) -> list[Expression]:
        keys = []
        for item in self.items(self._text, node):
            if _called(item) in WINDOW_FUNCTIONS:
                continue
            key = self._expressions.read(item, where="GROUP BY", aliases=aliases)
            if not any(True for _ in columns_of(key)):
                hint = "write the column or expression itself, not its number"
                raise QueryError("a constant does not group anything", self._text, place(item), hint=hint)
            keys.append(key)
        if len(keys) > KEYS_MAX:
            problem = f"there are {len(keys)} keys"
            raise QueryError(problem, self._text, place(node.args["group"]), expected=f"at most {KEYS_MAX}")
        return keys

    def window(self, node: exp.Select, span: Span) -> Window:
        """The window in GROUP BY, or that of the only source."""
        own = self._inputs[0].window if len(self._inputs) == 1 else None
        calls = [item for item in self.items(self._text, node) if _called(item) in WINDOW_FUNCTIONS]
        if len(calls) > 1 or (calls and own is not None):
            problem = "there are two windows"
            raise QueryError(problem, self._text, place(calls[-1]), hint="keep one: in FROM or in GROUP BY")
        if calls:
            return self._called_window(calls[0])
        if own is None:
            over = "GROUP BY TUMBLE(INTERVAL '5' MINUTE)"
            stream = self._inputs[0].stream
            behind = "" if len(self._inputs) > 1 else f", or FROM {stream} [RANGE 5 MINUTES]"
            problem = "an aggregate over a stream that never ends needs a window"
            if any(each.window is not None for each in self._inputs):
                problem = "the windows in FROM say which rows are joined; an aggregate over a join needs one of its own"
            raise QueryError(problem, self._text, span, hint=f"for example {over}{behind}")
        return own

    @staticmethod
    def items(text: str, node: exp.Select) -> list[exp.Expr]:
        """What GROUP BY lists, windows included."""
        group = node.args.get("group")
        if group is None:
            return []
        only(text, group, "expressions")
        if not group.expressions:
            raise QueryError("GROUP BY names nothing", text, place(group, place(node)), expected="columns")
        return list(group.expressions)

    def _called_window(self, node: exp.Expr) -> Window:
        name = _called(node)
        arguments = [self._expressions.read(each, where="GROUP BY") for each in node.expressions]
        if arguments and isinstance(arguments[0], Column):
            self._check_time(arguments[0], node)
            arguments = arguments[1:]
        wanted = 1 if name == "tumble" else 2
        sizes = [each.python for each in arguments if isinstance(each, Constant) and each.type == "interval"]
        if len(arguments) != wanted or len(sizes) != wanted:
            form = "TUMBLE(INTERVAL '5' MINUTE)" if wanted == 1 else "HOP(INTERVAL '5' MINUTE, INTERVAL '1' MINUTE)"
            problem = f"{name.upper()} takes {'its size' if wanted == 1 else 'its size and its slide'}"
            raise QueryError(problem, self._text, place(node), hint=f"for example {form}")
        lengths = [size.days * 86_400_000_000 + size.seconds * 1_000_000 + size.microseconds for size in sizes]
        if min(lengths) <= 0:
            raise QueryError("a window must be longer than zero", self._text, place(node))
        if wanted == 2 and lengths[1] > lengths[0]:
            hint = "HOP takes the size first, then the slide"
            raise QueryError("the slide is longer than the window", self._text, place(node), hint=hint)
        return Window("time", lengths[0], lengths[1] if wanted == 2 else None)

    def _check_time(self, column: Column, node: exp.Expr) -> None:
        """The column in TUMBLE and HOP is redundant: windows always follow the tuples' time, so it must name that."""
        leave_out = "leave the column out"
        if len(self._inputs) > 1:
            problem, hint = "over a join, windows follow the time of the joined rows", leave_out
        elif (at := self._inputs[0].event_time) is None:
            stream = self._inputs[0].stream
            problem, hint = f'"{stream}" has no event time; windows follow the publication', leave_out
        elif column.path != (at,):
            problem, hint = f'"{column}" is not the event time of the stream', f'write "{at}", or {leave_out}'
        else:
            return
        raise QueryError(problem, self._text, place(node), hint=hint)
