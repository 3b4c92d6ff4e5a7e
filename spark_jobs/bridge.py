"""Rows of Python to Arrow and back, exactly: what crosses between the daemon and Spark.

Columns have names of ours (c0, c1, ...), never those of a stream: no text of a user reaches Spark. Beside them travels
what the engine needs to know of a row:

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
from decimal import ROUND_HALF_UP, Context, Decimal
from operator import itemgetter
from typing import Any, Final, Literal

import pyarrow as pa

from queries.expressions import EPOCH, MICROSECOND, Column, ValueType
from queries.schema import Field, Row

NO_MARK: Final = -1
# Spark's watermark begins at 1970 and drops what is older; so times that Spark compares with it are moved by our years.
SHIFT_US: Final = 719_162 * 86_400_000_000  # From year 1 to 1970.

DECIMAL: Final = pa.decimal128(38, 18)
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

_EXACT: Final = Context(60, ROUND_HALF_UP)
_ULP: Final = Decimal(1).scaleb(-18)
_LIMIT: Final = Decimal(10) ** 20


def arrow_type(kind: ValueType, fields: Sequence[Field] = ()) -> pa.DataType:
    """The type of a column; records have fields c0, c1, ..."""
    if kind == "record":
        return pa.struct([pa.field(f"c{place}", arrow_type(f.type, f.fields)) for place, f in enumerate(fields)])
    if kind == "list":
        return pa.list_(arrow_type("record", fields))
    return _SCALARS[kind]


def source_schema(columns: Sequence[Column]) -> pa.Schema:
    """What a source's rows are in a spool."""
    own = [pa.field(f"c{place}", arrow_type(each.type, each.fields)) for place, each in enumerate(columns)]
    return pa.schema([*own, *SOURCE_HIDDEN])


# To Arrow.


def to_arrow(columns: Sequence[Column], rows: Sequence[Row]) -> list[pa.Array]:
    """The columns of rows."""
    return [_array(each.type, each.fields, list(map(itemgetter(n), rows))) for n, each in enumerate(columns)]


def _array(kind: ValueType, fields: Sequence[Field], values: Sequence[Any]) -> pa.Array:
    match kind:
        case "record":
            there = [value if value is not None else (None,) * len(fields) for value in values]
            children = [_array(f.type, f.fields, list(map(itemgetter(n), there))) for n, f in enumerate(fields)]
            mask = pa.array([value is None for value in values], pa.bool_())
            return pa.StructArray.from_arrays(children, fields=list(arrow_type(kind, fields)), mask=mask)
        case "decimal":
            return pa.array([None if value is None else _fitted(value) for value in values], DECIMAL)
        case "timestamp":
            return _times(values)
    return pa.array(values, arrow_type(kind, fields))


def _times(values: Sequence[Any]) -> pa.Array:
    """Rows of one batch often have one time; and from numbers it is quicker than from times."""
    if values and values.count(values[0]) == len(values) and values[0] is not None:
        return pa.repeat((values[0] - EPOCH) // MICROSECOND, len(values)).cast(TIMESTAMP)
    micros = [None if value is None else (value - EPOCH) // MICROSECOND for value in values]
    return pa.array(micros, pa.int64()).cast(TIMESTAMP)


def _fitted(value: Decimal) -> Decimal | None:
    """The number with the digits that Spark's decimals have; null where it is too large for them."""
    if abs(value) >= _LIMIT:
        return None
    return value.quantize(_ULP, context=_EXACT)


# From Arrow.


def from_arrow(columns: Sequence[Column], arrays: Sequence[pa.Array]) -> list[Row]:
    """The rows that columns make."""
    lists = [values(each.type, each.fields, array) for each, array in zip(columns, arrays, strict=True)]
    return list(zip(*lists, strict=True))


def values(kind: ValueType, fields: Sequence[Field], array: pa.Array) -> list[Any]:
    """What an array holds, in Python's types."""
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
            return [None if value is None else _plain(value) for value in array.to_pylist()]
        case "record":
            inner = [values(f.type, f.fields, child) for f, child in zip(fields, array.flatten(), strict=True)]
            return [row if there else None for row, there in zip(_rows(inner, array), _present(array), strict=True)]
        case "list":
            records = values("record", fields, array.flatten())
            ends = array.value_lengths().to_pylist()
            return _split(records, ends)
    return list(array.to_pylist())


def _numbers(array: pa.Array, code: Literal["q", "d"]) -> list[Any]:
    """Numbers of 64 bits, straight from memory where none is null."""
    if array.null_count or sys.byteorder != "little" or not len(array):
        return list(array.to_pylist())
    data = memoryview(array.buffers()[1]).cast("B")[array.offset * 8 : (array.offset + len(array)) * 8]
    return list(data.cast("q") if code == "q" else data.cast("d"))


def _from_microseconds(array: pa.Array, of: Callable[[int], Any]) -> list[Any]:
    numbers = _numbers(array.view(pa.int64()), "q")
    known = {micros: None if micros is None else of(micros) for micros in dict.fromkeys(numbers)}  # Often few.
    return [known[micros] for micros in numbers]


def _plain(value: Decimal) -> Decimal:
    """Without the zeros that filled it up."""
    short = value.normalize(_EXACT)
    exponent = short.as_tuple().exponent
    return short.quantize(Decimal(1)) if isinstance(exponent, int) and exponent > 0 else short


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
    """A key of Python for each group: equal where Spark says that groups are the same."""
    if pa.types.is_struct(array.type):
        inner = [keys(child) for child in array.flatten()]
        there = zip(_rows(inner, array), _present(array), strict=True)
        return [row if is_there else None for row, is_there in there]
    if pa.types.is_floating(array.type):
        return [value if value == value else "nan" for value in _numbers(array, "d")]
    if pa.types.is_temporal(array.type):
        return _numbers(array.view(pa.int64()), "q")
    return list(array.to_pylist())
