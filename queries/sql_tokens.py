"""SQL text to tokens: sqlglot's tokenizer with our few keywords, plus what the papers write beyond plain SQL.

The parser sees plain SQL, because here
    CHECK-INS, FL.DP-TIME             become one name, where the whole is a known name
    12:00:00, INTERVAL '5' MINUTE     become a cast of a string, and so does TIMESTAMP '2026-01-01'
    [RANGE 5 MINUTES SLIDE 1 MINUTE]  are taken out and remembered by the word they stand behind
    WITH (key = value)                is taken out at the end of the text
Lengths and nesting are checked here, before anything that recurses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple, NoReturn

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from queries.casts import read_interval
from queries.errors import QueryError, Span, nearest
from queries.expressions import MICROSECOND
from queries.plan import Window
from queries.size import TEXT_MAX, check_size

NESTING_MAX: Final = 64
ROWS_MAX: Final = 1_000_000_000

T = TokenType
_OPERATORS: Final = {"||": T.DPIPE, ">=": T.GTE, "<=": T.LTE, "<>": T.NEQ, "!=": T.NEQ, "==": T.EQ, "::": T.DCOLON}
_SINGLE: Final = {
    "(": T.L_PAREN,
    ")": T.R_PAREN,
    "[": T.L_BRACKET,
    "]": T.R_BRACKET,
    ":": T.COLON,
    ",": T.COMMA,
    ".": T.DOT,
    "-": T.DASH,
    "=": T.EQ,
    ">": T.GT,
    "<": T.LT,
    "%": T.MOD,
    "+": T.PLUS,
    ";": T.SEMICOLON,
    "/": T.SLASH,
    "*": T.STAR,
    "?": T.PLACEHOLDER,
    # They have no meaning here, but they end a word.
    **dict.fromkeys("'\"`!&|^~@#{}\\$", T.UNKNOWN),
}
# Any other word is a name: a column may be called date, time or interval.
_KEYWORDS: Final = {word: TokenType[word.replace(" ", "_")] for word in (
    "ALL", "AND", "ANY", "BETWEEN", "CASE", "CROSS", "DISTINCT", "ELSE", "END", "ESCAPE", "EXCEPT", "EXISTS", "FALSE",
    "FOR", "FROM", "FULL", "GROUP BY", "HAVING", "IN", "INNER", "INTERSECT", "IS", "JOIN", "LEFT", "LIKE", "LIMIT",
    "NATURAL", "NOT", "NULL", "OFFSET", "ON", "OR", "ORDER BY", "OUTER", "OVER", "RIGHT", "SELECT", "SOME", "THEN",
    "TRUE", "UNION", "USING", "WHEN", "WHERE", "WITH",
)} | {"AS": T.ALIAS}  # fmt: skip
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CLOCK: Final = re.compile(r"\d{1,9}:[0-5]\d:[0-5]\d(\.\d{1,6})?")
_UNPRINTABLE: Final = re.compile(r"[^\S \t\r\n]|[\x00-\x08\x0e-\x1f\x7f]")


class SqlTokenizer(Tokenizer):
    """The words and signs of our SQL, and no others."""

    KEYWORDS = {**_KEYWORDS, **_OPERATORS}  # noqa: RUF012 - sqlglot says ClassVar in its own way
    SINGLE_TOKENS = dict(_SINGLE)  # noqa: RUF012
    HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012
    COMMANDS: ClassVar[set[TokenType]] = set()


class PlacedWindow(NamedTuple):
    """A window in brackets, and the end of the word before it."""

    window: Window
    span: Span
    behind: int


class Option(NamedTuple):
    """One key = value of WITH (…), as written."""

    key: str
    value: str
    key_span: Span
    value_span: Span


class SqlTokens(NamedTuple):
    """The tokens left for the parser, and what was taken out of the text."""

    text: str
    tokens: list[Token]
    windows: list[PlacedWindow]
    options: list[Option]


def span_of(first: Token, last: Token | None = None) -> Span:
    return Span(first.start, (last or first).end + 1)


def shown(token: Token, text: str) -> str:
    """A token as an error shows it."""
    return f'"{text[token.start : token.end + 1][:40]}"'


# What people write by habit from other languages, keyboards and text processors.
_INSTEAD: Final = (
    ("‘’‚‛“”„«»", "a text stands in straight quotes: 'ATL'"),
    ("`", 'a name that needs quotes stands in double ones: "num"'),
    ("≥", "write >="),
    ("≤", "write <="),
    ("≠", "write <>"),
    ("−–—", "write - for minus"),
    ("×·", "write * for times"),
    ("&", "write AND"),
    ("$", 'write "?" for a parameter'),
    ("~", "write LIKE, with % for any text"),
    ("@#", "a name has letters from a to z, digits, _ and -"),
)


def _instead(word: str) -> str:
    """What to write in place of a word that has no meaning."""
    for signs, hint in _INSTEAD:
        if any(sign in word for sign in signs):
            return hint
    return "a name has letters from a to z, digits, _ and -" if any(map(str.isalpha, word)) else ""


def statements(text: str) -> list[list[Token]]:
    """The tokens of each statement of a text, separated by semicolons; checks the limits of the text."""
    if len(text) > TEXT_MAX:
        raise QueryError(f"the text has {len(text):,} characters", text, Span(0, 1), expected=f"at most {TEXT_MAX:,}")
    if strange := _UNPRINTABLE.search(text):
        raise QueryError(f"the character U+{ord(strange[0]):04X} is not allowed here", text, Span(*strange.span()))
    tokenizer = SqlTokenizer()
    try:
        tokens = tokenizer.tokenize(text)
    except TokenError:
        raise _unread(text, tokenizer.tokens) from None
    for token in tokens:
        if token.token_type not in _KNOWN_TYPES or (token.token_type == T.VAR and not _WORD.fullmatch(token.text)):
            problem = f"{shown(token, text)} means nothing here"
            raise QueryError(problem, text, span_of(token), hint=_instead(text[token.start : token.end + 1]))
    _check_nesting(text, tokens)
    found: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == T.SEMICOLON:
            found.append([])
        else:
            found[-1].append(token)
    return [statement for statement in found if statement]


def tokenize(text: str) -> list[Token]:
    """The tokens of the one statement of a text."""
    check_size(text)
    found = statements(text)
    if not found:
        hint = "for example: SELECT * FROM flights"
        raise QueryError("there is no query", text, Span(0, 1), expected="SELECT …", hint=hint)
    if len(found) > 1:
        hint = "send one statement at a time"
        raise QueryError("there is more than one statement", text, span_of(found[1][0]), hint=hint)
    return found[0]


def rewrite(text: str, tokens: list[Token], names: Iterable[str]) -> SqlTokens:
    """Take out, or turn into plain SQL, what the parser does not know; `names` are the known streams and columns."""
    reader = _Rewriter(text, tokens, _hyphenated(names))
    return reader.run()


_KNOWN_TYPES: Final = {*_KEYWORDS.values(), *_OPERATORS.values(), *_SINGLE.values()} - {T.UNKNOWN} | {
    T.VAR,
    T.IDENTIFIER,
    T.STRING,
    T.NUMBER,
    T.HEX_STRING,
}


def _unread(text: str, tokens: list[Token]) -> QueryError:
    """Why the tokenizer stopped: an unclosed quote, or an unknown sign."""
    place = tokens[-1].end + 1 if tokens else 0
    rest = text[place:]
    place += len(rest) - len(rest.lstrip())
    sign = text[place : place + 1]
    if sign in ("'", '"', "x", "X"):
        what = "text" if sign != '"' else "name"
        hint = "a quote inside is written twice: 'O''Hare'" if what == "text" else ""
        return QueryError(f"the {what} in quotes that starts here has no end", text, Span(place, place + 1), hint=hint)
    if text.startswith("/*", place):
        return QueryError("the comment that starts here has no end", text, Span(place, place + 2))
    return QueryError("this cannot be read", text, Span(place, place + 1))


_PREFIXES: Final = (T.NOT, T.DASH, T.PLUS, T.INNER, T.CROSS, T.SELECT, T.ANY, T.SOME, T.EXISTS, T.DISTINCT)


def _check_nesting(text: str, tokens: list[Token]) -> None:
    """Brackets, CASE, and prefix operators (NOT NOT x) nest."""
    depth = run = 0
    for token in tokens:
        match token.token_type:
            case T.L_PAREN | T.L_BRACKET | T.CASE:
                depth += 1
            case T.R_PAREN | T.R_BRACKET | T.END:
                depth -= 1
        run = run + 1 if token.token_type in _PREFIXES else 0
        if max(depth, run) > NESTING_MAX:
            raise too_deep(text, span_of(token))


def too_deep(text: str, span: Span) -> QueryError:
    return QueryError("the query is nested too deeply", text, span, expected=f"at most {NESTING_MAX} levels")


# Tokens that need a value behind them, and tokens that cannot begin one. sqlglot ignores some gaps, as in "JOIN b ON
# WHERE".
_OPENERS: Final = (
    *(T.COMMA, T.DISTINCT, T.FROM, T.JOIN, T.ON, T.WHERE, T.GROUP_BY, T.HAVING, T.AND, T.OR, T.NOT, T.IN, T.BETWEEN),
    *(T.LIKE, T.ESCAPE, T.IS, T.WHEN, T.THEN, T.ELSE, T.ALIAS, T.UNION, T.EQ, T.NEQ, T.LT, T.LTE, T.GT, T.GTE),
    *(T.PLUS, T.DASH, T.SLASH, T.MOD, T.DPIPE, T.DCOLON, T.DOT),
)
_CLOSERS: Final = (
    *(T.COMMA, T.R_PAREN, T.FROM, T.WHERE, T.GROUP_BY, T.HAVING, T.UNION, T.ON, T.JOIN, T.INNER, T.CROSS, T.AND, T.OR),
    *(T.ALIAS, T.IS, T.IN, T.LIKE, T.BETWEEN, T.ESCAPE, T.WHEN, T.THEN, T.ELSE, T.END, T.ORDER_BY, T.LIMIT),
)
_NEGATED: Final = (T.IN, T.LIKE, T.BETWEEN)  # NOT IN is no gap.


def _check_gaps(text: str, tokens: list[Token]) -> None:
    after_dot = False
    for before, token in pairwise(tokens):
        opens = before.token_type in _OPENERS and not after_dot
        after_dot = before.token_type == T.DOT
        if before.token_type == T.L_PAREN and token.token_type == T.COMMA:
            opens = True
        if not opens or token.token_type not in _CLOSERS or after_dot:
            continue
        if before.token_type != T.NOT or token.token_type not in _NEGATED:
            problem = f"something is missing between {shown(before, text)} and {shown(token, text)}"
            raise QueryError(problem, text, span_of(before, token), expected=_MISSING.get(before.token_type, "a value"))
    if tokens and tokens[-1].token_type in _OPENERS and not after_dot:
        last = tokens[-1]
        problem = f"something is missing behind {shown(last, text)}"
        raise QueryError(problem, text, span_of(last), expected=_MISSING.get(last.token_type, "a value"))


def _check_joins(text: str, tokens: list[Token]) -> None:
    """Each JOIN has its ON before the next join; sqlglot would try every other pairing."""
    waiting: Token | None = None
    for before, token in pairwise([*tokens[:1], *tokens]):
        if waiting is not None and token.token_type in _AFTER_JOIN:
            raise _no_condition(text, waiting)
        if token.token_type in (T.ON, T.USING):
            waiting = None
        elif token.token_type == T.JOIN and before.token_type != T.CROSS:
            waiting = token
    if waiting is not None:
        raise _no_condition(text, waiting)


_AFTER_JOIN: Final = (T.JOIN, T.COMMA, T.R_PAREN, T.WHERE, T.GROUP_BY, T.HAVING, T.UNION)


def _no_condition(text: str, join: Token) -> QueryError:
    hint = "every pair of rows is CROSS JOIN, or a comma"
    return QueryError("JOIN needs ON and a condition", text, span_of(join), hint=hint)


_MISSING: Final = {
    **dict.fromkeys((T.FROM, T.JOIN), "the name of a stream"),
    **dict.fromkeys((T.ON, T.WHERE, T.HAVING, T.AND, T.OR, T.NOT, T.WHEN), "a condition"),
    **dict.fromkeys((T.ALIAS, T.DOT), "a name"),
    T.UNION: "ALL and SELECT",
    T.DCOLON: "a type",
}


def _hyphenated(names: Iterable[str]) -> dict[str, int]:
    """Known names with hyphens, folded to lower case, with the number of words in each."""
    return {name.lower(): name.count("-") + 1 for name in names if "-" in name}


class _Rewriter:
    """One pass over the tokens; `_at` is the index of the next one."""

    def __init__(self, text: str, tokens: list[Token], hyphenated: dict[str, int]) -> None:
        self._text = text
        self._tokens = tokens
        self._hyphenated = hyphenated
        self._at = 0
        self._out: list[Token] = []
        self._windows: list[PlacedWindow] = []
        self._options: list[Option] = []

    def run(self) -> SqlTokens:
        while self._at < len(self._tokens):
            self._step()
        _check_gaps(self._text, self._out)
        _check_joins(self._text, self._out)
        return SqlTokens(self._text, self._out, self._windows, self._options)

    def _step(self) -> None:
        token = self._tokens[self._at]
        if token.token_type == T.L_BRACKET:
            self._window()
        elif token.token_type == T.WITH and self._is(1, T.L_PAREN):
            self._with()
        elif not (self._hyphens(token) or self._clock(token) or self._literal(token)):
            self._out.append(token)
            self._at += 1

    # Names with hyphens.

    def _hyphens(self, token: Token) -> bool:
        """Merge adjacent words and hyphens, as many as make a known name."""
        if not self._hyphenated or not _WORD.fullmatch(token.text) or token.token_type == T.STRING:
            return False
        last = next(
            (last for last in reversed(list(self._touching(token))) if self._joined(token, last) in self._hyphenated),
            None,
        )
        if last is None:
            return False
        self._out.append(_made(T.VAR, self._text[token.start : last.end + 1], token, last))
        while self._tokens[self._at] is not last:
            self._at += 1
        self._at += 1
        return True

    def _joined(self, first: Token, last: Token) -> str:
        return self._text[first.start : last.end + 1].lower()

    def _touching(self, token: Token) -> Iterator[Token]:
        """The tokens at which a hyphenated name that begins here could end."""
        longest = max(self._hyphenated.values())
        place, end = self._at, token.end
        for _ in range(2 * longest):
            place += 1
            if place >= len(self._tokens) or self._tokens[place].start != end + 1:
                return
            end = self._tokens[place].end
            yield self._tokens[place]

    # Literals: 12:00:00, INTERVAL …, TIMESTAMP '…'.

    def _clock(self, token: Token) -> bool:
        if token.token_type != T.NUMBER:
            return False
        clock = _CLOCK.match(self._text, token.start)
        if clock is None:
            return False
        self._cast(clock[0], "interval", token, self._skip_to(clock.end()))
        return True

    def _skip_to(self, end: int) -> Token:
        while self._at < len(self._tokens) and self._tokens[self._at].end < end:
            last = self._tokens[self._at]
            self._at += 1
        return last

    def _literal(self, token: Token) -> bool:
        if token.token_type != T.VAR or (self._out and self._out[-1].token_type == T.DOT):
            return False
        match token.text.upper():
            case "INTERVAL" if self._is(1, T.STRING, T.NUMBER):
                self._interval(token)
            case "TIMESTAMP" if self._is(1, T.STRING):
                string = self._tokens[self._at + 1]
                self._at += 2
                self._cast(string.text, "timestamp", token, string)
            case _:
                return False
        return True

    def _interval(self, token: Token) -> None:
        amount = self._tokens[self._at + 1]
        clock = _CLOCK.match(self._text, amount.start) if amount.token_type == T.NUMBER else None
        self._at += 1
        if clock:
            self._cast(clock[0], "interval", token, self._skip_to(clock.end()))
            return
        self._at += 1
        last = amount
        written = amount.text
        bare = re.fullmatch(r"\s*[+-]?[\d.]+\s*", written)
        if bare and self._is(0, T.VAR):
            last = self._tokens[self._at]
            written = f"{written.strip()} {last.text}"
            self._at += 1
        self._read_interval(written, token, last)
        self._cast(written, "interval", token, last)

    def _read_interval(self, written: str, first: Token, last: Token) -> timedelta:
        size: timedelta | None = read_interval(written)
        if size is not None:
            return size
        unit = written.lower().rpartition(" ")[2]
        hint = "for example INTERVAL '5' MINUTE, '1 hour 30 minutes' or 12:00:00"
        if unit.removesuffix("s") in ("month", "year"):
            hint = "months and years are not always of one length; count in days"
        elif unit.isalpha():
            hint = nearest(unit, ["milliseconds", "seconds", "minutes", "hours", "days", "weeks"]) or hint
        raise QueryError(f'"{written}" is not an interval', self._text, span_of(first, last), hint=hint)

    def _cast(self, written: str, kind: str, first: Token, last: Token) -> None:
        """CAST('…' AS kind), with the place of the literal."""
        for token_type, word in (
            (T.VAR, "CAST"),
            (T.L_PAREN, "("),
            (T.STRING, written),
            (T.ALIAS, "AS"),
            (T.VAR, kind),
            (T.R_PAREN, ")"),
        ):
            self._out.append(_made(token_type, word, first, last))

    # Windows in brackets.

    def _window(self) -> None:
        opening = self._tokens[self._at]
        if not self._out:
            raise QueryError("a window stands behind a stream in FROM", self._text, span_of(opening))
        self._at += 1
        kind = self._take("RANGE or ROWS")
        match kind.text.upper():
            case "RANGE":
                size = self._duration()
                slide = self._duration() if self._word("SLIDE") else None
                window = Window("time", size, slide)
            case "ROWS":
                size = self._rows()
                slide = self._rows() if self._word("SLIDE") else None
                window = Window("rows", size, slide)
            case _:
                hint = "for example [RANGE 5 MINUTES SLIDE 1 MINUTE] or [ROWS 20 SLIDE 10]"
                problem = f"{shown(kind, self._text)} is not a kind of window"
                raise QueryError(problem, self._text, span_of(kind), expected="RANGE or ROWS", hint=hint)
        closing = self._take('"SLIDE" or "]"' if slide is None else '"]"')
        if closing.token_type != T.R_BRACKET:
            self._unexpected(closing, '"SLIDE" or "]"' if slide is None else '"]"')
        placed = PlacedWindow(window, span_of(opening, closing), self._out[-1].end)
        if self._windows and self._windows[-1].behind == placed.behind:
            raise QueryError("there are two windows behind one stream", self._text, placed.span, hint="keep one")
        self._windows.append(placed)

    def _duration(self) -> int:
        """Microseconds of `5 MINUTES`, `INTERVAL '5' MINUTE` or `00:05:00`."""
        first = self._take("a duration such as 5 MINUTES")
        if first.text.upper() == "INTERVAL" and first.token_type == T.VAR:
            first = self._take("a duration such as 5 MINUTES")
        clock = _CLOCK.match(self._text, first.start)
        last, written = first, first.text
        if first.token_type == T.NUMBER and clock:
            written = clock[0]
            last = self._skip_to(clock.end()) if clock.end() > first.end + 1 else first
        elif first.token_type in (T.NUMBER, T.STRING):
            if self._is(0, T.VAR) and self._tokens[self._at].text.upper() != "SLIDE":
                last = self._take("a unit")
                written = f"{first.text} {last.text}"
            elif first.token_type == T.NUMBER:
                hint = f"for example {first.text} SECONDS"
                raise QueryError("the duration has no unit", self._text, span_of(first), hint=hint)
        else:
            self._unexpected(first, "a duration such as 5 MINUTES")
        size = self._read_interval(written, first, last)
        if size <= timedelta():
            raise QueryError("a window must be longer than zero", self._text, span_of(first, last))
        return size // MICROSECOND

    def _rows(self) -> int:
        token = self._take("a number of rows")
        if token.token_type != T.NUMBER or not token.text.isdecimal():
            self._unexpected(token, "a number of rows")
        if not 1 <= int(token.text[:19]) <= ROWS_MAX:
            raise QueryError("a window has 1 row or more", self._text, span_of(token), expected=f"1 to {ROWS_MAX:,}")
        return int(token.text)

    # WITH (key = value, …).

    def _with(self) -> None:
        start = self._tokens[self._at]
        self._at += 2
        while True:
            key = self._take("an option")
            if not _WORD.fullmatch(key.text):
                self._unexpected(key, "an option such as within = '120 ms'")
            equals = self._take('"="')
            if equals.token_type != T.EQ:
                self._unexpected(equals, '"="')
            first = last = self._take("a value")
            if first.token_type in (T.COMMA, T.R_PAREN):
                self._unexpected(first, "a value")
            while not self._is(0, T.COMMA, T.R_PAREN):
                last = self._take('"," or ")"')
            value = first.text if first is last else self._text[first.start : last.end + 1]
            self._options.append(Option(key.text.lower(), value, span_of(key), span_of(first, last)))
            if self._take('"," or ")"').token_type == T.R_PAREN:
                break
        if self._at < len(self._tokens):
            hint = "WITH (…) comes last, behind the whole query"
            raise QueryError("WITH is not at the end", self._text, span_of(start), hint=hint)

    # Tokens.

    def _is(self, ahead: int, *types: TokenType) -> bool:
        place = self._at + ahead
        return place < len(self._tokens) and self._tokens[place].token_type in types

    def _word(self, word: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at].text.upper() == word:
            self._at += 1
            return True
        return False

    def _take(self, expected: str) -> Token:
        if self._at == len(self._tokens):
            end = self._tokens[-1].end + 1
            raise QueryError("the text ends too early", self._text, Span(end, end + 1), expected=expected)
        self._at += 1
        return self._tokens[self._at - 1]

    def _unexpected(self, token: Token, expected: str) -> NoReturn:
        raise QueryError(f"unexpected {shown(token, self._text)}", self._text, span_of(token), expected=expected)


def _made(token_type: TokenType, text: str, first: Token, last: Token) -> Token:
    return Token(token_type, text, first.line, first.col, first.start, last.end)
