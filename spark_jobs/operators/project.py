"""Projection: each row turned into other columns."""

from __future__ import annotations

from queries.plan import Project
from spark_jobs.expressions import column_of
from spark_jobs.flow import Flow
from spark_jobs.types import data_type


def project(plan: Project, rows: Flow) -> Flow:
    outputs = [
        column_of(named.expression, rows.columns).cast(data_type(column.type, column.fields))
        for named, column in zip(plan.outputs, plan.columns, strict=True)
    ]
    return rows.selected(outputs, plan.columns)
