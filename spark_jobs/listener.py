"""Who hears what an engine tells: the daemon, which asked for the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from queries.schema import Row


class Listener(Protocol):
    """Hears what happens to runs, on the thread of the event loop."""

    def on_started(self, run: str) -> None: ...

    def on_results(self, run: str, number: int, rows: Sequence[Row]) -> None: ...

    def on_state(self, run: str, rows: int) -> None:
        """How many rows of state the run keeps."""

    def on_failed(self, run: str, reason: str) -> None: ...

    def on_waiting(self, what: str) -> None:
        """Spark is starting; `what` says what it waits for."""

    def on_tried(self, reason: str) -> None:
        """Spark is ready; or it could not be started, with the reason."""
