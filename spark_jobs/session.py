"""The Spark session of a peer: which Java, which settings, and whether there is room for it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from spark_jobs.room import missing_room

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
USUAL_FOLDERS: Final = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/opt/jdk", "/Library/Java/JavaVirtualMachines")
OWN_JAVA: Final = Path(sys.prefix) / "java"  # Where deploy/java-home puts one if the machine has none.
BRIDGE: Final = Path(__file__).parent / "jvm" / "bridge.jar"
MASTER_TIMEOUT_S: Final = 3.0
JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",  # The smallest; the heap is small.
    "-XX:MinHeapFreeRatio=20",
    "-XX:MaxHeapFreeRatio=40",
    "-XX:MaxMetaspaceSize=256m",
    "-XX:ReservedCodeCacheSize=96m",
    "-Xss4m",  # Expressions may be nested deep; what is not used of a stack takes nothing.
    "-XX:+ExitOnOutOfMemoryError",  # A clear end; the daemon starts another and replays.
    "-Djava.net.preferIPv4Stack=true",
)
LOOPBACK: Final = "127.0.0.1"
CLUSTER: Final = {
    "spark.jars": str(BRIDGE),  # The driver hands it to executors.
    "spark.rpc.message.maxSize": "1024",  # In MB: rows travel with the tasks that read them.
}


class SessionSettings(msgspec.Struct, frozen=True):
    """What a peer's operator may choose about Spark."""

    master: str = "local"
    heap_mb: int = 420  # At most; a peer that needs less of it stays below 900 MB.
    java_home: str = ""  # Empty: $JAVA_HOME, the one on PATH, one that is installed, the one beside this Python.
    extra: dict[str, str] = {}  # More settings of Spark, for a cluster's sake.

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the process of the session, not on a cluster."""
        return re.fullmatch(r"local(\[.*\])?", self.master) is not None


class NoSession(Exception):
    """Spark cannot be had here; says why."""


def start_session(settings: SessionSettings, waiting: Callable[[str], None]) -> tuple[SparkSession, str]:
    """The session, and the version of its Java; raises NoSession."""
    waiting("looking for Java")
    home, version = find_java(settings.java_home)
    if missing := missing_room(settings.heap_mb):
        raise NoSession(missing)
    own_address = check_master(settings.master)
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if own_address:
        os.environ["SPARK_LOCAL_IP"] = own_address
    os.environ["MALLOC_ARENA_MAX"] = "2"  # Java's threads would have an arena each, and keep what they no longer need.
    waiting(f"starting Spark on Java {version}")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("peerd")
    for name, value in spark_conf(settings, own_address).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # Whatever py4j or Spark raise: there is no session.
        raise NoSession(f"Spark did not start: {first_line(error)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session, version


def spark_conf(settings: SessionSettings, own_address: str = LOOPBACK) -> dict[str, str]:
    """The settings, each for a reason that was measured or is in the contract."""
    return {
        # Slots are threads, idle ones cost nothing, and a run in real-time mode keeps one or more of them.
        "spark.master": "local[256]" if settings.master == "local" else settings.master,
        "spark.driver.memory": f"{settings.heap_mb}m",
        # Of the heap this is kept from caches; with Spark's usual 300 MB it takes no heap below 450.
        "spark.testing.reservedMemory": str(min(settings.heap_mb << 18, 300 << 20)),
        "spark.driver.extraClassPath": str(BRIDGE),
        "spark.driver.extraJavaOptions": " ".join((*heap_options(settings.heap_mb), *JAVA_OPTIONS)),
        "spark.rpc.netty.dispatcher.numThreads": "4",  # Else as many threads as there are slots.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "peerd.bridge.EmptyJoins",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",  # A function without a result gives null.
        "spark.sql.caseSensitive": "true",
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.analyzer.maxIterations": "1000",  # Deep plans need more than the usual hundred.
        # One partition keeps rows in order, and a small batch has nothing to divide.
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        # Notes of a run are never read again: as few, and as cheap, as can be.
        "spark.sql.streaming.checkpointFileManagerClass": "peerd.bridge.CheckpointFiles",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.maxBatchesToRetainInMemory": "1",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.streaming.pollingDelay": "1ms",  # The source itself waits for rows.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # Spark fears that a join hands late rows to an aggregate; ours says itself which windows are closed to a row.
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "false",
        # Nobody reads what a plan looks like, or wants it checked after every rule: it takes part of each micro-batch.
        "spark.sql.lightweightPlanChangeValidation": "false",
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.maxPlanStringLength": "0",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # Asks Java for the place of every column in our code.
        "spark.sql.streaming.stopTimeout": "30s",
        # What a row says may be forgotten holds for all sources of its run.
        "spark.sql.streaming.multipleWatermarkPolicy": "max",
        "spark.sql.streaming.realTimeMode.allowlistCheck": "false",  # It knows Spark's own sinks only.
        "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled": "false",
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
        "spark.shuffle.streaming.checksum.enabled": "false",  # Rows do not leave the process.
        **({"spark.driver.host": own_address, "spark.driver.bindAddress": own_address} if own_address else {}),
        **({} if settings.is_local else CLUSTER),
        **settings.extra,
    }


# Java.


def heap_options(heap_mb: int) -> tuple[str, str]:
    """A heap that grows with what is kept: Java would begin with a part of the machine, and touch all of it in time."""
    return f"-Xms{heap_mb * 2 // 5}m", f"-Xmn{heap_mb * 2 // 9}m"


def find_java(home: str) -> tuple[Path, str]:
    """The home and version of a Java that is new enough; raises NoSession."""
    found = ""
    for each in _java_homes(home):
        version = java_version(each)
        if version and int(version.split(".")[0]) >= JAVA_MIN:
            return each, version
        found = found or (f'Java {version} at "{each}" is too old' if version else "")
    raise NoSession(f"{found or 'no Java was found'}: Spark needs {JAVA_MIN} or newer; set JAVA_HOME to its home")


def _java_homes(home: str) -> Iterator[Path]:
    if home:
        yield Path(home)
        return
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    if on_path := shutil.which("java"):  # It may be a wrapper far from its home, but knows where that is.
        told = re.search(r"java\.home = (.+)", _said([on_path, "-XshowSettings:properties", "-version"]))
        yield Path(told[1]) if told else Path(on_path).resolve().parent.parent
    for folder in map(Path, USUAL_FOLDERS):
        yield folder
        yield from sorted(folder.glob("*"), reverse=True)
        yield from sorted(folder.glob("*/Contents/Home"), reverse=True)
    yield OWN_JAVA


def java_version(home: Path) -> str:
    """What the Java at home says of itself; empty where there is none that runs."""
    version = re.search(r'version "([0-9.]+)', _said([home / "bin" / "java", "-version"]))
    return version[1] if version else ""


def _said(command: list[str | Path]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return ""


# Reach.


def check_master(master: str) -> str:
    """Our address as the machines of a cluster see it, empty where Spark has to find out.

    Raises NoSession where nobody answers at the master's address: Spark itself would try for minutes.
    """
    if master.startswith("local"):  # Also a cluster of processes that Spark starts here.
        return LOOPBACK
    found = re.fullmatch(r"spark://\[?([^/,\]]+)\]?:(\d+)", master)
    if not found:
        return ""
    try:
        with socket.create_connection((found[1], int(found[2])), MASTER_TIMEOUT_S) as reached:
            address: str = reached.getsockname()[0]
            return address
    except OSError as error:
        raise NoSession(f'the Spark master "{master}" cannot be reached: {error.strerror or error}') from error


def first_line(error: object) -> str:
    """The part of an error that people want to read."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.removeprefix(": ") for line in lines if not line.startswith(("An error occurred", "at "))]
    return told[0][:500] if told else type(error).__name__
