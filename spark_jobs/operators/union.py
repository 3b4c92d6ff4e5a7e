"""Union: the rows of all branches as they come."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from queries.plan import Union
from spark_jobs.flow import HIDDEN, Flow
from spark_jobs.types import KEY, data_type, place_name


def union(plan: Union, branches: list[Flow]) -> Flow:
    columns = plan.columns
    kinds = [data_type(column.type, column.fields) for column in columns]
    alike = [
        each.selected([sf.col(place_name(place)).cast(kind) for place, kind in enumerate(kinds)], columns)
        for each in branches
    ]
    is_keyed = any(KEY in each.hidden for each in alike)
    frames = (
        [_keyed(each, number, alike) for number, each in enumerate(alike)] if is_keyed else [x.frame for x in alike]
    )
    return alike[0].changed(
        reduce(lambda one, other: one.union(other), frames),
        is_ranked=any(each.is_ranked for each in alike),
        is_aggregate=any(each.is_aggregate for each in alike),
        is_windowed=any(each.is_windowed for each in alike),
        reach_us=None,
    )


def _keyed(branch: Flow, number: int, branches: list[Flow]) -> DataFrame:
    """The rows of a branch with keys of one type for all branches: one place for each branch, and it fills its own."""

    def place(other: int, flow: Flow) -> SparkColumn:
        kind = flow.frame.schema[KEY].dataType
        return (sf.col(KEY) if other == number else sf.lit(None).cast(kind)).alias(place_name(other))

    key = sf.struct(*(place(other, flow) for other, flow in enumerate(branches) if KEY in flow.hidden))
    if KEY not in branch.hidden:
        key = sf.when(sf.lit(False), key)  # Rows that come from no window are told at once.
    own = branch.names[: len(branch.columns)]
    return branch.frame.select(*own, *HIDDEN, key.alias(KEY))
