"""Rows come out of Arrow as they went in, whatever their types, and a spool counts a file once it is complete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.expressions import Column
from queries.plan import Source
from queries.schema import Field, Schema
from spark_jobs.bridge import NO_MARK, SHIFT_US, arrow_type, from_arrow, keys, to_arrow
from spark_jobs.spool import Fed, Spool
from tests.queries.edges import edges

PLACE = (Field("lat", "float", True), Field("inner", "record", True, (Field("n", "int", True),)))
COLUMNS = (
    Column("a", ("i",), "int", True),
    Column("a", ("f",), "float", True),
    Column("a", ("d",), "decimal", True),
    Column("a", ("s",), "string", True),
    Column("a", ("b",), "bool", True),
    Column("a", ("t",), "timestamp", True),
    Column("a", ("raw",), "bytes", True),
    Column("a", ("place",), "record", True, PLACE),
    Column("a", ("span",), "interval", True),
)
VALUES: tuple[Any, ...] = (
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    edges(),
    st.text(),
    st.booleans(),
    st.datetimes(timezones=st.just(UTC)),
    st.binary(),
    st.tuples(st.none() | st.floats(allow_nan=False), st.none() | st.tuples(st.none() | st.integers(-9, 9))),
    st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000)),
)
ROWS = st.lists(st.tuples(*(st.none() | each for each in VALUES)), max_size=20)


@given(ROWS)
def test_rows_come_back_as_they_were(rows: list[Any]):
    arrays = to_arrow(COLUMNS, rows)
    assert [array.type for array in arrays] == [arrow_type(each.type, each.fields) for each in COLUMNS]
    back = from_arrow(COLUMNS, arrays)
    assert back == rows
    assert [list(map(type, row)) for row in back] == [list(map(type, row)) for row in rows]


def test_decimals_come_back_without_exponents_and_trailing_zeros():
    column = (Column("a", ("d",), "decimal", True),)
    texts = ("1E+3", "1.50", "1E-18", "-99999999999999999999.999999999999999999", "0E-40")
    back = from_arrow(column, to_arrow(column, [(Decimal(text),) for text in texts]))
    assert [format(row[0], "f") for row in back] == ["1000", "1.5", "0.000000000000000001", texts[3], "0"]


@pytest.mark.parametrize("text", ["1E+20", "1E-19"])
def test_another_decimal_is_never_rounded_on_its_way_to_spark(text: str):
    with pytest.raises(DecimalException):
        to_arrow((Column("a", ("d",), "decimal", True),), [(Decimal(text),)])


def test_lists_of_records_come_back_as_tuples():
    column = (Column("", ("items",), "list", False, (Field("n", "int"),)),)
    array = pa.array([[{"c0": 1}, {"c0": 2}], []], pa.list_(pa.struct([("c0", pa.int64())])))
    assert from_arrow(column, [array]) == [(((1,), (2,)),), ((),)]


def test_keys_are_equal_where_groups_are():
    array = pa.array([{"a": float("nan"), "b": 1}, {"a": float("nan"), "b": 1}, {"a": None, "b": 1}, None])
    one, two, three, four = keys(array)
    assert one == two != three
    assert four is None


def test_a_spool_holds_rows_what_the_engine_knows_of_them_and_a_mark(tmp_path: Path):
    source = Source("s", "a", Schema.parse("k int"))
    spool = Spool(tmp_path, 0, source, True, None)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    spool.add(Fed(5, [(7, at)], False, 10, 20, 30))
    spool.write()
    assert (tmp_path / "0" / "HEAD").read_bytes() == (1).to_bytes(8, "little")
    with pa.OSFile(str(tmp_path / "0" / "1")) as file:
        rows, mark = pa.ipc.open_stream(file).read_all().to_pylist()
    shifted = datetime(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=20 + 2 * SHIFT_US)
    assert (rows["c0"], rows["c1"], rows["number"], rows["is_new"], rows["mark"]) == (7, at, 5, False, NO_MARK)
    assert rows["forget"] == mark["forget"] == shifted
    assert (mark["c0"], mark["number"], mark["mark"]) == (None, 5, 0)
    assert (mark["closed"] - rows["closed"]) == timedelta(microseconds=20)
    spool.remove(4, None)
    assert sorted(each.name for each in (tmp_path / "0").iterdir()) == ["1", "HEAD"]
    spool.remove(5, None)
    assert [each.name for each in (tmp_path / "0").iterdir()] == ["HEAD"]


def test_inputs_that_wait_are_written_together_and_their_last_one_is_marked(tmp_path: Path):
    spool = Spool(tmp_path, 2, Source("s", "a", Schema.parse("k int")), True, None)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    spool.add(Fed(1, [(7, at), (8, at)], True, None, None, 10))
    spool.add(Fed(4, [], True, 10, None, 20))
    spool.add(Fed(5, [(9, at)], False, 20, None, 30))
    spool.write()
    spool.add(Fed(6, [], True, 30, None, 40))
    spool.write()
    with pa.OSFile(str(tmp_path / "2" / "1")) as file:
        rows = pa.ipc.open_stream(file).read_all().to_pylist()
    assert [(row["c0"], row["number"], row["is_new"], row["mark"]) for row in rows] == [
        (7, 1, True, NO_MARK),
        (8, 1, True, NO_MARK),
        (9, 5, False, NO_MARK),
        (None, 5, True, 2),
    ]
    assert [spool.number_of(file) for file in (1, 2)] == [5, 6]
