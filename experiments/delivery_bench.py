"""How fast five daemons on this machine take tuples at one peer and deliver them at another; beside raw Mosquitto.

    python -m experiments.delivery_bench

Batches of 100 tuples of about 58 bytes, acknowledged and delivered; then single tuples, from publication to the reader;
then the same on 1, 100 and 1,000 streams. Mosquitto gets the same batches as payloads, at QoS 1, through aiomqtt; it
keeps them in memory, without a schema, so it is a yardstick for the machine, not a rival.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

PEERS: Final = 5
RUN_S: Final = 5.0
BATCH_ROWS: Final = 100
STREAMS: Final = (1, 100, 1000)
SINGLES: Final = 300
GOALS: Final = {"disk": (100_000, 10.0), "replicated": (50_000, 15.0)}
_TOPIC: Final = "bench"
_IN_FLIGHT: Final = 64


def peer(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "peerd.cli", *arguments, "--data-dir", str(folder)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    told = peer(folder, "bench", "-p", "2", "--to", "3", "--for", f"{RUN_S:g}s", "-o", "json", *arguments)
    figures: list[dict[str, Any]] = json.loads(told)
    return figures[0]


def show(title: str, rate: float, p50_ms: float, goal: tuple[float, float] | None = None) -> None:
    wanted = f"   goal {goal[0]:,.0f}/s and {goal[1]:g} ms" if goal else ""
    print(f"{title:<22} {rate:>10,.0f} tuples/s   one tuple {p50_ms:>6.2f} ms p50{wanted}", flush=True)


def measure_network(folder: Path) -> None:
    for durability in ("memory", "disk", "replicated"):
        figures = bench(folder, "--durability", durability)
        show(f"peerd, {durability}", figures["delivered_per_s"], figures["single_ms_p50"], GOALS.get(durability))
    print(f"\ncost per tuple as streams grow (disk, batches of {BATCH_ROWS}):")
    for streams in STREAMS:
        figures = bench(folder, "--streams", str(streams))
        print(f"{streams:>6,} streams   {1e6 / figures['delivered_per_s']:>7.2f} µs per tuple", flush=True)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="delivery-bench-"))
    print(f"{PEERS} daemons; published at one, read at another; batches of {BATCH_ROWS} tuples\n", flush=True)
    try:
        peer(folder, "up", "--peers", str(PEERS), "--detach")
        try:
            measure_network(folder)
        finally:
            peer(folder, "down")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    measure_mosquitto()


# The yardstick.


def measure_mosquitto() -> None:
    broker = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if broker is None:
        print("\nMosquitto is not on this machine, so there is no comparison.")
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([broker, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        rate, p50_ms = asyncio.run(run_mosquitto(port))
        print()
        show("Mosquitto, QoS 1", rate, p50_ms)
    finally:
        process.terminate()
        process.wait()


async def run_mosquitto(port: int) -> tuple[float, float]:
    import aiomqtt

    rows = [
        (n, f"LH{n:04}", f"FRA-JFK-{n:05}", 50 + n / 1e6, 8 + n / 1e6, n, f"D-AI{n:05}", n) for n in range(BATCH_ROWS)
    ]
    payload = msgspec.msgpack.encode(rows)
    await _listening(port)
    arrived, latest_ms, news = 0, 0.0, asyncio.Event()

    async def read(client: aiomqtt.Client) -> None:
        nonlocal arrived, latest_ms
        async for message in client.messages:
            assert isinstance(message.payload, bytes)
            arrived += len(msgspec.msgpack.decode(message.payload)) if len(message.payload) > 16 else 1
            if len(message.payload) <= 16:
                latest_ms = (time.perf_counter_ns() - int(message.payload)) / 1e6
            news.set()

    async def publish(client: aiomqtt.Client, stop_at: float) -> None:
        while time.perf_counter() < stop_at:
            await client.publish(_TOPIC, payload, qos=1)

    async with aiomqtt.Client("127.0.0.1", port) as writer, aiomqtt.Client("127.0.0.1", port) as reader:
        await reader.subscribe(_TOPIC, qos=1)
        reading = asyncio.create_task(read(reader))
        started_at = time.perf_counter()
        await asyncio.gather(*(publish(writer, started_at + RUN_S) for _ in range(_IN_FLIGHT)))
        rate = arrived / (time.perf_counter() - started_at)
        await asyncio.sleep(0.5)
        times = []
        for _ in range(SINGLES):
            news.clear()
            await writer.publish(_TOPIC, str(time.perf_counter_ns()), qos=1)
            await news.wait()
            times.append(latest_ms)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return rate, statistics.median(times)


async def _listening(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


if __name__ == "__main__":
    main()
