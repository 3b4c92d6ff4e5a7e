"""What a join that flows can stand for in a query: containment, residuals, filters that are relaxed, further fields."""

from __future__ import annotations

from random import Random

import pytest

from protocols.planning.problem import Derived
from protocols.planning.reuse import Feed, Offer, served
from queries import sql
from queries.cost import Rates, StreamRates
from queries.expressions import conjunction
from queries.plan import Project, Select
from queries.reference import evaluate, same_rows
from queries.reorder import SetEstimates, graph_of
from tests.protocols.planning.problems import peer
from tests.queries.joined_rows import STREAMS, make_streams
from tests.seeds import draw_seed

HOST = peer(7)
RATES = Rates({name: StreamRates(rate_per_s=10.0, row_bytes=30.0) for name in STREAMS})
# Which conditions a query or an offer may have.
PARTS = ("a.v > 1", "a.v > 3", "b.w = 2", "b.w <> 1", "a.v < b.v", "a.w IN (1, 2)")


def offered(text: str, feeds: tuple[Feed, ...] = ()) -> Offer:
    plan = sql.plan(text, STREAMS).plan
    assert isinstance(plan, Project)
    return Offer(plan, HOST, feeds)


def sets_of(text: str) -> SetEstimates:
    graph = graph_of(sql.plan(text, STREAMS).plan)
    assert graph is not None
    return SetEstimates(graph, RATES)


def found(offer: str, query: str, feeds: tuple[Feed, ...] = ()) -> list[Derived]:
    return list(served(offered(offer, feeds), sets_of(query)))


OFFER = "SELECT x.k, x.v, y.w FROM a AS x, b AS y WHERE x.k = y.k AND x.v > 1"


def test_an_offer_with_wider_filters_leaves_a_residual():
    query = "SELECT c.v FROM b, a, c WHERE a.k = b.k AND a.v > 3 AND b.w = 2 AND a.k = c.k"
    (derived,) = found(OFFER, query)
    assert derived.streams == 0b011
    assert derived.origin == (HOST, sets_of(query).beta(0b011))
    assert sorted(map(str, derived.residual)) == ["a.v > 3", "b.w = 2"]
    assert derived.widening == 0


def test_an_equal_offer_leaves_nothing():
    (derived,) = found(OFFER, "SELECT b.w FROM a, b WHERE b.k = a.k AND a.v > 1")
    assert derived.residual == ()


def test_a_filter_that_is_relaxed_adds_the_rows_of_the_query_on_every_feed():
    query = "SELECT b.w FROM a, b WHERE a.k = b.k AND a.v > 0"
    feeds = (Feed(0b01, 10.0, 5.0), Feed(0b10, 10.0, 7.0))
    (derived,) = found(OFFER, query, feeds)
    sets = sets_of(query)
    assert [str(part) for part in derived.residual] == ["a.v > 0"]
    assert derived.widening == pytest.approx(5 * sets.beta(0b01) + 7 * sets.beta(0b10))


def test_a_field_that_is_missing_travels_where_its_stream_does():
    feeds = (Feed(0b01, 10.0, 5.0), Feed(0b10, 20.0, 7.0))
    query = "SELECT a.w FROM a, b WHERE a.k = b.k AND a.v > 1"
    (derived,) = found(OFFER, query, feeds)
    size = sets_of(query).of(0b11).columns["a", ("w",)].row_bytes
    assert size is not None
    assert derived.widening == pytest.approx(10.0 * size * 5.0)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a.v FROM a, b WHERE a.v = b.k",  # Another condition.
        "SELECT a.v FROM a [RANGE 5 SECONDS], b WHERE a.k = b.k",  # Another window.
        "SELECT a.v FROM a, c WHERE a.k = c.k",  # Another stream.
        "SELECT a.v FROM a, b, c WHERE a.k = c.k AND c.k = b.k",  # The two have no condition of their own.
    ],
)
def test_what_is_not_the_same_join_is_not_served(query: str):
    assert found(OFFER, query) == []


def test_a_stream_that_is_read_twice_can_be_either():
    query = "SELECT p.v FROM a AS p, b, a AS q WHERE p.k = b.k AND b.k = q.k AND p.v > 1 AND q.v > 1"
    assert sorted(each.streams for each in found(OFFER, query)) == [0b011, 0b110]


@pytest.mark.slow
def test_what_is_left_behind_a_residual_are_the_rows_of_the_query():
    luck = Random(draw_seed())
    served_times = relaxed = 0
    fields = ", ".join(f"{alias}.{name} AS {alias}{name}" for alias in "ab" for name in "kvw")
    for _ in range(300):
        tested, wanted = ([part for part in PARTS if luck.random() < 0.3] for _ in range(2))
        texts = [f"SELECT {fields} FROM a, b WHERE {' AND '.join(['a.k = b.k', *parts])}" for parts in (tested, wanted)]
        offer, query = offered(texts[0]), sql.plan(texts[1], STREAMS).plan
        for derived in served(offer, sets_of(texts[1])):
            feeds = (Feed(0b11, 1.0, 1.0),)
            (priced,) = served(offer._replace(feeds=feeds), sets_of(texts[1]))
            if priced.widening > 0:
                relaxed += 1
                continue
            predicate = conjunction(derived.residual)
            body = offer.plan.input if predicate is None else Select(offer.plan.input, predicate)
            streams = make_streams(luck)
            left = evaluate(Project(body, offer.plan.outputs), streams)
            assert same_rows([each.row for each in left], [each.row for each in evaluate(query, streams)]), texts
            served_times += 1
    assert served_times > 30
    assert relaxed > 30
