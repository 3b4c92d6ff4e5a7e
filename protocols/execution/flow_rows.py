"""Rows between subgraphs: how a flow carries them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from queries.expressions import Column
from queries.schema import Field, FieldType, Row, Schema

FLOW_BYTES: Final = 256 << 10  # Of rows in one message.


@lru_cache(maxsize=1024)
def _row_schema(columns: tuple[Column, ...]) -> Schema:
    """The schema of rows between subgraphs: the columns by position, whatever their names."""
    kinds: tuple[tuple[FieldType, bool, tuple[Field, ...]], ...] = tuple(
        (column.type, column.nullable, column.fields)  # type: ignore[misc]
        for column in columns
    )
    return Schema(tuple(Field(f"c{place}", *kind) for place, kind in enumerate(kinds)))


def encode_rows(columns: tuple[Column, ...], rows: Sequence[Row]) -> bytes:
    return _row_schema(columns).encode(rows)


def decode_rows(columns: tuple[Column, ...], rows: bytes) -> list[Row]:
    return _row_schema(columns).decode(rows)


def chunks(rows: bytes, count: int) -> list[tuple[bytes, int, bool]]:
    """Encoded rows in messages that are not too large; at least one, as progress travels with it."""
    if len(rows) <= FLOW_BYTES:
        return [(rows, count, True)]
    raw = msgspec.msgpack.decode(rows, type=list[msgspec.Raw])
    step = max(1, FLOW_BYTES * count // len(rows))
    parts = [raw[place : place + step] for place in range(0, count, step)]
    return [(msgspec.msgpack.encode(part), len(part), part is parts[-1]) for part in parts]
