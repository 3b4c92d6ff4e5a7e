"""Commands and clients that are interrupted end without a traceback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
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


ENDING = """
import asyncio
from peerd.cli.up import interruptible

async def lingers():
    try:
        await asyncio.sleep(60)
    finally:
        print("ending", flush=True)
        await asyncio.sleep(0.5)

async def work():
    work.task = asyncio.create_task(lingers())
    await asyncio.sleep(0)

with interruptible():
    asyncio.run(work())
print("ended")
"""


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGHUP)])
def test_sigterm_while_a_command_ends_is_answered_without_a_word(signals: tuple[signal.Signals, ...]):
    """It finds the event loop being closed, which no exception may interrupt. Asked again, the command is gone."""
    said, errors = subprocess.PIPE, subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ENDING], text=True, stdout=said, stderr=errors) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ending\n"
        for each in signals:
            command.send_signal(each)
        assert command.communicate(timeout=60) == ("ended\n" if len(signals) == 1 else "", "")
    assert command.returncode in ((0,) if len(signals) == 1 else (128 + each for each in signals))
