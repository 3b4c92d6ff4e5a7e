"""Spark as the daemon sees it: it starts, feeds and stops runs, and hears of their results.

The daemon never loads Spark. A worker (spark_jobs/worker.py) owns the session and its Java process. Rows reach Spark
through spools, which a thread writes; results come back over a Unix socket. All of that lives in one private folder, in
memory if possible. A warm Spark first runs a small join of our own (spark_jobs/rehearsal.py). A run is not durable:
whoever started it can start it again. If the worker or Java dies, every run fails with the reason, and the next start
brings up a new worker.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from queries.plan import Operator, horizon_us, sources
from queries.schema import Row
from spark_jobs import rehearsal
from spark_jobs.control import (
    LENGTH,
    REPORTS,
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
from spark_jobs.listener import Listener
from spark_jobs.results import Input, Results
from spark_jobs.retention import Retention
from spark_jobs.room import WORKER, processor_s, resident_bytes
from spark_jobs.scratch import private_folder
from spark_jobs.session import SessionSettings
from spark_jobs.spool import Fed, Job, Spool, Writer
from spark_jobs.stages import Mode, joins, mode

ROOT: Final = str(Path(__file__).resolve().parents[__name__.count(".")])  # Where the worker finds our packages.
ASK_S: Final = 1.0
CLOSE_S: Final = 5.0
WORDS_MAX: Final = 20  # How many of the worker's last lines are kept.

_HELLO, _ROWS, _MARK, _FILES = range(4)
_PLACE: Final = struct.Struct("<iq")


class RunStatus(msgspec.Struct, frozen=True):
    """One run, for display."""

    mode: Mode
    number: int  # The last input that was fed.
    done: int  # The last input whose results were told.
    held: int  # Results that are not due yet.
    state_rows: int | None


class EngineStatus(msgspec.Struct, frozen=True):
    """The engine, for display."""

    state: str  # off | starting | ready
    waits_for: str = ""
    spark: str = ""
    java: str = ""
    master: str = ""
    worker_pid: int = 0
    java_pid: int = 0
    memory_bytes: int = 0  # Of worker and Java together.
    runs: dict[str, RunStatus] = {}
    last_failure: str = ""


class _Run:
    """What the daemon keeps of one run."""

    def __init__(self, run: str, plan: Operator, how: Mode, folder: Path, closed_until_us: int | None) -> None:
        self.run, self.folder, self.mode = run, folder, how
        inputs = sources(plan)
        folder.mkdir()
        self.places = {each.alias: place for place, each in enumerate(inputs)}
        is_batch, is_real_time = self.mode == "batch", self.mode == "real-time"
        self.spools = [
            Spool(folder, place, each, is_real_time, Retention(plan, each) if is_batch else None)
            for place, each in enumerate(inputs)
        ]
        self.columns = plan.columns
        self.results = Results(len(inputs), by_rounds=is_batch)
        self.number = 0
        # Windows that end by then take no more rows. A batch job must make them again, since others may read them.
        self.closed_us = closed_until_us if self.mode != "batch" else None
        self.counted: int | None = None  # Rows of state as Spark counts them.
        self._joins, self._horizon_us = joins(plan), horizon_us(plan)

    @property
    def state_rows(self) -> int | None:
        """How many rows it keeps; None: not known yet.

        Spark counts at the end of each of its batches. In real-time mode a batch takes a minute, and between batch jobs
        Spark has no state. Then this is what waits here for the end of windows, or is kept here for the next job.
        """
        match self.mode:
            case "real-time":
                return self.results.open_groups
            case "batch":
                return sum(spool.kept_rows for spool in self.spools)
        return self.counted

    @property
    def forget_us(self) -> int | None:
        """No row still to come needs anything older. By the last finished input, because Spark reads some inputs before
        others.
        """
        if not self._joins:
            return self.results.watermark_us
        if self.results.floor_us is None or self._horizon_us is None:
            return None
        return self.results.floor_us - self._horizon_us

    def remove(self, done: int, floor_us: int | None) -> None:
        """Free what finished inputs took, unless batch jobs will read it again."""
        for spool in self.spools:
            spool.remove(done, floor_us)

    def clear(self) -> None:
        """Remove everything of the run."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)


