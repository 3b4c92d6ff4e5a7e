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
from queries.plan import Join, Operator, walk
from queries.reference import Tuple, evaluate
from tests.queries.random_queries import Queries
from tests.queries.random_sql import STREAMS as RANDOM_STREAMS
from tests.queries.random_sql import data
from tests.queries.same_plans import SAME, plan_of
from tests.queries.wx_streams import PHOTON
from tests.queries.wx_streams import STREAMS as XML_STREAMS
from tests.seeds import draw_seed

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
        "from tests.queries.same_plans import SAME, plan_of; from queries.canonical import digest;"
        " print(*[digest(plan_of(pair[0])) for pair in SAME.values()])"
    )
    ours = [digest(plan_of(pair[0])) for pair in SAME.values()]
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONHASHSEED": seed})
    assert other.stdout.decode().split() == ours


@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_the_canonical_plan_means_the_same(count: int) -> None:
    seed = draw_seed()
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
