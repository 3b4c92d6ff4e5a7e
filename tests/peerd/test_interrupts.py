"""Commands and clients that are interrupted end without a traceback."""

from __future__ import annotations

import asyncio
import os
import signal
from unittest.mock import Mock

import pytest

from peerd.cli.up import interruptible
from peerd.client.session import _Line


async def test_whoever_stops_waiting_for_a_line_to_close_does_no_harm():
    """A program that is interrupted while it hangs up."""
    line = _Line(lambda _: None)
    transport = Mock()
    transport.is_closing.return_value = False
    line.connection_made(transport)
    hanging_up = asyncio.create_task(line.hang_up())
    await asyncio.sleep(0)
    hanging_up.cancel()
    await asyncio.gather(hanging_up, return_exceptions=True)
    line.connection_lost(None)
    assert line.is_lost


def test_sigterm_ends_a_command_as_ctrl_c_does():
    """It ends the main task of the event loop, and not whatever callback happens to run."""
    ended: list[str] = []

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("in good order")
            raise

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            asyncio.run(work())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["in good order"]
