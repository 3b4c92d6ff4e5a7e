"""The spool of one run: files of Arrow in a folder per source, counted by HEAD, read by the source in spark_jobs/jvm.

A file is complete before HEAD counts it. Inputs that wait together are written as one file, so a burst costs little
more than one input. A file is removed once all its rows have had their effect. A thread writes the spools of all runs.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from queries.plan import Source
from queries.schema import Row
from spark_jobs.retention import Retention

FILE_ROWS_MAX: Final = 16_384  # A result waits for its whole file, so further inputs go into another one.
_HEAD: Final = struct.Struct("<q")

Job = Callable[[], None]


class Fed(NamedTuple):
    """The rows of a numbered input, with the closing time before it and the watermark after it."""

    number: int
    rows: Sequence[Row]
    is_new: bool
    closed_us: int | None
    forget_us: int | None
    watermark_us: int | None


class _File(NamedTuple):
    file: int
    number: int  # The last input in it.


class Spool:
    """The writing end for one source of a run.

    The event loop calls `add`, `number_of` and `kept_rows`; the writing thread calls the rest.
    """

    def __init__(
        self, run: Path, input_number: int, source: Source, with_marks: bool, retention: Retention | None
    ) -> None:
        self._folder = run / str(input_number)
        self._mark = input_number if with_marks else None
        self._columns, self._retention = source.columns, retention
        self._folder.mkdir()
        self._count(0)
        self._waiting: deque[Fed] = deque()
        self._written: deque[_File] = deque()  # For `number_of`.
        self._number = 0
        self._files = 0
        self._kept: deque[_File] = deque()
        self._removed = 0

    def add(self, fed: Fed) -> None:
        """Queue an input for writing."""
        self._waiting.append(fed)

    def number_of(self, file: int) -> int:
        """The last input in the files up to this one."""
        while self._written and self._written[0].file <= file:
            self._number = self._written.popleft().number
        return self._number

    @property
    def kept_rows(self) -> int:
        """How many rows batch jobs read again and again."""
        return self._retention.kept_rows if self._retention is not None else 0

    def write(self) -> None:
        """Write what waits, unless another call has done so."""
        from spark_jobs.bridge import write_file

        while self._waiting:
            together = [self._waiting.popleft()]
            count = len(together[0].rows)
            while self._waiting and count + len(self._waiting[0].rows) <= FILE_ROWS_MAX:
                together.append(self._waiting.popleft())
                count += len(together[-1].rows)
            written = _File(self._files + 1, together[-1].number)
            write_file(self._folder / str(written.file), self._columns, together, self._mark)
            if self._retention is not None:
                self._retention.add(*written, [row for each in together for row in each.rows])
            else:
                self._kept.append(written)
            self._written.append(written)
            self._files = written.file
            self._count(self._files)

    def remove(self, done: int, floor_us: int | None) -> None:
        """Remove what inputs up to `done` brought, or what no batch job needs once all streams are beyond the floor."""
        upto = 0
        if self._retention is not None:
            upto = self._retention.removable(done, floor_us)
        while self._kept and self._kept[0].number <= done:
            upto = self._kept.popleft().file
        for file in range(self._removed + 1, upto + 1):
            (self._folder / str(file)).unlink(missing_ok=True)
        self._removed = max(self._removed, upto)

    def _count(self, files: int) -> None:
        """Write HEAD in place: Java has mapped it.

        We have not. On a full disk a write is an error of this run, but a store into a map would end the daemon.
        """
        head = os.open(self._folder / "HEAD", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(head, _HEAD.pack(files), 0)
        finally:
            os.close(head)


class Writer:
    """The thread that writes spools, so that the daemon's event loop never waits for Arrow or for files.

    Jobs run in the order in which they come. A failed one is reported from the thread, with the name of its run.
    Whoever feeds bounds the queue: an input counts as in flight until its results are out, and the credit of a stream
    or flow limits what is in flight.
    """

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        self._failed = failed
        self._jobs: SimpleQueue[tuple[str, Job] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="spool")
        self._thread.start()

    def do(self, run: str, job: Job) -> None:
        self._jobs.put((run, job))

    def close(self) -> None:
        """Do what is left, then end."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        from spark_jobs import bridge  # noqa: F401  It brings Arrow, which takes longer to load than the loop can wait.

        while (work := self._jobs.get()) is not None:
            run, job = work
            try:
                job()
            except Exception as error:  # noqa: BLE001  A full disk, or rows that are not what the plan says.
                self._failed(run, f"rows could not be handed to Spark: {error}")
