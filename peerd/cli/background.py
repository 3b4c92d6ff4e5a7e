"""Work that blocks, beside an event loop that may be over before it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """What `work` returns or raises, from a thread of its own.

    An event loop does not end before the threads of asyncio.to_thread() have, and whoever interrupts that wait is shown
    the errors of loop and threads. This thread is left to itself once nobody waits for it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(worked: Future[T]) -> None:
        if not done.done():
            if error := worked.exception():
                done.set_exception(error)
            else:
                done.set_result(worked.result())

    def run() -> None:
        worked: Future[T] = Future()
        try:
            worked.set_result(work())
        except Exception as error:  # noqa: BLE001 - Whatever it is, it belongs to whoever waits.
            worked.set_exception(error)
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(tell, worked)

    threading.Thread(target=run, daemon=True).start()
    return await done
