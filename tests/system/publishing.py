"""What tests of queries publish, and how they see that a query has left nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

from peerd.client import Client, ConnectionLost
from peerd.cluster import Cluster
from protocols.limits import Limits
from tests.system.clients import DEADLINE_S, client

PATIENCE_S = 180.0  # For what a crash delays, on a slow machine.


async def nothing_left(one: Client, *streams: str) -> None:
    """Wait until a peer keeps nothing for queries: neither themselves, nor streams of theirs, nor subscriptions."""

    async def left() -> list[str]:
        queries = [each.query for each in await one.queries()]
        derived = [each.name for each in await one.streams() if "." in each.name]
        return queries + derived + [f"readers of {each}" for each in streams if (await one.stream(each)).subscriptions]

    deadline_at = time.monotonic() + DEADLINE_S + Limits().passing_life_ms / 1000  # Of a host that was killed.
    while found := await left():
        assert time.monotonic() < deadline_at, found
        await asyncio.sleep(0.05)


async def publish_for(
    cluster: Cluster, number: int, stream: str, stop: asyncio.Event, sent: dict[int, bool], row: Callable[[int], Any]
) -> None:
    """Publish numbers through one peer, and note which were acknowledged; of what a crash cut off nobody knows."""
    numbers = itertools.count(number * 1_000_000)
    async with client(cluster, number, patience_s=PATIENCE_S) as one:
        while not stop.is_set():
            batch = list(itertools.islice(numbers, 5))
            sent.update(dict.fromkeys(batch, False))
            with contextlib.suppress(ConnectionLost):
                await one.publish(stream, [row(n) for n in batch])
                sent.update(dict.fromkeys(batch, True))
            await asyncio.sleep(0.05)


def met_once(number: int) -> tuple[int, int]:
    """A row that meets one row of each other peer: the last six digits of the numbers are the same."""
    return number, number % 1_000_000
