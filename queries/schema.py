"""The schema of a stream: names and types of its fields, and the check that rows of a batch keep to it.

Rows travel as one msgpack array of arrays, in the order of the fields. A decoder compiled from the schema checks a
batch in one pass. Only if it refuses are the rows checked one by one, to name the row and the field.

| type      | in Python             | in msgpack                   | in JSON                      |
|-----------|-----------------------|------------------------------|------------------------------|
| int       | int of 64 bits        | integer                      | number                       |
| float     | float                 | float or integer             | number                       |
| decimal   | Decimal, finite       | string                       | string                       |
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

FieldType = Literal["int", "float", "decimal", "string", "bool", "timestamp", "bytes", "record", "list"]
Row = tuple[Any, ...]

TYPES: Final[tuple[str, ...]] = tuple(kind for kind in get_args(FieldType) if kind != "list")
FIELDS_MAX: Final = 1024
DEPTH_MAX: Final = 16
ROW_BYTES_MAX: Final = 1 << 20

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
_WORD = re.compile(r"[^\s,()]+|[,()]")
_INT = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_TIMESTAMP = Annotated[datetime, msgspec.Meta(tz=True)]
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?$"
_DECIMAL_TEXT = Annotated[str, msgspec.Meta(pattern=_DECIMAL)]
_DECIMAL_PATTERN = re.compile(_DECIMAL)

_IN_PYTHON: Final[dict[str, Any]] = {
    "int": _INT,
    "float": float,
    "decimal": Decimal,
    "string": str,
    "bool": bool,
    "timestamp": _TIMESTAMP,
    "bytes": bytes,
}
# What the check of a batch demands. It builds no Decimal, and admits no infinity and no NaN.
_ON_THE_WIRE: Final = _IN_PYTHON | {"decimal": _DECIMAL_TEXT}

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


class Schema(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The fields of a stream, in order.

    >>> schema = Schema.parse("id int, at timestamp, delay float null, place record(lat float, lon float)")
    >>> row = schema.row({"id": 7, "at": "2026-01-02T03:04:05Z", "place": {"lat": 48.2, "lon": 16}})
    >>> row[0], row[2], row[3]
    (7, None, (48.2, 16.0))
    >>> batch = schema.encode([row])
    >>> schema.check(batch), schema.decode(batch) == [row]
    (1, True)
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.fields) <= FIELDS_MAX:
            raise ValueError(f"a schema has 1 to {FIELDS_MAX} fields, not {len(self.fields)}")
        _check_names(self.fields)
        if _depth(self.fields) > DEPTH_MAX:
            raise ValueError(f"records are nested more than {DEPTH_MAX} deep")

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Read `name type [null], ...`; the type of a record is `record(name type, ...)`."""
        return _Parser(text).schema()

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))

    def check(self, rows: bytes) -> int:
        """Check that each row of a batch fits, and return their number; raises RowError for the first that does not."""
        try:
            decoded = self._checker.decode(rows)
        except (msgspec.MsgspecError, RecursionError):  # A batch may also nest deeper than the decoder can go.
            raise self._blame_batch(rows) from None
        for name, path in self._times:
            times = [_inside(row, path) for row in decoded] if path[1:] else [row[path[0]] for row in decoded]
            if all(time is None or 1 < time.year < 9999 for time in times):
                continue
            for number, time in enumerate(times):
                if not _is_in_calendar(time):
                    raise RowError(number, name, _CALENDAR, "one outside of it")
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

    def encode(self, rows: Iterable[Row]) -> bytes:
        """Rows in their wire format. They are not checked again, so make them with row()."""
        return msgspec.msgpack.encode(list(rows))

    def decode(self, rows: bytes) -> list[Row]:
        """The rows of a batch that passed the check, in Python's types."""
        return cast("list[Row]", self._decoder.decode(rows))

    def to_json(self, row: Row) -> dict[str, Any]:
        """A row by name, in types that JSON has.

        >>> Schema.parse("price decimal, raw bytes").to_json((Decimal("1.50"), b"ab"))
        {'price': '1.50', 'raw': 'YWI='}
        """
        return _record_to_json(self.fields, row)

    @cached_property
    def _checker(self) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(list[_record_type(self.fields, _ON_THE_WIRE)])  # type: ignore[misc]

    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(list[_record_type(self.fields, _IN_PYTHON)])  # type: ignore[misc]

    @cached_property
    def _times(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The timestamp fields, also those inside records: names, and places in a row."""
        return tuple(_times_in(self.fields, "", ()))

    def _blame_batch(self, rows: bytes) -> RowError:
        """Find the first row and field for which the checker refused a batch."""
        try:
            raw_rows = _raw_rows.decode(rows)
        except (msgspec.MsgspecError, RecursionError):
            return RowError(0, "", "a msgpack array of rows", "bytes that are not one")
        for number, raw in enumerate(raw_rows):
            error = _blame_record(self.fields, raw, number, "")
            if error:
                return error
        raise AssertionError("the batch was refused, yet each of its rows fits")


# Types, as msgspec wants them.


def _type(field: Field, scalars: Mapping[str, Any]) -> Any:
    match field.type:
        case "record":
            kind = _record_type(field.fields, scalars)
        case "list":
            kind = tuple[_record_type(field.fields, scalars), ...]  # type: ignore[misc]
        case _:
            kind = scalars[field.type]
    return kind | None if field.nullable else kind


def _record_type(fields: tuple[Field, ...], scalars: Mapping[str, Any]) -> Any:
    return tuple[tuple(_type(field, scalars) for field in fields)]  # type: ignore[misc]


# Times. A zone can move a time out of the first or last year, where no engine can follow.

_CALENDAR: Final = "a timestamp in the years 1 to 9999 of UTC"


def _times_in(fields: tuple[Field, ...], above: str, path: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for place, field in enumerate(fields):
        if field.type == "timestamp":
            yield above + field.name, (*path, place)
        elif field.type == "record":
            yield from _times_in(field.fields, f"{above}{field.name}.", (*path, place))


def _inside(row: Any, path: tuple[int, ...]) -> Any:
    for place in path:
        if row is None:
            return None
        row = row[place]
    return row


def _is_in_calendar(time: datetime | None) -> bool:
    if time is None or 1 < time.year < 9999:
        return True
    try:
        time.astimezone(UTC)
    except OverflowError:
        return False
    return True


# Finding the culprit once a batch has been refused: slow and exact.


def _blame_record(fields: tuple[Field, ...], raw: msgspec.Raw, number: int, inside: str) -> RowError | None:
    try:
        values = _raw_rows.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return RowError(number, inside[:-1], f"an array of {len(fields)} values", _seen_raw(raw))
    if len(values) < len(fields):
        missing = fields[len(values)]
        return RowError(number, inside + missing.name, missing.expected, "nothing")
    if len(values) > len(fields):
        return RowError(number, inside[:-1], f"{len(fields)} values", f"{len(values)}")
    for field, value in zip(fields, values, strict=True):
        try:
            msgspec.msgpack.decode(value, type=_type(field, _ON_THE_WIRE))
        except (msgspec.MsgspecError, RecursionError):
            if field.type == "record" and (
                nested := _blame_record(field.fields, value, number, f"{inside}{field.name}.")
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
        converted = msgspec.convert(value, _IN_PYTHON[field.type], strict=not place.from_text)
    except msgspec.ValidationError:
        raise place.error(field, _seen(value)) from None
    match field.type:
        case "decimal" if not _DECIMAL_PATTERN.match(str(converted)):
            raise place.error(field, _seen(value))
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


# Reading the text of a schema.


class _Parser:
    """One pass over the words of a schema; `place` is where the next word begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = [(match.group(), match.start()) for match in _WORD.finditer(text)]
        self._next = 0

    def schema(self) -> Schema:
        fields = self._fields(depth=1)
        word, place = self._peek()
        if word:
            raise SchemaError(f'expected "," or the end, found "{word}"', self._text, place)
        return Schema(fields)

    def _fields(self, depth: int) -> tuple[Field, ...]:
        fields: dict[str, Field] = {}
        while True:
            place = self._peek()[1]
            field = self._field(depth)
            if field.name in fields:
                raise SchemaError(f'the field "{field.name}" is there twice', self._text, place)
            if len(fields) == FIELDS_MAX:
                raise SchemaError(f"there are more than {FIELDS_MAX} fields", self._text, place)
            fields[field.name] = field
            if not self._accept(","):
                return tuple(fields.values())

    def _field(self, depth: int) -> Field:
        name, place = self._take()
        if not name:
            raise SchemaError(
                "expected a field: a name and a type", self._text, place, "for example: id int, at timestamp"
            )
        if not can_name_a_field(name):
            hint = 'a name is a letter or "_", then letters, digits, "_" or "-"'
            raise SchemaError(f'expected the name of a field, found "{name}"', self._text, place, hint)
        kind = self._type(name)
        inner = self._record(depth + 1) if kind == "record" else ()
        return Field(name, kind, self._accept("null"), inner)

    def _type(self, name: str) -> FieldType:
        word, place = self._take()
        known = f"the types are {', '.join(TYPES)}"
        if not word or word in ",()":
            raise SchemaError(f'the field "{name}" needs a type', self._text, place, known)
        kind = word.lower()
        if kind not in TYPES:
            near = get_close_matches(kind, TYPES, 1)
            raise SchemaError(
                f'"{word}" is not a type', self._text, place, f'did you mean "{near[0]}"?' if near else known
            )
        return cast("FieldType", kind)

    def _record(self, depth: int) -> tuple[Field, ...]:
        place = self._peek()[1]
        if not self._accept("("):
            raise SchemaError(
                "a record needs its fields", self._text, place, "for example: record(lat float, lon float)"
            )
        if depth > DEPTH_MAX:
            raise SchemaError(f"records are nested more than {DEPTH_MAX} deep", self._text, place)
        fields = self._fields(depth)
        word, place = self._peek()
        if not self._accept(")"):
            found = f'"{word}"' if word else "the end"
            raise SchemaError(f'expected "," or ")", found {found}', self._text, place)
        return fields

    def _peek(self) -> tuple[str, int]:
        if self._next < len(self._words):
            return self._words[self._next]
        return "", len(self._text)

    def _take(self) -> tuple[str, int]:
        word = self._peek()
        self._next += 1
        return word

    def _accept(self, wanted: str) -> bool:
        if self._peek()[0].lower() != wanted:
            return False
        self._next += 1
        return True


def _check_names(fields: tuple[Field, ...]) -> None:
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ValueError("two fields have the same name")


def _depth(fields: tuple[Field, ...]) -> int:
    return 1 + max((_depth(field.fields) for field in fields), default=0) if fields else 0
