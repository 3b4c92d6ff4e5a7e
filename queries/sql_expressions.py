"""SQL expressions, from sqlglot's tree to ours; any node without a rule is refused, with its place in the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Final, NoReturn, Protocol

from sqlglot import exp

from queries import casts, decimals, functions
from queries.binder import NOW, Name, Scope, built
from queries.errors import QueryError, TypeMismatch, nearest
from queries.expressions import Column, Constant, Expression, ValueType
from queries.functions import FUNCTIONS
from queries.plan import AGGREGATES
from queries.sql_parser import place
from queries.sql_tokens import NESTING_MAX, too_deep

IN_MAX: Final = 1000
DIGITS_MAX: Final = 100
INT_MAX: Final = (1 << 63) - 1

_TYPES: Final[dict[str, ValueType]] = {
    "int": "int", "integer": "int", "bigint": "int", "smallint": "int",
    "float": "float", "double": "float", "real": "float",
    "decimal": "decimal", "numeric": "decimal",
    "string": "string", "varchar": "string", "text": "string", "char": "string",
    "bool": "bool", "boolean": "bool",
    "timestamp": "timestamp", "interval": "interval", "bytes": "bytes",
}  # fmt: skip
# Functions with a sign or a syntax of their own; they cannot be called by name.
_NOT_BY_NAME: Final = ("and", "or", "not", "in", "like", "case", "is_null", "negate")
_CALLABLE: Final = [name for name in FUNCTIONS if name.isidentifier() and name not in _NOT_BY_NAME]
_ALSO_CALLED: Final = {
    "ceiling": "ceil",
    "char_length": "length",
    "pow": "power",
    "substr": "substring",
}
WINDOW_FUNCTIONS: Final = ("tumble", "hop")
_BOUNDS: Final = ("window_start", "window_end")
_CLOCKS: Final = ("current_time", "current_timestamp")

_SIGNS: Final[dict[type[exp.Expr], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.DPipe: "||",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


class Aggregation(Protocol):
    """Where aggregates are allowed: turns each one into a column of the window's result."""

    def aggregate(self, function: str, argument: Expression | None, distinct: bool) -> Column: ...

    def bound(self, name: str) -> Column: ...


