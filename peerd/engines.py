"""The engine that runs subgraphs with state, as the driver sees it: Spark, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog

from protocols.events import Event
from protocols.execution.engine import (
    EngineTried,
    FeedRun,
    RunFailed,
    RunId,
    RunResults,
    RunStarted,
    RunState,
    StartRun,
    StopRun,
)
from queries.plan import Operator
from queries.schema import Row
from spark_jobs.listener import Listener

AGAIN_MIN_S: Final = 30.0  # After a failed start of the engine.
AGAIN_MAX_S: Final = 300.0

log = structlog.get_logger("peerd.engines")


class Engine(Protocol):
    """Runs plans; no method blocks. protocols/execution/engine.py says what each one means."""

    def start(self, run: RunId, plan: Operator, closed_until_us: int | None) -> None: ...

    def feed(
        self,
        run: RunId,
        number: int,
        alias: str,
        rows: tuple[Row, ...],
        is_new: bool,
        watermark_us: int | None,
        floor_us: int | None,
    ) -> None: ...

    def stop(self, run: RunId) -> None: ...

    def warm(self) -> None: ...

    def status(self) -> msgspec.Struct: ...

    async def close(self) -> None: ...


class Engines:
    """Performs what machines ask of the engine, which is created when first needed."""

    def __init__(
        self,
        make: Callable[[Listener], Engine] | None,
        submit: Callable[[Event], None],
        say: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._make = make
        self._submit = submit
        self._say = say  # Tells other peers whether there is an engine here.
        self._engine: Engine | None = None
        self._wait_s = AGAIN_MIN_S
        self._next_try: asyncio.TimerHandle | None = None

    @property
    def has_spark(self) -> bool:
        return self._make is not None

    def warm(self) -> None:
        """Start the engine before a run needs it; on_tried tells when it is ready."""
        if self.has_spark:
            self._made().warm()

    def perform(self, effect: StartRun | FeedRun | StopRun) -> None:
        engine = self._made()
        match effect:
            case StartRun(run, plan, closed_until_us):
                engine.start(run, plan, closed_until_us)
            case FeedRun(run, number, alias, rows, is_new, watermark_us, floor_us):
                engine.feed(run, number, alias, rows, is_new, watermark_us, floor_us)
            case StopRun(run):
                engine.stop(run)

    def _made(self) -> Engine:
        assert self._make is not None, "the machines know that there is no engine"
        if self._engine is None:
            self._engine = self._make(self)
        return self._engine

    def status(self) -> dict[str, Any]:
        """For display: whether there is a Spark, and how it is doing."""
        if self._make is None:
            return {"state": "none"}
        status: dict[str, Any] = msgspec.to_builtins(self._engine.status()) if self._engine else {"state": "off"}
        return status

    async def close(self) -> None:
        if self._next_try is not None:
            self._next_try.cancel()
        if self._engine is not None:
            await self._engine.close()

    # Called by the engine.

    def on_started(self, run: RunId) -> None:
        self._submit(RunStarted(run))

    def on_results(self, run: RunId, number: int, rows: Sequence[Row]) -> None:
        self._submit(RunResults(run, number, tuple(rows)))

    def on_state(self, run: RunId, rows: int) -> None:
        self._submit(RunState(run, rows))

    def on_failed(self, run: RunId, reason: str) -> None:
        log.warning("a subgraph failed", run=run, reason=reason)
        self._submit(RunFailed(run, reason))

    def on_waiting(self, what: str) -> None:
        log.info("Spark is starting", waits_for=what)

    def on_tried(self, reason: str) -> None:
        """An engine that cannot be started is not offered to others until it can."""
        self._say(not reason)
        self._submit(EngineTried(reason))
        if not reason:
            self._wait_s = AGAIN_MIN_S
            return
        log.warning(
            "Spark cannot be started; others are told that this peer has none", reason=reason, again_s=self._wait_s
        )
        self._next_try = asyncio.get_running_loop().call_later(self._wait_s, self.warm)
        self._wait_s = min(2 * self._wait_s, AGAIN_MAX_S)
