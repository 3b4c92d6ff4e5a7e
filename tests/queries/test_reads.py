"""Which columns a query reads: what may be dropped from its streams while it runs follows from that."""

from __future__ import annotations

import pytest

from queries.catalogue import Stream
from queries.query import parse
from queries.reads import columns_read
from queries.schema import Schema

STREAMS = {
    "flights": Stream("flights", Schema.parse("num int, gate string null, delay float, crew int")),
    "moves": Stream("moves", Schema.parse("flight int, gate string, place record(x int, y int), at timestamp"), "at"),
}
ALL = ("flight", "gate", "place", "at")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT num FROM flights", {"flights": ("num",)}),
        ("SELECT num FROM flights WHERE delay > 5 AND gate LIKE 'A%'", {"flights": ("num", "gate", "delay")}),
        ("SELECT 1 AS one FROM flights", {"flights": ()}),
        ("SELECT * FROM moves", {"moves": ALL}),
        ("SELECT place.x FROM moves", {"moves": ("place", "at")}),  # The event time is always read.
        (
            "SELECT f.num FROM flights f, moves m WHERE f.num = m.flight AND f.gate <> m.gate",
            {"f": ("num", "gate"), "m": ("flight", "gate", "at")},
        ),
        ("SELECT gate, sum(delay) AS d FROM flights [RANGE 5 MINUTES] GROUP BY gate", {"flights": ("gate", "delay")}),
        ("SELECT count(*) AS n FROM moves [RANGE 5 MINUTES]", {"moves": ("at",)}),
        ('for $m in stream("moves")/m/m return <m> { $m/flight } </m>', {"m": ALL}),
    ],
)
def test_a_query_reads_the_columns_that_its_text_names(text: str, expected: dict[str, tuple[str, ...]]):
    assert columns_read(parse(text, STREAMS).plan) == expected


def test_branches_of_a_union_read_what_each_names():
    found = columns_read(
        parse("SELECT num FROM flights UNION ALL SELECT crew FROM flights WHERE delay > 1", STREAMS).plan
    )
    assert sorted(found.values()) == [("delay", "crew"), ("num",)]
