"""Selection: the rows for which a predicate is true, not false or unknown."""

from __future__ import annotations

from pyspark.sql import functions as sf

from queries.plan import Select
from spark_jobs.expressions import column_of, is_true
from spark_jobs.flow import Flow
from spark_jobs.types import KEEP, MARK


def select(plan: Select, rows: Flow) -> Flow:
    """Filter rows. A window's row is only marked as no result, since it may replace one that was a result."""
    if rows.is_aggregate:
        holds = sf.col(KEEP) & is_true(plan.predicate, rows.columns)
        return rows.changed(rows.frame.withColumn(KEEP, holds))
    holds = column_of(plan.predicate, rows.columns)
    return rows.changed(rows.frame.filter(holds | (sf.col(MARK) >= 0) if rows.is_marked else holds))
