"""Tokens to a syntax tree: sqlglot's parser, cut down to the SQL we speak, with the place of every node.

Only queries/sql.py and queries/sql_expressions.py see sqlglot's tree; they turn what they know into a plan and refuse
the rest.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError
from sqlglot.parser import Parser as SqlglotParser
from sqlglot.tokenizer_core import Token, TokenType

from queries.casts import read_interval
from queries.errors import QueryError, Span
from queries.size import TEXT_MAX, WORDS_MAX
from queries.sql_tokens import SqlTokenizer, SqlTokens, shown, span_of, too_deep

# A text of full length makes a quarter of them; this stops sqlglot when it backtracks without end.
NODES_MAX: Final = 4 * WORDS_MAX

_NOWHERE: Final = (TEXT_MAX, -1)
Node = TypeVar("Node", bound=exp.Expr)
T = TokenType


class _Refused(ParseError):
    """What the parser found wrong, and at which token; sqlglot also raises it for itself while it backtracks."""

    def __init__(self, message: str, token: Token | None) -> None:
        super().__init__(message)
        self.message = message
        self.token = token


class PeerSql(Dialect):
    """Our dialect: the parser knows only functions with a syntax of their own; the rest are calls by name."""

    SUPPORTS_USER_DEFINED_TYPES = True  # We check types ourselves, by name.
    Tokenizer = SqlTokenizer

    class Parser(SqlglotParser):
        STATEMENT_PARSERS: ClassVar = {}
        FUNCTIONS: ClassVar = {}
        NO_PAREN_FUNCTIONS: ClassVar = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": lambda self: self._parse_case()}
        FUNCTION_PARSERS: ClassVar = {
            "CAST": lambda self: self._parse_cast(strict=True),
            "EXTRACT": lambda self: self._parse_extract(),
            "POSITION": lambda self: self._parse_position(),
            "SUBSTRING": lambda self: self._parse_substring(),
            "TRIM": lambda self: self._parse_trim(),
        }

        nodes = 0  # Nodes made so far, including those of abandoned attempts.

        def expression(self, instance: Node, token: Token | None = None, comments: list[str] | None = None) -> Node:
            """Record the place of every node: that of its content, or of the token just read."""
            self.nodes += 1
            if self.nodes > NODES_MAX:
                raise QueryError("the query is too ambiguous to be parsed", self.sql, span_of(self._prev))
            made = super().expression(instance, token, None)
            if "start" not in made.meta:
                start, end = _ends(made)
                if start > end and self._prev:
                    start, end = self._prev.start, self._prev.end
                if start <= end:
                    made.meta["start"], made.meta["end"] = start, end
            return made

        def _parse_types(
            self,
            check_func: bool = False,
            schema: bool = False,
            allow_identifiers: bool = True,
            with_collation: bool = False,
        ) -> exp.Expr | None:
            """A type is one word, which we look up ourselves; sqlglot also asks whether a value begins with a type."""
            if not allow_identifiers or not self._match(T.VAR):
                return None
            word = self._prev
            digits = self._parse_wrapped_csv(self._parse_number) if self._match(T.L_PAREN, advance=False) else []
            return self.expression(exp.DataType(this=word.text, expressions=digits), word)

        @property
        def here(self) -> Token | None:
            """The current token; None at the end."""
            return self._curr or None

        def raise_error(self, message: str, token: Any = None) -> NoReturn:
            raise _Refused(message, token or self.here)


def parse(sql: SqlTokens) -> exp.Expr:
    """The syntax tree of one query."""
    text = sql.text
    parser = PeerSql.Parser(error_level=ErrorLevel.IMMEDIATE, dialect=PeerSql())
    try:
        trees = parser.parse(sql.tokens, text)
    except _Refused as error:
        raise _explained(error, sql) from None
    except RecursionError:  # Nesting was checked before; this catches ways to nest that nobody thought of.
        raise too_deep(text, Span(0, 1)) from None
    except QueryError:
        raise
    # sqlglot fails on some malformed text with errors of its own, as on "FROM a ? AS b".
    except (AttributeError, LookupError, TypeError, ValueError):
        raise _explained(_Refused("", parser.here), sql) from None
    tree = trees[0]
    assert tree is not None, "there are tokens, so there is a tree"
    return tree


def place(node: exp.Expr | None, otherwise: Span | None = None) -> Span:
    """The place of a node in the text; `otherwise` if the node does not know."""
    return (None if node is None else span_within(node)) or otherwise or Span(0, 1)


def span_within(node: exp.Expr) -> Span | None:
    """From the first to the last known place in a node."""
    start, end = _ends(node)
    return Span(start, end + 1) if start <= end else None


def _ends(node: exp.Expr) -> tuple[int, int]:
    """The first and the last character of all known places in a node; the first behind the last: there is none."""
    start, end = _NOWHERE
    if "start" in (meta := node.meta):
        start, end = meta["start"], meta["end"]
        if not isinstance(node, exp.Anonymous):  # A call knows only the place of its name.
            return start, end
    for child in node.iter_expressions():
        first, last = _ends(child)
        start, end = min(start, first), max(end, last)
    return start, end


# Parser errors in our words.

_EXPECTED: Final = {
    "Expecting )": '")"',
    "Expecting (": '"("',
    "Expecting ]": '"]"',
    "Expected table name": "the name of a stream",
    "Expected identifier": "a name",
    "Expected END after CASE": "WHEN, ELSE or END",
    "Expected AS after CAST": "AS and a type",
    "Expected TYPE after CAST": "a type",
    "Expected type": "a type",
}


def _explained(error: _Refused, sql: SqlTokens) -> QueryError:
    text, token = sql.text, error.token
    expected = next((ours for theirs, ours in _EXPECTED.items() if error.message.startswith(theirs)), "")
    if not expected and error.message.startswith("Required"):
        expected = "a value" if "'on'" not in error.message else "ON"
    if token is None:
        end = sql.tokens[-1].end + 1
        problem = "the query ends too early"
        return QueryError(problem, text, Span(end, end + 1), expected=expected or "more of the query")
    hint = _HINTS.get(token.token_type, "") or _unit(token, sql.tokens) or _misspelt(token, sql.tokens)
    expected = expected or "an operator, a comma, the next clause or the end"
    return QueryError(f"unexpected {shown(token, text)}", text, span_of(token), expected=expected, hint=hint)


def _unit(token: Token, tokens: list[Token]) -> str:
    """A number with a unit, outside of a window in brackets."""
    before = [each for each in tokens if each.end < token.start][-1:]
    is_number = any(each.token_type == T.NUMBER for each in before)
    if not is_number or read_interval(f"1 {token.text}") is None:
        return ""
    return f"a length of time is written INTERVAL '{before[0].text}' {token.text.upper()}"


def _misspelt(token: Token, tokens: list[Token]) -> str:
    """A keyword that this word, or the name before it, may be a misspelling of."""
    before = [each for each in tokens if each.end < token.start][-1:]
    for each in (*before, token):
        near = get_close_matches(each.text.upper(), _COMMON, 1, 0.75) if each.token_type == T.VAR else []
        if near:
            return f'did you mean "{near[0]}"?'
    return ""


_COMMON: Final = "FROM WHERE GROUP HAVING AND OR NOT JOIN ON AS UNION LIKE BETWEEN".split()
_HINTS: Final = {
    T.STRING: "text stands in single quotes, names in double quotes",
    T.COLON: "a time of day is written 12:00:00",
}
