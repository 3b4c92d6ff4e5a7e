"""How rows lie in a batch, and how a batch is read whatever version of its stream's columns it was written by.

A row is an array with one place for each column that its stream has had until it was written. A column that is added
gets the next place, and the place of a dropped one is never given again. So a row says by its length alone what it has:

    version 1   num, gate                [7, "A1"]
    version 2   + delay float null       [8, "B2", 1.5]
    version 3   - gate                   [9, null, 2.5]
    version 4   + gate int null          [9, null, 2.5, 12]

Who knows more places than a row has takes the missing ones for null; who knows fewer leaves the rest out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec

if TYPE_CHECKING:
    from queries.schema import Field, Row

INT: Final = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
TIMESTAMP: Final = Annotated[datetime, msgspec.Meta(tz=True)]
DECIMAL: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?$"

IN_PYTHON: Final[dict[str, Any]] = {
    "int": INT,
    "float": float,
    "decimal": Decimal,
    "string": str,
    "bool": bool,
    "timestamp": TIMESTAMP,
    "bytes": bytes,
}
# What the check of a batch demands. It builds no Decimal, and admits no infinity and no NaN.
ON_THE_WIRE: Final = IN_PYTHON | {"decimal": Annotated[str, msgspec.Meta(pattern=DECIMAL)]}
_raw_values: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Reading:
    """Decodes batches by the places of one schema.

    Rows with exactly these places are decoded as tuples, which is fast. A batch with other rows is decoded once more,
    place by place.
    """

    def __init__(
        self, places: Sequence[Field], shown: Sequence[int], scalars: Mapping[str, Any], *, strict: bool
    ) -> None:
        self._is_whole = len(shown) == len(places)
        self._whole = msgspec.msgpack.Decoder(list[record_type(places, scalars)])  # type: ignore[misc]
        self._places, self._scalars, self._strict = places, scalars, strict
        self._picked = _picker(shown)
        self._apart: msgspec.msgpack.Decoder[Any] | None = None

    def decode(self, rows: bytes) -> list[Row]:
        """The rows of a batch; raises what msgspec raises if they do not fit."""
        try:
            return self._decoded(rows)
        except RecursionError as error:  # Behind the places that it shows, a row may have anything.
            raise msgspec.ValidationError("a row that is nested too deeply") from error

    def _decoded(self, rows: bytes) -> list[Row]:
        if self._is_whole:
            try:
                return cast("list[Row]", self._whole.decode(rows))
            except msgspec.ValidationError:
                pass  # Some row is older or newer than the schema; or none fits, and the next line says so.
        if self._apart is None:
            shape = _row_struct(self._places, self._scalars, strict=self._strict)
            self._apart = msgspec.msgpack.Decoder(list[shape])  # type: ignore[valid-type]
        return list(map(self._picked, self._apart.decode(rows)))


def thinned(row: msgspec.Raw, kept: Sequence[bool]) -> list[msgspec.Raw | None]:
    """A row as it is written, with null in every place that is not kept: who reads it must not read such a place.

    It ends before the places that `kept` does not speak of.
    """
    return [value if keep else None for value, keep in zip(_raw_values.decode(row), kept, strict=False)]


def least_places(places: Sequence[Field]) -> int:
    """With how many places a row may end: what is behind them may be null."""
    return max((number for number, field in enumerate(places, 1) if not field.nullable), default=0)


def spread(rows: Iterable[Row], gone: Sequence[int]) -> list[Row]:
    """Rows with null in the places of dropped columns; these are named in order."""
    written = list(rows)
    for place in gone:
        written = [(*row[:place], None, *row[place:]) for row in written]
    return written


def record_type(fields: Iterable[Field], scalars: Mapping[str, Any]) -> Any:
    """A record as msgspec wants it."""
    return tuple[tuple(field_type(field, scalars) for field in fields)]  # type: ignore[misc]


def field_type(field: Field, scalars: Mapping[str, Any]) -> Any:
    match field.type:
        case "record":
            kind = record_type(field.fields, scalars)
        case "list":
            kind = tuple[record_type(field.fields, scalars), ...]  # type: ignore[misc]
        case _:
            kind = scalars[field.type]
    return kind | None if field.nullable else kind


def _row_struct(places: Sequence[Field], scalars: Mapping[str, Any], *, strict: bool) -> type[msgspec.Struct]:
    """A row place by place. Strict: for rows that a publisher wrote by this schema, or by an older one. Otherwise any
    place may be missing or null: a newer version may have dropped its column.
    """
    least = least_places(places) if strict else 0
    fields: list[Any] = []
    for number, field in enumerate(places):
        kind = field_type(field, scalars)
        fields.append((f"c{number}", kind) if number < least else (f"c{number}", kind | None, None))
    return msgspec.defstruct("PlacedRow", fields, array_like=True, forbid_unknown_fields=strict)


def _picker(shown: Sequence[int]) -> Callable[[Any], Row]:
    if len(shown) == 1:
        only = attrgetter(f"c{shown[0]}")
        return lambda row: (only(row),)
    return cast("Callable[[Any], Row]", attrgetter(*(f"c{place}" for place in shown)))
