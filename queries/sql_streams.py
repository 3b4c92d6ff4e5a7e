"""CREATE STREAM, ALTER STREAM and DROP STREAM as text.

CREATE STREAM flights (num int, at timestamp, gate string null)
WITH (event_time = at, lateness = 5s, idle = 30s, retention = 24h, durability = replicated, policy = block)
ALTER STREAM flights ADD COLUMN delay float NULL
ALTER STREAM flights DROP COLUMN gate
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, NoReturn

import msgspec
from sqlglot.tokenizer_core import Token, TokenType

from queries.casts import read_interval
from queries.catalogue import DAY_MS, Stream, named
from queries.errors import QueryError, Span, nearest
from queries.schema import Field, Schema, SchemaError, can_name_a_field
from queries.sql_tokens import Option, rewrite, shown, span_of, statements, tokenize

T = TokenType
DURABILITIES: Final = ("memory", "disk", "replicated")
POLICIES: Final = ("block", "drop-oldest")
OPTIONS: Final = ("event_time", "lateness", "idle", "retention", "durability", "policy")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,126}")


class CreateStream(msgspec.Struct, frozen=True):
    """A stream to create, with the promises for its tuples."""

    name: str
    schema: Schema
    event_time: str | None = None
    lateness_ms: int = 0
    retention_ms: int = DAY_MS
    durability: str = "disk"
    policy: str = "block"
    idle_ms: int = 0

    @property
    def stream(self) -> Stream:
        """The stream as queries see it."""
        return Stream(self.name, self.schema, self.event_time, self.lateness_ms, self.retention_ms)


class DropStream(msgspec.Struct, frozen=True):
    """A stream to remove, with its tuples."""

    name: str


class AlterStream(msgspec.Struct, frozen=True):
    """A column to add to a stream, or to drop from it."""

    name: str
    adds: Field | None = None
    drops: str = ""

    def applied(self, schema: Schema) -> Schema:
        """The next version of the stream's schema; raises ValueError."""
        return schema.altered(self.adds, self.drops)


StreamStatement = CreateStream | AlterStream | DropStream


def read(text: str) -> StreamStatement:
    """The statement of a text; raises QueryError.

    >>> read("CREATE STREAM flights (num int, at timestamp) WITH (event_time = at, retention = 2h)").retention_ms
    7200000
    >>> read("DROP STREAM check-ins")
    DropStream(name='check-ins')
    >>> str(read("ALTER STREAM flights ADD COLUMN delay float NULL").adds)
    'delay float null'
    """
    return _Reader(text, tokenize(text)).statement()


def read_change(stream: str, text: str) -> AlterStream:
    """What is behind `ALTER STREAM name`; raises QueryError.

    >>> read_change("flights", "DROP COLUMN gate")
    AlterStream(name='flights', adds=None, drops='gate')
    """
    return _Reader(text, tokenize(text)).change(stream)


def read_all(text: str) -> list[StreamStatement]:
    """The statements of a text, separated by semicolons."""
    return [_Reader(text, tokens).statement() for tokens in statements(text)]


