"""The runs of a session: started, watched and stopped, so that none harms another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrameWriter, SparkSession

from queries.plan import sources
from spark_jobs.compile import compiled
from spark_jobs.control import StartQuery
from spark_jobs.session import first_line
from spark_jobs.types import source_type

WATCH_S: Final = 0.2
ROUND_WAIT_MS: Final = 500
# Rounds are planned anew each time, and generating Java code takes longer than it saves on a round's few rows.
INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
BATCH: Final = "60 seconds"  # In real-time mode: how often state is cleaned up, at the price of a short pause.


class Runner:
    """The runs of one session. `ended` is called once for each that ended, with the reason unless it was stopped."""

    def __init__(self, session: SparkSession, ended: Callable[[str, str], None]) -> None:
        self._session, self._ended = session, ended
        self._for_rounds = session.newSession()  # For micro-batches and batch jobs.
        for name, value in INTERPRETED.items():
            self._for_rounds.conf.set(name, value)
        self._queries: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def start(self, command: StartQuery) -> None:
        """Start a run; raises what Spark raises if the plan cannot run."""
        run, folder, inputs = command.run, command.folder, sources(command.plan)
        is_real_time, is_batch = command.mode == "real-time", command.mode == "batch"
        session = self._session if is_real_time else self._for_rounds
        shared: dict[str, str | bool] = {"path": folder, "realTime": is_real_time}
        frames = {}
        for number, each in enumerate(inputs):
            reader = session.read if is_batch else session.readStream
            reader = reader.format("peerd.bridge.SpoolSource").schema(source_type(each.columns))
            frames[each.alias] = reader.options(**shared, input=number, inputs=len(inputs)).load()
        results = compiled(command.plan, frames, command.closed_until_us, is_marked=is_real_time)
        shared |= {"socket": command.socket, "run": run}
        if is_batch:
            writer = results.write.format("peerd.bridge.SocketSink").options(**shared).mode("append")
            query: SparkQuery = Rounds(session, run, folder, len(inputs), writer)
        else:
            stream = results.writeStream.format("peerd.bridge.SocketSink").options(**shared).outputMode("update")
            stream = stream.option("checkpointLocation", f"{folder}/checkpoint")
            trigger = {"realTime": BATCH} if is_real_time else {"processingTime": "0 seconds"}
            stream = stream.trigger(**trigger)
            query = stream.start()
        with self._lock:
            self._queries[run] = _Kept(query, folder)

    def stop(self, run: str) -> None:
        """End a run; one that is not there has ended already."""
        with self._lock:
            kept = self._queries.pop(run, None)
        if kept is None:
            return
        reason = ""
        try:
            kept.query.stop()
        except PySparkException as error:  # It did not end in time, but it is cut off from the daemon.
            reason = first_line(error)
        self._forget(run, kept)
        self._ended(run, reason)

    def state_rows(self) -> dict[str, int]:
        """How many rows each run keeps, as Spark last counted; runs without a count are left out."""
        with self._lock:
            queries = dict(self._queries)
        told = ((run, kept.query.lastProgress) for run, kept in queries.items())
        return {run: _state_rows(progress) for run, progress in told if progress is not None}

    def _watch(self) -> None:
        """Notice runs that ended by themselves: a run has no end, so it has failed."""
        while not self._closed.wait(WATCH_S):
            with self._lock:
                queries = dict(self._queries)
            for run, kept in queries.items():
                if kept.query.isActive:
                    continue
                with self._lock:
                    is_mine = self._queries.pop(run, None) is not None
                if is_mine:
                    self._forget(run, kept)
                    self._ended(run, f"Spark gave up: {_cause(kept.query.exception())}")

    def _forget(self, run: str, kept: _Kept) -> None:
        bridge = java_bridge(self._session)
        bridge.ResultChannel.close(run)
        bridge.Rounds.forget(kept.folder)


class SparkQuery(Protocol):
    """The common part of a streaming query of Spark and of our own rounds."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802  The names are Spark's.

    @property
    def lastProgress(self) -> Any: ...  # noqa: N802

    def exception(self) -> Any: ...

    def stop(self) -> None: ...


class _Kept(NamedTuple):
    query: SparkQuery
    folder: str


class Rounds:
    """A run of batch jobs: whenever rows have come, one job over all rows that are kept.

    Results that were told before come out again; the daemon recognises them by the number of their newest input.
    """

    lastProgress = None  # noqa: N815

    def __init__(self, session: SparkSession, run: str, folder: str, inputs: int, writer: DataFrameWriter) -> None:
        self._bridge, self._writer = java_bridge(session), writer
        self._folder, self._inputs = folder, inputs
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True, name=run)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._stopped.is_set():
                if self._bridge.Rounds.begin(self._folder, self._inputs, ROUND_WAIT_MS):
                    self._writer.save()
        except Exception as error:  # noqa: BLE001  Whatever Spark raises, the run is over.
            self._error = error


def java_bridge(session: SparkSession) -> Any:
    """Our package in the Java process."""
    jvm = session.sparkContext._jvm  # noqa: SLF001  Spark has no public way to it.
    assert jvm is not None
    return jvm.peerd.bridge


def _state_rows(progress: Any) -> int:
    return sum(int(each.numRowsTotal) for each in progress.stateOperators)


def _cause(error: Any) -> str:
    """The cause of an error, without the stack trace."""
    if error is None:
        return "no reason was given"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Caused by:")]
    return (told[-1].removeprefix("Caused by:").strip() if told else lines[0])[:500]
