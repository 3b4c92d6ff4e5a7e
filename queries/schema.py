"""The schema of a stream: names and types of its fields, and the check that rows of a batch keep to it.

Rows travel as one msgpack array of arrays, in the order of the fields. A decoder compiled from the schema checks a
batch in one pass. Only if it refuses are the rows checked one by one, to name the row and the field.

| type      | in Python             | in msgpack                   | in JSON                      |
|-----------|-----------------------|------------------------------|------------------------------|
| int       | int of 64 bits        | integer                      | number                       |
| float     | float                 | float or integer             | number                       |
| decimal   | Decimal, 20.18 digits | string                       | string                       |
| string    | str                   | string                       | string                       |
| bool      | bool                  | boolean                      | boolean                      |
| timestamp | datetime with a zone  | timestamp or RFC 3339 string | RFC 3339 string              |
| bytes     | bytes                 | binary                       | string in base64             |
| record    | tuple                 | array                        | object with its fields       |

Between the operators of a query there are also lists of records; no stream that people create has them.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Final, Literal, cast, get_args

import msgspec

from queries import decimals
from queries.layout import DECIMAL, IN_PYTHON, ON_THE_WIRE, Reading, field_type, least_places, spread

FieldType = Literal["int", "float", "decimal", "string", "bool", "timestamp", "bytes", "record", "list"]
Row = tuple[Any, ...]

TYPES: Final[tuple[str, ...]] = tuple(kind for kind in get_args(FieldType) if kind != "list")
FIELDS_MAX: Final = 1024
DEPTH_MAX: Final = 16
ROW_BYTES_MAX: Final = 1 << 20
MISFITS: Final = (msgspec.MsgspecError, TypeError, AttributeError, ArithmeticError)
"""What reading rows, or computing with them, raises where they are not of their schema.

A reader takes null for what a later version of the stream has no more. So it may find null in a column that is never
null: if that is dropped in the moment in which somebody begins to read it, or if the publisher writes what it likes.
"""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
_DECIMAL_PATTERN = re.compile(DECIMAL)

_SEEN_AS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (Decimal, "decimal"),
    (str, "string"),
    (datetime, "timestamp"),
    (bytes, "bytes"),
    (Mapping, "object"),
    (Sequence, "array"),
)

_raw_rows = msgspec.msgpack.Decoder(list[msgspec.Raw])


class SchemaError(ValueError):
    """The text of a schema cannot be read; says where.

    >>> try:
    ...     Schema.parse("id int, at timestmp")
    ... except SchemaError as error:
    ...     print(error)
    "timestmp" is not a type
      id int, at timestmp
                 ^
    did you mean "timestamp"?
    """

    def __init__(self, problem: str, text: str, place: int, hint: str = "") -> None:
        line_start = text.rfind("\n", 0, place) + 1
        line = text[line_start:].split("\n", 1)[0]
        caret = " " * (place - line_start) + "^"
        super().__init__("\n".join(part for part in (problem, f"  {line}", f"  {caret}", hint) if part))
        self.problem = problem
        self.place = place
        self.hint = hint


class RowError(ValueError):
    """A row does not fit the schema: which row (from 0), which field, what was expected and what was found."""

    def __init__(self, row: int, field: str, expected: str, got: str) -> None:
        where = f'row {row}, field "{field}"' if field else f"row {row}"
        said = f"{where}: expected {expected}, got {got}"
        super().__init__(said.encode(errors="backslashreplace").decode())  # Half of a surrogate pair cannot be printed.
        self.row = row
        self.field = field
        self.expected = expected
        self.got = got


def can_name_a_field(name: str) -> bool:
    """Whether a column of a stream may have this name.

    >>> can_name_a_field("l_number"), can_name_a_field("5_time"), can_name_a_field("")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None


class Field(msgspec.Struct, frozen=True, array_like=True):
    """One column of a stream; a record has fields of its own."""

    name: str
    type: FieldType
    nullable: bool = False
    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        if not can_name_a_field(self.name):
            raise ValueError(f'"{self.name}" cannot name a field: a letter or "_", then letters, digits, "_" or "-"')
        if self.type not in (*TYPES, "list"):
            raise ValueError(f'"{self.type}" is not a type')
        if self.type != "list" and (self.type == "record") != bool(self.fields):
            raise ValueError(f'field "{self.name}": a record, and nothing else, has fields of its own')
        _check_names(self.fields)

    def __str__(self) -> str:
        inner = f"({', '.join(map(str, self.fields))})" if self.fields else ""
        return f"{self.name} {self.type}{inner}{' null' if self.nullable else ''}"

    @property
    def expected(self) -> str:
        """How an error names what is expected here."""
        if self.type == "record":
            text = f"a record of {len(self.fields)} fields"
        else:
            text = {"int": "int of 64 bits", "timestamp": "timestamp with a zone"}.get(self.type, self.type)
        return f"{text} or null" if self.nullable else text


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """A column that was dropped: its place in a row, and what it was."""

    place: Annotated[int, msgspec.Meta(ge=0)]
    field: Field


