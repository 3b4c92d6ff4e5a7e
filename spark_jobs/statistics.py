"""Statistics of recorded streams in the words of the planners: rates, sizes, distinct and frequent values, ranges.

It reads one field at a time, so a long recording needs the memory of one column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from queries.cost import StreamRates
from queries.expressions import EPOCH, MICROSECOND
from queries.schema import Field
from queries.selectivity import ColumnStatistics
from spark_jobs.bridge import values as python_values
from spark_jobs.recordings import ORIGIN, PUBLISHED, SEQUENCE, Recording

FREQUENT: Final = 5
FREQUENT_SHARE_MIN: Final = 1 / 32  # Rarer values are not listed.
SAMPLE: Final = 1000  # How many rows are measured for the size.
NUMBERS: Final = ("int", "float", "decimal", "timestamp")

Path = tuple[str, ...]


def statistics_of(recording: Recording) -> StreamRates:
    """What a recording tells of its stream."""
    order = _order(recording)
    columns: dict[Path, ColumnStatistics] = {}
    for field in recording.stream.schema.fields:
        if recording.rows:
            whole = recording.column(field.name).take(order).combine_chunks()
            columns |= dict(_columns(field, (field.name,), whole))
    own = [columns[field.name,].row_bytes or 0.0 for field in recording.stream.schema.fields if recording.rows]
    return StreamRates(
        rate_per_s=round(_rate_per_s(recording), 3),
        row_bytes=round(1 + sum(own), 1),  # One byte holds the number of fields.
        columns=columns,
        retention_s=recording.stream.retention_ms / 1000,
    )


def all_statistics(recordings: Mapping[str, Recording]) -> dict[str, StreamRates]:
    return {name: statistics_of(each) for name, each in recordings.items()}


def _order(recording: Recording) -> Any:
    """The order of the rows by publication, as they arrive."""
    keys = [PUBLISHED, ORIGIN, SEQUENCE]
    table = pa.Table.from_pydict({key: recording.column(key) for key in keys})
    return pc.sort_indices(table, [(key, "ascending") for key in keys])


def _rate_per_s(recording: Recording) -> float:
    """Tuples per second from the first to the last; if all have one time, all in one second."""
    if not recording.rows:
        return 0.0
    ends = pc.min_max(recording.column(PUBLISHED)).as_py()
    seconds: float = (ends["max"] - ends["min"]).total_seconds()
    return recording.rows / max(seconds, 1.0)


def _columns(field: Field, path: Path, values: Any) -> Iterator[tuple[Path, ColumnStatistics]]:
    """The statistics of a field and of those inside it."""
    yield path, _column(field, values)
    if field.type == "record":
        for inner, child in zip(field.fields, values.flatten(), strict=True):
            yield from _columns(inner, (*path, inner.name), child)


def _column(field: Field, values: Any) -> ColumnStatistics:
    nulls = round(values.null_count / len(values), 4)
    row_bytes = round(_row_bytes(field, values), 2)
    if field.type in ("record", "bytes"):
        return ColumnStatistics(row_bytes=row_bytes, nulls=nulls)
    low, high = _ends(field, values)
    return ColumnStatistics(
        distinct=float(pc.count_distinct(values, mode="only_valid").as_py()),
        low=low,
        high=high,
        row_bytes=row_bytes,
        nulls=nulls,
        increment=_increment(field, values, low, high),
        frequent=_frequent(field, values),
    )


def _row_bytes(field: Field, values: Any) -> float:
    """Mean bytes that a value adds to a row on the wire, from a sample."""
    step = max(len(values) // SAMPLE, 1)
    sample = python_values(field.type, field.fields, values.take(pa.array(range(0, len(values), step), pa.int64())))
    return sum(len(msgspec.msgpack.encode(each)) for each in sample) / len(sample)


def _ends(field: Field, values: Any) -> tuple[float | None, float | None]:
    if field.type not in NUMBERS:
        return None, None
    finite = values.filter(pc.is_finite(values)) if field.type == "float" else values
    ends = pc.min_max(finite).as_py()
    return _number(ends["min"]), _number(ends["max"])


def _number(value: Any) -> float | None:
    """The value as predicates count: timestamps in microseconds."""
    if isinstance(value, datetime):
        return float((value - EPOCH) // MICROSECOND)
    return None if value is None else float(value)


def _increment(field: Field, values: Any, low: float | None, high: float | None) -> float | None:
    """By how much a field grows with each row; None if it ever falls."""
    if field.type not in NUMBERS or low is None or high is None or values.null_count or len(values) < 2:
        return None
    falls = pc.any(pc.less(values[1:], values[:-1])).as_py()
    return None if falls else (high - low) / (len(values) - 1)


def _frequent(field: Field, values: Any) -> tuple[tuple[str, float], ...]:
    """The most frequent values as JSON, with their shares; none if all are rare."""
    counted = pc.value_counts(values)
    times = counted.field("counts")
    top = pc.select_k_unstable(pa.Table.from_pydict({"times": times}), FREQUENT + 1, [("times", "descending")])
    found = zip(
        times.take(top).to_pylist(),
        python_values(field.type, field.fields, counted.field("values").take(top)),
        strict=True,
    )
    return tuple(
        (msgspec.json.encode(value).decode(), round(often / len(values), 4))
        for often, value in found
        if value is not None and often > 1 and often / len(values) >= FREQUENT_SHARE_MIN
    )[:FREQUENT]
