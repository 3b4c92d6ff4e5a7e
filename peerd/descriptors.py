"""A process that has no file descriptor left: what needs one waits, and whoever runs the peer is told."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

import structlog

Result = TypeVar("Result")
LOOK_EVERY_S: Final = 1.0
RETRY_S: Final = 0.5
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)

log = structlog.get_logger("peerd")


class Descriptors:
    """Whether this process could open one more file. It says so once, when there is none, and when there is again."""

    def __init__(self) -> None:
        self.are_exhausted = False

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._note(True)
        else:
            self._note(False)

    def _note(self, are_exhausted: bool) -> None:
        if are_exhausted and not self.are_exhausted:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            log.warning(
                "no file descriptor is left; new connections wait, and so does the journal where it needs a file",
                limit=most,
                hint='Close some clients, or start the peer with a higher limit ("ulimit -n", LimitNOFILE of systemd).',
            )
        elif self.are_exhausted and not are_exhausted:
            log.info("there are file descriptors again")
        self.are_exhausted = are_exhausted


async def patiently(executor: Executor | None, work: Callable[..., Result], *arguments: object) -> Result:
    """Do in a thread what may open a file, again and again while there is no file descriptor for it."""
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
        await asyncio.sleep(RETRY_S)
