"""CREATE STREAM and DROP STREAM as text."""

from __future__ import annotations

import pytest

from queries.errors import QueryError
from queries.schema import Schema
from queries.sql_streams import CreateStream, DropStream, read, read_all


def test_a_stream_is_its_name_and_fields_and_the_rest_has_defaults():
    assert read("CREATE STREAM flights (num int, gate string null);") == CreateStream(
        "flights", Schema.parse("num int, gate string null")
    )


def test_everything_that_can_be_promised_can_be_said():
    statement = read(
        "create stream check-ins (at timestamp, place record(lat float, lon float))\n"
        "with (event_time = AT, lateness = '5 seconds', retention = 2h, durability = Replicated, policy = drop-oldest)"
    )
    schema = Schema.parse("at timestamp, place record(lat float, lon float)")
    assert statement == CreateStream("check-ins", schema, "at", 5_000, 7_200_000, "replicated", "drop-oldest")
    assert statement.stream.retention_ms == 7_200_000


def test_names_have_dots_and_dashes_quoted_or_not():
    assert read("DROP STREAM plant-1.heat.max") == DropStream("plant-1.heat.max")
    assert read('DROP STREAM "plant-1.heat"') == DropStream("plant-1.heat")


def test_several_statements_stand_in_one_text():
    found = read_all("CREATE STREAM a (x int); -- first\nCREATE STREAM b (y int);\nDROP STREAM a;")
    assert [each.name for each in found] == ["a", "b", "a"]
    assert read_all("") == []


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("", 1, 1, "there is no query"),
        ("CREATE", 1, 7, "the text ends too early"),
        ("CREATE TABLE a (x int)", 1, 8, 'unexpected "TABLE"'),
        ("CREATE STREAM", 1, 14, "the text ends too early"),
        ("CREATE STREAM 7up (x int)", 1, 15, '"7up" cannot name a stream'),
        ("CREATE STREAM a", 1, 16, "the stream needs its fields"),
        ("CREATE STREAM a ()", 1, 18, "expected a field: a name and a type"),
        ("CREATE STREAM a (x int", 1, 17, "this bracket has no end"),
        ("CREATE STREAM a (x int,\n  y itn)", 2, 5, '"itn" is not a type'),
        ("CREATE STREAM a (x int) AS SELECT", 1, 25, 'unexpected "AS"'),
        ("CREATE STREAM a (x int) WITH", 1, 25, 'unexpected "WITH"'),
        ("CREATE STREAM a (x int) WITH (durable = yes)", 1, 31, 'unknown option "durable"'),
        ("CREATE STREAM a (x int) WITH (policy = block, policy = block)", 1, 47, 'the option "policy" is there twice'),
        ("CREATE STREAM a (x int) WITH (retention = forever)", 1, 43, '"forever" is not a value of retention'),
        ("CREATE STREAM a (x int) WITH (retention = 0s)", 1, 43, '"0s" is not a value of retention'),
        ("CREATE STREAM a (x int) WITH (durability = stone)", 1, 44, '"stone" is not a value of durability'),
        ("CREATE STREAM a (x int) WITH (event_time = x)", 1, 44, '"x" is not a field of type timestamp'),
        (
            "CREATE STREAM a (x timestamp null) WITH (event_time = x)",
            1,
            55,
            '"x" may be null, but every row of a stream with an event time has one',
        ),
        ("DROP STREAM a b", 1, 15, 'unexpected "b"'),
    ],
)
def test_a_statement_that_cannot_be_read_says_where(text: str, line: int, column: int, problem: str):
    with pytest.raises(QueryError) as refused:
        read(text)
    assert (refused.value.line, refused.value.column, refused.value.problem) == (line, column, problem)
