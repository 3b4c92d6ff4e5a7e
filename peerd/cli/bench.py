"""`peer bench`: how fast this network takes tuples at one peer and delivers them, or joins of them, at another."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.cli import bench_join
from peerd.cli.common import base_dir, client_for, read_span, target_options
from peerd.cli.output import Column, output_option, show_rows
from peerd.errors import Exit, PeerError
from peerd.words import milliseconds

if TYPE_CHECKING:
    from peerd.client import Client, Subscription

SCHEMA: Final = "at int, flight string, route string, lat float, lon float, speed int, plane string, n int"
BATCHES_IN_FLIGHT: Final = 64
WARM_UP_SHARE: Final = 0.2
CATCH_UP_S: Final = 30.0
SINGLES: Final = 200
SINGLE_GAP_S: Final = 0.005

_COLUMNS: Final = (
    Column("durability", lambda row: str(row["durability"])),
    Column("streams", lambda row: str(row["streams"]), right=True),
    Column("batch", lambda row: str(row["batch"]), right=True),
    Column("acked/s", lambda row: f"{row['acked_per_s']:,.0f}", right=True),
    Column("delivered/s", lambda row: f"{row['delivered_per_s']:,.0f}", right=True),
    Column("one tuple p50", lambda row: milliseconds(row["single_ms_p50"]), right=True),
    Column("p99", lambda row: milliseconds(row["single_ms_p99"]), right=True),
)


@click.command()
@target_options
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="Embedded peer that reads [the same as publishes].")
@click.option("--durability", type=click.Choice(["memory", "disk", "replicated"]), default="disk", show_default=True)
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Tuples per publish.")
@click.option("--streams", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Spread over N streams.")
@click.option("--for", "for_s", callback=read_span, default="5s", show_default=True, metavar="TIME")
@click.option("--join", type=click.Choice(["sai", "dai-q", "dai-t", "dai-v"]), help="Join two streams on the way.")
@output_option
def bench(
    data_dir: Path | None,
    number: int | None,
    to: int | None,
    durability: Any,
    batch: int,
    streams: int,
    for_s: float,
    join: Any,
    form: str | None,
) -> None:
    """Measure how fast tuples are acknowledged at one peer and delivered at another.

    It makes streams of its own and removes them again. First as many batches as the network takes; then single tuples,
    one after the other, from publication to the reader.

    With --join two streams, one published at each of both peers, are joined through the join index: as many batches as
    the network takes until all results are out, then 1,000 tuples a second, from publication to the result.

    \b
        $ peer bench -p 2 --to 3 --durability replicated
    """
    if to is not None and to not in base_dir(data_dir).embedded_running():
        raise PeerError(f"embedded peer {to} does not run", exit_code=Exit.NOT_FOUND)

    async def joined() -> dict[str, Any]:
        async with client_for(data_dir, number) as writer, client_for(data_dir, to or number) as reader:
            return await bench_join.measure(writer, reader, join, batch, for_s)

    async def work() -> dict[str, Any]:
        async with client_for(data_dir, number) as writer, client_for(data_dir, to or number) as reader:
            names = [f"bench-{time.time_ns():x}-{place}" for place in range(streams)]
            await asyncio.gather(*(writer.create_stream(name, SCHEMA, durability=durability) for name in names))
            try:
                figures = await _measure(writer, reader, names, batch, for_s)
            finally:
                await asyncio.gather(*(writer.drop_stream(name, force=True) for name in names))
        return {"durability": durability, "streams": streams, "batch": batch, **figures}

    if join:
        show_rows([asyncio.run(joined())], bench_join.COLUMNS, form)
    else:
        show_rows([asyncio.run(work())], _COLUMNS, form)


def _row(n: int) -> tuple[Any, ...]:
    """About 58 bytes."""
    flight, route, plane = f"LH{n % 997:04}", f"FRA-JFK-{n % 100_000:05}", f"D-AI{n % 100_000:05}"
    return (time.perf_counter_ns(), flight, route, 50 + n / 1e6, 8 + n / 1e6, n % 500, plane, n)


async def _measure(writer: Client, reader: Client, names: list[str], batch: int, for_s: float) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        subscriptions = [reader.subscribe(name, since="start") for name in names]
        await asyncio.gather(*(stack.enter_async_context(each) for each in subscriptions))
        arrivals = _Arrivals()
        reading = [asyncio.create_task(arrivals.read(each)) for each in subscriptions]
        try:
            flood = await _flood(writer, names, arrivals, batch, for_s)
            singles = await _singles(writer, names[0], arrivals)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    return flood | singles


class _Arrivals:
    """What the reader has received."""

    def __init__(self) -> None:
        self.count = 0
        self.latest_ms = 0.0
        self.news = asyncio.Event()

    async def read(self, subscription: Subscription) -> None:
        async for batch in subscription.batches():
            self.count += len(batch.rows)
            self.latest_ms = (time.perf_counter_ns() - batch.rows[-1].at) / 1e6
            self.news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(CATCH_UP_S):
            while self.count < count:
                self.news.clear()
                await self.news.wait()


async def _flood(writer: Client, names: list[str], arrivals: _Arrivals, batch: int, for_s: float) -> dict[str, float]:
    """Publish without a pause for a while; the rates are those after the start, when everything is warm."""
    await asyncio.gather(*(writer.publish(name, [_row(0)]) for name in names))
    await arrivals.until(len(names))
    sent = acked = 0
    stop_at = time.perf_counter() + for_s

    async def publish(worker: int) -> None:
        nonlocal sent, acked
        place = worker
        while time.perf_counter() < stop_at:
            rows = [_row(n) for n in range(sent, sent + batch)]
            sent += batch
            await writer.publish(names[place % len(names)], rows)
            acked += batch
            place += BATCHES_IN_FLIGHT

    async def rates() -> dict[str, float]:
        await asyncio.sleep(for_s * WARM_UP_SHARE)
        before = time.perf_counter(), acked, arrivals.count
        await asyncio.sleep(stop_at - time.perf_counter())
        took_s = time.perf_counter() - before[0]
        return {"acked_per_s": (acked - before[1]) / took_s, "delivered_per_s": (arrivals.count - before[2]) / took_s}

    measuring = asyncio.create_task(rates())
    await asyncio.gather(*(publish(worker) for worker in range(BATCHES_IN_FLIGHT)))
    await arrivals.until(len(names) + sent)
    return await measuring


async def _singles(writer: Client, name: str, arrivals: _Arrivals) -> dict[str, float]:
    times = []
    for n in range(SINGLES):
        before = arrivals.count
        await writer.publish(name, [_row(n)])
        await arrivals.until(before + 1)
        times.append(arrivals.latest_ms)
        await asyncio.sleep(SINGLE_GAP_S)
    cuts = statistics.quantiles(times, n=100)
    return {"single_ms_p50": cuts[49], "single_ms_p99": cuts[98]}
