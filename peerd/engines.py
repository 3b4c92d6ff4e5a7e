"""The engine that runs subgraphs with state, as the driver sees it: Spark, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, Protocol

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
from spark_jobs.prospects import prospects
from spark_jobs.session import SessionSettings

AGAIN_MIN_S: Final = 30.0  # After a failed start of the engine.
AGAIN_MAX_S: Final = 300.0
LOOK_EVERY_S: Final = 10.0

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

    @property
    def state(self) -> str:
        """off | starting | ready"""

    def status(self) -> msgspec.Struct: ...

    def processor_s(self) -> float:
        """What its processes have used of the processors."""

    async def close(self) -> None: ...


class EngineMaker(Protocol):
    """How this peer comes to an engine."""

    def make(self, listener: Listener) -> Engine: ...

    def missing(self) -> str:
        """Why an engine could not be started now; empty if it could. May take seconds."""


class Spark:
    """Makes the engine of a real peer. Nothing of Spark is loaded before."""

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings

    def make(self, listener: Listener) -> Engine:
        from spark_jobs.engine import SparkEngine

        return SparkEngine(listener, self._settings)

    def missing(self) -> str:
        return prospects(self._settings).reason


class Engines:
    """Performs what machines ask of the engine, which is created when first needed.

    Others hear of an engine only while it could be started: a look, every few seconds, finds nothing missing, and it
    did not fail when it was last started.
    """

    def __init__(
        self,
        maker: EngineMaker | None,
        submit: Callable[[Event], None],
        say: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._maker = maker
        self._submit = submit
        self._say = say  # Tells other peers whether there is an engine here.
        self._engine: Engine | None = None
        self._missing = ""  # What the last look found.
        self._failure = ""  # Why the last start failed.
        self._is_wanted_warm = False
        self._wait_s = AGAIN_MIN_S
        self._next_try: asyncio.TimerHandle | None = None

    @property
    def has_spark(self) -> bool:
        return self._maker is not None

    async def look(self) -> None:
        """See whether the engine could be started, and tell if that has changed. One that is up needs no look."""
        if self._maker is None or self._state != "off":
            return
        missing = await asyncio.to_thread(self._maker.missing)
        if self._state != "off" or missing == self._missing:
            return
        before, self._missing = self._missing, missing
        self._tell(missing or self._failure)
        if missing:
            log.warning("Spark could not be started; others are told that this peer has none", reason=missing)
        else:
            log.info("Spark could be started now", was_missing=before)
            if self._is_wanted_warm:
                self.warm()

    async def watch(self) -> NoReturn:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    def keep_warm(self) -> None:
        """Start the engine with the peer, or as soon as nothing is missing."""
        self._is_wanted_warm = True
        self.warm()

    def warm(self) -> None:
        """Start the engine before a run needs it; on_tried tells when it is ready."""
        if self._missing:
            self._submit(EngineTried(self._missing))
        elif self.has_spark:
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
        assert self._maker is not None, "the machines know that there is no engine"
        if self._engine is None:
            self._engine = self._maker.make(self)
        return self._engine

    def status(self) -> dict[str, Any]:
        """For display: whether there is a Spark, how it is doing, and what is missing to start it."""
        if self._maker is None:
            return {"state": "none"}
        status: dict[str, Any] = msgspec.to_builtins(self._engine.status()) if self._engine else {"state": "off"}
        return {**status, "missing": self._missing}

    def processor_s(self) -> float:
        """What the engine has used for queries. Its start is not counted: that is no work of a query."""
        return self._engine.processor_s() if self._engine is not None and self._state == "ready" else 0.0

    @property
    def _state(self) -> str:
        return "off" if self._engine is None else self._engine.state

    def _tell(self, reason: str) -> None:
        """Tell other peers, and our own machines, whether there is an engine here."""
        self._say(not reason)
        self._submit(EngineTried(reason))

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
        self._failure = reason
        self._tell(reason)
        if not reason:
            self._wait_s, self._missing = AGAIN_MIN_S, ""
            return
        log.warning(
            "Spark cannot be started; others are told that this peer has none", reason=reason, again_s=self._wait_s
        )
        self._next_try = asyncio.get_running_loop().call_later(self._wait_s, self._try_again)
        self._wait_s = min(2 * self._wait_s, AGAIN_MAX_S)

    def _try_again(self) -> None:
        """Not while something is missing: then the start would fail in the same way."""
        if self._missing:
            self._next_try = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._try_again)
        else:
            self.warm()