class Schema(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The fields of a stream, in order; and the places of those that it no longer has.

    >>> schema = Schema.parse("id int, at timestamp, delay float null, place record(lat float, lon float)")
    >>> row = schema.row({"id": 7, "at": "2026-01-02T03:04:05Z", "place": {"lat": 48.2, "lon": 16}})
    >>> row[0], row[2], row[3]
    (7, None, (48.2, 16.0))
    >>> batch = schema.encode([row])
    >>> schema.check(batch), schema.decode(batch) == [row]
    (1, True)

    Rows of another version of the stream are read as rows of this one (`queries/layout.py`):

    >>> newer = schema.adding(Field("gate", "string", nullable=True)).dropping("delay")
    >>> newer.decode(batch)[0][2:], schema.decode(newer.encode([(8, row[1], row[3], "B2")]))[0][2]
    (((48.2, 16.0), None), None)
    """

    fields: tuple[Field, ...]
    gone: tuple[Gone, ...] = ()  # In order of their places.
    version: int = 1  # Counts what was added and dropped since the stream was created.

    def __post_init__(self) -> None:
        if not self.fields or len(self.fields) + len(self.gone) > FIELDS_MAX:
            number = len(self.fields) + len(self.gone)
            raise ValueError(f"a schema has 1 to {FIELDS_MAX} fields, dropped ones included, not {number}")
        places = [each.place for each in self.gone]
        if any(place >= len(self.fields) + len(places) for place in places) or places != sorted(set(places)):
            raise ValueError("the places of dropped fields are not those of a row")
        _check_names(self.fields)
        if _depth(self.fields) > DEPTH_MAX:
            raise ValueError(f"records are nested more than {DEPTH_MAX} deep")

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Read `name type [null], ...`; the type of a record is `record(name type, ...)`."""
        from queries.schema_text import Parser  # It makes schemas.

        return Parser(text).schema()

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))

    def is_like(self, other: Schema) -> bool:
        """Whether both have the same fields, whatever may be null.

        >>> (
        ...     Schema.parse("n int null").is_like(Schema.parse("n int")),
        ...     Schema.parse("n int").is_like(Schema.parse("m int")),
        ... )
        (True, False)
        """
        return _shape(self.fields) == _shape(other.fields)

    def altered(self, adds: Field | None, drops: str) -> Schema:
        """The next version; raises ValueError if it has no such field, or has it already."""
        names = [field.name for field in self.fields]
        if adds is None:
            if drops not in names:
                raise ValueError(f'there is no column "{drops}"')
            return self.dropping(drops)
        if adds.name in names:
            raise ValueError(f'there is a column "{adds.name}" already')
        if not adds.nullable:
            raise ValueError(f'"{adds.name}" may not be null, but rows from before have no value for it')
        return self.adding(adds)

    def adding(self, field: Field) -> Schema:
        """The next version: with a field that rows from before have as null."""
        assert field.nullable
        return Schema((*self.fields, field), self.gone, self.version + 1)

    def dropping(self, name: str) -> Schema:
        """The next version: without a field."""
        number = next(number for number, field in enumerate(self.fields) if field.name == name)
        gone = (*self.gone, Gone(self.places[number], self.fields[number]))
        kept = (*self.fields[:number], *self.fields[number + 1 :])
        return Schema(kept, tuple(sorted(gone, key=lambda each: each.place)), self.version + 1)

    def with_last(self, field: Field) -> Schema:
        """With a field that rows get behind all others once they have been read; it is none of the stream's."""
        return Schema((*self.fields, field), self.gone, self.version)

    def without_last(self, count: int) -> Schema:
        """Without so many of those fields."""
        return Schema(self.fields[: len(self.fields) - count], self.gone, self.version)

    def check(self, rows: bytes) -> int:
        """Check that each row of a batch fits, and return their number; raises RowError for the first that does not."""
        try:
            decoded = self._checker.decode(rows)
        except (msgspec.MsgspecError, RecursionError):  # A batch may also nest deeper than the decoder can go.
            raise self._blame_batch(rows) from None
        for name, path in self._times:
            _check_times(name, _values_at(decoded, path))
        for name, path in self._written_decimals:
            _check_decimals(name, _values_at(decoded, path))
        if len(rows) > ROW_BYTES_MAX:
            for number, row in enumerate(_raw_rows.decode(rows)):
                if len(memoryview(row)) > ROW_BYTES_MAX:
                    size = len(memoryview(row))
                    raise RowError(number, "", f"at most {ROW_BYTES_MAX} bytes", f"{size} bytes")
        return len(decoded)

    def row(self, values: Mapping[str, Any] | Sequence[Any], *, number: int = 0, from_text: bool = False) -> Row:
        """A row from JSON-like values, by name or in order; with `from_text`, numbers may be text, as in CSV.

        A nullable field may be left out.
        """
        return _convert_record(self.fields, values, _Place(number, "", from_text))

    def held(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Those of decoded rows whose decimals are ours; earlier releases accepted others.

        >>> schema = Schema.parse("price decimal")
        >>> schema.held([(Decimal("1E-50"),), (Decimal("1.50"),)])
        [(Decimal('1.50'),)]
        """
        for _, path in self._decimals:
            values = _values_at(rows, path)
            if not all(value is None or decimals.is_held(value) for value in values):
                rows = [row for row, each in zip(rows, values, strict=True) if each is None or decimals.is_held(each)]
        for place, field in self._lists:
            rows = [row for row in rows if _is_held(field, row[place])]
        return rows

    def encode(self, rows: Iterable[Row]) -> bytes:
        """Rows in their wire format. They are not checked again, so make them with row()."""
        return msgspec.msgpack.encode(spread(rows, [each.place for each in self.gone]) if self.gone else list(rows))

    def decode(self, rows: bytes) -> list[Row]:
        """The rows of a batch that passed the check, by this or another version of the schema, in Python's types."""
        return self._decoder.decode(rows)

    def decode_thinned(self, rows: bytes) -> list[Row]:
        """The rows of a batch of which only some columns were sent: the others are null, whatever the schema says."""
        return self._thinned_decoder.decode(rows)

    def kept_places(self, columns: Sequence[str]) -> tuple[bool, ...]:
        """For each place of a row as it is written, whether it has one of these columns.

        >>> Schema.parse("a int, b int, c int").kept_places(["a", "c"])
        (True, False, True)
        """
        kept = {place for place, field in zip(self.places, self.fields, strict=True) if field.name in columns}
        return tuple(place in kept for place in range(len(self._places)))

    def to_json(self, row: Row) -> dict[str, Any]:
        """A row by name, in types that JSON has.

        >>> Schema.parse("price decimal, raw bytes").to_json((Decimal("1.50"), b"ab"))
        {'price': '1.50', 'raw': 'YWI='}
        """
        return _record_to_json(self.fields, row)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The places of the fields in a row as it is written."""
        gone = {each.place for each in self.gone}
        return tuple(place for place in range(len(self.fields) + len(gone)) if place not in gone)

    @cached_property
    def _places(self) -> tuple[Field, ...]:
        """What a row has in each place. Who has not heard that a field was dropped may still fill its place."""
        fields = dict(zip(self.places, self.fields, strict=True))
        fields |= {each.place: msgspec.structs.replace(each.field, nullable=True) for each in self.gone}
        return tuple(fields[place] for place in range(len(fields)))

    @cached_property
    def _checker(self) -> Reading:
        return Reading(self._places, range(len(self._places)), ON_THE_WIRE, strict=True)

    @cached_property
    def _decoder(self) -> Reading:
        return Reading(self._places, self.places, IN_PYTHON, strict=False)

    @cached_property
    def _thinned_decoder(self) -> Reading:
        places = tuple(msgspec.structs.replace(each, nullable=True) for each in self._places)
        return Reading(places, self.places, IN_PYTHON, strict=False)

    @cached_property
    def _times(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The timestamp fields of a row as it is written: names, and places."""
        return tuple(_places_of("timestamp", self._places, "", ()))

    @cached_property
    def _written_decimals(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple(_places_of("decimal", self._places, "", ()))

    @cached_property
    def _decimals(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple(_places_of("decimal", self.fields, "", ()))

    @cached_property
    def _lists(self) -> tuple[tuple[int, Field], ...]:
        """The lists that may have decimals in them, and their places."""
        lists = ((place, field) for place, field in enumerate(self.fields) if field.type == "list")
        return tuple((place, field) for place, field in lists if _has_decimals(field))

    def _blame_batch(self, rows: bytes) -> RowError:
        """Find the first row and field for which the checker refused a batch."""
        try:
            raw_rows = _raw_rows.decode(rows)
        except (msgspec.MsgspecError, RecursionError):
            return RowError(0, "", "a msgpack array of rows", "bytes that are not one")
        for number, raw in enumerate(raw_rows):
            error = _blame_record(self._places, raw, number, "", least_places(self._places))
            if error:
                return error
        raise AssertionError("the batch was refused, yet each of its rows fits")


# Times. A zone can move a time out of the first or last year, where no engine can follow.

_CALENDAR: Final = "a timestamp in the years 1 to 9999 of UTC"


def _places_of(
    kind: FieldType, fields: tuple[Field, ...], above: str, path: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The fields of a type, also those inside records: names, and places in a row."""
    for place, field in enumerate(fields):
        if field.type == kind:
            yield above + field.name, (*path, place)
        elif field.type == "record":
            yield from _places_of(kind, field.fields, f"{above}{field.name}.", (*path, place))


def _values_at(rows: Sequence[Any], path: tuple[int, ...]) -> list[Any]:
    return [_inside(row, path) for row in rows] if path[1:] else [row[path[0]] for row in rows]


def _inside(row: Any, path: tuple[int, ...]) -> Any:
    for place in path:
        if row is None:
            return None
        row = row[place]
    return row


def _check_times(name: str, times: list[datetime | None]) -> None:
    if all(time is None or 1 < time.year < 9999 for time in times):
        return
    for number, time in enumerate(times):
        if not _is_in_calendar(time):
            raise RowError(number, name, _CALENDAR, "one outside of it")


def _is_in_calendar(time: datetime | None) -> bool:
    if time is None or 1 < time.year < 9999:
        return True
    try:
        time.astimezone(UTC)
    except OverflowError:
        return False
    return True


# Decimals. The check of a batch goes by their texts, and makes a number only of a long or an unusual one.

_DECIMALS: Final = f"a decimal of {decimals.BOUNDS}"
_is_short: Final = re.compile(rf"[+-]?[0-9]{{1,{decimals.WHOLE}}}(\.[0-9]{{0,{decimals.PLACES}}})?").fullmatch


def _check_decimals(name: str, texts: list[str | None]) -> None:
    if all(text is None or _is_short(text) for text in texts):
        return
    for number, text in enumerate(texts):
        if text is not None and not decimals.is_held(Decimal(text)):
            raise RowError(number, name, _DECIMALS, _seen_decimal(text))


def _has_decimals(field: Field) -> bool:
    return field.type == "decimal" or any(map(_has_decimals, field.fields))


def _is_held(field: Field, value: Any) -> bool:
    """Whether all decimals of a value are ours."""
    match field.type:
        case _ if value is None:
            return True
        case "decimal":
            return decimals.is_held(value)
        case "record":
            return all(map(_is_held, field.fields, value))
        case "list":
            return all(
                _is_held(inner, each) for record in value for inner, each in zip(field.fields, record, strict=True)
            )
    return True


def _seen_decimal(text: str) -> str:
    return f"{text[:60]}…" if len(text) > 60 else text


# Finding the culprit once a batch has been refused: slow and exact.


def _blame_record(fields: tuple[Field, ...], raw: msgspec.Raw, number: int, inside: str, least: int) -> RowError | None:
    try:
        values = _raw_rows.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return RowError(number, inside[:-1], f"an array of {len(fields)} values", _seen_raw(raw))
    if len(values) < least:
        missing = next(field for field in fields[len(values) :] if not field.nullable or inside)
        return RowError(number, inside + missing.name, missing.expected, "nothing")
    if len(values) > len(fields):
        return RowError(number, inside[:-1], f"{len(fields)} values", f"{len(values)}")
    for field, value in zip(fields, values, strict=False):
        try:
            msgspec.msgpack.decode(value, type=field_type(field, ON_THE_WIRE))
        except (msgspec.MsgspecError, RecursionError):
            if field.type == "record" and (
                nested := _blame_record(field.fields, value, number, f"{inside}{field.name}.", len(field.fields))
            ):
                return nested
            return RowError(number, inside + field.name, field.expected, _seen_raw(value))
    return None


def _seen_raw(raw: msgspec.Raw) -> str:
    try:
        return _seen(msgspec.msgpack.decode(raw))
    except (msgspec.MsgspecError, RecursionError):
        return "bytes that cannot be read"


def _seen(value: Any) -> str:
    """How an error shows a value: its type, and the value itself where it is short."""
    if value is None:
        return "null"
    kind = next((name for kind, name in _SEEN_AS if isinstance(value, kind)), type(value).__name__)
    if isinstance(value, bool):
        return f"{kind} {str(value).lower()}"
    if isinstance(value, int | float | Decimal):
        return f"{kind} {value!s:.40}"
    if isinstance(value, str):
        return f'{kind} "{value[:40]}{"…" if len(value) > 40 else ""}"'
    return kind


# From and to JSON.


class _Place(msgspec.Struct, frozen=True):
    """The place of a value being converted, and how to read it."""

    row: int
    inside: str
    from_text: bool

    def error(self, field: Field, got: str) -> RowError:
        return RowError(self.row, self.inside + field.name, field.expected, got)


def _convert_record(fields: tuple[Field, ...], values: Any, place: _Place) -> Row:
    if isinstance(values, Mapping):
        _check_unknown(fields, values, place)
        ordered = [values.get(field.name, None if field.nullable else msgspec.UNSET) for field in fields]
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes):
        if len(values) > len(fields):
            raise RowError(place.row, place.inside[:-1], f"{len(fields)} values", f"{len(values)}")
        ordered = [*values, *(None if field.nullable else msgspec.UNSET for field in fields[len(values) :])]
    else:
        raise RowError(place.row, place.inside[:-1], "an object or an array", _seen(values))
    return tuple(_convert(field, value, place) for field, value in zip(fields, ordered, strict=True))


def _check_unknown(fields: tuple[Field, ...], values: Mapping[str, Any], place: _Place) -> None:
    names = [field.name for field in fields]
    for name in values:
        if name not in names:
            near = get_close_matches(str(name), names, 1)
            expected = f"one of the fields {', '.join(names)}" + (f' (did you mean "{near[0]}"?)' if near else "")
            raise RowError(place.row, f"{place.inside}{name}", expected, "an unknown field")


def _convert(field: Field, value: Any, place: _Place) -> Any:
    if value is msgspec.UNSET:
        raise place.error(field, "nothing")
    if value is None or (place.from_text and value == "" and field.type != "string"):
        if field.nullable:
            return None
        raise place.error(field, _seen(value))
    if field.type == "record":
        return _convert_record(field.fields, value, _Place(place.row, f"{place.inside}{field.name}.", place.from_text))
    if field.type == "float" and isinstance(value, Decimal):
        if value.is_finite() and math.isinf(float(value)):
            raise place.error(field, _seen(value))
        value = float(value)
    try:
        converted = msgspec.convert(value, IN_PYTHON[field.type], strict=not place.from_text)
    except msgspec.ValidationError:
        raise place.error(field, _seen(value)) from None
    match field.type:
        case "decimal" if not _DECIMAL_PATTERN.match(str(converted)):
            raise place.error(field, _seen(value))
        case "decimal" if not decimals.is_held(converted):
            raise RowError(place.row, place.inside + field.name, _DECIMALS, _seen_decimal(str(value)))
        case "timestamp" if not _is_in_calendar(converted):
            raise RowError(place.row, place.inside + field.name, _CALENDAR, _seen(value))
        case "string" if not _can_travel(converted):
            raise RowError(place.row, place.inside + field.name, "text in Unicode", "half a surrogate pair")
    return converted


def _can_travel(text: str) -> bool:
    """JSON can express half of a surrogate pair; UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _record_to_json(fields: tuple[Field, ...], row: Row) -> dict[str, Any]:
    return {field.name: _to_json(field, value) for field, value in zip(fields, row, strict=True)}


def _to_json(field: Field, value: Any) -> Any:
    if value is None:
        return None
    if field.type == "record":
        return _record_to_json(field.fields, value)
    special = _TO_JSON.get(field.type)
    return special(value) if special else value


_TO_JSON: Final[dict[str, Callable[[Any], str]]] = {
    "decimal": str,
    "timestamp": lambda at: cast("str", at.isoformat()).replace("+00:00", "Z"),
    "bytes": lambda raw: b64encode(raw).decode(),
}


def _shape(fields: tuple[Field, ...]) -> tuple[tuple[str, str, Any], ...]:
    return tuple((field.name, field.type, _shape(field.fields)) for field in fields)


def _check_names(fields: tuple[Field, ...]) -> None:
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ValueError("two fields have the same name")


def _depth(fields: tuple[Field, ...]) -> int:
    return 1 + max((_depth(field.fields) for field in fields), default=0) if fields else 0
