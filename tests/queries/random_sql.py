"""Random expressions of our SQL and rows for them, each written twice: for us and for DuckDB.

Where the two languages differ on purpose, the generator stays clear of the difference: whole numbers stay far from 64
bits, fractions are multiples of 1/4 (so that decimal and float agree), roots are of what has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.reference import Tuple
from queries.schema import Schema

STREAMS = {
    stream.name: stream
    for stream in (
        Stream(
            "trades", Schema.parse("id int, k int, price decimal null, ratio float null, sym string null, hot bool")
        ),
        Stream("quotes", Schema.parse("id int, k int null, bid decimal, note string, seen timestamp null")),
        Stream(
            "orders",
            Schema.parse("placed timestamp, k int, n int null, price decimal, sym string"),
            event_time="placed",
            lateness_ms=86_400_000,
        ),
    )
}
DUCK_TYPES = {
    "int": "BIGINT",
    "decimal": "DECIMAL(18, 2)",
    "float": "DOUBLE",
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "timestamp": "TIMESTAMP",
}
WORDS = ("ab", "Abc", "b", "", " x ", "12", "7", "cab", "a_b", "O'Hare", "%")


class Text(NamedTuple):
    """One piece of a query in both languages."""

    ours: str
    duck: str


def both(template: str, *parts: Text) -> Text:
    return Text(template.format(*(part.ours for part in parts)), template.format(*(part.duck for part in parts)))


def plain(text: str) -> Text:
    return Text(text, text)


# Data.


def data(random: Random, rows: int, decimal: Callable[[Random], Decimal] | None = None) -> dict[str, list[Tuple]]:
    """Rows for each stream; no two of all have the same TIME, and windows' edges are often met.

    `decimal` draws decimals that DuckDB would not have the same results for.
    """
    times = random.sample(range(240), rows * len(STREAMS))
    lists: dict[str, list[Tuple]] = {}
    for name, stream in STREAMS.items():
        lists[name] = []
        for number in range(rows):
            time = EPOCH + timedelta(seconds=times.pop() / 2)
            published = time
            if stream.event_time:
                published += timedelta(seconds=random.choice((0, 5, 30)), microseconds=number + 1)
            values = (
                time if field.name == stream.event_time else _value(random, field, decimal)
                for field in stream.schema.fields
            )
            lists[name].append(Tuple(published, tuple(values), f"{name}-{number}"))
    return lists


def _value(random: Random, of: Any, decimal: Callable[[Random], Decimal] | None) -> Any:
    if of.nullable and random.random() < 0.2:
        return None
    match of.type:
        case "int":
            return random.randint(-3, 6)
        case "decimal":
            if decimal is not None and random.random() < 0.5:
                return decimal(random)
            return Decimal(random.randint(-20, 40)) / 4
        case "float":
            return random.randint(-20, 40) / 4
        case "string":
            return random.choice(WORDS)
        case "bool":
            return random.random() < 0.5
        case "timestamp":
            return EPOCH + timedelta(seconds=random.randint(0, 120))
    raise AssertionError(of.type)


def tables(lists: dict[str, list[Tuple]]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """What makes the tables of DuckDB: for each a statement and its rows, which end with TIME in microseconds."""
    made = []
    for name, stream in STREAMS.items():
        fields = stream.schema.fields
        columns = ", ".join(f"{field.name} {DUCK_TYPES[field.type]}" for field in fields)
        names = [field.name for field in fields]
        rows = []
        for each in lists[name]:
            time = each.row[names.index(stream.event_time)] if stream.event_time else each.time
            rows.append((*map(naive, each.row), (time - EPOCH) // timedelta(microseconds=1)))
        made.append((f"CREATE TABLE {name} ({columns}, t BIGINT)", rows))
    return made


def naive(value: Any) -> Any:
    """A value as DuckDB has it: its timestamps have no zone."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


# Expressions.


