"""An engine for drivers in tests: the reference evaluator, told to fail when a test wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from overlay.sim.engine import ReferenceEngine
from protocols.execution.engine import FeedRun, StartRun
from queries.plan import Operator
from queries.schema import Row
from spark_jobs.listener import Listener


class Status(msgspec.Struct):
    """How many runs there are."""

    state: str
    runs: int


class TellingEngine:
    """Runs plans by the reference and tells what comes of it a moment later, as a real engine does."""

    def __init__(self, listener: Listener) -> None:
        self.runs: dict[str, None] = {}
        self.started = 0
        self.warmed = 0
        self.is_closed = False
        self.is_cold = False  # It has not started yet; tells so with `heat`.
        self.trouble = ""  # Why it cannot be started.
        self._listener = listener
        self._reference = ReferenceEngine()
        self._loop = asyncio.get_running_loop()

    def start(self, run: str, plan: Operator, closed_until_us: int | None) -> None:
        assert not self.is_cold, "nothing is run before it has started"
        self.runs[run] = None
        self.started += 1
        self._reference.start(StartRun(run, plan, closed_until_us))
        self._loop.call_soon(self._listener.on_started, run)

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
        if run in self.runs:
            due = self._reference.feed(FeedRun(run, number, alias, tuple(rows), is_new, watermark_us, floor_us))
            self._loop.call_soon(self._listener.on_results, run, number, due)

    def processor_s(self) -> float:
        return 0.0

    def stop(self, run: str) -> None:
        self.runs.pop(run, None)
        self._reference.stop(run)

    def fail(self, reason: str) -> None:
        """Lose everything."""
        lost, self.runs = self.runs, {}
        for run in lost:
            self._reference.stop(run)
            self._listener.on_failed(run, reason)

    def warm(self) -> None:
        """It is counted, and told a moment later how it went."""
        self.warmed += 1
        self._loop.call_soon(self._tell_tried)

    def heat(self) -> None:
        """It has started."""
        self.is_cold = False
        self._tell_tried()

    def _tell_tried(self) -> None:
        if not self.is_cold:
            self._listener.on_tried(self.trouble)

    @property
    def state(self) -> str:
        return "off" if self.trouble else "ready"

    def status(self) -> Status:
        return Status("ready", len(self.runs))

    async def close(self) -> None:
        self.is_closed = True


class Maker:
    """How drivers of tests come to their engines; `lacks` has what is missing, if anything."""

    def __init__(self, make: Callable[[Listener], TellingEngine], lacks: Sequence[str] = ()) -> None:
        self.make = make
        self._lacks = lacks

    def missing(self) -> str:
        return "".join(self._lacks)
