"""Rows of streams as DataFrames that spark_jobs/compile.py takes, its results as rows again, and a session for both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pyarrow
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from queries.expressions import EPOCH
from queries.plan import Operator, Source, Union, sources
from queries.reference import Streams, _Evaluation
from queries.schema import Row
from spark_jobs.bridge import NO_MARK, SOURCE_HIDDEN, from_arrow, source_schema, to_arrow
from spark_jobs.java import NoJava, find_java
from spark_jobs.session import SessionSettings, start_session
from spark_jobs.types import KEEP, source_type

# As a peer has it, but with tasks for two cores.
SETTINGS = SessionSettings(extra={"spark.master": "local[2]", "spark.default.parallelism": "1"})


def session() -> Iterator[SparkSession]:
    """A session, until the tests that need it are over."""
    try:
        find_java(SETTINGS.java_home)
    except NoJava as error:
        pytest.skip(str(error))
    spark, _ = start_session(SETTINGS, print)
    yield spark
    spark.stop()


def source_frames(spark: SparkSession, plan: Operator, streams: Streams) -> dict[str, DataFrame]:
    """What an engine would have been fed with, all at once: late rows left out, in numbers of arrival."""
    evaluation = _Evaluation(streams, final=True)
    branches = plan.branches if isinstance(plan, Union) else (plan,)
    return {
        each.alias: _frame(spark, each, list(_rows(evaluation, each, sources(branch))))
        for branch in branches
        for each in sources(branch)
    }


def _rows(evaluation: _Evaluation, source: Source, together: Sequence[Source]) -> Iterator[tuple[Row, Row]]:
    """Each row of a source that is not late, and what the engine needs to know of it."""
    by_rows = source.window is not None and source.window.kind == "rows"
    for rank, each in enumerate(evaluation._in_time(source)):
        mark = evaluation.watermark(together, each.arrival)
        closed = None if math.isinf(mark) else EPOCH + timedelta(microseconds=mark)
        time = EPOCH + timedelta(microseconds=each.time)
        own = (*each.tuple.row, time, rank) if by_rows else (*each.tuple.row, time)
        yield own, (each.arrival, True, closed, EPOCH, NO_MARK)


def _frame(spark: SparkSession, source: Source, rows: list[tuple[Row, Row]]) -> DataFrame:
    own = to_arrow(source.columns, [row for row, _ in rows])
    hidden = [
        pyarrow.array([engine[place] for _, engine in rows], field.type) for place, field in enumerate(SOURCE_HIDDEN)
    ]
    table = pyarrow.Table.from_arrays([*own, *hidden], schema=source_schema(source.columns))
    return spark.createDataFrame(table, source_type(source.columns))


def told(results: DataFrame, plan: Operator) -> list[Row]:
    """The rows of results that would be told in the end."""
    table = results.filter(sf.col(KEEP)).select(*results.columns[: len(plan.columns)]).toArrow()
    return from_arrow(plan.columns, [column.combine_chunks() for column in table.columns])
