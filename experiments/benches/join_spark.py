"""The join of join_bench.py in one centralised Spark Structured Streaming query, written by hand.

    python -m experiments.benches.join_spark SHAPE

As in spark_plain.py: Parquet files in a folder in memory, foreachBatch and Arrow, one shuffle partition.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from experiments.benches.join_rows import STREAMS, Arrivals, Shape, StreamName, measure
from experiments.benches.spark_plain import MEMORY, SETTINGS

SCHEMAS: Final[dict[StreamName, str]] = {
    "orders": "id long, customer string, amount double",
    "payments": "of long, paid double",
}
TYPES: Final[dict[StreamName, pa.Schema]] = {
    "orders": pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64())]),
    "payments": pa.schema([("of", pa.int64()), ("paid", pa.float64())]),
}


class Folder:
    """Where the query reads its streams from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = 0
        for stream in STREAMS:
            (path / stream).mkdir()

    def put(self, stream: StreamName, rows: list[tuple[Any, ...]]) -> None:
        arrays = [
            pa.array(column, each.type) for column, each in zip(zip(*rows, strict=True), TYPES[stream], strict=True)
        ]
        self._files += 1
        hidden = self.path / stream / f"_{self._files}"
        table = pa.Table.from_arrays(arrays, schema=TYPES[stream])
        pq.write_table(table, hidden, compression="none", use_dictionary=False)
        hidden.rename(self.path / stream / f"{self._files}.parquet")


def main() -> int:
    shape, arrivals = Shape.from_arguments(), Arrivals()
    path = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    builder = SparkSession.builder.master("local[2]").appName("join")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        folder = Folder(path)
        orders, payments = (spark.readStream.schema(SCHEMAS[each]).parquet(str(path / each)) for each in STREAMS)
        joined = orders.join(payments, sf.col("id") == sf.col("of")).select("id", "customer", "paid")

        def take(frame: DataFrame, _: int) -> None:
            arrivals.note(frame.toArrow().column("id").to_pylist())

        query = joined.writeStream.foreachBatch(take).option("checkpointLocation", str(path / "checkpoint")).start()
        print(json.dumps(measure(shape, folder.put, arrivals)), flush=True)
        query.stop()
    finally:
        spark.stop()
        shutil.rmtree(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
