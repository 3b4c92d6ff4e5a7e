"""Rows of Python to Arrow and back, exactly: what crosses between the daemon and Spark.

Columns are named c0, c1, …, never as in a stream, so no text of a user reaches Spark. Beside them travels what the
engine needs to know of a row:

| into Spark | meaning                                                                                          |
|------------|--------------------------------------------------------------------------------------------------|
| number     | The input the row came with; inputs are numbered from 1 over all sources of a run.               |
| is_new     | Whether the row is new; a result of old rows alone has been told already.                        |
| closed     | Windows that end by then take no more rows: our watermark before this input.                     |
| forget     | What Spark's watermark is made of, moved by SHIFT_US: no older state is needed. Never null.      |
| mark       | NO_MARK for a row; else the row is none, but ends the input `number` of this source.             |

| out of Spark | meaning                                                                                        |
|--------------|------------------------------------------------------------------------------------------------|
| number       | The newest input that the result is made of.                                                   |
| mark         | As above.                                                                                      |
| due          | Told once our watermark has come so far; null: at once. With a mark: how far it is.            |
| key          | The group of an aggregate: its newest row is the result. Null where a row is final at once.    |
| keep         | Whether there is a result; false takes back what was said of the group before.                 |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter, sub
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
from pyarrow import ipc

from queries import decimals
from queries.expressions import EPOCH, MICROSECOND, Column, ValueType
from queries.schema import Field, Row
from spark_jobs.results import Told
from spark_jobs.spool import Fed

NO_MARK: Final = -1
# Spark's watermark begins at 1970 and drops older rows, so all times that Spark compares with it are shifted.
SHIFT_US: Final = 719_162 * 86_400_000_000  # From year 1 to 1970.

DECIMAL: Final = pa.decimal128(decimals.WHOLE + decimals.PLACES, decimals.PLACES)
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_SCALARS: Final[dict[str, pa.DataType]] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "decimal": DECIMAL,
    "string": pa.string(),
    "bool": pa.bool_(),
    "timestamp": TIMESTAMP,
    "bytes": pa.binary(),
    "interval": pa.duration("us"),
    "null": pa.null(),
}
SOURCE_HIDDEN: Final = (
    pa.field("number", pa.int64()),
    pa.field("is_new", pa.bool_()),
    pa.field("closed", TIMESTAMP),
    pa.field("forget", TIMESTAMP),
    pa.field("mark", pa.int32()),
)


def arrow_type(kind: ValueType, fields: Sequence[Field] = ()) -> pa.DataType:
    """The type of a column; records have fields c0, c1, ..."""
    if kind == "record":
        return pa.struct([pa.field(f"c{place}", arrow_type(f.type, f.fields)) for place, f in enumerate(fields)])
    if kind == "list":
        return pa.list_(arrow_type("record", fields))
    return _SCALARS[kind]


def source_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of a source's rows in a spool."""
    own = [pa.field(f"c{place}", arrow_type(each.type, each.fields)) for place, each in enumerate(columns)]
    return pa.schema([*own, *SOURCE_HIDDEN])


# To Arrow.


def write_file(path: Path, columns: Sequence[Column], inputs: Sequence[Fed], mark: int | None) -> None:
    """Write inputs as one file of a spool: one record batch and, if marks are wanted, the mark of the last input."""
    schema = source_schema(columns)
    arrays = to_arrow(columns, [row for each in inputs for row in each.rows] if len(inputs) > 1 else inputs[0].rows)
    stretches = [(len(each.rows), _hidden(each)) for each in inputs if each.rows]
    if mark is not None:
        last = inputs[-1]
        stretches.append((1, (last.number, True, last.watermark_us, _forget(last), mark)))
        arrays = [pa.concat_arrays([array, pa.nulls(1, array.type)]) for array in arrays]
    for place, field in enumerate(SOURCE_HIDDEN):
        parts = [pa.repeat(_scalar(values[place], field.type), count) for count, values in stretches]
        arrays.append(parts[0] if len(parts) == 1 else pa.concat_arrays(parts))
    with pa.OSFile(str(path), "wb") as file, ipc.new_stream(file, schema) as out:
        out.write_batch(pa.record_batch(arrays, schema=schema))


def _hidden(fed: Fed) -> tuple[int | bool | None, ...]:
    return fed.number, fed.is_new, fed.closed_us, _forget(fed), NO_MARK


def _forget(fed: Fed) -> int:
    return 0 if fed.forget_us is None else max(fed.forget_us + SHIFT_US, 0)


