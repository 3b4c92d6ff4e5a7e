"""The thread that writes rows for Spark, so that the daemon's event loop never waits for Arrow or for files.

Jobs run in the order in which they come. Whoever feeds bounds the queue: an input counts as in flight until its results
are out, and the credit of a stream or flow limits what is in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Writer:
    """Runs jobs one after the other. A failed job is reported from the thread, with the name of its run."""

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
