"""Background tasks of one component: kept from garbage collection, ended together, and never failing silently."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """A group of tasks under one name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def settle(self, timeout_s: float) -> None:
        """Wait, within the time limit, until all tasks and those they start have ended."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._tasks and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)

    async def finish(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": f"a task of the {self._name} failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)
