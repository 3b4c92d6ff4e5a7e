"""What Spark has no form for is found out without Spark; tests/spark_jobs/test_compile.py asks Spark itself."""

from __future__ import annotations

import random

import pytest

from queries import sql
from queries.catalogue import Stream
from queries.schema import Schema
from queries.spark_able import formless
from tests.queries.papers import FILES, planned
from tests.queries.random_queries import Queries
from tests.queries.random_sql import STREAMS
from tests.seeds import draw_seed

KNOWN = {"r": Stream("r", Schema.parse("a float, b int, c decimal, s string, at timestamp"))}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT CAST(a AS string) AS x FROM r",
        "SELECT CAST(a AS decimal) AS x FROM r",
        "SELECT count(*) AS n FROM r [RANGE 1 MINUTE] GROUP BY CAST(a AS string)",
        "SELECT max(CAST(s AS interval) + at) AS x FROM r [RANGE 1 MINUTE]",
        "SELECT x.b FROM r [RANGE 1 MINUTE] x, r [RANGE 1 MINUTE] y WHERE x.b = y.b AND CAST(x.a AS string) = y.s",
    ],
)
def test_a_plan_without_a_form_is_known(text: str) -> None:
    assert formless(sql.plan(text, KNOWN).plan) != ""


def test_queries_of_the_papers_have_a_form() -> None:
    assert [formless(planned(path).plan) for path in FILES] == [""] * len(FILES)


@pytest.mark.slow
def test_every_random_query_gets_an_answer() -> None:
    seed = draw_seed()
    queries = Queries(random.Random(seed))
    answers = [formless(sql.plan(queries.query().ours, STREAMS).plan) for _ in range(200)]
    assert answers.count("") > 100