class SparkEngine:
    """The runs of one peer. It lives in the event loop in which `start` is first called."""

    def __init__(self, listener: Listener, settings: SessionSettings | None = None) -> None:
        self._listener = listener
        self._settings = settings or SessionSettings()
        self._runs: dict[str, _Run] = {}
        self._ending: dict[str, _Run] = {}
        self._folder: Path | None = None
        self._writer: Writer | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._worker: asyncio.subprocess.Process | None = None
        self._outbox: list[bytes] = []  # Commands for a worker that is still starting.
        self._status = EngineStatus("off")
        self._is_closed = False

    # Called by the driver.

    def start(self, run: str, plan: Operator, closed_until_us: int | None) -> None:
        """Run a plan; answered with on_started or on_failed."""
        assert run not in self._runs, f"{run} runs already"
        how = mode(plan, is_local=self._settings.is_local)
        try:
            kept = self._runs[run] = self._make_run(run, plan, how, closed_until_us)
        except OSError as error:  # For instance a full disk; it ends this run, and nothing else.
            reason = f"rows cannot be handed to Spark: {_in_words(error)}"
            if run == rehearsal.RUN:
                self._listener.on_tried(reason)
            else:
                self._listener.on_failed(run, reason)
            return
        command = StartQuery(
            run=run,
            plan=plan,
            mode=how,
            closed_until_us=closed_until_us,
            folder=str(kept.folder),
            socket=str(self._socket),
        )
        self._wake()
        self._tell(command)

    def feed(
        self,
        run: str,
        number: int,
        alias: str,
        rows: Sequence[Row],
        is_new: bool,
        watermark_us: int | None,
        floor_us: int | None,
    ) -> None:
        """Hand rows of a source to a run; on_results brings the results. A run that has ended ignores them."""
        kept = self._runs.get(run)
        if kept is None:
            return
        kept.number = number
        place = kept.places[alias]
        if not rows and kept.mode != "real-time":
            kept.results.expect(Input(number, None, watermark_us, floor_us))
            self._advance_soon(kept)
        else:
            kept.results.expect(Input(number, place, watermark_us, floor_us))
            kept.spools[place].add(Fed(number, rows, is_new, kept.closed_us, kept.forget_us, watermark_us))
            self._do(kept, kept.spools[place].write)
        if watermark_us is not None:
            kept.closed_us = watermark_us if kept.closed_us is None else max(kept.closed_us, watermark_us)

    def stop(self, run: str) -> None:
        """End a run; nothing more is told of it."""
        kept = self._runs.pop(run, None)
        if kept is not None:
            self._ending[run] = kept
            self._tell(StopQuery(run=run))

    def warm(self) -> None:
        """Start Spark before a run needs it, and let it rehearse a join.

        on_tried tells when it is ready, also if it was ready before.
        """
        if self._status.state == "ready":
            self._listener.on_tried("")
        elif self._status.state == "off" and not self._is_closed:
            self.start(rehearsal.RUN, rehearsal.rehearsed(), None)

    def _make_run(self, run: str, plan: Operator, how: Mode, closed_until_us: int | None) -> _Run:
        """A run with its files in our private folder; raises OSError and leaves nothing then."""
        if self._folder is None:
            self._folder = private_folder()
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            return _Run(run, plan, how, folder / "run", closed_until_us)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @property
    def _socket(self) -> Path:
        """Where results come back."""
        assert self._folder is not None
        return self._folder / "results"

    def _wake(self) -> None:
        if self._status.state != "off" or self._is_closed:
            return
        self._status = EngineStatus("starting", "the worker", last_failure=self._status.last_failure)
        if self._writer is None:
            self._writer = Writer(partial(self._not_written, asyncio.get_running_loop()))
        self._spawn(self._work())

    @property
    def state(self) -> str:
        return self._status.state

    def status(self) -> EngineStatus:
        """How the engine is."""
        runs = {
            run: RunStatus(each.mode, each.number, each.results.done, each.results.held, each.state_rows)
            for run, each in self._runs.items()
            if run != rehearsal.RUN
        }
        status = self._status
        memory = sum(resident_bytes(pid) for pid in (status.worker_pid, status.java_pid) if pid)
        return msgspec.structs.replace(status, runs=runs, memory_bytes=memory)

    def processor_s(self) -> float:
        """What worker and Java have used of the processors."""
        return sum(processor_s(pid) for pid in (self._status.worker_pid, self._status.java_pid) if pid)

    async def close(self) -> None:
        """End everything and leave nothing behind."""
        self._is_closed = True
        ended = [*self._runs.values(), *self._ending.values()]
        self._runs, self._ending = {}, {}
        await self._end_worker()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for kept in ended:
            self._do(kept, kept.clear)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._status = EngineStatus("off")

    # The worker.

    async def _work(self) -> None:
        """One worker, from its start to its end."""
        try:
            worker = self._worker = await self._start_worker()
        except OSError as error:  # No room for its socket, or for one more process.
            reason = f"the Spark worker cannot be started: {_in_words(error)}"
        else:
            reason = await self._live(worker)
        if not self._status.spark and not self._is_closed:  # Spark never started, so nobody should ask us for it.
            self._listener.on_tried(reason)
        self._lost(reason)

    async def _start_worker(self) -> asyncio.subprocess.Process:
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._connected, self._socket)
        paths = os.pathsep.join(each for each in (ROOT, os.environ.get("PYTHONPATH", "")) if each)
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            WORKER,
            msgspec.json.encode(self._settings).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )

    async def _live(self, worker: asyncio.subprocess.Process) -> str:
        """Hand a worker its commands and take its reports until it ends; returns why it did."""
        self._status = msgspec.structs.replace(self._status, worker_pid=worker.pid)
        assert worker.stdin is not None
        for command in self._outbox:
            worker.stdin.write(command)
        self._outbox.clear()
        words: deque[str] = deque(maxlen=WORDS_MAX)
        listening = asyncio.create_task(self._listen(worker, words))
        asking = asyncio.create_task(self._ask())
        reason = ""
        try:
            reason = await self._reports(worker)
        finally:
            asking.cancel()
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)  # Java is in its process group.
            await worker.wait()
            await asyncio.gather(listening, asking, return_exceptions=True)
        return reason or f"the Spark worker ended with code {worker.returncode}: {' / '.join(words)[-500:]}"

    async def _reports(self, worker: asyncio.subprocess.Process) -> str:
        """Handle the worker's reports until it ends; returns the reason, if it gave one."""
        assert worker.stdout is not None
        reason = ""
        with suppress(asyncio.IncompleteReadError):
            while True:
                length = LENGTH.unpack(await worker.stdout.readexactly(LENGTH.size))[0]
                report = REPORTS.decode(await worker.stdout.readexactly(length))
                if isinstance(report, SessionFailed):
                    reason = report.reason
                else:
                    self._reported(report)
        return reason

    def _reported(self, report: Report) -> None:
        match report:
            case Waiting(what=what):
                self._status = msgspec.structs.replace(self._status, waits_for=what)
                self._listener.on_waiting(what)
            case Ready():
                self._started(report)
            case QueryStarted(run=rehearsal.RUN):
                for fed in rehearsal.INPUTS:
                    self.feed(rehearsal.RUN, *fed)
            case QueryStarted(run=run) if run in self._runs:
                self._listener.on_started(run)
            case QueryEnded(run=run, reason=reason):
                ended = self._ending.pop(run, None)
                if ended is None and run in self._runs:
                    ended = self._runs.pop(run)
                    self._fail(run, reason or "Spark ended it")
                if ended is not None:
                    self._do(ended, ended.clear)
            case SessionStatus(state_rows=state_rows):
                for run, count in state_rows.items():
                    if run in self._runs:
                        self._runs[run].counted = count

    def _started(self, report: Ready) -> None:
        is_ready = rehearsal.RUN not in self._runs
        self._status = msgspec.structs.replace(
            self._status,
            state="ready" if is_ready else "starting",
            waits_for="" if is_ready else "its first join",
            spark=report.spark,
            java=report.java,
            java_pid=report.java_pid,
            master=report.master,
        )
        if is_ready:
            self._listener.on_tried("")

    async def _listen(self, worker: asyncio.subprocess.Process, words: deque[str]) -> None:
        """Keep the worker's last lines of output: they say why it ended if it could not."""
        assert worker.stderr is not None
        while line := await worker.stderr.readline():
            words.append(line.decode(errors="replace").strip()[:300])

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(ASK_S)
            if self._runs and self._status.state == "ready":
                self._tell(AskStatus())
            for run, kept in self._runs.items():
                if (rows := kept.state_rows) is not None and run != rehearsal.RUN:
                    self._listener.on_state(run, rows)

    def _lost(self, reason: str) -> None:
        """The worker is gone, and all runs with it."""
        self._worker = None
        self._outbox.clear()
        self._status = EngineStatus("off", last_failure=reason)
        lost, self._runs = self._runs, {}
        for kept in (*lost.values(), *self._ending.values()):
            self._do(kept, kept.clear)
        self._ending.clear()
        for run in lost:
            if run != rehearsal.RUN:
                self._listener.on_failed(run, reason)

    def _fail(self, run: str, reason: str) -> None:
        """A run has failed; tell its owner."""
        if run == rehearsal.RUN:
            self._rehearsed()
        else:
            self._listener.on_failed(run, reason)

    def _rehearsed(self) -> None:
        """The rehearsal is over, whether it worked or not: Spark is as ready as it gets."""
        self.stop(rehearsal.RUN)
        self._status = msgspec.structs.replace(self._status, state="ready", waits_for="")
        self._listener.on_tried("")

    async def _end_worker(self) -> None:
        worker = self._worker
        if worker is None:
            return
        assert worker.stdin is not None
        worker.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.wait(), CLOSE_S)

    def _tell(self, command: Command) -> None:
        if self._worker is None:
            self._outbox.append(frame(command))
        else:
            assert self._worker.stdin is not None
            self._worker.stdin.write(frame(command))

    # Rows.

    def _do(self, kept: _Run, job: Job) -> None:
        """Let the writing thread do something for a run."""
        assert self._writer is not None
        self._writer.do(kept.run, job)

    def _not_written(self, loop: asyncio.AbstractEventLoop, run: str, reason: str) -> None:
        """Called in the writing thread: without these rows the run is worthless."""

        def fail() -> None:
            if run in self._runs:
                self.stop(run)
                self._fail(run, reason)

        loop.call_soon_threadsafe(fail)

    # Results.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The results of one run, from a task of Spark. None can come before the writing thread has loaded Arrow."""
        from pyarrow import ipc

        from spark_jobs.bridge import results_of

        run = ""
        try:
            while True:
                length = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
                body = await reader.readexactly(length)
                kind, payload = body[0], memoryview(body)[1:]
                if kind == _HELLO:
                    run = bytes(payload).decode()
                kept = self._runs.get(run)
                if kept is None or kind == _HELLO:
                    continue
                if kind == _ROWS:
                    for batch in ipc.open_stream(payload):
                        kept.results.take(results_of(kept.columns, batch))
                    continue
                place, number = _PLACE.unpack(payload)
                if kind == _MARK:
                    kept.results.mark(place, number)
                else:
                    kept.results.end_round(place, kept.spools[place].number_of(number))
                self._advance(kept)
        except asyncio.IncompleteReadError:
            pass  # The run has ended, or Java has.
        finally:
            writer.close()

    def _advance(self, kept: _Run) -> None:
        told = kept.results.advance()
        if told is None:
            return
        self._do(kept, partial(kept.remove, kept.results.done, kept.results.floor_us))
        if kept.run != rehearsal.RUN:
            self._listener.on_results(kept.run, kept.results.done, told)
        elif kept.results.done == len(rehearsal.INPUTS):
            self._rehearsed()

    def _advance_soon(self, kept: _Run) -> None:
        """Finish an input that Spark need not see once all before it are finished, but never before `feed` returns."""

        def advance() -> None:
            if self._runs.get(kept.run) is kept:
                self._advance(kept)

        asyncio.get_running_loop().call_soon(advance)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _in_words(error: OSError) -> str:
    where = f' ("{error.filename}")' if error.filename else ""
    return f"{(error.strerror or str(error)).lower()}{where}"
