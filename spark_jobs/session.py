"""The Spark session of a peer, and the settings that it is started with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from spark_jobs.prospects import LOOPBACK, prospects
from spark_jobs.scratch import scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BRIDGE: Final = Path(__file__).parent / "jvm" / "bridge.jar"
JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",  # The one with the least overhead; the heap is small.
    "-XX:MinHeapFreeRatio=20",
    "-XX:MaxHeapFreeRatio=40",
    "-XX:MaxMetaspaceSize=256m",
    "-XX:ReservedCodeCacheSize=96m",
    "-Xss4m",  # Expressions may be deeply nested; unused stack costs nothing.
    "-XX:-UsePerfData",  # A file in memory that nobody reads, and where the scratch folder is full, a crash.
    "-XX:+ExitOnOutOfMemoryError",  # A clear end: the daemon starts another worker and replays.
    "-Djava.net.preferIPv4Stack=true",
)
CLUSTER: Final = {
    "spark.jars": str(BRIDGE),  # The driver hands it to executors.
    "spark.rpc.message.maxSize": "1024",  # In MB: rows travel with the tasks that read them.
}


class SessionSettings(msgspec.Struct, frozen=True):
    """What a peer's operator may choose about Spark."""

    master: str = "local"
    heap_mb: int = 420  # Upper bound; a peer that needs less stays below 900 MB.
    java_home: str = ""  # Empty: $JAVA_HOME, then PATH, then an installed one, then the one beside this Python.
    extra: dict[str, str] = {}  # Further Spark settings, for a cluster.

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the process of the session, not on a cluster."""
        return re.fullmatch(r"local(\[.*\])?", self.master) is not None


class NoSession(Exception):
    """Spark is not available here; says why."""


def start_session(settings: SessionSettings, waiting: Callable[[str], None]) -> tuple[SparkSession, str]:
    """The session, and the version of its Java; raises NoSession."""
    waiting("looking for Java")
    found = prospects(settings)
    if found.reason:
        raise NoSession(found.reason)
    os.environ["JAVA_HOME"] = str(found.java_home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if found.own_address:
        os.environ["SPARK_LOCAL_IP"] = found.own_address
    os.environ["MALLOC_ARENA_MAX"] = "2"  # Otherwise each of Java's threads would keep an arena of its own.
    waiting(f"starting Spark on Java {found.java}")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("peerd")
    for name, value in spark_conf(settings, found.own_address).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # Whatever py4j or Spark raise: there is no session.
        raise NoSession(f"Spark did not start: {first_line(error)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session, found.java


def spark_conf(settings: SessionSettings, own_address: str = LOOPBACK) -> dict[str, str]:
    """The settings; each has a reason that was measured or is in the contract."""
    return {
        # Slots are threads. Idle ones cost nothing, and a run in real-time mode occupies at least one.
        "spark.master": "local[256]" if settings.master == "local" else settings.master,
        "spark.driver.memory": f"{settings.heap_mb}m",
        # Heap reserved from caches. With Spark's default of 300 MB it refuses heaps below 450 MB.
        "spark.testing.reservedMemory": str(min(settings.heap_mb << 18, 300 << 20)),
        "spark.driver.extraClassPath": str(BRIDGE),
        "spark.driver.extraJavaOptions": " ".join(
            (*heap_options(settings.heap_mb), f'"-Djava.io.tmpdir={scratch_folder()}"', *JAVA_OPTIONS)
        ),
        "spark.rpc.netty.dispatcher.numThreads": "4",  # Otherwise as many threads as slots.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "peerd.bridge.EmptyJoins",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",  # A function without a result gives null.
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",  # Results keep the places of a decimal, or are null.
        "spark.sql.caseSensitive": "true",
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.analyzer.maxIterations": "1000",  # Deep plans need more than the usual hundred.
        # One partition keeps rows in order, and a small batch has nothing to divide.
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        # The checkpoints of a run are never read again, so they are as few and as cheap as possible.
        "spark.sql.streaming.checkpointFileManagerClass": "peerd.bridge.CheckpointFiles",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.maxBatchesToRetainInMemory": "1",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.streaming.pollingDelay": "1ms",  # Our source itself waits for rows.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # Spark warns that a join may hand late rows to an aggregate; our rows say themselves which windows are closed.
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "false",
        # Nobody reads plan descriptions or needs plan checks after every rule, and they cost time in each micro-batch.
        "spark.sql.lightweightPlanChangeValidation": "false",
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.maxPlanStringLength": "0",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # It asks Java for the source line of every column.
        "spark.sql.streaming.stopTimeout": "30s",
        # FORGET of any row holds for all sources of its run.
        "spark.sql.streaming.multipleWatermarkPolicy": "max",
        "spark.sql.streaming.realTimeMode.allowlistCheck": "false",  # The allowlist has only Spark's own sinks.
        "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled": "false",
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
        "spark.shuffle.streaming.checksum.enabled": "false",  # Rows do not leave the process.
        **({"spark.driver.host": own_address, "spark.driver.bindAddress": own_address} if own_address else {}),
        **({} if settings.is_local else CLUSTER),
        **settings.extra,
    }


def heap_options(heap_mb: int) -> tuple[str, str]:
    """A heap that grows with need; by default Java begins with a share of the machine and later touches all of it."""
    return f"-Xms{heap_mb * 2 // 5}m", f"-Xmn{heap_mb * 2 // 9}m"


def first_line(error: object) -> str:
    """The readable part of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.removeprefix(": ") for line in lines if not line.startswith(("An error occurred", "at "))]
    return told[0][:500] if told else type(error).__name__
