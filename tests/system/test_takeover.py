"""A query over real daemons whose proxy is killed, and whose disk is lost: another peer goes on with it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Awaitable

import pytest

from peerd.client import Client, PeerRefused
from peerd.cluster import Cluster
from tests.system.clients import DEADLINE_S, client, peer, until

ROWS = 600


@pytest.mark.slow
async def test_a_reader_sees_every_result_once_although_the_proxy_and_its_disk_are_lost(fragile: Cluster):
    got: Counter[int] = Counter()
    async with client(fragile, 1) as one, client(fragile, 2) as two, client(fragile, 3) as three:
        await one.create_stream("readings", "n int")
        await one.publish("readings", [(-1,)])
        async with client(fragile, 4) as four:
            text = "SELECT n FROM readings WHERE n % 2 = 0 WITH (durability = replicated, takeover = 1 hour)"
            await four.submit(text, name="steady")
            await until_known(two, "steady")

        async def publish() -> None:
            for n in range(ROWS):
                await one.publish("readings", [(n,)])
                await asyncio.sleep(0.02)

        async def read() -> None:
            async with two.attach("steady", name="mine") as results:
                async for row in results:
                    got[row.n] += 1

        publishing, reading = asyncio.create_task(publish()), asyncio.create_task(read())
        await until(lambda: len(got) >= 20, "results come")
        alive = peer(fragile, "query", "adopt", "steady", "-p", "3", code=1)
        assert 'query "steady" is not taken over: its proxy' in alive.stderr
        fragile.kill(4)
        shutil.rmtree(fragile.base.embedded(4).path)
        killed_at = time.monotonic()
        async with asyncio.timeout(DEADLINE_S):
            while said := await refusal(three.adopt_query("steady")):
                assert "is not taken over" in said
                await asyncio.sleep(0.2)
        adopted_s, before = time.monotonic() - killed_at, len(got)
        await until(lambda: len(got) > before, "results come again")
        print(f"adopted {adopted_s:.1f} s after the kill, results again after {time.monotonic() - killed_at:.1f} s")
        await publishing
        await until(lambda: len(got) >= ROWS // 2 or reading.done(), "everything due has come")
        shown = await three.show_query("steady")
        assert (shown.state, shown.term, shown.results) == ("running", 2, ROWS // 2)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert got == Counter(range(0, ROWS, 2))
        await three.stop_query("steady")
        assert await two.queries(everywhere=True) == []


async def refusal(asked: Awaitable[None]) -> str:
    """Why not; empty if it was done."""
    try:
        await asked
    except PeerRefused as refused:
        return str(refused)
    return ""


async def until_known(asked: Client, query: str) -> None:
    """The directory has it half a second after the acknowledgement."""
    async with asyncio.timeout(DEADLINE_S):
        while query not in [each.query for each in await asked.queries(everywhere=True)]:
            await asyncio.sleep(0.1)
