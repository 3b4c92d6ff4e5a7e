"""Recorded tuples of streams as Parquet: one file for each stream, its fields under their own names.

Each row also has its publication time, its origin (peer and epoch) and its sequence number there. Any Parquet tool
reads these files; the definition of the stream is in their metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import parquet

from queries.catalogue import DAY_MS, Stream
from queries.expressions import Column
from queries.schema import Field, Row, Schema
from spark_jobs.bridge import TIMESTAMP, arrow_type, to_arrow

PUBLISHED: Final = "$published"
ORIGIN: Final = "$origin"  # The publishing peer and its epoch.
SEQUENCE: Final = "$sequence"
ABOUT: Final = b"peerd"  # Its key in the metadata of a file.
SUFFIX: Final = ".parquet"
GROUP_ROWS: Final = 65_536
_OWN: Final = (pa.field(PUBLISHED, TIMESTAMP), pa.field(ORIGIN, pa.string()), pa.field(SEQUENCE, pa.int64()))


class NoRecording(Exception):
    """A file is not a recording of ours; says why."""


class About(msgspec.Struct, frozen=True):
    """What a file says of its stream."""

    name: str
    schema: str
    event_time: str | None = None
    lateness_ms: int = 0
    retention_ms: int = DAY_MS


class Recorder:
    """Writes the tuples of one stream, in whatever order origins deliver them. The file appears when it is closed."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        self._stream_schema, self._columns = stream.schema, _columns(stream.schema)
        about = About(stream.name, str(stream.schema), stream.event_time, stream.lateness_ms, stream.retention_ms)
        self._schema = file_schema(stream.schema).with_metadata({ABOUT: msgspec.json.encode(about)})
        self._path = folder / f"{stream.name}{SUFFIX}"
        self._part = self._path.with_suffix(".part")
        self._writer = parquet.ParquetWriter(self._part, self._schema, compression="zstd")
        self._rows: list[Row] = []
        self._own: list[tuple[int, str, int]] = []
        self.rows = 0
        self.unfit = 0  # With decimals that an earlier release accepted.

    def add(self, origin: str, first: int, published_us: int, rows: Sequence[Row]) -> None:
        """Consecutive tuples of one origin, published together."""
        fit = self._stream_schema.held(rows)
        places: Sequence[int] = range(len(rows))
        if len(fit) < len(rows):
            places = [place for place in places if self._stream_schema.held([rows[place]])]
        self._rows += fit
        self._own += [(published_us, origin, first + place) for place in places]
        self.rows += len(fit)
        self.unfit += len(rows) - len(fit)
        if len(self._rows) >= GROUP_ROWS:
            self._write()

    def close(self) -> Path:
        self._write()
        self._writer.close()
        return self._part.replace(self._path)

    def drop(self) -> None:
        """Leave nothing behind."""
        self._writer.close()
        self._part.unlink()

    def _write(self) -> None:
        if not self._rows:
            return
        own = zip(to_arrow(self._columns, self._rows), self._schema, strict=False)
        arrays = [as_type(array, field.type) for array, field in own]
        published, origins, sequences = (list(values) for values in zip(*self._own, strict=True))
        arrays += [
            pa.array(published, pa.int64()).cast(TIMESTAMP),
            pa.array(origins, pa.string()),
            pa.array(sequences, pa.int64()),
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._rows, self._own = [], []


class Recording:
    """One recorded stream."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = parquet.ParquetFile(path)
            about = msgspec.json.decode((self._file.schema_arrow.metadata or {})[ABOUT], type=About)
            schema = Schema.parse(about.schema)
        except (OSError, KeyError, ValueError) as error:  # Arrow's own errors are ValueErrors.
            raise NoRecording(f'"{path}" is not a recording of a stream: {error}') from error
        if self._file.schema_arrow.remove_metadata() != file_schema(schema):
            raise NoRecording(f'"{path}" does not hold what its stream would')
        self.stream = Stream(about.name, schema, about.event_time, about.lateness_ms, about.retention_ms)

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in the order of the file, in portions."""
        for number in range(self._file.num_row_groups):
            yield self._file.read_row_group(number, columns=columns)

    def column(self, name: str) -> pa.ChunkedArray:
        return self._file.read(columns=[name]).column(name)


def open_all(folder: Path) -> dict[str, Recording]:
    """The recordings of a folder, by stream."""
    recordings = [Recording(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    return {each.stream.name: each for each in recordings}


def file_schema(schema: Schema) -> pa.Schema:
    return pa.schema([*(pa.field(each.name, named_type(each)) for each in schema.fields), *_OWN])


def named_type(field: Field) -> pa.DataType:
    """The type of a field, records with their own names."""
    if field.type == "record":
        return pa.struct([pa.field(each.name, named_type(each)) for each in field.fields])
    return arrow_type(field.type)


def as_type(array: Any, kind: pa.DataType) -> Any:
    """The same values in a type that differs only in the names of record fields."""
    if not pa.types.is_struct(kind):
        return array
    children = [as_type(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _columns(schema: Schema) -> tuple[Column, ...]:
    return tuple(Column("", (each.name,), each.type, each.nullable, each.fields) for each in schema.fields)
