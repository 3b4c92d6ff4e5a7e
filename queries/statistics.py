"""Statistics of streams as a file: written by whoever reads the tuples, read by whoever estimates a plan."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from queries.cost import StreamRates
from queries.selectivity import ColumnStatistics


class _Field(ColumnStatistics, frozen=True, kw_only=True):
    """One field, with its path."""

    path: tuple[str, ...]


class _Stream(msgspec.Struct, frozen=True, kw_only=True):
    rate_per_s: float
    row_bytes: float
    retention_s: float
    fields: tuple[_Field, ...] = ()


_STREAMS = msgspec.json.Decoder(dict[str, _Stream])


def to_json(streams: Mapping[str, StreamRates]) -> bytes:
    """
    >>> known = StreamRates(rate_per_s=2, row_bytes=10, columns={("k",): ColumnStatistics(distinct=3)})
    >>> from_json(to_json({"trades": known}))["trades"].columns[("k",)].distinct
    3.0
    """
    said = {
        name: _Stream(
            rate_per_s=each.rate_per_s,
            row_bytes=each.row_bytes,
            retention_s=each.retention_s,
            fields=tuple(_Field(path=path, **msgspec.structs.asdict(column)) for path, column in each.columns.items()),
        )
        for name, each in streams.items()
    }
    return msgspec.json.format(msgspec.json.encode(said), indent=2)


def from_json(text: bytes | str) -> dict[str, StreamRates]:
    """Read such a file; raises ValueError for any other text."""
    try:
        said = _STREAMS.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return {
        name: StreamRates(
            rate_per_s=each.rate_per_s,
            row_bytes=each.row_bytes,
            retention_s=each.retention_s,
            columns={field.path: _column(field) for field in each.fields},
        )
        for name, each in said.items()
    }


def _column(field: _Field) -> ColumnStatistics:
    known = msgspec.structs.asdict(field)
    del known["path"]
    return ColumnStatistics(**known)