class Expressions:
    """Turns the expressions of one query into ours. `aliases` are the names from SELECT, for GROUP BY and HAVING."""

    def __init__(self, text: str, scope: Scope, parameters: Mapping[int, Any]) -> None:
        self._text = text
        self._scope = scope
        self._parameters = parameters
        self._aggregation: Aggregation | None = None
        self._where = ""  # The clause being read, if aggregates are not allowed there.
        self._aliases: Mapping[str, exp.Expr] = {}

    def read(
        self,
        node: exp.Expr,
        *,
        where: str,
        aggregation: Aggregation | None = None,
        aliases: Mapping[str, exp.Expr] | None = None,
    ) -> Expression:
        """The expression of a node; `where` names the clause in errors."""
        self._where, self._aggregation, self._aliases = where, aggregation, aliases or {}
        return self._read(node, 0)

    def condition(self, node: exp.Expr, **how: Any) -> Expression:
        """An expression that is true or false."""
        expression = self.read(node, **how)
        if expression.type not in ("bool", "null"):
            problem = f"a condition is true or false, and this is a {expression.type}"
            raise QueryError(problem, self._text, place(node), hint="compare it with something: … = …")
        return expression

    def _read(self, node: exp.Expr, depth: int) -> Expression:
        if depth > NESTING_MAX:
            raise too_deep(self._text, place(node))
        if type(node) not in self._rules:
            self._refuse(node)
        rule, parts = self._rules[type(node)]
        only(self._text, node, *parts.split())
        return rule(self, node, depth + 1)

    def _call(self, node: exp.Expr, name: str, *arguments: Expression) -> Expression:
        return built(self._text, place(node), name, *arguments)

    def _refuse(self, node: exp.Expr) -> NoReturn:
        hint = _REFUSED.get(type(node), "")
        problem = f"{_said(node)} is not supported"
        raise QueryError(problem, self._text, place(node), hint=hint)

    # Leaves.

    def _column(self, node: exp.Column, depth: int) -> Expression:
        words = self.words(node)
        alone = words[0].name if len(words) == 1 and not node.this.args.get("quoted") else ""
        if alone and not self._scope.has(alone):
            if alone.lower() in _CLOCKS:
                return NOW
            if alone.lower() in self._aliases:
                aliases, self._aliases = self._aliases, {}
                expression = self._read(aliases[alone.lower()], depth)
                self._aliases = aliases
                return expression
        return self._scope.column(words)

    def words(self, node: exp.Expr) -> list[Name]:
        """The words of a dotted name."""
        if isinstance(node, exp.Dot):
            return [*self.words(node.this), *self.words(node.expression)]
        if isinstance(node, exp.Identifier):
            return [Name(node.name, place(node))]
        if not isinstance(node, exp.Column):
            self._refuse(node)
        parts = [node.args.get(part) for part in ("catalog", "db", "table", "this")]
        return [word for part in parts if part is not None for word in self.words(part)]

    def _dot(self, node: exp.Dot, depth: int) -> Expression:
        return self._scope.column(self.words(node))

    def _literal(self, node: exp.Literal, depth: int) -> Expression:
        if node.is_string:
            return Constant(node.name, "string")
        return self._number(node, node.name)

    def _number(self, node: exp.Expr, written: str) -> Constant:
        if len(written) > DIGITS_MAX:
            problem = "the number has too many digits"
            raise QueryError(problem, self._text, place(node), expected=f"at most {DIGITS_MAX}")
        unsigned = written.removeprefix("-")
        if unsigned.isdecimal() and unsigned.isascii():
            whole = int(written)
            return Constant.of(whole) if -INT_MAX - 1 <= whole <= INT_MAX else self._decimal(node, Decimal(whole))
        try:
            value: float | Decimal = float(written) if "e" in written.lower() else Decimal(written)
        except (ValueError, ArithmeticError):
            raise QueryError(f'"{written}" is not a number', self._text, place(node)) from None
        if isinstance(value, Decimal):
            return self._decimal(node, value)
        if not math.isfinite(value):
            raise QueryError("the number is too large", self._text, place(node), expected="at most about 1.8e308")
        return Constant.of(value)

    def _decimal(self, node: exp.Expr, value: Decimal) -> Constant:
        if not decimals.is_held(value):
            problem, hint = "no decimal has so many digits", "a float has an exponent: 1e25"
            raise QueryError(problem, self._text, place(node), expected=decimals.BOUNDS, hint=hint)
        return Constant.of(value)

    def _hex(self, node: exp.HexString, depth: int) -> Expression:
        try:
            return Constant.of(bytes.fromhex(str(node.this)))
        except ValueError:
            hint = "two digits for a byte: X'00ff'"
            raise QueryError("these are not hexadecimal bytes", self._text, place(node), hint=hint) from None

    def _boolean(self, node: exp.Boolean, depth: int) -> Expression:
        return Constant(bool(node.this), "bool")

    def _null(self, node: exp.Null, depth: int) -> Expression:
        return Constant(None, "null")

    def _placeholder(self, node: exp.Placeholder, depth: int) -> Expression:
        span = place(node)
        if span.start not in self._parameters:
            hint = 'give a value for each "?", in order (peer explain --parameter VALUE)'
            raise QueryError("the parameter has no value", self._text, span, hint=hint)
        given = self._parameters[span.start]
        return self._decimal(node, given) if isinstance(given, Decimal) else Constant.of(given)

    def _paren(self, node: exp.Paren, depth: int) -> Expression:
        return self._read(node.this, depth)

    # Operators.

    def _negate(self, node: exp.Neg, depth: int) -> Expression:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return self._number(node, f"-{node.this.name}")
        return self._call(node, "negate", self._read(node.this, depth))

    def _not(self, node: exp.Not, depth: int) -> Expression:
        return self._call(node, "not", self._read(node.this, depth))

    def _connector(self, node: exp.Connector, depth: int) -> Expression:
        kind, parts = type(node), []
        rest: exp.Expr = node
        while isinstance(rest, kind):  # A AND B AND C is a left-deep chain, as long as the text.
            parts.append(rest.expression)
            rest = rest.this
        parts.append(rest)
        name = "and" if kind is exp.And else "or"
        return self._call(node, name, *(self._read(part, depth) for part in reversed(parts)))

    def _binary(self, node: exp.Binary, depth: int) -> Expression:
        sign = _SIGNS[type(node)]
        listed = node.expression
        if isinstance(listed, exp.Anonymous) and str(listed.this).lower() in ("any", "some", "all"):
            return self._quantified(node, sign, listed, depth)
        return self._call(node, sign, self._read(node.this, depth), self._read(listed, depth))

    def _quantified(self, node: exp.Binary, sign: str, listed: exp.Anonymous, depth: int) -> Expression:
        """x = ANY (…) is x IN (…); x <> ALL (…) is x NOT IN (…)."""
        every = str(listed.this).lower() == "all"
        if (sign, every) not in (("=", False), ("<>", True)):
            hint = "= ANY (…) and <> ALL (…) are; else combine comparisons with AND and OR"
            raise QueryError(f"{sign} {str(listed.this).upper()} is not supported", self._text, place(node), hint=hint)
        within = self._in_list(node, node.this, listed.expressions, depth)
        return self._call(node, "not", within) if every else within

    def _in(self, node: exp.In, depth: int) -> Expression:
        return self._in_list(node, node.this, node.expressions, depth)

    def _in_list(self, node: exp.Expr, value: exp.Expr, listed: Sequence[exp.Expr], depth: int) -> Expression:
        if not listed:
            raise QueryError("the list is empty", self._text, place(node), expected="IN (value, …)")
        if len(listed) > IN_MAX:
            problem = f"the list has {len(listed):,} values"
            raise QueryError(problem, self._text, place(listed[IN_MAX]), expected=f"at most {IN_MAX:,}")
        return self._call(node, "in", self._read(value, depth), *(self._read(each, depth) for each in listed))

    def _between(self, node: exp.Between, depth: int) -> Expression:
        value = self._read(node.this, depth)
        low = self._call(node, ">=", value, self._read(node.args["low"], depth))
        high = self._call(node, "<=", value, self._read(node.args["high"], depth))
        return self._call(node, "and", low, high)

    def _is(self, node: exp.Is, depth: int) -> Expression:
        value = self._read(node.this, depth)
        match node.expression:
            case exp.Null():
                return self._call(node, "is_null", value)
            case exp.Boolean(this=wanted):
                known = self._call(node, "coalesce", value, Constant(not wanted, "bool"))
                return known if wanted else self._call(node, "not", known)
        raise QueryError(
            "unexpected word behind IS", self._text, place(node.expression, place(node)), expected="NULL, TRUE or FALSE"
        )

    def _like(self, node: exp.Like, depth: int, *escape: exp.Expr) -> Expression:
        parts = (node.this, node.expression, *escape)
        like = self._call(node, "like", *(self._read(part, depth) for part in parts))
        return self._call(node, "not", like) if node.args.get("negate") else like

    def _escape(self, node: exp.Escape, depth: int) -> Expression:
        if not isinstance(node.this, exp.Like):
            self._refuse(node)
        return self._like(node.this, depth, node.expression)

    def _case(self, node: exp.Case, depth: int) -> Expression:
        operand = node.args.get("this")
        arguments: list[Expression] = []
        for branch in node.args["ifs"]:
            condition = self._read(branch.this, depth)
            if operand is not None:
                condition = self._call(branch, "=", self._read(operand, depth), condition)
            arguments += [condition, self._read(branch.args["true"], depth)]
        default = node.args.get("default")
        arguments.append(Constant(None, "null") if default is None else self._read(default, depth))
        return self._call(node, "case", *arguments)

    # Functions.

    def _cast(self, node: exp.Cast, depth: int) -> Expression:
        written = str(node.args["to"].this)
        kind = _TYPES.get(written.lower())
        if kind is None:
            hint = nearest(written, _TYPES) or f"the types are {', '.join(dict.fromkeys(_TYPES.values()))}"
            raise QueryError(f'"{written}" is not a type', self._text, place(node.args["to"]), hint=hint)
        value = self._read(node.this, depth)
        try:
            if isinstance(value, Constant) and value.type == "string" and kind in _LITERALS:
                return self._typed_literal(node, str(value.value), kind)
            return functions.cast(value, kind)
        except TypeMismatch as error:
            raise QueryError(error.problem, self._text, place(node), hint=error.hint) from None

    def _typed_literal(self, node: exp.Cast, written: str, kind: ValueType) -> Constant:
        """TIMESTAMP '…' and INTERVAL '…' are constants; malformed ones are refused here, not at the first row."""
        value = _LITERALS[kind](written)
        if value is None:
            hint = "for example 2026-01-31 12:30:00" if kind == "timestamp" else "for example 5 minutes or 12:00:00"
            raise QueryError(f'"{written}" is not {casts.article(kind)}', self._text, place(node), hint=hint)
        return Constant.of(value)

    def _extract(self, node: exp.Extract, depth: int) -> Expression:
        part = Constant(node.this.name.lower(), "string")
        return self._call(node, "extract", part, self._read(node.expression, depth))

    def _substring(self, node: exp.Substring, depth: int) -> Expression:
        parts = [node.args.get(part) for part in ("this", "start", "length")]
        return self._call(node, "substring", *(self._read(part, depth) for part in parts if part is not None))

    def _trim(self, node: exp.Trim, depth: int) -> Expression:
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "trim")
        parts = [node.args.get(part) for part in ("this", "expression")]
        return self._call(node, name, *(self._read(part, depth) for part in parts if part is not None))

    def _position(self, node: exp.StrPosition, depth: int) -> Expression:
        return self._call(node, "position", self._read(node.args["substr"], depth), self._read(node.this, depth))

    def _function(self, node: exp.Anonymous, depth: int) -> Expression:
        name = str(node.this).lower() if isinstance(node.this, str) else node.this.name
        arguments = node.expressions
        if name in AGGREGATES:
            return self._aggregate(node, name, arguments, depth)
        if name in _BOUNDS:
            return self._bound(node, name, arguments)
        if name == "now" and not arguments:
            return NOW
        if name in WINDOW_FUNCTIONS:
            hint = f"for example: SELECT … GROUP BY {name.upper()}(INTERVAL '5' MINUTE)"
            raise QueryError(f"{name.upper()} belongs in GROUP BY", self._text, place(node), hint=hint)
        name = _ALSO_CALLED.get(name, name)
        if name not in _CALLABLE:
            hint = nearest(name, [*_CALLABLE, *AGGREGATES])
            raise QueryError(f'unknown function "{name}"', self._text, place(node), hint=hint)
        return self._call(node, name, *(self._read(argument, depth) for argument in arguments))

    def _aggregate(self, node: exp.Anonymous, name: str, arguments: Sequence[exp.Expr], depth: int) -> Expression:
        aggregation = self._aggregation
        if aggregation is None:
            hint = "conditions on aggregates belong in HAVING" if self._where == "WHERE" else ""
            problem = f"{name} is an aggregate and cannot be used in {self._where}"
            raise QueryError(problem, self._text, place(node), hint=hint)
        distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
        values = arguments[0].expressions if distinct else list(arguments)
        if len(values) != 1:
            problem = f"{name} has one argument, not {len(values)}"
            raise QueryError(problem, self._text, place(node), hint=f"for example {name}(price)")
        argument: Expression | None = None
        if not isinstance(values[0], exp.Star):
            self._aggregation, before = None, self._where
            self._where = "another aggregate"
            argument = self._read(values[0], depth)
            self._aggregation, self._where = aggregation, before
        elif name != "count" or distinct:
            raise QueryError("only count can count rows with *", self._text, place(values[0], place(node)))
        try:
            return aggregation.aggregate(name, argument, distinct)
        except TypeMismatch as error:
            raise QueryError(error.problem, self._text, place(node), hint=error.hint) from None

    def _bound(self, node: exp.Anonymous, name: str, arguments: Sequence[exp.Expr]) -> Expression:
        if arguments:
            raise QueryError(f"{name} has no arguments", self._text, place(node))
        if self._aggregation is None:
            problem = f"{name}() is known only in SELECT and HAVING of a query that groups by a window"
            raise QueryError(problem, self._text, place(node))
        return self._aggregation.bound(name)

    # For each kind of node: its rule, and the parts of the node that the rule reads.
    _rules: ClassVar[dict[type[exp.Expr], tuple[Callable[[Expressions, Any, int], Expression], str]]] = {
        exp.Column: (_column, "this table db catalog"),
        exp.Dot: (_dot, "this expression"),
        exp.Literal: (_literal, "this is_string"),
        exp.HexString: (_hex, "this"),
        exp.Boolean: (_boolean, "this"),
        exp.Null: (_null, ""),
        exp.Placeholder: (_placeholder, ""),
        exp.Paren: (_paren, "this"),
        exp.Neg: (_negate, "this"),
        exp.Not: (_not, "this"),
        exp.And: (_connector, "this expression"),
        exp.Or: (_connector, "this expression"),
        exp.In: (_in, "this expressions"),
        exp.Between: (_between, "this low high"),
        exp.Is: (_is, "this expression"),
        exp.Like: (_like, "this expression negate"),
        exp.Escape: (_escape, "this expression"),
        exp.Case: (_case, "this ifs default"),
        exp.Cast: (_cast, "this to"),
        exp.Extract: (_extract, "this expression"),
        exp.Substring: (_substring, "this start length"),
        exp.Trim: (_trim, "this expression position"),
        exp.StrPosition: (_position, "this substr"),
        exp.Anonymous: (_function, "this expressions"),
        **dict.fromkeys(_SIGNS, (_binary, "this expression typed safe")),
    }


