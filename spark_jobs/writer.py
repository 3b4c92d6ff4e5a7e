"""The thread that writes rows for Spark, so that the daemon's event loop never waits for Arrow or for files.

Jobs are done in the order in which they come. What may wait here is bounded by whoever feeds: an input counts as on its
way until its results are out, and a stream or flow is read no further than it may have on its way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Writer:
    """Does jobs of runs, one after the other. A job that fails is told with the name of its run, from the thread."""

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        self._failed = failed
        self._jobs: SimpleQueue[tuple[str, Job] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="spool")
        self._thread.start()

    def do(self, run: str, job: Job) -> None:
        self._jobs.put((run, job))

    def close(self) -> None:
        """Do what is left, and end."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        import spark_jobs.bridge  # noqa: F401  It brings Arrow, which takes longer to load than the loop can wait.

        while (work := self._jobs.get()) is not None:
            run, job = work
            try:
                job()
            except Exception as error:  # noqa: BLE001  A full disk, or rows that are not what the plan says.
                self._failed(run, f"rows could not be handed to Spark: {error}")