@dataclass(slots=True)
class Expressions:
    """Makes expressions of a wanted type over the columns of some sources."""

    random: Random
    sources: list[tuple[str, Stream]]  # Alias and stream.
    now: bool = False  # Whether CURRENT_TIMESTAMP may come: over one source it is plain what it is.

    def of(self, kind: str, depth: int = 2) -> Text:
        """An expression of a type; deeper ones are made of shallower ones."""
        if depth == 0 or self.random.random() < 0.25:
            return self.leaf(kind)
        return getattr(self, f"_{kind}")(depth - 1)

    def leaf(self, kind: str) -> Text:
        columns = [
            plain(f"{alias}.{field.name}")
            for alias, stream in self.sources
            for field in stream.schema.fields
            if field.type == kind
        ]
        if kind == "timestamp" and self.now:
            columns.append(Text("CURRENT_TIMESTAMP", f"make_timestamp({self.sources[0][0]}.t)"))
        if columns and self.random.random() < 0.75:
            return self.random.choice(columns)
        return self.constant(kind)

    def constant(self, kind: str) -> Text:
        number = self.random.randint(-4, 12)
        match kind:
            case "int":
                return Text(f"{number}" if number >= 0 else f"({number})", f"({number})::BIGINT")
            case "decimal":
                return Text(f"({number / 4:.2f})", f"({number / 4:.2f})::DECIMAL(18, 2)")
            case "float":
                return Text(f"CAST({number / 4} AS float)", f"({number / 4})::DOUBLE")
            case "string":
                return plain("'" + self.random.choice(WORDS).replace("'", "''") + "'")
            case "bool":
                return plain(self.random.choice(("TRUE", "FALSE")))
            case "timestamp":
                second = self.random.randint(0, 119)
                text = f"1970-01-01 00:{second // 60:02}:{second % 60:02}"
                return Text(f"TIMESTAMP '{text}Z'", f"TIMESTAMP '{text}'")
            case "interval":
                return plain(f"INTERVAL '{self.random.randint(1, 90)}' SECOND")
        raise AssertionError(kind)

    def _any_of(self, depth: int, kind: str, *more: Callable[[], Text]) -> Text:
        """One of the forms of a type, or one that every type has."""
        forms = [
            *more,
            lambda: both(
                "CASE WHEN {} THEN {} ELSE {} END", self.predicate(depth), self.of(kind, depth), self.of(kind, depth)
            ),
            lambda: both("CASE WHEN {} THEN {} END", self.predicate(depth), self.of(kind, depth)),
            lambda: both(
                "CASE {} WHEN 1 THEN {} WHEN 2 THEN {} ELSE {} END", self.of("int", depth), *self._some(3, kind, depth)
            ),
            lambda: both("coalesce({}, {})", *self._some(2, kind, depth)),
            lambda: both("nullif({}, {})", *self._some(2, kind, depth)),
            lambda: both("greatest({}, {}, {})", *self._some(3, kind, depth)),
            lambda: both("least({}, {})", *self._some(2, kind, depth)),
        ]
        return self.random.choice(forms)()

    def _some(self, count: int, kind: str, depth: int) -> list[Text]:
        return [self.of(kind, depth) for _ in range(count)]

    def _int(self, depth: int) -> Text:
        part = self.random.choice(("second", "minute", "hour", "day", "year", "dow", "doy"))
        return self._any_of(
            depth,
            "int",
            *(lambda sign=sign: both("({} " + sign + " {})", *self._some(2, "int", depth)) for sign in "+-*%"),
            lambda: both("abs({})", self.of("int", depth)),
            lambda: both("(-{})", self.of("int", depth)),
            lambda: both("sign({})", self.of("float", depth)),
            lambda: both("mod({}, {})", *self._some(2, "int", depth)),
            lambda: both("length({})", self.of("string", depth)),
            lambda: both("position({} IN {})", self.constant("string"), self.of("string", depth)),
            lambda: both(f"extract({part} FROM {{}})", self.of("timestamp", depth)),
            lambda: self._cast("CAST({} AS int)", "CAST(trunc({}) AS BIGINT)", self.of("float", depth)),
            lambda: self._cast("CAST({} AS int)", "TRY_CAST({} AS BIGINT)", self.leaf("string")),
            lambda: self._cast("CAST({} AS int)", "CAST({} AS BIGINT)", self.of("bool", depth)),
        )

    def _float(self, depth: int) -> Text:
        return self._any_of(
            depth,
            "float",
            *(lambda sign=sign: both("({} " + sign + " {})", *self._some(2, "float", depth)) for sign in "+-*/"),
            lambda: both("({} / {})", *self._some(2, "int", depth)),
            lambda: both("({} + {})", self.of("float", depth), self.of("int", depth)),
            lambda: both("({} * {})", self.of("float", depth), self.leaf("decimal")),
            lambda: both("sqrt(abs({}))", self.of("float", depth)),
            lambda: both("power({}, 2)", self.leaf("float")),
            lambda: both("ln(abs({}) + 1)", self.of("float", depth)),
            lambda: both("exp({})", self.leaf("float")),
            lambda: both("round({})", self.of("float", depth)),
            lambda: both("round({}, 1)", self.leaf("float")),
            lambda: both("floor({})", self.of("float", depth)),
            lambda: both("ceil({})", self.of("float", depth)),
            lambda: self._cast("CAST({} AS float)", "CAST({} AS DOUBLE)", self.of("decimal", depth)),
        )

    def _decimal(self, depth: int) -> Text:
        """A product has four digits behind the point, and DuckDB a fixed number: only leaves are multiplied."""
        return self._any_of(
            depth,
            "decimal",
            *(lambda sign=sign: self._fixed("({} " + sign + " {})", *self._some(2, "decimal", depth)) for sign in "+-"),
            lambda: self._fixed("({} * {})", self.leaf("decimal"), self.leaf("decimal")),
            lambda: self._fixed("({} * {})", self.leaf("int"), self.leaf("decimal")),
            lambda: self._fixed("({} - {})", self.of("int", depth), self.of("decimal", depth)),
            lambda: self._fixed("({} % {})", self.leaf("decimal"), self.leaf("decimal")),
            lambda: self._fixed("abs({})", self.of("decimal", depth)),
            lambda: self._fixed("(-{})", self.of("decimal", depth)),
            lambda: self._fixed("round({})", self.of("decimal", depth)),
            lambda: self._fixed("floor({})", self.of("decimal", depth)),
            lambda: self._fixed("ceil({})", self.of("decimal", depth)),
            lambda: self._cast("CAST({} AS decimal)", "CAST({} AS DECIMAL(18, 4))", self.of("int", depth)),
        )

    def _fixed(self, template: str, *parts: Text) -> Text:
        made = both(template, *parts)
        return Text(made.ours, f"CAST({made.duck} AS DECIMAL(18, 4))")

    def _cast(self, ours: str, duck: str, part: Text) -> Text:
        return Text(ours.format(part.ours), duck.format(part.duck))

    def _string(self, depth: int) -> Text:
        one, two = self.random.randint(1, 3), self.random.randint(0, 3)
        return self._any_of(
            depth,
            "string",
            lambda: both("({} || {})", *self._some(2, "string", depth)),
            lambda: both("concat({}, {}, {})", *self._some(3, "string", depth)),
            *(
                lambda name=name: both(name + "({})", self.of("string", depth))
                for name in ("lower", "upper", "trim", "ltrim", "rtrim")
            ),
            lambda: both(f"substring({{}}, {one}, {two})", self.of("string", depth)),
            lambda: both(f"substring({{}} FROM {one} FOR {two})", self.of("string", depth)),
            lambda: both(f"left({{}}, {two})", self.of("string", depth)),
            lambda: both(f"right({{}}, {two})", self.of("string", depth)),
            lambda: both("replace({}, 'a', 'bb')", self.of("string", depth)),
            lambda: self._cast("CAST({} AS string)", "CAST({} AS VARCHAR)", self.of("int", depth)),
        )

    def _bool(self, depth: int) -> Text:
        return self._any_of(depth, "bool", lambda: self.predicate(depth + 1))

    def _timestamp(self, depth: int) -> Text:
        unit = self.random.choice(("second", "minute", "hour"))
        return self._any_of(
            depth,
            "timestamp",
            lambda: both("({} + {})", self.of("timestamp", depth), self.of("interval", depth)),
            lambda: both("({} - {})", self.of("timestamp", depth), self.of("interval", depth)),
            lambda: both(f"date_trunc('{unit}', {{}})", self.of("timestamp", depth)),
        )

    def _interval(self, depth: int) -> Text:
        return self._any_of(
            depth,
            "interval",
            lambda: both("({} - {})", *self._some(2, "timestamp", depth)),
            lambda: both("({} * {})", self.constant("interval"), self.leaf("int")),
        )

    def predicate(self, depth: int = 2) -> Text:
        """A condition of any kind."""
        pick = self.random.random()
        if depth and pick < 0.15:
            return both("({} AND {})", self.predicate(depth - 1), self.predicate(depth - 1))
        if depth and pick < 0.3:
            return both("({} OR {})", self.predicate(depth - 1), self.predicate(depth - 1))
        if depth and pick < 0.4:
            return both("(NOT {})", self.predicate(depth - 1))
        return self.random.choice((self._comparison, self._comparison, self._membership, self._of_text, self._of_null))(
            max(0, depth - 1)
        )

    def _comparison(self, depth: int) -> Text:
        sign = self.random.choice(("=", "<>", "<", "<=", ">", ">="))
        kinds = self.random.choice(
            [(kind, kind) for kind in ("int", "decimal", "float", "string", "timestamp", "interval")]
            + [("int", "decimal"), ("int", "float"), ("decimal", "float")]
        )
        return both(f"{{}} {sign} {{}}", self.of(kinds[0], depth), self.of(kinds[1], depth))

    def _membership(self, depth: int) -> Text:
        no = self.random.choice(("", "NOT "))
        kind = self.random.choice(("int", "decimal", "string", "timestamp"))
        if self.random.random() < 0.5:
            return both(f"({{}} {no}BETWEEN {{}} AND {{}})", self.of(kind, depth), *self._some(2, kind, depth))
        return both(f"{{}} {no}IN ({{}}, {{}}, {{}})", self.of(kind, depth), *(self.constant(kind) for _ in range(3)))

    def _of_text(self, depth: int) -> Text:
        text = self.of("string", depth)
        no = self.random.choice(("", "NOT "))
        pattern = self.random.choice(("a%", "%b", "%a%", "_b%", "a", "%", "__", "%_"))
        name = self.random.choice(("starts_with", "ends_with", "contains"))
        return self.random.choice(
            (both(f"{{}} {no}LIKE '{pattern}'", text), both(f"{name}({{}}, {{}})", text, self.constant("string")))
        )

    def _of_null(self, depth: int) -> Text:
        kind = self.random.choice(("int", "decimal", "float", "string", "timestamp"))
        return both("{} IS " + self.random.choice(("", "NOT ")) + "NULL", self.of(kind, depth))
