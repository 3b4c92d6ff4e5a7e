"""Raw Mosquitto on this machine: publish and subscribe at QoS 1 through aiomqtt, in batches and one by one.

A yardstick, not a rival: it carries payloads made beforehand, looks into none, and keeps them in memory.
It is set up to do its best: nothing is limited, logged or written, no small packet waits for company, and the publisher
never runs ahead of the reader, for aiomqtt reads many acknowledgements but one message per turn of the loop: unbounded,
a publisher in the same process starves its reader.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiomqtt
import msgspec

FIND_BROKER: Final = Path(__file__).resolve().parents[2] / "deploy" / "mosquitto"
HOST: Final = "127.0.0.1"
TOPIC: Final = "bench"
START_S: Final = 10.0
CATCH_UP_S: Final = 30.0

IN_FLIGHT: Final = 8  # Published and not yet read. Delivered the most here, of 8, 16, 32 and 64.
# As in "peer bench".
WARM_UP_SHARE: Final = 0.2
SINGLES: Final = 200
SINGLE_GAP_S: Final = 0.005

_CONFIGURATION: Final = """\
listener {port} {host}
allow_anonymous true
persistence false
log_type none
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
"""


class NoMosquitto(Exception):
    """There is none on this machine and none can be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured."""

    tuples_per_s: float
    single_ms_p50: float
    single_ms_p99: float


def measure(run_s: float, batch_rows: int) -> Figures:
    with _broker() as port:
        return asyncio.run(_measure(port, run_s, batch_rows))


@contextmanager
def _broker() -> Iterator[int]:
    """A broker of our own for as long as this lasts; gives its port."""
    found = subprocess.run([FIND_BROKER], check=False, capture_output=True, text=True)
    if found.returncode != 0:
        raise NoMosquitto(found.stderr.strip().splitlines()[-1])
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as configuration:
        configuration.write(_CONFIGURATION.format(port=port, host=HOST))
        configuration.flush()
        process = subprocess.Popen([found.stdout.strip(), "-c", configuration.name])
        try:
            _wait_until_listening(process, port)
            yield port
        finally:
            process.terminate()
            process.wait()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline_at = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((HOST, port), timeout=START_S).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline_at:
                raise
            time.sleep(0.02)


def _client(port: int) -> aiomqtt.Client:
    silent = logging.getLogger("experiments.benches.mosquitto")  # It would warn of each message in flight beyond ten.
    silent.setLevel(logging.ERROR)
    no_delay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return aiomqtt.Client(HOST, port, logger=silent, max_inflight_messages=IN_FLIGHT, socket_options=[no_delay])


async def _measure(port: int, run_s: float, batch_rows: int) -> Figures:
    async with _client(port) as writer, _client(port) as reader:
        await reader.subscribe(TOPIC, qos=1)
        arrivals = _Arrivals()
        reading = asyncio.create_task(arrivals.read(reader))
        try:
            messages_per_s = await _flood(writer, arrivals, run_s, _payload(batch_rows))
            times = await _singles(writer, arrivals)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    cuts = statistics.quantiles(times, n=100)
    return Figures(messages_per_s * batch_rows, cuts[49], cuts[98])


def _payload(rows: int) -> bytes:
    """The rows of `peer bench`, as our client would encode them."""
    return msgspec.msgpack.encode([_row(n) for n in range(rows)])


def _row(n: int) -> tuple[Any, ...]:
    flight, route, plane = f"LH{n % 997:04}", f"FRA-JFK-{n % 100_000:05}", f"D-AI{n % 100_000:05}"
    return (time.perf_counter_ns(), flight, route, 50 + n / 1e6, 8 + n / 1e6, n % 500, plane, n)


@dataclass(slots=True)
class _Arrivals:
    """What the reader has got."""

    count: int = 0
    latest_at: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT))

    async def read(self, client: aiomqtt.Client) -> None:
        async for _ in client.messages:
            self.count += 1
            self.latest_at = time.perf_counter()
            self.news.set()
            self.room.release()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(CATCH_UP_S):
            while self.count < count:
                self.news.clear()
                await self.news.wait()


async def _flood(writer: aiomqtt.Client, arrivals: _Arrivals, run_s: float, payload: bytes) -> float:
    """Publish without a pause for a while; returns how many messages arrived per second once everything was warm."""
    sent = 0
    stop_at = time.perf_counter() + run_s

    async def publish() -> None:
        nonlocal sent
        while time.perf_counter() < stop_at:
            await arrivals.room.acquire()
            sent += 1
            await writer.publish(TOPIC, payload, qos=1)

    async def rate() -> float:
        await asyncio.sleep(run_s * WARM_UP_SHARE)
        before_at, before = time.perf_counter(), arrivals.count
        await asyncio.sleep(stop_at - time.perf_counter())
        return (arrivals.count - before) / (time.perf_counter() - before_at)

    measuring = asyncio.create_task(rate())
    await asyncio.gather(*(publish() for _ in range(IN_FLIGHT)))
    await arrivals.until(sent)
    return await measuring


async def _singles(writer: aiomqtt.Client, arrivals: _Arrivals) -> list[float]:
    """Milliseconds from publication to the reader, one tuple after the other."""
    times = []
    for _ in range(SINGLES):
        payload, before = _payload(1), arrivals.count
        started_at = time.perf_counter()
        await writer.publish(TOPIC, payload, qos=1)
        await arrivals.until(before + 1)
        times.append((arrivals.latest_at - started_at) * 1000)
        await asyncio.sleep(SINGLE_GAP_S)
    return times
