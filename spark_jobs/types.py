"""Our types in Spark, and its column names: c0, c1, … for the columns of a row, fixed words for what the engine needs.

No name of a stream, field or alias ever reaches Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queries.decimals import PLACES, WHOLE
from queries.expressions import Column
from queries.schema import Field

DECIMAL: Final = DecimalType(WHOLE + PLACES, PLACES)
_TYPES: Final[dict[str, DataType]] = {
    "int": LongType(),
    "float": DoubleType(),
    "decimal": DECIMAL,
    "string": StringType(),
    "bool": BooleanType(),
    "timestamp": TimestampType(),
    "bytes": BinaryType(),
    "interval": DayTimeIntervalType(DayTimeIntervalType.DAY, DayTimeIntervalType.SECOND),
    "null": NullType(),
}

# What every row of a source has beside its own columns.
NUMBER: Final = "number"  # The input it came with.
IS_NEW: Final = "is_new"
CLOSED: Final = "closed"  # Our watermark when it came: windows that end by then have been told.
FORGET: Final = "forget"  # What Spark may forget; its watermark is made of this alone.
MARK: Final = "mark"  # -1 for data; otherwise the number of the source whose input ends here.
ENGINE: Final = StructType(
    [
        StructField(NUMBER, LongType(), nullable=False),
        StructField(IS_NEW, BooleanType(), nullable=False),
        StructField(CLOSED, TimestampType()),
        StructField(FORGET, TimestampType(), nullable=False),
        StructField(MARK, IntegerType(), nullable=False),
    ]
)

# What every row of a result has beside the plan's columns, and NUMBER and MARK.
DUE: Final = "due"  # Told once our watermark has come so far; null: at once.
KEY: Final = (
    "key"  # For an aggregate: its keys and its window's end. A later row replaces an earlier one until it is due.
)
KEEP: Final = "keep"  # False: there is no result, and an earlier one is withdrawn.


def place_name(place: int) -> str:
    """The column name for a place in a row."""
    return f"c{place}"


def data_type(kind: str, fields: Sequence[Field] = ()) -> DataType:
    """The Spark type of a value: a record is a struct with fields c0, c1, …, a list an array of them."""
    if kind in ("record", "list"):
        record = StructType(
            [StructField(place_name(place), data_type(each.type, each.fields)) for place, each in enumerate(fields)]
        )
        return record if kind == "record" else ArrayType(record)
    return _TYPES[kind]


def row_type(columns: Sequence[Column]) -> StructType:
    """The type of rows with these columns."""
    return StructType(
        [StructField(place_name(place), data_type(each.type, each.fields)) for place, each in enumerate(columns)]
    )


def source_type(columns: Sequence[Column]) -> StructType:
    """The type of the rows that a source is fed."""
    return StructType(row_type(columns).fields + ENGINE.fields)
