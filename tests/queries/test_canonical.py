"""The canonical form: what may differ in writing, what may not, and that it still means the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from itertools import permutations

import msgspec
import pytest

from queries import sql, wxquery
from queries.aggregates import same
from queries.canonical import aliases, canonical, digest
from queries.catalogue import Stream
from queries.plan import Join, Operator, walk
from queries.reference import Tuple, evaluate
from queries.schema import Schema
from tests.queries.random_queries import Queries
from tests.queries.random_sql import STREAMS as RANDOM_STREAMS
from tests.queries.random_sql import data
from tests.queries.wx_streams import PHOTON
from tests.queries.wx_streams import STREAMS as XML_STREAMS

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
DIFFERENT = {
    "the names of the result": ("SELECT num AS a FROM flights", "SELECT num AS b FROM flights"),
    "the order of its columns": ("SELECT num, dest FROM flights", "SELECT dest, num FROM flights"),
    "the stream": ("SELECT num AS n FROM flights", "SELECT flight AS n FROM bags"),
    "a constant": ("SELECT num FROM flights WHERE num > 5", "SELECT num FROM flights WHERE num > 6"),
    "strictness": ("SELECT num FROM flights WHERE num > 5", "SELECT num FROM flights WHERE num >= 5"),
    "and and or": (
        "SELECT num FROM flights WHERE num > 5 AND open",
        "SELECT num FROM flights WHERE num > 5 OR open",
    ),
    "the window": (
        "SELECT f.num FROM flights [RANGE 5 MINUTES] AS f, bags AS b WHERE f.num = b.flight",
        "SELECT f.num FROM flights [RANGE 6 MINUTES] AS f, bags AS b WHERE f.num = b.flight",
    ),
    "which side of a self-join is returned": (
        "SELECT l.num FROM flights AS l, flights AS r WHERE l.dest = r.gate",
        "SELECT r.num FROM flights AS l, flights AS r WHERE l.dest = r.gate",
    ),
    "not, where a float may be no number": (
        "SELECT num FROM flights WHERE NOT ratio < 5.0",
        "SELECT num FROM flights WHERE ratio >= 5.0",
    ),
    "the digits of a decimal that is returned": ("SELECT 1.50 AS c FROM flights", "SELECT 1.5 AS c FROM flights"),
    "sum and avg": (
        "SELECT sum(fare) AS v FROM flights [RANGE 5 MINUTES]",
        "SELECT avg(fare) AS v FROM flights [RANGE 5 MINUTES]",
    ),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_writing_does_not_matter(one: str, other: str) -> None:
    assert canonical(plan_of(one)) == canonical(plan_of(other))
    assert digest(plan_of(one)) == digest(plan_of(other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_meaning_does(one: str, other: str) -> None:
    assert digest(plan_of(one)) != digest(plan_of(other))


@pytest.mark.parametrize("outputs", ["all", "none"])
def test_every_order_of_a_join_of_five_has_one_digest(outputs: str) -> None:
    """A cycle of five like streams: nothing but the conditions tells them apart, and these only as a cycle does."""
    names = "vwxyz"
    digests: dict[str, str] = {}
    for order in list(permutations(names))[::7]:
        where = [f"{a}.b = {b}.a" for a, b in zip(order, order[1:] + order[:1], strict=True)]
        chosen = [f"{alias}.a AS c{number}" for number, alias in enumerate(order)] if outputs == "all" else ["1 AS one"]
        sources = ", ".join(f"edges AS {name}" for name in names)
        text = f"SELECT {', '.join(chosen)} FROM {sources} WHERE {' AND '.join(where)}"
        digests[digest(plan_of(text))] = text
    assert len(digests) == 1


def test_a_path_is_told_from_a_cycle() -> None:
    sources = "FROM edges AS x, edges AS y, edges AS z WHERE x.b = y.a AND y.b = z.a"
    assert digest(plan_of(f"SELECT x.a {sources}")) != digest(plan_of(f"SELECT x.a {sources} AND z.b = x.a"))


def test_a_shared_join_says_how_it_calls_its_inputs() -> None:
    one = "SELECT f.num FROM flights AS f, bags AS b WHERE f.num = b.flight"
    other = "SELECT q.area FROM bags AS q, flights AS p WHERE q.flight = p.num"
    joins = [next(each for each in walk(plan_of(text)) if isinstance(each, Join)) for text in (one, other)]
    assert digest(joins[0]) == digest(joins[1])
    assert (aliases(joins[0]), aliases(joins[1])) == ({"b": "s0", "f": "s1"}, {"q": "s0", "p": "s1"})


def test_variables_of_a_document_do_not_matter() -> None:
    def text(item: str, window: str) -> str:
        inner = f"{{ for ${item} in ${window} where ${item}/en >= 1.3 return <i> {{ ${item}/en }} </i> }}"
        return f"<r>{{ for ${window} in {PHOTON} |count 20 step 10| return <w> {inner} </w> }}</r>"

    plans = [wxquery.plan(text(*names), XML_STREAMS).plan for names in (("i", "w"), ("each", "all"))]
    assert digest(plans[0]) == digest(plans[1])
    selected = [
        f"<r>{{ for $p in {PHOTON}{path} return <i> {{ $p/en }} </i> }}</r>"
        for path in ("[en >= 1.3]", " where $p/en >= 1.30")
    ]
    assert len({digest(wxquery.plan(each, XML_STREAMS).plan) for each in selected}) == 1, "a path condition is a where"


def test_the_canonical_plan_is_its_own_canonical_plan_and_can_travel() -> None:
    for pair in SAME.values():
        plan = canonical(plan_of(pair[0]))
        assert canonical(plan) == plan
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Operator) == plan


def test_the_digest_is_the_same_in_every_process() -> None:
    code = (
        "from tests.queries.test_canonical import SAME, plan_of; from queries.canonical import digest;"
        " print(*[digest(plan_of(pair[0])) for pair in SAME.values()])"
    )
    ours = [digest(plan_of(pair[0])) for pair in SAME.values()]
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONHASHSEED": seed})
    assert other.stdout.decode().split() == ours


@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_the_canonical_plan_means_the_same(count: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    lists, queries = data(rng, 12), Queries(rng)
    for _ in range(count):
        text = queries.query().ours
        plan = sql.plan(text, RANDOM_STREAMS).plan
        assert counted(canonical(plan), lists) == counted(plan, lists), text
        assert canonical(canonical(plan)) == canonical(plan), text


def counted(plan: Operator, lists: dict[str, list[Tuple]]) -> Counter[object]:
    """The results, where equal decimals are one value: a group shows the digits of whichever key came first."""
    return Counter((*map(same, result.row), result.time, result.window) for result in evaluate(plan, lists))
