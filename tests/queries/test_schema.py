"""Schemas: read from text with errors that point, and rows checked with errors that name row and field."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queries.schema import DEPTH_MAX, ROW_BYTES_MAX, TYPES, Field, RowError, Schema, SchemaError
from tests.queries.random_rows import row_of

FLIGHTS = Schema.parse("id int, at timestamp, delay float null, gate string, place record(lat float, lon float) null")
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
GOOD = (7, AT, 1.5, "B7", (48.2, 16.4))

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)
SCALARS = st.builds(Field, NAMES, st.sampled_from([kind for kind in TYPES if kind != "record"]), st.booleans())


def several(fields: st.SearchStrategy[Field]) -> st.SearchStrategy[tuple[Field, ...]]:
    return st.lists(fields, min_size=1, max_size=4, unique_by=lambda field: field.name).map(tuple)


FIELDS = st.recursive(
    SCALARS,
    lambda inner: st.builds(Field, NAMES, st.just("record"), st.booleans(), several(inner)),
    max_leaves=6,
)
SCHEMAS = several(FIELDS).map(Schema)

# Text.


@settings(max_examples=30)
@given(SCHEMAS)
def test_a_schema_survives_being_written_and_read(schema: Schema):
    assert Schema.parse(str(schema)) == schema
    raw = msgspec.msgpack.encode(schema)
    assert msgspec.msgpack.decode(raw, type=Schema) == schema


@pytest.mark.parametrize(
    ("text", "problem", "place", "hint"),
    [
        ("", "expected a field: a name and a type", 0, "for example: id int, at timestamp"),
        ("id", 'the field "id" needs a type', 2, "the types are int, float"),
        ("id int,", "expected a field", 7, "for example"),
        ("id , at int", 'the field "id" needs a type', 3, "the types are"),
        ("id int, at timestmp", '"timestmp" is not a type', 11, 'did you mean "timestamp"?'),
        ("id int at int", 'expected "," or the end, found "at"', 7, ""),
        ("id int, id float", 'the field "id" is there twice', 8, ""),
        ("1d int", 'expected the name of a field, found "1d"', 0, "a name is a letter"),
        ("p record", "a record needs its fields", 8, "for example: record(lat float, lon float)"),
        ("p record(a int", 'expected "," or ")", found the end', 14, ""),
        ("p record(a int))", 'expected "," or the end, found ")"', 15, ""),
        ("p " + "record(p " * DEPTH_MAX + "int" + ")" * DEPTH_MAX, "records are nested more than 16 deep", 143, ""),
    ],
)
def test_a_mistake_is_shown_at_its_place(text: str, problem: str, place: int, hint: str):
    with pytest.raises(SchemaError) as caught:
        Schema.parse(text)
    assert caught.value.problem.startswith(problem)
    assert (caught.value.place, caught.value.hint[: len(hint)]) == (place, hint)


def test_the_caret_stands_under_the_mistake_in_its_line():
    with pytest.raises(SchemaError) as caught:
        Schema.parse("id int,\n  at timestmp\n")
    assert str(caught.value) == '"timestmp" is not a type\n    at timestmp\n       ^\ndid you mean "timestamp"?'


@given(st.text("id int,()recodnul\n", max_size=40))
def test_any_text_is_a_schema_or_a_mistake_at_a_place_within_it(text: str):
    place = 0
    try:
        Schema.parse(text)
    except SchemaError as error:
        place = error.place
    assert 0 <= place <= len(text)


@pytest.mark.parametrize(
    "raw",
    [
        [[]],
        [[["a", "int"], ["a", "int"]]],
        [[["a b", "int"]]],
        [[["a", "record"]]],
        [[["a", "int", False, [["b", "int"]]]]],
        [[["a", "set"]]],
    ],
)
def test_a_schema_from_elsewhere_is_checked_like_one_of_ours(raw: list[Any]):
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=Schema)


# Batches.


@settings(max_examples=30)
@given(st.data())
def test_rows_that_fit_pass_the_check_and_come_back(data: st.DataObject):
    schema = data.draw(SCHEMAS)
    rows = data.draw(st.lists(row_of(schema.fields), max_size=5))
    batch = schema.encode(rows)
    assert schema.check(batch) == len(rows)
    assert schema.decode(batch) == rows


@settings(max_examples=30)
@given(st.data())
def test_rows_survive_the_way_through_json(data: st.DataObject):
    schema = data.draw(SCHEMAS)
    row = data.draw(row_of(schema.fields).filter(lambda row: "inf" not in str(row)))
    as_json = msgspec.json.decode(msgspec.json.encode(schema.to_json(row)))
    assert schema.row(as_json) == row


@pytest.mark.parametrize(
    ("row", "field", "expected", "got"),
    [
        (("7", *GOOD[1:]), "id", "int of 64 bits", 'string "7"'),
        ((True, *GOOD[1:]), "id", "int of 64 bits", "bool true"),
        ((2**63, *GOOD[1:]), "id", "int of 64 bits", "int 9223372036854775808"),
        ((7.0, *GOOD[1:]), "id", "int of 64 bits", "float 7.0"),
        ((None, *GOOD[1:]), "id", "int of 64 bits", "null"),
        ((7, "yesterday", *GOOD[2:]), "at", "timestamp with a zone", 'string "yesterday"'),
        ((7, AT, "late", *GOOD[3:]), "delay", "float or null", 'string "late"'),
        ((7, AT, None, b"B7", None), "gate", "string", "bytes"),
        ((7, AT, None, "B7", (48.2, "east")), "place.lon", "float", 'string "east"'),
        ((7, AT, None, "B7", (48.2,)), "place.lon", "float", "nothing"),
        ((7, AT, None, "B7", 48.2), "place", "an array of 2 values", "float 48.2"),
        ((7, AT), "gate", "string", "nothing"),
        ((*GOOD, 1), "", "5 values", "6"),
        ({"id": 7}, "", "an array of 5 values", "object"),
    ],
)
def test_a_batch_is_refused_with_row_and_field(row: Any, field: str, expected: str, got: str):
    with pytest.raises(RowError) as caught:
        FLIGHTS.check(msgspec.msgpack.encode([GOOD, row, GOOD]))
    error = caught.value
    assert (error.row, error.field, error.expected, error.got) == (1, field, expected, got)
    where = f'row 1, field "{error.field}"' if error.field else "row 1"
    assert str(error) == f"{where}: expected {expected}, got {got}"


@pytest.mark.parametrize("text", ["NaN", "sNaN", "Infinity", "", "1e", "0x1"])
def test_a_decimal_is_a_finite_number_written_out(text: str):
    schema = Schema.parse("price decimal")
    with pytest.raises(RowError):
        schema.check(msgspec.msgpack.encode([[text]]))
    with pytest.raises(RowError):
        schema.row([text])


@pytest.mark.parametrize("text", ["1e99999", "-1E+10000", "1e-10000"])
def test_a_decimal_that_cannot_travel_is_refused_where_it_is_made(text: str):
    for value in (text, Decimal(text)):
        with pytest.raises(RowError, match='row 4, field "price": expected decimal'):
            Schema.parse("price decimal").row([value], number=4)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"])
def test_a_time_that_its_zone_puts_outside_of_the_calendar_is_refused_in_a_batch(text: str):
    schema = Schema.parse("id int, inner record(at timestamp null) null")
    batch = msgspec.msgpack.encode([[1, None], [2, [None]], [3, ["2026-01-01T00:00:00Z"]], [4, [text]]])
    with pytest.raises(RowError, match=r'row 3, field "inner\.at": expected a timestamp in the years 1 to 9999'):
        schema.check(batch)
    edges = [["0001-01-01T00:00:00Z"], ["9999-12-31T23:59:59Z"], ["9999-12-31T23:59:59+05:00"]]
    assert Schema.parse("at timestamp").check(msgspec.msgpack.encode(edges)) == 3


def test_lists_of_records_travel_between_operators():
    record = (Field("a", "int"), Field("at", "timestamp", nullable=True))
    schema = Schema((Field("rows", "list", fields=record), Field("n", "int")))
    rows = [(((1, AT), (2, None)), 7), ((), 8)]
    assert schema.decode(schema.encode(rows)) == rows
    assert "list" not in TYPES


def test_a_timestamp_without_a_zone_is_refused():
    with pytest.raises(RowError, match="expected timestamp with a zone"):
        FLIGHTS.row({"id": 7, "at": "2026-01-02T03:04:05", "gate": "B7"})


def test_a_row_that_is_too_large_is_named():
    schema = Schema.parse("text string")
    batch = schema.encode([("",), ("x" * ROW_BYTES_MAX,)])
    with pytest.raises(RowError, match=r"^row 1: expected at most 1048576 bytes, got 1048582 bytes$"):
        schema.check(batch)
    assert schema.check(schema.encode([("x" * (ROW_BYTES_MAX // 2),)] * 3)) == 3


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_refused(raw: bytes):
    try:
        FLIGHTS.check(raw)
    except RowError:
        pass


def test_bytes_that_nest_without_end_are_refused():
    for raw in (b"\x91" * 100_000, b"\x91\x91" + b"\x91" * 100_000):
        with pytest.raises(RowError):
            FLIGHTS.check(raw)


# Rows from people.


def test_fields_that_may_be_null_may_be_left_out():
    assert FLIGHTS.row({"id": 7, "at": "2026-01-02T03:04:05.678901Z", "gate": "B7"}) == (7, AT, None, "B7", None)
    assert Schema.parse("a int, b int null").row([1]) == (1, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id": 7, "gate": "B7"}, 'row 3, field "at": expected timestamp with a zone, got nothing'),
        (
            {"id": 7, "at": "2026-01-02T03:04:05Z", "gat": "B7"},
            'row 3, field "gat": expected one of the fields id, at, delay, gate, place (did you mean "gate"?), '
            "got an unknown field",
        ),
        ({"id": "7"}, 'row 3, field "id": expected int of 64 bits, got string "7"'),
        (
            {"id": 7, "at": "2026-01-02T03:04:05Z", "gate": "B7", "place": {"lat": 1, "lon": None}},
            'row 3, field "place.lon": expected float, got null',
        ),
        (
            {"id": 7, "at": "0001-01-01T00:00:00+05:00"},
            'row 3, field "at": expected a timestamp in the years 1 to 9999 of UTC, '
            'got string "0001-01-01T00:00:00+05:00"',
        ),
        (
            {"id": 7, "at": "0000-01-01T00:00:00Z"},
            'row 3, field "at": expected timestamp with a zone, got string "0000-01-01T00:00:00Z"',
        ),
        (
            {"id": 7, "at": "2026-01-02T03:04:05Z", "delay": Decimal("1e999"), "gate": "B7"},
            'row 3, field "delay": expected float or null, got decimal 1E+999',
        ),
        (
            {"id": 7, "at": "2026-01-02T03:04:05Z", "gate": "\ud800"},
            'row 3, field "gate": expected text in Unicode, got half a surrogate pair',
        ),
        ({"id": 7, "\udc00": 1}, None),
        ([1, 2, 3, 4, 5, 6], "row 3: expected 5 values, got 6"),
        ("text", 'row 3: expected an object or an array, got string "text"'),
    ],
)
def test_a_row_from_json_is_refused_with_its_number_and_field(values: Any, message: str):
    with pytest.raises(RowError) as caught:
        FLIGHTS.row(values, number=3)
    assert message is None or str(caught.value) == message
    str(caught.value).encode()


def test_text_is_read_as_numbers_only_where_that_is_asked_for():
    schema = Schema.parse("id int, ok bool, price decimal, rate float null, name string")
    values = ["7", "true", "1.50", "", ""]
    assert schema.row(values, from_text=True) == (7, True, Decimal("1.50"), None, "")
    with pytest.raises(RowError, match='field "id"'):
        schema.row(values)
    with pytest.raises(RowError, match='row 0, field "id": expected int of 64 bits, got string ""'):
        schema.row(["", "true", "1", "1", "x"], from_text=True)