class _Reader:
    """Reads one statement; `_at` is the index of the next token."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    def statement(self) -> StreamStatement:
        verb = self._tokens[0]
        if verb.text.upper() not in ("CREATE", "ALTER", "DROP"):
            self._unexpected(verb, "CREATE STREAM, ALTER STREAM or DROP STREAM")
        self._at = 1
        self._word("STREAM")
        name = self._name()
        if verb.text.upper() == "CREATE":
            return self._create(name)
        if verb.text.upper() == "ALTER":
            return self.change(name)
        if self._at < len(self._tokens):
            self._unexpected(self._tokens[self._at], "the end")
        return DropStream(name)

    def change(self, stream: str) -> AlterStream:
        verb = self._tokens[self._at] if self._at < len(self._tokens) else None
        if verb is None or verb.text.upper() not in ("ADD", "DROP"):
            example = "for example ADD COLUMN delay float NULL"
            if verb is None:
                self._ends("ADD COLUMN or DROP COLUMN")
            raise QueryError(
                f"unexpected {shown(verb, self._text)}",
                self._text,
                span_of(verb),
                expected="ADD COLUMN or DROP COLUMN",
                hint=example,
            )
        self._at += 1
        self._word("COLUMN")
        if self._at == len(self._tokens):
            self._ends("the name of a column")
        if verb.text.upper() == "DROP":
            return AlterStream(stream, drops=self._dropped())
        return AlterStream(stream, adds=self._added())

    def _added(self) -> Field:
        first, last = self._tokens[self._at], self._tokens[-1]
        try:
            fields = Schema.parse(self._text[first.start : last.end + 1]).fields
        except SchemaError as error:
            at = first.start + error.place
            self._fail(error.problem, Span(at, self._word_end(at)), error.hint)
        except ValueError as error:
            self._fail(str(error), span_of(first, last))
        if len(fields) > 1:
            self._fail("one column is added at a time", span_of(first, last), "alter the stream once for each column")
        if not fields[0].nullable:
            problem = f'"{fields[0].name}" may not be null, but rows from before have no value for it'
            self._fail(problem, span_of(first, last), f"write {fields[0]} NULL")
        return fields[0]

    def _dropped(self) -> str:
        first, last = self._tokens[self._at], self._tokens[-1]
        name = first.text if first is last else self._text[first.start : last.end + 1]
        if not can_name_a_field(name):
            self._fail(f'expected the name of one column, found "{name[:40]}"', span_of(first, last))
        return name

    def _create(self, name: str) -> CreateStream:
        schema = self._schema()
        options = self._options()
        given: dict[str, Option] = {}
        for option in options:
            if option.key not in OPTIONS:
                self._fail(f'unknown option "{option.key}"', option.key_span, nearest(option.key, OPTIONS))
            if option.key in given:
                self._fail(f'the option "{option.key}" is there twice', option.key_span)
            given[option.key] = option
        return CreateStream(
            name,
            schema,
            self._event_time(given.get("event_time"), schema),
            self._milliseconds(given.get("lateness"), 0, least=0),
            self._milliseconds(given.get("retention"), DAY_MS, least=1),
            self._choice(given.get("durability"), DURABILITIES, "disk"),
            self._choice(given.get("policy"), POLICIES, "block"),
            self._idle(given.get("idle"), given.get("event_time")),
        )

    def _name(self) -> str:
        """The name of the stream: all adjacent tokens, or one quoted word."""
        if self._at == len(self._tokens):
            self._ends("the name of a stream")
        first = last = self._tokens[self._at]
        self._at += 1
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.start != last.end + 1 or token.token_type == T.L_PAREN or first.token_type == T.IDENTIFIER:
                break
            last = token
            self._at += 1
        name = first.text if first is last else self._text[first.start : last.end + 1]
        if not _NAME.fullmatch(name):
            hint = "a letter, then letters, digits, dots, dashes and underscores, 127 at most"
            self._fail(f'"{name[:40]}" cannot name a stream', span_of(first, last), hint)
        return name

    def _schema(self) -> Schema:
        example = "(num int, at timestamp)"
        if self._at == len(self._tokens) or self._tokens[self._at].token_type != T.L_PAREN:
            end = self._tokens[self._at - 1].end + 1
            self._fail("the stream needs its fields", Span(end, end + 1), f"for example {example}")
        opening, depth = self._tokens[self._at], 0
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            depth += {T.L_PAREN: 1, T.R_PAREN: -1}.get(token.token_type, 0)
            self._at += 1
            if depth == 0:
                break
        else:
            self._fail("this bracket has no end", span_of(opening))
        start = opening.end + 1
        try:
            return Schema.parse(self._text[start : token.start])
        except SchemaError as error:
            at = start + error.place
            self._fail(error.problem, Span(at, self._word_end(at)), error.hint)
        except ValueError as error:
            self._fail(str(error), span_of(opening, token))

    def _word_end(self, at: int) -> int:
        word = re.compile(r"[\w-]+").match(self._text, at)
        return word.end() if word else at + 1

    def _options(self) -> list[Option]:
        rest = self._tokens[self._at :]
        if not rest:
            return []
        if rest[0].token_type != T.WITH or len(rest) < 2:
            self._unexpected(rest[0], "WITH (option = value) or the end")
        found = rewrite(self._text, rest, [])
        if found.tokens or found.windows:
            self._unexpected(rest[0], "WITH (option = value)")
        return found.options

    def _event_time(self, option: Option | None, schema: Schema) -> str | None:
        if option is None:
            return None
        times = [field.name for field in schema.fields if field.type == "timestamp"]
        name = named(option.value, times)
        if name is None:
            hint = nearest(option.value, times) or "give the stream a field of type timestamp"
            self._fail(f'"{option.value}" is not a field of type timestamp', option.value_span, hint)
        if any(field.name == name and field.nullable for field in schema.fields):
            problem = f'"{name}" may be null, but every row of a stream with an event time has one'
            self._fail(problem, option.value_span, f'leave out "null" behind "{name} timestamp"')
        return name

    def _milliseconds(self, option: Option | None, default: int, least: int) -> int:
        if option is None:
            return default
        span: timedelta | None = read_interval(option.value)
        if span is None or span < timedelta(milliseconds=least):
            self._fail(
                f'"{option.value}" is not a value of {option.key}',
                option.value_span,
                "for example 24h, 500ms or 5 minutes",
            )
        return span // timedelta(milliseconds=1)

    def _idle(self, option: Option | None, event_time: Option | None) -> int:
        idle_ms = self._milliseconds(option, 0, least=1)
        if option is not None and event_time is None:
            hint = "leave it out: without an event time, windows close by the clock"
            self._fail("only a stream with an event time can be idle", option.key_span, hint)
        return idle_ms

    def _choice(self, option: Option | None, known: tuple[str, ...], default: str) -> str:
        if option is None:
            return default
        if option.value.lower() not in known:
            hint = nearest(option.value, known)
            self._fail(f'"{option.value}" is not a value of {option.key}', option.value_span, hint)
        return option.value.lower()

    def _word(self, word: str) -> None:
        if self._at == len(self._tokens):
            self._ends(word)
        if self._tokens[self._at].text.upper() != word:
            self._unexpected(self._tokens[self._at], word)
        self._at += 1

    def _ends(self, expected: str) -> NoReturn:
        end = self._tokens[-1].end + 1
        raise QueryError("the text ends too early", self._text, Span(end, end + 1), expected=expected)

    def _unexpected(self, token: Token, expected: str) -> NoReturn:
        raise QueryError(f"unexpected {shown(token, self._text)}", self._text, span_of(token), expected=expected)

    def _fail(self, problem: str, span: Span, hint: str = "") -> NoReturn:
        raise QueryError(problem, self._text, span, hint=hint)