def _scalar(value: int | bool | None, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_timestamp(kind) and value is not None:
        return pa.scalar(value, pa.int64()).cast(kind)
    return pa.scalar(value, kind)


def to_arrow(columns: Sequence[Column], rows: Sequence[Row]) -> list[pa.Array]:
    """The columns of rows."""
    arrays: list[pa.Array] = []
    times: list[tuple[list[Any], pa.Array]] = []
    for place, each in enumerate(columns):
        values = list(map(itemgetter(place), rows))
        if each.type != "timestamp":
            arrays.append(_array(each.type, each.fields, values))
            continue
        known = next((array for others, array in times if others == values), None)
        arrays.append(_times(values) if known is None else known)  # The time of a row is often one of its own values.
        times.append((values, arrays[-1]))
    return arrays


def _array(kind: ValueType, fields: Sequence[Field], values: Sequence[Any]) -> pa.Array:
    match kind:
        case "record":
            there = [value if value is not None else (None,) * len(fields) for value in values]
            children = [_array(f.type, f.fields, list(map(itemgetter(n), there))) for n, f in enumerate(fields)]
            mask = pa.array([value is None for value in values], pa.bool_())
            return pa.StructArray.from_arrays(children, fields=list(arrow_type(kind, fields)), mask=mask)
        case "decimal":
            return pa.array([None if value is None else decimals.with_all_places(value) for value in values], DECIMAL)
        case "timestamp":
            return _times(values)
    return pa.array(values, arrow_type(kind, fields))


def _times(values: Sequence[Any]) -> pa.Array:
    """The rows of a batch often share one time, and time spans convert faster than times."""
    if values and values[0] == values[-1] is not None and values.count(values[0]) == len(values):
        return pa.repeat((values[0] - EPOCH) // MICROSECOND, len(values)).cast(TIMESTAMP)
    if None in values:
        spans = [None if value is None else value - EPOCH for value in values]
    else:
        spans = list(map(sub, values, repeat(EPOCH)))
    return pa.array(spans, pa.duration("us")).view(pa.int64()).view(TIMESTAMP)


# From Arrow.


def results_of(columns: Sequence[Column], batch: pa.RecordBatch) -> Told:
    """What the sink reports in one record batch."""
    count = batch.num_rows
    due, key, keep = batch.column("due"), batch.column("key"), batch.column("keep")
    return Told(
        from_arrow(columns, batch.columns[: len(columns)]),
        values("int", (), batch.column("number")),
        None if due.null_count == count else values("int", (), due.view(pa.int64())),
        None if key.null_count == count else keys(key),
        None if keep.true_count == count else keep.to_pylist(),
    )


def from_arrow(columns: Sequence[Column], arrays: Sequence[pa.Array]) -> list[Row]:
    """The rows of these columns."""
    lists = [values(each.type, each.fields, array) for each, array in zip(columns, arrays, strict=True)]
    return list(zip(*lists, strict=True))


def values(kind: ValueType, fields: Sequence[Field], array: pa.Array) -> list[Any]:
    """The values of an array, in Python's types."""
    match kind:
        case "int":
            return _numbers(array, "q")
        case "float":
            return _numbers(array, "d")
        case "timestamp":
            return _from_microseconds(array, lambda micros: EPOCH + micros * MICROSECOND)
        case "interval":
            return _from_microseconds(array, lambda micros: micros * MICROSECOND)
        case "decimal":
            return [None if value is None else decimals.plain(value) for value in array.to_pylist()]
        case "record":
            inner = [values(f.type, f.fields, child) for f, child in zip(fields, array.flatten(), strict=True)]
            return [row if there else None for row, there in zip(_rows(inner, array), _present(array), strict=True)]
        case "list":
            records = values("record", fields, array.flatten())
            ends = array.value_lengths().to_pylist()
            return _split(records, ends)
    return list(array.to_pylist())


def _numbers(array: pa.Array, code: Literal["q", "d"]) -> list[Any]:
    """64-bit numbers, straight from memory if none is null."""
    if array.null_count or sys.byteorder != "little" or not len(array):
        return list(array.to_pylist())
    data = memoryview(array.buffers()[1]).cast("B")[array.offset * 8 : (array.offset + len(array)) * 8]
    return list(data.cast("q") if code == "q" else data.cast("d"))


def _from_microseconds(array: pa.Array, of: Callable[[int], Any]) -> list[Any]:
    numbers = _numbers(array.view(pa.int64()), "q")
    # There are often few different ones.
    known = {micros: None if micros is None else of(micros) for micros in dict.fromkeys(numbers)}
    return [known[micros] for micros in numbers]


def _rows(inner: list[list[Any]], array: pa.Array) -> Iterable[tuple[Any, ...]]:
    return zip(*inner, strict=True) if inner else ((),) * len(array)


def _present(array: pa.Array) -> list[bool]:
    return list(array.is_valid().to_pylist())


def _split(records: list[Any], lengths: list[int | None]) -> list[Any]:
    lists, place = [], 0
    for length in lengths:
        lists.append(None if length is None else tuple(records[place : place + length]))
        place += length or 0
    return lists


# The keys of groups.


def keys(array: pa.Array) -> list[Any]:
    """A Python key for each group: equal if Spark treats the groups as the same."""
    if pa.types.is_struct(array.type):
        inner = [keys(child) for child in array.flatten()]
        there = zip(_rows(inner, array), _present(array), strict=True)
        return [row if is_there else None for row, is_there in there]
    if pa.types.is_floating(array.type):
        return [value if value == value else "nan" for value in _numbers(array, "d")]
    if pa.types.is_temporal(array.type):
        return _numbers(array.view(pa.int64()), "q")
    return list(array.to_pylist())
