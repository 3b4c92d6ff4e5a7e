"""The queries of spark_bench.py written by hand in plain Structured Streaming: its yardstick.

    python -m experiments.benches.spark_plain

Tuples of Python become Parquet files in a folder in memory, which a file source reads; foreachBatch and Arrow bring the
results back as tuples. One shuffle partition and no console, as whoever looks at small batches sets them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DoubleType, LongType, StringType, StructField, StructType, TimestampType

from experiments.benches.spark_rows import (
    BATCH_ROWS,
    DELAY,
    SMALL_ROWS,
    START,
    STREAMS,
    TEXTS,
    Feed,
    Figures,
    measured,
    runs_of,
)
from queries.schema import Row

MEMORY: Final = Path("/dev/shm")  # noqa: S108  A file system in memory; our folder in it is ours alone.
TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
SPARK_TYPES: Final[dict[str, DataType]] = {
    "int": LongType(),
    "float": DoubleType(),
    "string": StringType(),
    "timestamp": TimestampType(),
}
SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
WARM: Final = 20
COUNTED: Final = 30
WAIT_S: Final = 60.0


def select_project(streams: dict[str, DataFrame]) -> DataFrame:
    rows = streams["flights"].filter(sf.col("delay") > DELAY)
    return rows.select("num", "departing", (sf.col("delay") * 2).alias("twice"), "seats")


def aggregate(streams: dict[str, DataFrame]) -> DataFrame:
    rows = streams["flights"].withWatermark("at", "0 seconds")
    groups = rows.groupBy(sf.window("at", "1 second"), "departing")
    return groups.agg(sf.count(sf.lit(1)).alias("n"), sf.avg("delay").alias("delay"))


def join(streams: dict[str, DataFrame]) -> DataFrame:
    flights = streams["flights"].withWatermark("at", "0 seconds").alias("f")
    bags = streams["bags"].withWatermark("at", "0 seconds").alias("b")
    five = sf.lit(timedelta(seconds=5))
    within = (sf.col("b.at") >= sf.col("f.at") - five) & (sf.col("b.at") <= sf.col("f.at") + five)
    both = flights.join(bags, (sf.col("f.num") == sf.col("b.flight")) & within)
    return both.select("f.num", "f.delay", "b.weight", sf.least("f.at", "b.at").alias("earlier"))


QUERIES: Final = {"select-project": select_project, "aggregate": aggregate, "join": join}


class Plain:
    """One streaming query, the folders it reads, and what has come of it."""

    def __init__(self, spark: SparkSession, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._feed = Feed([stream for stream in STREAMS if stream in TEXTS[name]])
        self._news = threading.Condition()
        self._files = 0
        self._expected = 0  # Rows that pass the selection, or that groups have to count.
        self._newest: datetime = START  # The beginning of the last batch.
        self._rows = 0
        self._groups: dict[Any, int] = {}
        self._joined: datetime = START
        frames = {}
        for stream in STREAMS:
            (folder / stream).mkdir(parents=True)
            fields = STREAMS[stream].schema.fields
            schema = StructType([StructField(each.name, SPARK_TYPES[each.type]) for each in fields])
            frames[stream] = spark.readStream.schema(schema).parquet(str(folder / stream))
        mode = "update" if name == "aggregate" else "append"
        writer = QUERIES[name](frames).writeStream.foreachBatch(self._take).outputMode(mode)
        self._query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()

    def _take(self, frame: DataFrame, _: int) -> None:
        """The results of a micro-batch, as tuples."""
        rows = list(zip(*(column.to_pylist() for column in frame.toArrow().columns), strict=True))
        with self._news:
            self._rows += len(rows)
            if self._name == "aggregate":
                self._groups.update({(row[0]["start"], row[1]): row[2] for row in rows})
            elif self._name == "join":
                self._joined = max((row[3] for row in rows), default=self._joined)
            self._news.notify_all()

    def put(self, prepared: Sequence[tuple[str, list[Row], int]]) -> None:
        for stream, rows, _ in prepared:
            fields = STREAMS[stream].schema.fields
            columns = list(zip(*rows, strict=True))[: len(fields)]
            arrays = [pa.array(column, TYPES[each.type]) for column, each in zip(columns, fields, strict=True)]
            table = pa.Table.from_arrays(arrays, [each.name for each in fields])
            self._files += 1
            hidden = self._folder / stream / f"_{self._files}"
            pq.write_table(table, hidden, compression="none", use_dictionary=False)
            hidden.rename(self._folder / stream / f"{self._files}.parquet")
            self._expected += sum(row[2] > DELAY for row in rows) if self._name == "select-project" else len(rows)
            self._newest = rows[0][-1]

    def through(self) -> None:
        """Wait for the results of all that was put."""
        with self._news:
            if not self._news.wait_for(self._has_all, WAIT_S):
                raise TimeoutError(str(self._query.exception() or self._query.status))

    def _has_all(self) -> bool:
        match self._name:
            case "select-project":
                return self._rows >= self._expected
            case "aggregate":
                return sum(self._groups.values()) >= self._expected
        return self._joined >= self._newest

    async def latency_ms(self) -> float:
        prepared = self._feed.next(SMALL_ROWS)
        begin = time.perf_counter()
        self.put(prepared)
        self.through()
        return (time.perf_counter() - begin) * 1000

    async def rows_per_s(self, batches: int) -> float:
        prepared = [self._feed.next(BATCH_ROWS) for _ in range(batches)]
        begin = time.perf_counter()
        for each in prepared:
            self.put(each)
        self.through()
        return batches * BATCH_ROWS / (time.perf_counter() - begin)

    def stop(self) -> None:
        self._query.stop()


def measure(spark: SparkSession, name: str, folder: Path) -> Figures:
    plain = Plain(spark, name, folder / name)
    _, _, batches = runs_of(name)
    figures = asyncio.run(measured(plain.latency_ms, plain.rows_per_s, (WARM, COUNTED, batches)))
    plain.stop()
    return figures


def main() -> int:
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    builder = SparkSession.builder.master("local[2]").appName("plain")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        print(json.dumps({name: measure(spark, name, folder)._asdict() for name in QUERIES}))
    finally:
        spark.stop()
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
