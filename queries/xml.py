"""XML items and the records they stand for: one element for each field, a record's fields inside its element.

Reading refuses what a record cannot hold, and says where: an unknown element, a repeated one, text between elements.
Attributes count as elements, since each could be one. Document types are refused before their content is read, so there
are no entities to expand. Size and depth have limits.
"""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from xml.parsers import expat

from queries import decimals
from queries.errors import nearest
from queries.schema import ROW_BYTES_MAX, Field, Row, RowError, Schema

ITEM_BYTES_MAX: Final = ROW_BYTES_MAX
_UNSPEAKABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPED: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})


class XmlError(ValueError):
    """XML that is not an item of a stream; line and column count from 1."""

    def __init__(self, problem: str, line: int, column: int, hint: str = "") -> None:
        super().__init__(f"line {line}, column {column}: {problem}" + (f"\nhint: {hint}" if hint else ""))
        self.problem = problem
        self.line = line
        self.column = column
        self.hint = hint


def read_item(text: str | bytes, schema: Schema) -> Row:
    """The row of one item; the name of its element does not matter.

    >>> read_item("<photon><en>1.30</en><at><x>3</x></at></photon>", Schema.parse("at record(x int), en decimal"))
    ((3,), Decimal('1.30'))
    """
    reader = ItemReader(schema, depth=1)
    (row,) = [*reader.feed(_bytes(text)), *reader.close()]
    return row


def read_document(text: str | bytes, schema: Schema) -> list[Row]:
    """The rows of a document, whose element holds the items.

    >>> read_document("<photons><photon><en>1</en></photon><photon en='2'/></photons>", Schema.parse("en int"))
    [(1,), (2,)]
    """
    reader = ItemReader(schema)
    return [*reader.feed(_bytes(text)), *reader.close()]


def write_item(row: Row, schema: Schema, tag: str = "item") -> str:
    """A row as an item; fields that are null are left out.

    >>> write_item((1.5, None, ("a<b",)), Schema.parse("x float, y int null, z record(s string)"))
    '<item><x>1.5</x><z><s>a&lt;b</s></z></item>'
    """
    pieces: list[str] = []
    append_element(pieces, tag, row, schema.fields)
    return "".join(pieces)


def append_element(pieces: list[str], tag: str, value: Any, fields: tuple[Field, ...]) -> None:
    """Append the element of a value to the pieces of a text; nothing for null."""
    if value is None:
        return
    pieces.append(f"<{tag}>")
    if fields:
        for field, inner in zip(fields, value, strict=True):
            append_element(pieces, field.name, inner, field.fields)
    else:
        pieces.append(text_of(value))
    pieces.append(f"</{tag}>")


