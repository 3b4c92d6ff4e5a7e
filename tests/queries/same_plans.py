"""Pairs of texts that mean the same, and their plans."""

from __future__ import annotations

from queries import sql
from queries.catalogue import Stream
from queries.plan import Operator
from queries.schema import Schema

STREAMS = {
    stream.name: stream
    for stream in (
        Stream("flights", Schema.parse("num int, dest string, gate string null, fare decimal, ratio float, open bool")),
        Stream("bags", Schema.parse("flight int, area string, at timestamp"), event_time="at"),
        Stream("edges", Schema.parse("a int, b int")),
    )
}


def plan_of(text: str) -> Operator:
    return sql.plan(text, STREAMS).plan


SAME = {
    "aliases": ("SELECT num FROM flights", "SELECT f.num FROM flights AS f"),
    "the order of conditions": (
        "SELECT num FROM flights WHERE num > 5 AND dest = 'VIE'",
        "SELECT num FROM flights WHERE dest = 'VIE' AND num > 5",
    ),
    "the direction of conditions": (
        "SELECT num FROM flights WHERE num >= 5 AND 'VIE' = dest AND NOT num > 9",
        "SELECT num FROM flights WHERE 5 <= num AND dest = 'VIE' AND num <= 9",
    ),
    "constants": (
        "SELECT num FROM flights WHERE num > 2 + 3 AND fare < 1.50",
        "SELECT num FROM flights WHERE num > 5.0 AND fare < 1.5",
    ),
    "what is said twice, or always holds": (
        "SELECT num FROM flights WHERE num > 5 AND 1 < 2 AND num > 5",
        "SELECT num FROM flights WHERE num > 5",
    ),
    "nested conjunctions": (
        "SELECT num FROM flights WHERE (num > 5 AND fare > 1) AND (dest = 'VIE' OR NOT open)",
        "SELECT num FROM flights WHERE num > 5 AND (NOT open OR dest = 'VIE') AND fare > 1",
    ),
    "sugar": (
        "SELECT num FROM flights WHERE num BETWEEN 1 AND 9 AND dest NOT IN ('VIE')",
        "SELECT num FROM flights WHERE num >= 1 AND num <= 9 AND dest <> 'VIE'",
    ),
    "lists": (
        "SELECT num FROM flights WHERE num IN (3, 1, 2, 3)",
        "SELECT num FROM flights WHERE num IN (1, 2, 3.0)",
    ),
    "the order of joins": (
        "SELECT f.num, b.area FROM flights [RANGE 5 MINUTES] AS f, bags AS b WHERE f.num = b.flight AND b.area = 'A'",
        "SELECT x.num, y.area FROM bags AS y, flights [RANGE 300 SECONDS] AS x WHERE y.area = 'A' AND y.flight = x.num",
    ),
    "a stream joined with itself": (
        "SELECT l.num, r.num AS other FROM flights AS l, flights AS r WHERE l.dest = r.gate",
        "SELECT r.num, l.num AS other FROM flights AS l, flights AS r WHERE l.gate = r.dest",
    ),
    "the time of evaluation": (
        "SELECT f.num FROM flights f, bags b WHERE f.num = b.flight AND b.at + INTERVAL '1' HOUR < NOW() AND f.open",
        "SELECT f.num FROM bags b, flights f WHERE f.open AND f.num = b.flight AND NOW() > b.at + INTERVAL '60' MINUTE",
    ),
    "how an aggregate says its window": (
        "SELECT dest, count(*) AS n FROM flights [RANGE 5 MINUTES] GROUP BY dest HAVING count(*) > 3",
        "SELECT f.dest, count(*) AS n FROM flights f GROUP BY TUMBLE(INTERVAL '5' MINUTE), f.dest HAVING 3 < count(*)",
    ),
    "the order of branches": (
        "SELECT num FROM flights UNION ALL SELECT flight FROM bags WHERE flight > 0",
        "SELECT num FROM flights UNION ALL SELECT b.flight AS num FROM bags AS b WHERE 0 < b.flight",
    ),
}