def only(text: str, node: exp.Expr, *allowed: str) -> None:
    """Refuse a node in which sqlglot read more than the parts we know."""
    for part, value in node.args.items():
        if part in allowed or value is None or value is False or value == [] or value == "":
            continue
        said, hint = _PARTS.get(part, (part.strip("_").replace("_", " ").upper(), ""))
        inner = value[0] if isinstance(value, list) else value
        span = place(inner, place(node)) if isinstance(inner, exp.Expr) else place(node)
        raise QueryError(f"{said} is not supported", text, span, hint=hint)


_JOIN_INSTEAD: Final = "join the two streams: name both in FROM and compare their columns in WHERE"
_PARTS: Final = {
    "order": ("ORDER BY", "results come as they happen; sort where they are shown"),
    "limit": ("LIMIT", "a continuous query has no end; peer subscribe -n N stops after N results"),
    "offset": ("OFFSET", "a continuous query has no first row"),
    "with_": ("WITH … AS", _JOIN_INSTEAD),
    "using": ("USING", "write ON a.x = b.x"),
    "columns": ("a list of column names", "name results with AS in SELECT"),
    "locks": ("FOR", ""),
    "query": ("a query inside a query", _JOIN_INSTEAD),
}
_REFUSED: Final[dict[type[exp.Expr], str]] = {
    exp.Select: _JOIN_INSTEAD,
    exp.Subquery: _JOIN_INSTEAD,
    exp.Exists: _JOIN_INSTEAD,
    exp.Star: "* stands alone in SELECT, or in count(*)",
    exp.Window: "windows stand behind a stream in FROM: [RANGE 5 MINUTES]; or in GROUP BY: TUMBLE(INTERVAL '5' MINUTE)",
    exp.Tuple: "compare the values one by one, with AND",
    exp.AtTimeZone: "timestamps are moments, the same everywhere; give the zone in the text: '2026-01-31 12:00+01:00'",
    exp.NullSafeEQ: "write a = b OR (a IS NULL AND b IS NULL)",
}
_SAID: Final[dict[type[exp.Expr], str]] = {
    exp.Select: "a query inside a query",
    exp.Subquery: "a query inside a query",
    exp.Star: "*",
    exp.Window: "OVER",
    exp.Tuple: "a list of values",
    exp.Alias: "a name inside an expression",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.AtTimeZone: "AT TIME ZONE",
}


def _said(node: exp.Expr) -> str:
    return _SAID.get(type(node), type(node).__name__.upper())


_LITERALS: Final[dict[str, Callable[[str], Any]]] = {
    "timestamp": casts.read_timestamp,
    "interval": casts.read_interval,
}
