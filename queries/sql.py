"""SQL text to a query: the order of the clauses, the windows, the shape of the plan.

Source → Select (what concerns one stream) → Join (left-deep, in the order of FROM) → WindowAggregate → Select
(HAVING) → Project; UNION ALL joins such branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from queries import catalogue, functions
from queries.binder import Name, Scope, classify, joined, stream_of, timed, timed_conjunct
from queries.casts import read_interval
from queries.catalogue import Streams
from queries.errors import QueryError, Span, TypeMismatch, nearest
from queries.expressions import Named, conjuncts
from queries.plan import Operator, Project, Select, Source, Union, Window
from queries.query import REPLICAS_MAX, ParsedQuery
from queries.schema import Field
from queries.sql_expressions import Expressions, only
from queries.sql_grouping import GroupBy, Grouping, is_grouped
from queries.sql_outputs import Output, aliases_of, named, outputs_of, unique
from queries.sql_parser import parse, place
from queries.sql_tokens import Option, SqlTokens, rewrite, span_of, tokenize

SOURCES_MAX: Final = 32
BRANCHES_MAX: Final = 32

# The options of WITH (…) and their values; an empty tuple admits any text.
OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "engine": ("auto", "inline", "spark"),
    "join": ("auto", "sai", "dai-q", "dai-t", "dai-v"),
    "placement": ("auto", "baseline", "edge", "edge+", "in-network", "exact"),
    "skew": ("auto", "split", "whole"),
    "replicas": ("auto", *map(str, range(1, REPLICAS_MAX + 1))),
    "within": (),
    "patience": (),
    "durability": ("disk", "replicated"),
    "sharing": ("auto", "off"),
    "takeover": (),
}

_SPANS: Final = {"within": "120 ms", "patience": "5 minutes", "takeover": "5 minutes"}


def plan(text: str, streams: Streams, parameters: Sequence[Any] = ()) -> ParsedQuery:
    """The query that a text in SQL means; `parameters` are the values of its question marks, in order.

    >>> from queries.catalogue import Stream
    >>> from queries.schema import Schema
    >>> flights = Stream("flights", Schema.parse("num int, gate string"))
    >>> query = plan("SELECT gate FROM flights WHERE num = 7", {"flights": flights})
    >>> print(query.plan, "|", query.plan.input, "|", query.query_class)
    Project flights.gate | Select flights.num = 7 | select
    """
    tokens = tokenize(text)
    first = tokens[0]
    if first.token_type not in (TokenType.SELECT, TokenType.L_PAREN):
        raise _no_select(text, first.text, span_of(first))
    names = [*streams, *(field for stream in streams.values() for field in _field_names(stream.schema.fields))]
    sql = rewrite(text, tokens, names)
    tree = parse(sql)
    branches = _Branches(sql, streams, _parameters(sql, parameters)).read(tree)
    whole = branches[0] if len(branches) == 1 else _union(text, tree, branches)
    return ParsedQuery(text, "sql", whole, classify(whole), tuple(_option(text, each) for each in sql.options))


def _no_select(text: str, word: str, span: Span) -> QueryError:
    hint = _OTHERS.get(word.lower(), "")
    if not hint and get_close_matches(word.lower(), ["select"]):
        hint = 'did you mean "SELECT"?'
    return QueryError(f'a query does not start with "{word[:40]}"', text, span, expected="SELECT", hint=hint)


_OTHERS: Final = {
    "create": '"peer stream create" makes a stream',
    "drop": '"peer stream rm" removes a stream',
    "insert": '"peer publish" adds tuples to a stream',
    "with": "WITH … AS is not supported; WITH (option = value) stands at the end",
}


def _field_names(fields: tuple[Field, ...]) -> list[str]:
    return [name for field in fields for name in (field.name, *_field_names(field.fields))]


def _parameters(sql: SqlTokens, values: Sequence[Any]) -> Mapping[int, Any]:
    """The value of each question mark, by its position in the text."""
    marks = [token.start for token in sql.tokens if token.token_type == TokenType.PLACEHOLDER]
    if len(values) > len(marks):
        problem = f"there are {len(values)} values for {len(marks)} parameters"
        raise QueryError(problem, sql.text, Span(0, 1), hint='each "?" takes one')
    return dict(zip(marks, values, strict=False))


def _option(text: str, option: Option) -> tuple[str, str]:
    if option.key == "routing":
        hint = "leave it out: every tuple takes the way that the plan says"
        raise QueryError('option "routing" is not supported yet', text, option.key_span, hint=hint)
    if option.key not in OPTIONS:
        hint = nearest(option.key, OPTIONS)
        raise QueryError(f'unknown option "{option.key}"', text, option.key_span, hint=hint)
    answers, value = OPTIONS[option.key], option.value.lower()
    if answers and value not in answers:
        expected = ", ".join(answers)
        raise QueryError(f'"{option.value}" is not a value of {option.key}', text, option.value_span, expected=expected)
    if not answers and not (read_interval(value) or timedelta(0)) > timedelta(0):
        hint = f"for example {option.key} = {_SPANS[option.key]}"
        raise QueryError(f'"{option.value}" is not a delay', text, option.value_span, hint=hint)
    return option.key, value


def _union(text: str, tree: exp.Expr, branches: list[Operator]) -> Union:
    """Branches with equally many columns, their numbers converted to a common type."""
    width = len(branches[0].columns)
    for number, branch in enumerate(branches[1:], start=2):
        if len(branch.columns) != width:
            problem = f"branch {number} of UNION ALL has {len(branch.columns)} columns, the first has {width}"
            raise QueryError(problem, text, place(tree))
    kinds = []
    for column in zip(*(branch.columns for branch in branches), strict=True):
        try:
            kinds.append(functions.common_type([each.type for each in column], "UNION ALL"))
        except TypeMismatch as error:
            problem = f'column "{column[0].path[-1]}" of UNION ALL: {error.problem}'
            raise QueryError(problem, text, place(tree), hint=error.hint) from None
        if any(each.fields != column[0].fields for each in column):
            problem = f'the records in column "{column[0].path[-1]}" of UNION ALL have different fields'
            raise QueryError(problem, text, place(tree), hint="name the fields one by one")
    return Union(tuple(_cast_branch(branch, kinds) for branch in branches))


def _cast_branch(branch: Operator, kinds: list[Any]) -> Operator:
    assert isinstance(branch, Project)
    outputs = tuple(
        Named(each.name, functions.cast(each.expression, kind))
        for each, kind in zip(branch.outputs, kinds, strict=True)
    )
    return Project(branch.input, outputs)


class _Branches:
    """Reads the SELECTs of one text."""

    def __init__(self, sql: SqlTokens, streams: Streams, parameters: Mapping[int, Any]) -> None:
        self._text = sql.text
        self._streams = streams
        self._parameters = parameters
        self._windows = {each.behind: each for each in sql.windows}
        self._all_windows = sql.windows
        self._window_spans: dict[str, Span] = {}
        self._aliases: dict[str, None] = {}  # Of the whole plan, where each source has its own alias.

    def read(self, tree: exp.Expr) -> list[Operator]:
        branches = [self._select(each) for each in self._selects(tree)]
        for each in self._all_windows:
            if each.behind in self._windows:
                hint = "for example FROM flights [RANGE 5 MINUTES] AS fl"
                raise QueryError("a window stands behind a stream in FROM", self._text, each.span, hint=hint)
        return branches

    def _selects(self, tree: exp.Expr) -> list[exp.Select]:
        """The branches of UNION ALL, left to right."""
        found: list[exp.Select] = []
        waiting = [tree]
        while waiting:
            node = waiting.pop()
            match node:
                case exp.Union():
                    only(self._text, node, "this", "expression", "distinct")
                    if node.args.get("distinct"):
                        hint = "write UNION ALL; to remove duplicates, SELECT DISTINCT over a window"
                        raise QueryError("UNION without ALL is not supported", self._text, place(node), hint=hint)
                    waiting += [node.expression, node.this]
                case exp.Subquery():
                    only(self._text, node, "this")
                    waiting.append(node.this)
                case exp.Select():
                    found.append(node)
                    if len(found) > BRANCHES_MAX:
                        problem = "there are too many branches of UNION ALL"
                        raise QueryError(problem, self._text, place(node), expected=f"at most {BRANCHES_MAX}")
                case _:
                    word = type(node).__name__.upper()
                    raise QueryError(f"{word} is not supported", self._text, place(node), expected="SELECT …")
        return found

    def _select(self, node: exp.Select) -> Operator:
        text = self._text
        only(text, node, "expressions", "distinct", "from_", "joins", "where", "group", "having")
        if not node.expressions:
            raise QueryError("SELECT names no columns", text, place(node), hint="for example SELECT *")
        if node.args.get("from_") is None:
            raise QueryError("the query has no FROM", text, place(node), hint="for example SELECT * FROM flights")
        named_inputs, conditions = self._from(node)
        inputs = list(named_inputs.values())
        aliases = [source.alias for source in inputs]
        scope = Scope(text, named_inputs)
        expressions = Expressions(text, scope, self._parameters)
        parts = [
            timed_conjunct(part, aliases)
            for each in conditions
            for part in conjuncts(expressions.condition(each, where="WHERE"))
        ]
        if is_grouped(node):
            return self._grouped(node, inputs, scope, expressions, joined(inputs, parts))
        outputs = [
            each._replace(expression=timed(each.expression, aliases))
            for each in outputs_of(node, text, scope, expressions)
        ]
        if len(inputs) == 1 and inputs[0].window is not None:
            hint = "windows are for joins and aggregates; leave it out"
            raise QueryError("a window does nothing here", text, self._window_spans[inputs[0].alias], hint=hint)
        return Project(joined(inputs, parts), named(outputs, text))

    def _grouped(
        self, node: exp.Select, inputs: list[Source], scope: Scope, expressions: Expressions, rows: Operator
    ) -> Operator:
        text = self._text
        aliases, names = [source.alias for source in inputs], aliases_of(node)
        group_by = GroupBy(text, expressions, inputs)
        window = group_by.window(node, place(node.expressions[0]))
        if node.args.get("distinct"):
            return self._distinct(node, window, rows, aliases, outputs_of(node, text, scope, expressions))
        grouping = Grouping(text, window, group_by.keys(node, names))
        outputs = [
            each._replace(expression=grouping.above(each.expression, each.span))
            for each in outputs_of(node, text, scope, expressions, grouping)
        ]
        having = node.args.get("having")
        condition = None
        if having is not None:
            read = expressions.condition(having.this, where="HAVING", aggregation=grouping, aliases=names)
            condition = grouping.above(read, place(having.this))
        groups: Operator = grouping.plan(rows, aliases)
        if condition is not None:
            groups = Select(groups, condition)
        return Project(groups, named(outputs, text))

    def _distinct(
        self, node: exp.Select, window: Window, rows: Operator, aliases: list[str], outputs: list[Output]
    ) -> Operator:
        """The distinct rows of each window: groups with keys and no aggregates."""
        only(self._text, node, "expressions", "distinct", "from_", "joins", "where", "group")
        only(self._text, node.args["distinct"])
        if any(not isinstance(each, exp.Anonymous) for each in GroupBy.items(self._text, node)):
            hint = "GROUP BY alone gives each group once"
            raise QueryError("DISTINCT and GROUP BY exclude each other", self._text, place(node), hint=hint)
        grouping = Grouping(self._text, window, [each.expression for each in outputs])
        shown = [each._replace(expression=grouping.above(each.expression, each.span)) for each in outputs]
        return Project(grouping.plan(rows, aliases), named(shown, self._text))

    def _from(self, node: exp.Select) -> tuple[dict[str, Source], list[exp.Expr]]:
        """The sources in order, by their names in this SELECT, and the conditions of ON and WHERE."""
        tables = [node.args["from_"].this]
        conditions: list[exp.Expr] = []
        for join in node.args.get("joins") or []:
            self._check_join(join)
            tables.append(join.this)
            if join.args.get("on") is not None:
                conditions.append(join.args["on"])
        if node.args.get("where") is not None:
            conditions.append(node.args["where"].this)
        inputs: dict[str, Source] = {}
        for table in tables:
            name, source, span = self._source(table, alone=len(tables) == 1)
            if catalogue.named(name, inputs) is not None:
                hint = "give each its own: FROM flights AS a, flights AS b"
                raise QueryError(f'two sources are called "{name}"', self._text, span, hint=hint)
            inputs[name] = source
            if len(self._aliases) > SOURCES_MAX:
                problem = "the query has too many sources"
                raise QueryError(problem, self._text, span, expected=f"at most {SOURCES_MAX}")
        return inputs, conditions

    def _check_join(self, join: exp.Join) -> None:
        side = str(join.args.get("side") or join.args.get("method") or "")
        if side:
            span = place(join.this, place(join))
            hint = (
                "an outer join would have to know that no match will ever come; use JOIN" if side != "NATURAL" else ""
            )
            raise QueryError(f"{side} JOIN is not supported", self._text, span, hint=hint or "write JOIN … ON")
        only(self._text, join, "this", "on", "kind")
        if str(join.args.get("kind") or "").upper() not in ("", "INNER", "CROSS"):
            raise QueryError(f"{join.args['kind']} JOIN is not supported", self._text, place(join), hint="use JOIN")

    def _source(self, table: exp.Expr, *, alone: bool) -> tuple[str, Source, Span]:
        """The name of a source in the query, the source, and the place of that name."""
        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            hint = "name its streams here, and put its conditions into WHERE"
            raise QueryError("only streams can be in FROM", self._text, place(table), hint=hint)
        only(self._text, table, "this", "db", "catalog", "alias")
        parts = [table.args[part] for part in ("catalog", "db", "this") if table.args.get(part) is not None]
        if not all(isinstance(part, exp.Identifier) for part in parts):
            raise QueryError("a part of the name is missing", self._text, place(table), expected="a stream")
        word = Name(".".join(part.name for part in parts), Span(place(parts[0]).start, place(parts[-1]).end))
        stream = stream_of(word, self._streams, self._text)
        name, span = stream.name, word.span
        placed = [self._windows.pop(word.span.end - 1, None)]
        given = table.args.get("alias")
        if given is not None:
            only(self._text, given, "this")
            name, span = given.name, place(given.this)
            if not isinstance(given.this, exp.Identifier):
                raise QueryError("this cannot be the alias of a stream", self._text, span, expected="a name")
            placed.append(self._windows.pop(span.end - 1, None))
        found = [each for each in placed if each is not None]
        if len(found) > 1:
            raise QueryError("there are two windows behind one stream", self._text, found[1].span, hint="keep one")
        if not found:
            return name, stream.source(unique(name, self._aliases)), span
        window = found[0].window
        if window.kind == "rows" and window.slide is not None and not alone:
            problem = "SLIDE is not supported for a window of rows in a join"
            hint = "rows of several streams have no common count to slide by; leave SLIDE out, or use RANGE"
            raise QueryError(problem, self._text, found[0].span, hint=hint)
        source = stream.source(unique(name, self._aliases), window)
        self._window_spans[source.alias] = found[0].span
        return name, source, span
