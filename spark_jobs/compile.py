"""A plan turned into a DataFrame over DataFrames of its sources, batch or streaming.

Only our operators and expressions get here, and each becomes a Spark column: no text is ever handed to Spark's parser.
spark_jobs/types.py names the columns that go in and come out.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from queries.plan import Join, Nest, Operator, Project, Select, Source, Union, WindowAggregate, sources
from spark_jobs.flow import Flow
from spark_jobs.operators.aggregate import aggregate
from spark_jobs.operators.join import join
from spark_jobs.operators.nest import nest
from spark_jobs.operators.project import project
from spark_jobs.operators.select import select
from spark_jobs.operators.source import source
from spark_jobs.operators.union import union
from spark_jobs.types import DUE, IS_NEW, KEEP, KEY, MARK, NUMBER


def compiled(
    plan: Operator, frames: Mapping[str, DataFrame], closed_until_us: int | None = None, *, is_marked: bool = False
) -> DataFrame:
    """The results of a plan over the rows of its sources, by alias; raises NoForm if Spark cannot express the plan.

    `is_marked` says whether streams have marks among their rows. In a batch job, results of old rows that were due by
    `closed_until_us` were told before.
    """
    compilation = _Compilation(plan, frames, closed_until_us, is_marked)
    flow = compilation.flow(plan)
    frame = flow.frame.filter((sf.col(MARK) >= 0) | sf.col(IS_NEW) if flow.is_marked else sf.col(IS_NEW))
    if KEY not in flow.hidden:
        frame = frame.withColumn(KEY, sf.lit(None).cast("struct<end:timestamp>"))
    own = flow.names[: len(flow.columns)]
    return frame.select(*own, NUMBER, MARK, DUE, KEY, KEEP)


class _Compilation:
    """One plan on its way to Spark."""

    def __init__(
        self, plan: Operator, frames: Mapping[str, DataFrame], closed_until_us: int | None, is_marked: bool
    ) -> None:
        self._frames, self._closed_until_us, self._is_marked = frames, closed_until_us, is_marked
        self._by_rows = any(each.window is not None and each.window.kind == "rows" for each in sources(plan))

    def flow(self, plan: Operator) -> Flow:
        match plan:
            case Source():
                return source(plan, self._frames[plan.alias], is_marked=self._is_marked, by_rows=self._by_rows)
            case Select():
                return select(plan, self.flow(plan.input))
            case Project():
                return project(plan, self.flow(plan.input))
            case Join():
                return join(plan, self.flow(plan.left), self.flow(plan.right))
            case Nest():
                return nest(plan, self.flow(plan.input), self.flow(plan.nested), self._closed_until_us)
            case WindowAggregate():
                return aggregate(plan, self.flow(plan.input), *self._ranked(plan), self._closed_until_us)
            case Union():
                return union(plan, [self.flow(branch) for branch in plan.branches])
        raise AssertionError(f"{plan} is made by the subscriber's peer")

    def _ranked(self, plan: WindowAggregate) -> tuple[DataFrame | None, int | None]:
        """The stream whose rows a window counts, and the place of their numbers; no stream if it counts joined rows."""
        origins = sources(plan.input)
        if len(origins) > 1 or origins[0].window is None or origins[0].window.kind != "rows":
            return None, None
        return self._frames[origins[0].alias], len(origins[0].columns) - 1
