"""Runs in a session: started, watched and stopped, none at the cost of another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from queries.plan import Operator, Source, sources
from spark_jobs.compile import compiled
from spark_jobs.session import first_line
from spark_jobs.stages import mode
from spark_jobs.types import source_type

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

WATCH_S: Final = 0.2
BATCH: Final = "60 seconds"  # Of real-time mode: how often state is tidied up, at the price of a short pause.


class Runner:
    """The runs of one session. `ended` is told once of each that ended, with the reason unless it was stopped."""

    def __init__(self, session: SparkSession, ended: Callable[[str, str], None]) -> None:
        self._session, self._ended = session, ended
        self._queries: dict[str, StreamingQuery] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def start(self, run: str, plan: Operator, folder: Path, socket: str) -> None:
        """Start a run; raises what Spark raises where the plan cannot run."""
        is_real_time = mode(plan) == "real-time"
        inputs = sources(plan)
        frames = {
            each.alias: self._source(each, folder, number, len(inputs), is_real_time)
            for number, each in enumerate(inputs)
        }
        writer = (
            compiled(plan, frames)
            .writeStream.format("peerd.bridge.SocketSink")
            .option("socket", socket)
            .option("run", run)
            .option("path", str(folder))
            .option("realTime", is_real_time)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .outputMode("update" if is_real_time else "append")
        )
        writer = writer.trigger(realTime=BATCH) if is_real_time else writer.trigger(processingTime="0 seconds")
        query = writer.start()
        with self._lock:
            self._queries[run] = query

    def _source(self, source: Source, folder: Path, number: int, inputs: int, is_real_time: bool) -> DataFrame:
        reader = self._session.readStream.format("peerd.bridge.SpoolSource").schema(source_type(source.columns))
        options = {"path": str(folder), "input": number, "inputs": inputs, "realTime": is_real_time}
        return reader.options(**options).load()

    def stop(self, run: str) -> None:
        """End a run; one that is not there has ended already."""
        with self._lock:
            query = self._queries.pop(run, None)
        if query is None:
            return
        reason = ""
        try:
            query.stop()
        except PySparkException as error:  # It would not end in time; it is cut off from the daemon all the same.
            reason = first_line(error)
        self._forget(run)
        self._ended(run, reason)

    def state_rows(self) -> dict[str, int]:
        """How many rows each run keeps, as Spark last counted them."""
        with self._lock:
            queries = dict(self._queries)
        return {run: _state_rows(query.lastProgress) for run, query in queries.items()}

    def _watch(self) -> None:
        """Notice runs that ended by themselves: they have failed, since none has an end."""
        while not threading.Event().wait(WATCH_S):
            with self._lock:
                queries = dict(self._queries)
            for run, query in queries.items():
                if query.isActive:
                    continue
                with self._lock:
                    is_mine = self._queries.pop(run, None) is not None
                if is_mine:
                    error = query.exception()
                    self._forget(run)
                    self._ended(run, f"Spark gave up: {_cause(error)}")

    def _forget(self, run: str) -> None:
        jvm = self._session.sparkContext._jvm
        assert jvm is not None
        jvm.peerd.bridge.ResultChannel.close(run)


def _state_rows(progress: Any) -> int:
    if progress is None:
        return 0
    return sum(int(each.numRowsTotal) for each in progress.stateOperators)


def _cause(error: Any) -> str:
    """What went wrong, without the pages around it."""
    if error is None:
        return "no reason was given"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Caused by:")]
    return (told[-1].removeprefix("Caused by:").strip() if told else lines[0])[:500]
