"""Rows as programs write them, and schemas as people do, turned into wire format; errors are PeerErrors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from peerd.errors import Exit, PeerError
from protocols.limits import Limits
from queries.schema import RowError, Schema, SchemaError

PUBLISH_BYTES_MAX: Final = Limits().publish_bytes_max
PUBLISH_ROWS_MAX: Final = Limits().publish_rows_max

Row = Mapping[str, Any] | Sequence[Any]
"""Values by name, or in the order of the schema."""


def encode_rows(schema: Schema, rows: Sequence[Row]) -> bytes:
    """Rows in wire format. Tuples are passed unchecked, because the peer checks them; anything else is checked here.

    >>> encode_rows(Schema.parse("id int, delay float null"), [(1, 2.5), {"id": 2}]).hex(" ")
    '92 92 01 cb 40 04 00 00 00 00 00 00 92 02 c0'
    """
    try:
        return schema.encode(
            [row if isinstance(row, tuple) else schema.row(row, number=number) for number, row in enumerate(rows)]
        )
    except RowError as error:
        raise PeerError(str(error), hint=f"The schema is: {schema}", exit_code=Exit.MISUSE) from error


def parse_schema(text: str) -> Schema:
    try:
        return Schema.parse(text)
    except SchemaError as error:
        raise PeerError(str(error), hint=error.hint or None, exit_code=Exit.MISUSE) from error
