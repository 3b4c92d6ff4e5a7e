"""A join on several columns is indexed by all of them: exact, and as much work in whatever order they are written."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from protocols.catalogue.statistics import FieldStatistics, StreamStatistics
from protocols.join_index.condition import CompiledJoin, condition_of
from protocols.join_index.heavy import heavy_values
from protocols.join_index.keys import NULL, attribute_key, value_key, value_text
from protocols.join_index.known import both
from protocols.join_index.messages import Attribute, JoinQuery
from protocols.join_index.tables import Tables
from protocols.subgraphs import ALGORITHMS, Algorithm
from queries import sql
from queries.catalogue import DAY_MS, Stream
from queries.expressions import EPOCH
from queries.reference import Tuple, evaluate
from queries.schema import Row, Schema
from tests.protocols.join_index.network import Network
from tests.protocols.join_index.things import SUBSCRIBER

STREAMS = {
    "a": Stream("a", Schema.parse("k int null, id int null, name string null")),
    "b": Stream("b", Schema.parse("k float null, id float null, name string null")),
}
SHOWN = "SELECT a.id, a.name, b.k, b.name AS other FROM a, b WHERE "
EQUALITIES = ("a.k = b.k", "b.id = a.id", "a.name = b.name")
CONDITIONS = (
    "a.k = b.k AND a.id = b.id",
    "a.id = b.id AND b.k = a.k",
    "a.k = b.k AND a.k = b.id",
    "a.k = b.k AND a.k = b.k AND b.k = a.k",
    "a.k = b.k AND a.id = b.id AND a.name = b.name",
    "a.name = b.name AND a.id = b.id AND a.k < b.k",
)


def rows(luck: random.Random, count: int) -> list[tuple[str, Row]]:
    """Few values, so that all combinations of equal, unequal and null come."""
    found: list[tuple[str, Row]] = []
    for _ in range(count):
        stream = luck.choice("ab")
        kind = int if stream == "a" else float
        k, number = (None if luck.random() < 0.2 else kind(luck.randrange(2)) for _ in range(2))
        found.append((stream, (k, number, luck.choice((None, "", "2:sx", "x")))))
    return found


def ran(text: str, algorithm: Algorithm, tuples: list[tuple[str, Row]]) -> tuple[list[Row], list[Row]]:
    """The results of a join, and those of the reference."""
    network = Network(STREAMS)
    network.pose(text, algorithm, network.ids[0])
    lists: dict[str, list[Tuple]] = {"a": [], "b": []}
    for number, (stream, row) in enumerate(tuples):
        lists[stream].append(Tuple(EPOCH + timedelta(milliseconds=network.now), row, number))
        network.publish(stream, row, network.ids[number % 3])
    expected = evaluate(sql.plan(text, STREAMS).plan, lists)
    return [row for _, row in network.results], [each.row for each in expected]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_results_are_those_of_the_reference(condition: str, algorithm: Algorithm):
    found, expected = ran(SHOWN + condition, algorithm, rows(random.Random(condition), 50))
    assert Counter(found) == Counter(expected)
    assert found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_order_of_the_text_does_not_change_the_work(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch):
    """One column is constant, the other unique: only pairs with both equal are looked at."""
    looked_at = 0
    before = Tables._pair

    def counted(tables: Tables, *pair: Any) -> Any:
        nonlocal looked_at
        looked_at += 1
        return before(tables, *pair)

    monkeypatch.setattr(Tables, "_pair", counted)
    tuples: list[tuple[str, Row]] = [
        (stream, (7, number, "n") if stream == "a" else (7.0, float(number), "n"))
        for number in range(30)
        for stream in "ab"
    ]
    work: list[int] = []
    for order in permutations(EQUALITIES):
        looked_at = 0
        found, expected = ran(SHOWN + " AND ".join(order), algorithm, tuples)
        assert Counter(found) == Counter(expected)
        work.append(looked_at)
    assert work == [30 * (2 if algorithm in ("dai-q", "dai-t") else 1)] * 6, "DAI-Q and DAI-T look at a pair twice"


def test_queries_that_differ_only_in_the_order_of_their_conditions_share_all_they_send():
    signatures = {
        condition_of(sql.plan(SHOWN + " AND ".join(order), STREAMS).plan).signature
        for order in permutations(EQUALITIES)
    }
    assert len(signatures) == 1


@pytest.mark.parametrize(
    ("condition", "kind", "attributes", "is_left_to_check"),
    [
        ("a.k = b.k AND b.id = a.id", "T1", ["a.(k, id)", "b.(k, id)"], False),
        ("a.k = b.k AND a.k = b.id", "T1", ["a.(k, k)", "b.(k, id)"], False),
        ("a.k = b.k AND a.k = b.k", "T1", ["a.k", "b.k"], False),
        ("a.name = b.name AND a.k + a.id = b.k", "T1", ["a.name", "b.name"], True),
        ("a.k + a.id = b.k AND a.id * 2 = b.id", "T2", ["a.(id, k)", "b.(id, k)"], True),
    ],
)
def test_a_join_is_indexed_by_all_equalities_of_one_type(
    condition: str, kind: str, attributes: list[str], is_left_to_check: bool
):
    found = condition_of(sql.plan(SHOWN + condition, STREAMS).plan)
    assert found.type == kind
    assert [str(side.attribute) for side in found.sides] == attributes
    assert (found.rest is not None) == is_left_to_check


def test_several_values_have_one_text_exactly_where_each_of_them_is_equal():
    assert value_text((7, "x")) == value_text((7.0, "x"))
    texts = [value_text(each) for each in ((7, "x"), ("x", 7), ("7x", ""), ("", "7x"), ("a" * 90, 7), ("a" * 91, 7))]
    assert len(set(texts)) == len(texts)
    assert [value_text((7, None)), value_text((float("nan"), 7))] == [NULL, NULL]


def test_several_attributes_are_found_elsewhere_than_one_inside_a_record():
    together, inside = Attribute.of("R", [("a",), ("b",)]), Attribute("R", ("a", "b"))
    assert attribute_key(together) != attribute_key(inside)
    assert value_key(together, "n7") != value_key(inside, "n7")


def published(k: float, number: float) -> StreamStatistics:
    """One stream with a frequent value of each of its two first fields; the second field of a stream may have none."""
    fields = tuple(
        FieldStatistics(name=name, distinct=1000.0, frequent=(("7", share),) if share else ())
        for name, share in (("k", k), ("id", number))
    )
    return StreamStatistics(rate_per_s=1000.0, row_bytes=9.0, fields=fields)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_a_frequent_combination_of_values_is_heavy(algorithm: Algorithm):
    plan = sql.plan(SHOWN + CONDITIONS[0], STREAMS).plan
    join = CompiledJoin.of(JoinQuery("q", SUBSCRIBER, 0, algorithm, plan, DAY_MS))

    def heavy(k: float, number: float) -> set[str]:
        known = both(join, {0: [published(k, number)], 1: [published(k, number)]})
        return {each.value for each in heavy_values(algorithm, join.attributes, (True, True), known, 8)}

    assert heavy(1.0, 0.0) == set(), "one column is constant, the other unique"
    assert heavy(0.9, 0.8) == {value_text((7, 7))}
