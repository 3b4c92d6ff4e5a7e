"""Rows of every version of a stream are read by all others: what was added is null, what was dropped is left out."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queries.schema import FIELDS_MAX, Field, Gone, RowError, Schema
from tests.queries.random_rows import row_of

NAMES = ("a", "b", "c", "d")  # Few, so that names come again with other types.
TYPES = ("int", "string", "float", "bool", "decimal", "timestamp", "bytes")
ADDED = st.builds(Field, st.sampled_from(NAMES), st.sampled_from(TYPES), st.just(True))
CREATED = st.lists(
    st.builds(Field, st.sampled_from(NAMES), st.sampled_from(TYPES), st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda field: field.name,
).map(lambda fields: Schema(tuple(fields)))


@st.composite
def histories(draw: st.DrawFn) -> list[Schema]:
    """All versions of a stream that was altered at random."""
    versions = [draw(CREATED)]
    for _ in range(draw(st.integers(1, 8))):
        now = versions[-1]
        names = [field.name for field in now.fields]
        field = draw(ADDED)
        if field.name not in names:
            versions.append(now.adding(field))
        elif len(names) > 1:
            versions.append(now.dropping(field.name))
    return versions


def identities(versions: list[Schema]) -> list[dict[tuple[str, int], Field]]:
    """By version, its columns, each with the version it came with: a name that comes again is another column."""
    found = [{(field.name, 1): field for field in versions[0].fields}]
    for before, schema in itertools.pairwise(versions):
        was = {field.name for field in before.fields}
        kept = {key: field for key, field in found[-1].items() if field in schema.fields and key[0] in was}
        found.append(kept | {(f.name, schema.version): f for f in schema.fields if f.name not in was})
    return found


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_rows_of_every_version_are_read_by_every_other(data: st.DataObject):
    versions = data.draw(histories())
    columns = identities(versions)
    for written, theirs in zip(versions, columns, strict=True):
        rows = data.draw(st.lists(row_of(written.fields), min_size=1, max_size=3))
        batch = written.encode(rows)
        assert written.check(batch) == len(rows)
        for read, ours in zip(versions, columns, strict=True):
            if read.version >= written.version:
                assert read.check(batch) == len(rows), "a publisher that was altered takes rows of older clients"
            expected = [tuple(dict(zip(theirs, row, strict=True)).get(column) for column in ours) for row in rows]
            assert read.decode(batch) == expected, f"{written} (version {written.version}) as {read}"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_batch_may_have_rows_of_several_versions(data: st.DataObject):
    versions = data.draw(histories())
    batches = [each.encode([data.draw(row_of(each.fields))]) for each in versions]
    together = msgspec.msgpack.encode(
        [row for each in batches for row in msgspec.msgpack.decode(each, type=list[msgspec.Raw])]
    )
    for schema in versions:
        assert schema.decode(together) == [row for each in batches for row in schema.decode(each)]
    assert versions[-1].check(together) == len(versions)


FLIGHTS = Schema.parse("num int, gate string")
LATER = FLIGHTS.adding(Field("delay", "float", True)).dropping("gate").adding(Field("gate", "int", True))


def test_the_bytes_are_those_that_the_page_shows():
    second = FLIGHTS.adding(Field("delay", "float", True))
    third = second.dropping("gate")
    assert msgspec.msgpack.decode(FLIGHTS.encode([(7, "A1")])) == [[7, "A1"]]
    assert msgspec.msgpack.decode(second.encode([(8, "B2", 1.5)])) == [[8, "B2", 1.5]]
    assert msgspec.msgpack.decode(third.encode([(9, 2.5)])) == [[9, None, 2.5]]
    assert msgspec.msgpack.decode(LATER.encode([(9, 2.5, 12)])) == [[9, None, 2.5, 12]]
    assert [each.version for each in (FLIGHTS, second, third, LATER)] == [1, 2, 3, 4]


def test_a_name_that_comes_again_does_not_show_what_was_there():
    assert str(LATER) == "num int, delay float null, gate int null"
    assert LATER.decode(FLIGHTS.encode([(7, "A1")])) == [(7, None, None)]


@pytest.mark.parametrize(
    ("row", "field", "expected", "got"),
    [
        ([], "num", "int of 64 bits", "nothing"),
        ([None], "num", "int of 64 bits", "null"),
        ([7, 5], "gate", "string or null", "int 5"),
        ([7, None, "late"], "delay", "float or null", 'string "late"'),
        ([7, None, 1.5, 12, 0], "", "4 values", "5"),
    ],
)
def test_a_row_that_fits_no_version_is_refused(row: list[Any], field: str, expected: str, got: str):
    with pytest.raises(RowError) as caught:
        LATER.check(msgspec.msgpack.encode([[7, "A1"], row]))
    error = caught.value
    assert (error.row, error.field, error.expected, error.got) == (1, field, expected, got)


def test_what_fills_the_place_of_a_dropped_column_is_checked_like_any_other():
    schema = Schema.parse("num int, at timestamp").dropping("at")
    with pytest.raises(RowError, match="years 1 to 9999"):
        schema.check(msgspec.msgpack.encode([[7, "0001-01-01T00:00:00+10:00"]]))


@pytest.mark.parametrize(
    "gone", [(Gone(2, FLIGHTS.fields[0]),), (Gone(1, FLIGHTS.fields[0]), Gone(0, FLIGHTS.fields[0]))]
)
def test_places_that_no_row_has_are_refused(gone: tuple[Gone, ...]):
    with pytest.raises(ValueError, match="places"):
        Schema((FLIGHTS.fields[0],), gone)


@pytest.mark.parametrize(
    ("adds", "drops", "problem"),
    [
        (Field("gate", "int", True), "", 'there is a column "gate" already'),
        (Field("delay", "float"), "", '"delay" may not be null'),
        (None, "delay", 'there is no column "delay"'),
    ],
)
def test_an_alteration_that_does_not_fit_is_refused(adds: Field | None, drops: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        FLIGHTS.altered(adds, drops)


def test_the_last_column_stays_and_dropped_ones_count():
    with pytest.raises(ValueError, match="1 to 1024 fields"):
        FLIGHTS.dropping("num").dropping("gate")
    schema = FLIGHTS
    for _ in range(FIELDS_MAX - 2):
        schema = schema.adding(Field("x", "int", True)).dropping("x")
    with pytest.raises(ValueError, match="dropped ones included"):
        schema.adding(Field("x", "int", True))
