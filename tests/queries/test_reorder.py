"""Joins in another order give the same results, by the reference evaluator; what must keep its order does."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queries import sql
from queries.cost import Rates, StreamRates
from queries.plan import Join, Operator, Project, Select, Source, walk
from queries.reference import evaluate, same_rows
from queries.reorder import JoinGraph, Order, SetEstimates, graph_of
from queries.selectivity import ColumnStatistics
from tests.queries.joined_rows import STREAMS, make_streams

OUTPUTS = ("a.v, b.w AS bw, {last}.k", "*", "a.v + {last}.v AS s", "count(*) AS n, sum({last}.v) AS s")


def planned(text: str) -> Operator:
    return sql.plan(text, STREAMS).plan


def tree_of(luck: Random, numbers: list[int]) -> Order:
    """Any tree of these sources, also one that begins with pairs without a condition."""
    trees: list[Order] = list(numbers)
    while len(trees) > 1:
        left, right = luck.sample(range(len(trees)), 2)
        made = (trees[left], trees[right])
        trees = [tree for number, tree in enumerate(trees) if number not in (left, right)]
        trees.append(made)
    return trees[0]


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Joins of two to four streams: a tree of equalities, further conditions, windows on some."""
    count = draw(st.integers(2, 4))
    names = "abcd"[:count]
    windows = [draw(st.sampled_from(("", " [RANGE 5 SECONDS]", " [RANGE 20 SECONDS]"))) for _ in names]
    parts = [f"{names[draw(st.integers(0, each - 1))]}.k = {names[each]}.k" for each in range(1, count)]
    further = (draw(st.sampled_from(("", "{0}.v > 2", "{0}.w <> 1", "{0}.v + a.w < 9"))) for _ in names)
    parts += [part.format(one) for one, part in zip(names, further, strict=True) if part]
    if count > 2 and draw(st.booleans()):
        parts.append("a.v + b.v > c.w")
    if draw(st.booleans()):
        parts.append("1 < 2")
    output = draw(st.sampled_from(OUTPUTS)).format(last=names[-1])
    tail = " GROUP BY TUMBLE(INTERVAL '10' SECONDS)" if "count" in output else ""
    sources = ", ".join(f"{name}{window}" for name, window in zip(names, windows, strict=True))
    return f"SELECT {output} FROM {sources} WHERE {' AND '.join(parts)}{tail}"


@given(texts(), st.integers(0, 1 << 32))
@settings(deadline=None)
def test_any_order_of_joins_gives_the_rows_of_the_text(text: str, seed: int):
    luck = Random(seed)
    plan = planned(text)
    graph = graph_of(plan)
    assert graph is not None, text
    other = graph.ordered(tree_of(luck, list(range(len(graph.sources)))))
    streams = make_streams(luck)
    expected, found = evaluate(plan, streams), evaluate(other, streams)
    assert same_rows([each.row for each in found], [each.row for each in expected])
    assert sorted(each.notification_id("q") for each in found) == sorted(each.notification_id("q") for each in expected)
    assert [column.path for column in other.columns] == [column.path for column in plan.columns]


def test_conditions_are_as_low_as_they_can_be():
    graph = graph_of(planned("SELECT a.v FROM a, b, c WHERE a.k = b.k AND b.k = c.k AND c.v > 1 AND a.v + b.v > c.w"))
    assert isinstance(graph, JoinGraph)
    plan = graph.ordered(((2, 1), 0))
    assert isinstance(plan, Project)
    joins = [str(each) for each in walk(plan) if isinstance(each, Join)]
    assert joins == ["Join b.k = c.k", "Join a.k = b.k AND a.v + b.v > c.w"]
    (selection,) = [each for each in walk(plan) if isinstance(each, Select)]
    assert isinstance(selection.input, Source)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.v FROM a",
        "SELECT a.v FROM a [ROWS 5], b, c WHERE a.k = b.k AND b.k = c.k",
        "SELECT a.v FROM a [RANGE 5 SECONDS SLIDE 1 SECOND], b WHERE a.k = b.k",
        "SELECT a.v FROM a, b, c WHERE a.k = b.k",
        "SELECT a.v FROM a, b, c WHERE a.v + b.v > c.w",
        "SELECT a.v FROM a UNION ALL SELECT b.v FROM b",
    ],
)
def test_what_keeps_its_order_has_no_graph(text: str):
    assert graph_of(planned(text)) is None


def test_the_estimate_of_a_set_is_that_of_its_join_and_only_what_is_read_travels():
    keys = {("k",): ColumnStatistics(distinct=50, row_bytes=4.0), ("v",): ColumnStatistics(row_bytes=6.0)}
    rates = Rates(
        {name: StreamRates(rate_per_s=10.0 * n, row_bytes=30.0, columns=keys) for n, name in enumerate("abc", 1)}
    )
    windows = "a [RANGE 5 SECONDS], b [RANGE 9 SECONDS], c [RANGE 5 SECONDS]"
    plan = planned(f"SELECT c.v FROM {windows} WHERE a.k = b.k AND b.k = c.k AND a.v < 4")
    graph = graph_of(plan)
    assert graph is not None
    sets = SetEstimates(graph, rates)
    for streams, aliases in ((0b001, "a"), (0b011, "ab"), (0b110, "bc"), (0b111, "abc")):
        expected = rates.of_subset(plan.input, tuple(aliases))
        assert sets.of(streams).rate_per_s == pytest.approx(expected.rate_per_s)
        assert sets.of(streams).row_bytes == pytest.approx(expected.row_bytes)
    time = 10.0
    assert sets.beta(0b001) == pytest.approx(sets.of(0b001).rate_per_s * (4 + time))  # a.v is read only at its source.
    assert sets.beta(0b011) == pytest.approx(sets.of(0b011).rate_per_s * (4 + time))  # b.k
    assert sets.beta(0b100) == pytest.approx(sets.of(0b100).rate_per_s * (4 + 6 + time))
    assert sets.beta(0b111) == pytest.approx(sets.of(0b111).rate_per_s * (6 + time))
