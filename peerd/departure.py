"""`peer leave` inside the daemon: hand over what this peer holds for the network, and report progress."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from peerd.driver import Driver
from protocols.delivery.messages import LogKept, LogsKept
from protocols.messages import Answer
from protocols.store.messages import Leaving

log = structlog.get_logger("peerd")


class Departure:
    """The departure of one daemon; idle until `drain()`."""

    def __init__(self) -> None:
        self._is_over = asyncio.Event()
        self._progress = Leaving(entries=0, left=0)
        self._kept: tuple[LogKept, ...] = ()

    async def drain(self, driver: Driver) -> None:
        """The machines bound how long this takes."""
        try:
            await driver.leave(self._told)
        finally:
            self._is_over.set()
        log.info("handed over", entries=self._progress.entries, left=self._progress.left)

    async def news(self, within_s: float) -> dict[str, Any]:
        """The progress: at once when it is over, otherwise after a while."""
        try:
            await asyncio.wait_for(self._is_over.wait(), within_s)
        except TimeoutError:
            pass
        return {
            "is_over": self._is_over.is_set(),
            "entries": self._progress.entries,
            "left": self._progress.left,
            "kept": [
                {"stream": kept.stream, "pending": kept.pending, "backup": kept.backup.hex() if kept.backup else None}
                for kept in self._kept
            ],
        }

    def _told(self, answer: Answer) -> None:
        match answer:
            case Leaving():
                self._progress = answer
            case LogsKept(logs=logs):
                self._kept = logs
