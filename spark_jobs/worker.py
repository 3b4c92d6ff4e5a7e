"""The process that owns a peer's Spark session: `python -m spark_jobs.worker`, started by the engine in the daemon.

Commands come on standard input, reports leave on what was standard output; both are frames of spark_jobs/control.py.
The worker ends when its input ends, and Java ends with the worker, so a killed daemon leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from spark_jobs.control import (
    COMMANDS,
    LENGTH,
    AskStatus,
    Command,
    QueryEnded,
    QueryStarted,
    Ready,
    Report,
    SessionFailed,
    SessionStatus,
    StartQuery,
    StopQuery,
    Waiting,
    frame,
)
from spark_jobs.room import resident_bytes
from spark_jobs.session import NoSession, SessionSettings, first_line, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.runner import Runner

THREADS: Final = 4  # How many queries are started or stopped at the same time.


class Worker:
    """Commands in, reports out, and one session between them."""

    def __init__(self, commands: BinaryIO, reports: BinaryIO) -> None:
        self._commands, self._reports = commands, reports
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS)
        self._starts: dict[str, Future[None]] = {}
        self._java_pid = 0

    def tell(self, report: Report) -> None:
        with self._lock:
            self._reports.write(frame(report))
            self._reports.flush()

    def run(self, settings: SessionSettings) -> int:
        try:
            session, java = start_session(settings, lambda what: self.tell(Waiting(what=what)))
        except NoSession as error:
            self.tell(SessionFailed(reason=str(error)))
            return 1
        process = self._process_of_java(session)
        self._java_pid = process.pid
        threading.Thread(target=self._outlive, args=(process,), daemon=True, name="java").start()
        from spark_jobs.runner import Runner

        runner = Runner(session, lambda run, reason: self.tell(QueryEnded(run=run, reason=reason)))
        self.tell(Ready(spark=session.version, java=java, java_pid=process.pid, master=settings.master))
        while (command := self._next_command()) is not None:
            match command:
                case StartQuery():
                    self._starts[command.run] = self._pool.submit(self._start, runner, command)
                case StopQuery(run=run):
                    self._pool.submit(self._stop, runner, run, self._starts.pop(run, None))
                case AskStatus():
                    self._pool.submit(self._tell_status, runner)
        return 0

    def _next_command(self) -> Command | None:
        """The next command; None at the end of the input, when the daemon is gone or wants us gone."""
        length = self._commands.read(LENGTH.size)
        if len(length) < LENGTH.size:
            return None
        size = LENGTH.unpack(length)[0]
        body = self._commands.read(size)
        return COMMANDS.decode(body) if len(body) == size else None

    def _start(self, runner: Runner, command: StartQuery) -> None:
        try:
            runner.start(command)
        except Exception as error:  # noqa: BLE001  Whatever Spark or py4j raise, it concerns this run only.
            self.tell(QueryEnded(run=command.run, reason=f"Spark refused the plan: {first_line(error)}"))
        else:
            self.tell(QueryStarted(run=command.run))

    def _stop(self, runner: Runner, run: str, start: Future[None] | None) -> None:
        if start is not None:
            start.result()
        runner.stop(run)

    def _tell_status(self, runner: Runner) -> None:
        self.tell(
            SessionStatus(
                java_bytes=resident_bytes(self._java_pid),
                worker_bytes=resident_bytes(os.getpid()),
                state_rows=runner.state_rows(),
            )
        )

    def _process_of_java(self, session: SparkSession) -> Any:
        gateway = session.sparkContext._gateway  # noqa: SLF001  Spark has no public way to it.
        assert gateway is not None
        return gateway.proc

    def _outlive(self, process: Any) -> None:
        """End when Java ends."""
        code = process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.tell(SessionFailed(reason=f"Java ended with {how}"))
        os._exit(1)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the daemon, which ends us.
    settings = msgspec.json.decode(sys.argv[1], type=SessionSettings)
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Nothing else that writes to standard output may get between the frames.
    code = Worker(sys.stdin.buffer, reports).run(settings)
    sys.stderr.flush()
    os._exit(code)  # Do not wait for threads: Java ends when our end of its pipe closes.


if __name__ == "__main__":
    main()
