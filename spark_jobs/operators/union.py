"""Union: the rows of all branches, each as it comes."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import functions as sf

from queries.plan import Union
from spark_jobs.flow import Flow
from spark_jobs.types import data_type, place_name


def union(plan: Union, branches: list[Flow]) -> Flow:
    columns = plan.columns
    kinds = [data_type(column.type, column.fields) for column in columns]
    alike = [
        each.selected([sf.col(place_name(place)).cast(kind) for place, kind in enumerate(kinds)], columns)
        for each in branches
    ]
    frame = reduce(lambda one, other: one.union(other), (each.frame for each in alike))
    return alike[0].changed(
        frame,
        is_ranked=any(each.is_ranked for each in alike),
        is_aggregate=any(each.is_aggregate for each in alike),
        reach_us=None,
    )
