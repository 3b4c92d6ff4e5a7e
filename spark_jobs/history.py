"""A query over recorded streams, as a batch job in a Spark of this process: the results it would have had.

The recordings are rewritten for Spark, with columns named c0, c1, … and, beside each row, what an engine is told of it.
The results are those of queries/reference.py on the recorded tuples, with everything complete at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from queries import restructure
from queries.plan import Operator, Restructure, Source, Union, sources
from queries.schema import Row
from spark_jobs.arrivals import Arrivals, Numbers
from spark_jobs.bridge import NO_MARK, TIMESTAMP, from_arrow, source_schema
from spark_jobs.recordings import Recording, as_type
from spark_jobs.session import SessionSettings, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES_MAX: Final = 8
PARQUET: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # We use one calendar for all times.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
Recordings = Mapping[str, Recording]


def results_of(
    plan: Operator, recordings: Recordings, folder: Path, heap_mb: int, waiting: Callable[[str], None]
) -> Iterator[Row]:
    """The results of a plan over recordings, in the order in which they are due; `folder` takes intermediate files.

    Raises NoSession if Spark is not available, NoForm if Spark cannot express the plan.
    """
    branches = plan.branches if isinstance(plan, Union) else (plan,)
    if not all(isinstance(each, Restructure) for each in branches):
        branches = (plan,)
    bodies = [each.input if isinstance(each, Restructure) else each for each in branches]
    rows = sum(recordings[each.stream].rows for body in bodies for each in sources(body))
    waiting(f"writing {rows:,} tuples for Spark")
    folders = [folder / f"part{number}" for number in range(len(bodies))]
    for each in folders:
        each.mkdir()
    inputs = [prepared(body, recordings, part) for body, part in zip(bodies, folders, strict=True)]
    cores = min(os.cpu_count() or 1, CORES_MAX)
    settings = SessionSettings(heap_mb=heap_mb, extra={"spark.master": f"local[{cores}]", **PARQUET})
    waiting("starting Spark")
    with _errors_into(folder / "spark.log"):
        spark, _ = start_session(settings, lambda what: None)
    try:
        waiting("running the query")
        for branch, body, paths, part in zip(branches, bodies, inputs, folders, strict=True):
            shape = restructure.on_row(branch) if isinstance(branch, Restructure) else None
            for row in read_results(body, batch(spark, body, paths, part / "results")):
                yield row if shape is None else (shape(row),)
    finally:
        spark.stop()


def prepared(plan: Operator, recordings: Recordings, folder: Path) -> dict[str, Path]:
    """The rows of each source of a plan in Spark's format, by alias, without late ones."""
    arrivals = Arrivals({each.stream: recordings[each.stream] for each in sources(plan)})
    branches = plan.branches if isinstance(plan, Union) else (plan,)
    paths: dict[str, Path] = {}
    for branch in branches:
        together = sources(branch)
        for each in together:
            paths[each.alias] = folder / f"source{len(paths)}.parquet"
            _write_source(each, recordings[each.stream], arrivals.numbers(each, together), paths[each.alias])
    return paths


def batch(spark: SparkSession, plan: Operator, inputs: Mapping[str, Path], out: Path) -> Path:
    """Run a plan as one job; its results are files in `out`."""
    from pyspark.sql import functions as sf

    from spark_jobs.compile import compiled
    from spark_jobs.types import DUE, KEEP, NUMBER, source_type

    frames: dict[str, DataFrame] = {
        each.alias: spark.read.schema(source_type(each.columns)).parquet(str(inputs[each.alias]))
        for each in sources(plan)
    }
    results = compiled(plan, frames)
    in_order = results.filter(sf.col(KEEP)).orderBy(sf.col(DUE).asc_nulls_first(), NUMBER)
    in_order.select(*results.columns[: len(plan.columns)]).write.parquet(str(out), compression="none")
    return out


def read_results(plan: Operator, out: Path) -> Iterator[Row]:
    """The rows of a job's results, read in portions."""
    for path in sorted(out.glob("*.parquet")):
        for part in parquet.ParquetFile(path).iter_batches():
            yield from from_arrow(plan.columns, part.columns)


def _write_source(source: Source, recording: Recording, numbers: Numbers, path: Path) -> None:
    schema = source_schema(source.columns)
    by_rows = source.window is not None and source.window.kind == "rows"
    names = [each.name for each in source.schema.fields]
    with parquet.ParquetWriter(path, schema, compression="none") as writer:
        begin = 0
        for group in recording.groups(names):
            part = slice(begin, begin + len(group))
            begin = part.stop
            own: list[Any] = [
                as_type(group.column(name).combine_chunks(), field.type)
                for name, field in zip(names, schema, strict=False)
            ]
            own.append(pa.array(numbers.time_us[part], pa.int64()).cast(TIMESTAMP))
            if by_rows:
                own.append(pa.array(numbers.rank[part], pa.int64()))
            hidden = [
                pa.array(numbers.arrival[part], pa.int64()),
                pa.repeat(True, len(group)),
                pa.array(numbers.closed_us[part], pa.int64()).cast(TIMESTAMP),
                pa.repeat(0, len(group)).cast(pa.int64()).cast(TIMESTAMP),
                pa.repeat(pa.scalar(NO_MARK, pa.int32()), len(group)),
            ]
            rows = pa.Table.from_arrays([*own, *hidden], schema=schema)
            writer.write_table(rows.filter(pa.array(numbers.in_time[part], pa.bool_())))


@contextmanager
def _errors_into(log: Path) -> Iterator[None]:
    """Send the errors of a process started meanwhile to a file, because Java writes much that nobody needs."""
    sys.stderr.flush()
    before = os.dup(2)
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
