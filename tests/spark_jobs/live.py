"""An engine with a session of its own, driven step by step; what it tells is kept by run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from queries.plan import Operator
from queries.schema import Row
from spark_jobs.engine import SparkEngine
from spark_jobs.java import NoJava, find_java
from spark_jobs.session import SessionSettings

PATIENCE_S = 300  # A machine with much else to do starts Spark in a minute.


@dataclass
class Told:
    """What was told of one run."""

    is_started: bool = False
    number: int = 0
    rows: list[Row] = field(default_factory=list)
    state_rows: int | None = None
    reason: str = ""


class Live:
    """A SparkEngine, and the loop it lives in."""

    def __init__(self, settings: SessionSettings | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.told: dict[str, Told] = {}
        self.waits: list[str] = []
        self.tries: list[str] = []
        self._news = asyncio.Event()
        self.engine = SparkEngine(self, settings)

    # What the engine tells.

    def on_started(self, run: str) -> None:
        self.told[run].is_started = True
        self._news.set()

    def on_results(self, run: str, number: int, rows: Sequence[Row]) -> None:
        told = self.told[run]
        assert number > told.number, "numbers rise"
        told.number = number
        told.rows += rows
        self._news.set()

    def on_state(self, run: str, rows: int) -> None:
        self.told[run].state_rows = rows
        self._news.set()

    def on_failed(self, run: str, reason: str) -> None:
        self.told[run].reason = reason
        self._news.set()

    def on_waiting(self, what: str) -> None:
        self.waits.append(what)

    def on_tried(self, reason: str) -> None:
        self.tries.append(reason)

    # What a test does.

    def start(self, run: str, plan: Operator, closed_until_us: int | None = None) -> Told:
        told = self.told[run] = Told()

        async def start() -> None:
            self.engine.start(run, plan, closed_until_us)

        self.loop.run_until_complete(start())
        return told

    def started(self, run: str, plan: Operator, closed_until_us: int | None = None) -> Told:
        told = self.start(run, plan, closed_until_us)
        self.until(lambda: told.is_started or told.reason)
        assert told.is_started, told.reason
        return told

    def feed(
        self,
        run: str,
        number: int,
        alias: str,
        rows: Sequence[Row],
        watermark_us: int | None = None,
        is_new: bool = True,
        floor_us: int | None = None,
    ) -> None:
        async def feed() -> None:
            self.engine.feed(run, number, alias, rows, is_new, watermark_us, floor_us)

        self.loop.run_until_complete(feed())

    def fed(
        self,
        run: str,
        number: int,
        alias: str,
        rows: Sequence[Row],
        watermark_us: int | None = None,
        is_new: bool = True,
    ) -> list[Row]:
        """Feed, and the results told because of it."""
        told = self.told[run]
        before = len(told.rows)
        self.feed(run, number, alias, rows, watermark_us, is_new, watermark_us)
        self.until(lambda: told.number >= number or told.reason)
        assert not told.reason, told.reason
        return told.rows[before:]

    def stop(self, run: str) -> None:
        self.engine.stop(run)

    def until(self, holds: Callable[[], object]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    self._news.clear()
                    await asyncio.wait_for(self._news.wait(), PATIENCE_S)

        self.loop.run_until_complete(wait())

    def until_gone(self, folder: Path) -> None:
        """Wait until the worker has said that a run is over, and its folder has been removed."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while await asyncio.to_thread(folder.exists):
                    await asyncio.sleep(0.01)

        self.loop.run_until_complete(wait())

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.close())
        self.loop.close()


def live() -> Iterator[Live]:
    """An engine, until the tests that need it are over."""
    try:
        find_java("")
    except NoJava as error:
        pytest.skip(str(error))
    engine = Live()
    yield engine
    engine.close()
