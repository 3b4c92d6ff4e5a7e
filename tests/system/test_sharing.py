"""Many queries over one stream: it comes to their host once, and each has its results exactly, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import pytest

from peerd.client import Client, PeerRefused
from peerd.cluster import Cluster
from tests.seeds import draw_seed
from tests.system.clients import client, peer, until
from tests.system.publishing import PATIENCE_S, nothing_left, publish_for

READERS = 10


def wordy(number: int) -> tuple[int, str]:
    return number, "some words that nobody asks for"


async def test_queries_share_a_stream_and_people_see_it(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("common", "n int, words string")
        await one.publish("common", [wordy(0)])
        names = [f"common-{place}" for place in range(3)]
        for place, name in enumerate(names):
            await two.submit(f"SELECT n FROM common WHERE n % 3 = {place}", name=name)
        for name, window in (("short", "RANGE 1 SECOND"), ("long", "RANGE 60 SECONDS SLIDE 7 SECONDS")):
            await one.submit(f"SELECT count(*) AS rows FROM common [{window}]", name=name)
        await two.submit("SELECT n FROM common WITH (sharing = off)", name="apart")
        await one.publish("common", [wordy(n) for n in range(1, 31)])
        for place, name in enumerate(names):
            async with two.attach(name) as results:
                rows = aiter(results)
                assert sorted([(await anext(rows)).n for _ in range(10)]) == [n for n in range(1, 31) if n % 3 == place]
        with pytest.raises(PeerRefused, match="sharing"):
            await two.submit("SELECT n FROM common WITH (sharing = maybe)")
        said = {}

        async def told() -> bool:
            for name in (*names, "apart"):
                said[name] = peer(network, "query", "show", name, "-p", "2", "-o", "table").stdout
            said["long"] = peer(network, "query", "show", "long", "-p", "1", "-o", "table").stdout
            is_told = all("read once for this and 2 others" in said[name] for name in names)
            return is_told and "from slices shared with 1 other" in said["long"]

        async with asyncio.timeout(PATIENCE_S):
            while not await told():  # A host says how it goes once a second.
                await asyncio.sleep(0.2)
        assert "read for this alone, as WITH (sharing = off) says" in said["apart"]
        assert "read once for this and 2 others" in peer(network, "explain", names[0], "-p", "2").stdout
        shared = [
            json.loads(line)
            for number in ("1", "2")
            for line in peer(network, "stream", "ls", "--shared", "-p", number).stdout.splitlines()
        ]
        reads = [each for each in shared if each["stream"] == "common"]
        assert [(read["taps"], read["alone"], read["publishers"]) for read in reads] == [(2, 0, 1), (3, 0, 1)]
        assert [(read["windows"], read["slices"]) for read in reads] == [(2, 1), (0, 0)]
        assert all(0 < read["bytes_saved"] <= 2 * read["bytes_read"] for read in reads)
        for name in (*names, "apart"):
            await two.stop_query(name)
        for name in ("short", "long"):
            await one.stop_query(name)
        await nothing_left(two, "common")


@pytest.mark.slow
async def test_ten_readers_are_exact_though_the_host_of_their_stream_is_killed(fragile: Cluster):
    seed = draw_seed()
    rng = random.Random(seed)
    stop, sent = asyncio.Event(), dict[int, bool]()
    got: list[Counter[int]] = [Counter() for _ in range(READERS)]
    async with client(fragile, 1) as one, client(fragile, 5, patience_s=PATIENCE_S) as five:
        await one.create_stream("many", "n int, words string")
        publishing = [asyncio.create_task(publish_for(fragile, n, "many", stop, sent, wordy)) for n in (2, 3)]
        await until(lambda: len(sent) > 100, "both publish")
        for place in range(READERS):
            await five.submit(f"SELECT n FROM many WHERE n % {READERS} = {place}", name=f"many-{place}")
        before = dict(sent)
        reading = [asyncio.create_task(_read(five, place, got[place])) for place in range(READERS)]
        for victim in (_host, _publisher, _host):
            await until(lambda: all(sum(each.values()) > 5 for each in got), "results come", PATIENCE_S)
            host = await victim(fragile)
            await asyncio.sleep(rng.uniform(0, 0.3))
            fragile.kill(host)
            await asyncio.sleep(rng.uniform(0.1, 1.0))
            await asyncio.to_thread(fragile.restart, host)
            enough = [sum(each.values()) + 5 for each in got]
            await until(
                lambda enough=enough: all(sum(each.values()) > least for each, least in zip(got, enough, strict=True)),
                "results come again",
                PATIENCE_S,
            )
        stop.set()
        await asyncio.gather(*publishing)
        due = {n for n, is_acked in sent.items() if is_acked and n not in before}
        await until(
            lambda: all({n for n in due if n % READERS == p} <= got[p].keys() for p in range(READERS)), "all", 60
        )
        print(f"seed={seed}: {len(due)} due to {READERS} readers, {sum(map(len, got))} came")
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for place in range(READERS):
            await five.stop_query(f"many-{place}")
    for place, rows in enumerate(got):
        assert not [n for n, times in rows.items() if times > 1]
        assert not [n for n in rows if n % READERS != place or n not in sent]


async def _read(five: Client, place: int, got: Counter[int]) -> None:
    async with five.attach(f"many-{place}", name=f"reader-{place}") as results:
        async for row in results:
            got[row.n] += 1


async def _publisher(_: Cluster) -> int:
    return 2


async def _host(fragile: Cluster) -> int:
    """The peer that reads the stream for all queries. A query that has just begun may still read alone."""
    taps: dict[int, int] = {}

    async def are_together() -> bool:
        for number in range(1, 6):
            async with client(fragile, number) as each:
                taps[number] = sum(read.taps for read in await each.shared_streams() if read.stream == "many")
        return max(taps.values()) == READERS

    async with asyncio.timeout(PATIENCE_S):
        while not await are_together():
            await asyncio.sleep(0.1)
    return max(taps, key=lambda number: taps[number])
