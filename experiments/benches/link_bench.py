"""How fast a link carries rows between two processes: over TLS, over plain TCP, and beside a slow channel.

    python -m experiments.benches.link_bench

Rows have 8 fields and about 58 bytes; they are encoded, sent in batches of 100, and decoded by the receiver.
Each figure is the median of a few runs that take turns, and each ratio that of neighbouring runs, with its spread: what
else the machine does then meets all alike, and a wide spread says that it did much.
With the usual window a link over loopback waits for credit part of the time, which hides some of what TLS costs: the
processor time per row and the rates with a wide window show it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import ssl
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import msgspec
import uvloop

from experiments.benches.figures import GOAL_MISSED, note
from overlay.channel import Channel
from overlay.frames import WINDOW_BYTES, Hello
from overlay.identity import Identity, Network
from overlay.link import Link, LinkEvents
from overlay.outbox import LinkCounters, LinkError
from overlay.tls import LinkCredentials, Proof
from protocols.ids import PeerId

Row = tuple[int, str, str, float, float, int, str, int]

BATCH_ROWS: Final = 100
RUNS: Final = 5
RUN_S: Final = 0.5
WIDE_WINDOW_BYTES: Final = 2 << 20
PINGS: Final = 3000
SLOW_ROWS_PER_S: Final = 2000
GOAL_ROWS_PER_S: Final = 500_000

_HOST: Final = "127.0.0.1"
_NETWORK: Final = Network("bench", bytes(32))
_NOBODY: Final = PeerId(bytes(20))
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Row]).decode


def make_batch(first: int) -> list[Row]:
    return [
        (1_700_000_000 + n, f"LH{n % 997:04}", f"FRA-JFK-{n:05}", 50 + n / 1e6, 8 + n / 1e6, n % 500, f"D-AI{n:05}", n)
        for n in range(first, first + BATCH_ROWS)
    ]


BATCHES: Final = [make_batch(n * BATCH_ROWS) for n in range(64)]


def ignore(*_: object) -> None:
    """The bench measures one link at a time and has no use for most of its events."""


def make_link(
    *,
    dialled: bool,
    on_control: Callable[[Link, bytes], None] = ignore,
    on_channel: Callable[[Channel], None] = ignore,
) -> Link:
    """A link as the product makes it, except that it asks nobody for a proof: so it runs without TLS, too."""
    events = LinkEvents(
        identify=lambda _: Proof(_NOBODY, b""),
        greeted=lambda _link, _hello: "",
        ready=ignore,
        control=on_control,
        channel=on_channel,
        round_trip=ignore,
        goodbye=Link.goodbye,
        lost=ignore,
        ring=ignore,
    )
    return Link(events, LinkCounters(), Hello(_HOST, 0), dialled=(_HOST, 0) if dialled else None)


class Receiver:
    """The other process: decodes rows, tells their number when an empty body ends them, and echoes control."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self) -> Link:
        return make_link(dialled=False, on_control=self._echo, on_channel=self._open)

    def _echo(self, link: Link, body: bytes) -> None:
        self._keep(asyncio.create_task(link.control(body)))

    def _open(self, channel: Channel) -> None:
        self._keep(asyncio.create_task(self._consume(channel)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _consume(self, channel: Channel) -> None:
        rows, cpu_s = 0, time.process_time()
        try:
            while body := await channel.recv():
                rows += len(_decode(body))
                if channel.service == "slow":
                    await asyncio.sleep(BATCH_ROWS / SLOW_ROWS_PER_S)
                channel.done(len(body))
            await channel.send(_encode((rows, time.process_time() - cpu_s)))
        except LinkError:
            return


async def receive(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    receiver = Receiver()
    context = LinkCredentials(Identity.generate(), _NETWORK).server
    ports = []
    for tls in (context, None):
        server = await loop.create_server(receiver.accept, _HOST, 0, ssl=tls)
        ports.append(server.sockets[0].getsockname()[1])
    pipe.send(ports)
    await loop.run_in_executor(None, pipe.recv)


def run_receiver(pipe: Connection) -> None:
    uvloop.run(receive(pipe))


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of rows gave, and the processor time of both processes for one row."""

    rows_per_s: float
    sender_ns: float
    receiver_ns: float


class Sender:
    """This process: dials the receiver anew for each run."""

    def __init__(self, tls_port: int, plain_port: int) -> None:
        context = LinkCredentials(Identity.generate(), _NETWORK).client
        self._ways: dict[str, tuple[int, ssl.SSLContext | None]] = {
            "TLS": (tls_port, context),
            "plain TCP": (plain_port, None),
        }

    async def dial(self, way: str, on_control: Callable[[Link, bytes], None] = ignore) -> Link:
        port, context = self._ways[way]
        link = make_link(dialled=True, on_control=on_control)
        name = None if context is None else ""
        await asyncio.get_running_loop().create_connection(lambda: link, _HOST, port, ssl=context, server_hostname=name)
        await link.ready
        return link

    async def send_rows(self, way: str, *, window: int = WINDOW_BYTES, beside_slow: bool = False) -> Run:
        link = await self.dial(way)
        flood = asyncio.create_task(self._flood(link.open("slow"))) if beside_slow else None
        channel = link.open("fast", window)
        start, cpu_s = time.perf_counter(), time.process_time()
        batches = 0
        while time.perf_counter() - start < RUN_S:
            await channel.send(_encode(BATCHES[batches % len(BATCHES)]))
            batches += 1
        await channel.send(b"")
        rows, receiver_s = msgspec.msgpack.decode(await channel.recv(), type=tuple[int, float])
        seconds, sender_s = time.perf_counter() - start, time.process_time() - cpu_s
        assert rows == batches * BATCH_ROWS, f"{rows} rows of {batches * BATCH_ROWS} arrived"
        if flood is not None:
            flood.cancel()
        link.abort("run over")
        await link.gone
        return Run(rows / seconds, sender_s / rows * 1e9, receiver_s / rows * 1e9)

    async def _flood(self, channel: Channel) -> None:
        while True:
            await channel.send(_encode(BATCHES[0]))

    async def round_trips_us(self, way: str, *, beside_bulk: bool = False) -> list[float]:
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        link = await self.dial(way, on_control=lambda _, body: answers.put_nowait(body))
        flood = asyncio.create_task(self._flood(link.open("fast"))) if beside_bulk else None
        samples = []
        for _ in range(PINGS // 10 if beside_bulk else PINGS):
            start = time.perf_counter()
            await link.control(bytes(100))
            await answers.get()
            samples.append((time.perf_counter() - start) * 1e6)
        if flood is not None:
            flood.cancel()
        link.abort("run over")
        await link.gone
        return samples


def percentiles(samples: list[float]) -> str:
    cuts = statistics.quantiles(samples, n=100)
    return f"p50 {cuts[49]:7.0f} µs   p99 {cuts[98]:7.0f} µs"


def line(name: str, runs: list[Run], than: list[Run] | None = None) -> str:
    """One row of the table; ratios are to the runs that came just before or after."""
    rate, sender_ns, receiver_ns = (
        statistics.median(values) for values in zip(*(dataclasses.astuple(run) for run in runs), strict=True)
    )
    text = f"  {name:28}{rate:12,.0f} rows/s{sender_ns:9.0f} ns{receiver_ns:9.0f} ns"
    if than:
        ratios = sorted(run.rows_per_s / other.rows_per_s for run, other in zip(runs, than, strict=True))
        text += f"   {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return text


async def measure(sender: Sender) -> bool:
    """Print every figure; whether the goal was reached."""
    plain: list[Run] = []
    tls: list[Run] = []
    beside: list[Run] = []
    wide_plain: list[Run] = []
    wide_tls: list[Run] = []
    for _ in range(RUNS):
        plain.append(await sender.send_rows("plain TCP"))
        tls.append(await sender.send_rows("TLS"))
        beside.append(await sender.send_rows("TLS", beside_slow=True))
        wide_plain.append(await sender.send_rows("plain TCP", window=WIDE_WINDOW_BYTES))
        wide_tls.append(await sender.send_rows("TLS", window=WIDE_WINDOW_BYTES))
    row_bytes = len(_encode(BATCHES[0])) / BATCH_ROWS
    print(f"rows of 8 fields, {row_bytes:.0f} bytes, in batches of {BATCH_ROWS}; two processes; median of {RUNS} runs")
    print(f"  {'':28}{'rate':>19}{'sender':>12}{'receiver':>12}   ratio")
    print(line("plain TCP", plain))
    print(line("TLS 1.3 (to plain)", tls, plain))
    print(line("  beside slow (to alone)", beside, tls))
    print(line("plain TCP, 2 MiB window", wide_plain))
    print(line("TLS 1.3, 2 MiB (to plain)", wide_tls, wide_plain))
    print("control messages of 100 bytes, there and back")
    print(f"  plain TCP                   {percentiles(await sender.round_trips_us('plain TCP'))}")
    print(f"  TLS 1.3                     {percentiles(await sender.round_trips_us('TLS'))}")
    print(f"  TLS 1.3 beside full channel {percentiles(await sender.round_trips_us('TLS', beside_bulk=True))}")
    worst, best = min(run.rows_per_s for run in tls), max(run.rows_per_s for run in tls)
    reached = worst >= GOAL_ROWS_PER_S
    rates = [statistics.median(run.rows_per_s for run in runs) for runs in (tls, plain)]
    note("link, TLS 1.3", rates[0], "rows/s", "plain TCP", rates[1])
    verdict = "reached in every run" if reached else "MISSED"
    print(f"goal {GOAL_ROWS_PER_S:,} rows/s over TLS: {verdict} ({worst:,.0f} to {best:,.0f})")
    return reached


def main() -> int:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_receiver, args=(theirs,))
    process.start()
    try:
        return 0 if uvloop.run(measure(Sender(*ours.recv()))) else GOAL_MISSED
    finally:
        ours.send("stop")
        process.join(timeout=5)


if __name__ == "__main__":
    sys.exit(main())
