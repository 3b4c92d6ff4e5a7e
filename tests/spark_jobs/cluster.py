"""A small Spark cluster on loopback: a master, a worker, and the executors that it starts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from spark_jobs.java import find_java

SPARK = Path(pyspark.__file__).parent
START_S = 180  # A machine with much else to do.
STOP_S = 60
# Small, as tests share their machine; and all of them have to know a word.
DEFAULTS = """
spark.executor.memory 400m
spark.executor.cores 2
spark.cores.max 2
spark.authenticate true
spark.authenticate.secret open sesame
"""


# Where the system lets us, the worker and its executors see none of the peer's files in memory: as on another machine.
ELSEWHERE = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")


class Cluster:
    """A running cluster."""

    def __init__(self, master: str, worker_pid: int) -> None:
        self.master = master
        self._worker_pid = worker_pid

    def executors(self) -> list[int]:
        """The processes that the worker has started to run tasks in."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # It has just ended.
            if parent == self._worker_pid and b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
                found.append(int(folder.name))
        return found

    def kill_executor(self) -> None:
        (executor,) = self.executors()
        os.kill(executor, signal.SIGKILL)


@contextmanager
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster, until the tests that need it are over; its files are in the folder, settings in SPARK_CONF_DIR."""
    conf = folder / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS)
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    with (
        _process(folder / "master", "master.Master", "--port", "0") as (master, _),
        _process(folder / "worker", "worker.Worker", "--cores", "2", "--memory", "512M", master) as (_, worker_pid),
    ):
        yield Cluster(master, worker_pid)


@contextmanager
def _process(folder: Path, name: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """A process of Spark's, once it is registered: the address of its master, and its own number."""
    folder.mkdir()
    home, _ = find_java("")
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK),
        "JAVA_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:+UseSerialGC",  # Its port is always the same.
    }
    own = ["--host", "127.0.0.1", "--webui-port", "0", *(["--work-dir", str(folder)] if "Worker" in name else [])]
    command = [*_elsewhere(), SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *own, *arguments]
    with (folder / "log").open("w+") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            yield _address(process, folder / "log"), process.pid
        finally:
            process.terminate()
            process.wait(STOP_S)


def _elsewhere() -> tuple[str, ...]:
    if shutil.which(ELSEWHERE[0]) is None:
        return ()
    tried = subprocess.run([*ELSEWHERE, "true"], check=False, capture_output=True)
    return ELSEWHERE if tried.returncode == 0 else ()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the log says that the process serves a master, or is registered with one."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        said = re.search(r"(?:Starting Spark master at|registered with master) (spark://\S+)\n", log.read_text())
        if said:
            return said[1]
        time.sleep(0.05)
    raise AssertionError(f"it did not start: {log.read_text()[-2000:]}")