def text_of(value: Any) -> str:
    """A value as the text of an element, as XML Schema writes it. A character that XML does not allow becomes U+FFFD.

    Equal decimals have equal texts, with no zeros at the end: engines differ in how many they keep.

    >>> text_of(True), text_of(Decimal("1.50")), text_of(Decimal("1E+2")), text_of(float("inf")), text_of("a & b")
    ('true', '1.5', '100', 'INF', 'a &amp; b')
    """
    match value:
        case str():
            return _UNSPEAKABLE.sub("\ufffd", value).translate(_ESCAPED)
        case bool():
            return "true" if value else "false"
        case float():
            return {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(repr(value), repr(value))
        case Decimal():
            return decimals.text(value)
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case bytes():
            return b64encode(value).decode()
    return str(value)


class _Open:
    """An open element: its field, and what has been found in it so far."""

    def __init__(self, name: str, fields: tuple[Field, ...]) -> None:
        self.name = name
        self.fields = fields
        self.values: dict[str, Any] = {}
        self.text: list[str] = []


class ItemReader:
    """Reads items as their bytes arrive, from a document that may never end.

    >>> reader = ItemReader(Schema.parse("en int"))
    >>> reader.feed(b"<photons><photon><en>1</en></photon><pho"), reader.feed(b"ton><en>2</en></photon>")
    ([(1,)], [(2,)])
    """

    def __init__(self, schema: Schema, depth: int = 2) -> None:
        """`depth` says where items are: 2 inside a document's element, 1 for a single item."""
        self._schema = schema
        self._item_depth = depth
        self._depth = 0
        self._open: list[_Open] = []  # From the item down.
        self._places: dict[str, tuple[int, int]] = {}  # Where each field of the item began.
        self._rows: list[Row] = []
        self._fed = 0
        self._item_at = 0  # Byte offset where the current item began, or the last one ended.
        self._parser = expat.ParserCreate("utf-8")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = self._doctype

    def feed(self, data: bytes) -> list[Row]:
        """The rows of the items that end in these bytes; raises XmlError."""
        self._fed += len(data)
        self._parse(data, last=False)
        if self._fed - self._item_at > ITEM_BYTES_MAX:
            raise self._error(f"an item has more than {ITEM_BYTES_MAX} bytes")
        rows, self._rows = self._rows, []
        return rows

    def close(self) -> list[Row]:
        """End the input; raises XmlError if the document has not ended."""
        self._parse(b"", last=True)
        rows, self._rows = self._rows, []
        return rows

    def _parse(self, data: bytes, last: bool) -> None:
        try:
            self._parser.Parse(data, last)
        except expat.ExpatError as error:
            problem = expat.errors.messages.get(error.code, "not XML")
            raise XmlError(problem, error.lineno, error.offset + 1) from None

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._check_size()
        self._depth += 1
        if self._depth < self._item_depth:
            return
        if self._depth == self._item_depth:
            self._item_at = self._parser.CurrentByteIndex
            self._places = {"": self._place()}
            self._open = [_Open(tag, self._schema.fields)]
        else:
            self._open.append(self._child(tag))
        for name, value in attributes.items():
            inner = self._child(name)
            if inner.fields:
                raise self._error(f'"{name}" holds elements, and no attribute can')
            self._open[-1].values[inner.name] = value

    def _child(self, tag: str) -> _Open:
        """The element's field inside the open one."""
        parent = self._open[-1]
        if not parent.fields:
            raise self._error(f'"{parent.name}" holds a value, and no elements like "{tag}"')
        field = next((each for each in parent.fields if each.name == tag), None)
        if field is None:
            names = [each.name for each in parent.fields]
            raise self._error(f'"{parent.name}" has no element "{tag}"', nearest(tag, names))
        if tag in parent.values:
            raise self._error(f'"{tag}" is in "{parent.name}" twice', "a field of a record has one value")
        parent.values[tag] = None
        self._places[self._dotted(tag)] = self._place()
        return _Open(tag, field.fields)

    def _dotted(self, tag: str) -> str:
        return ".".join([*(each.name for each in self._open[1:]), tag])

    def _end(self, _: str) -> None:
        self._check_size()
        self._depth -= 1
        if self._depth + 1 < self._item_depth:
            return
        done = self._open.pop()
        if self._open:
            self._open[-1].values[done.name] = done.values if done.fields else "".join(done.text)
            return
        self._item_at = self._parser.CurrentByteIndex
        self._rows.append(self._row(done.values))

    def _row(self, values: dict[str, Any]) -> Row:
        try:
            return self._schema.row(_tidied(values, self._schema.fields), number=len(self._rows), from_text=True)
        except RowError as error:
            line, column = self._places.get(error.field, self._places[""])
            raise XmlError(f'"{error.field}": expected {error.expected}, got {error.got}', line, column) from None

    def _text(self, text: str) -> None:
        self._check_size()
        inside = self._open[-1] if self._open else None
        if inside is not None and not inside.fields:
            inside.text.append(text)
        elif text.strip():
            where = f'in "{inside.name}"' if inside is not None else "between items"
            raise self._error(f"there is text {where}, beside its elements")

    def _doctype(self, *_: Any) -> None:
        raise self._error("document types are not allowed", "leave out <!DOCTYPE …>")

    def _check_size(self) -> None:
        if self._parser.CurrentByteIndex - self._item_at > ITEM_BYTES_MAX:
            raise self._error(f"an item has more than {ITEM_BYTES_MAX} bytes")

    def _place(self) -> tuple[int, int]:
        return self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1

    def _error(self, problem: str, hint: str = "") -> XmlError:
        return XmlError(problem, *self._place(), hint)


def _tidied(values: dict[str, Any], fields: tuple[Field, ...]) -> dict[str, Any]:
    """Texts without surrounding space, unless the field is a string."""
    by_name = {field.name: field for field in fields}
    return {name: _tidied_value(value, by_name[name]) for name, value in values.items()}


def _tidied_value(value: Any, field: Field) -> Any:
    match field.type:
        case "record":
            return _tidied(value, field.fields)
        case "string":
            return value
        case "bytes" if not value.strip():
            return b""  # As with a string, an empty element is a value.
    return value.strip()


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
