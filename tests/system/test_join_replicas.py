"""Joins whose rewriters share the publishers of a stream, over real daemons: who reads what, and what a kill costs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from peerd.cluster import Cluster
from protocols.catalogue.shares import PublisherShare
from protocols.execution.messages import QueryShown
from protocols.ids import PeerId, distance
from protocols.join_index.keys import attribute_key
from protocols.join_index.messages import Attribute
from protocols.subgraphs import RewriterStatus
from tests.system.clients import DEADLINE_S, client, peer, until
from tests.system.publishing import PATIENCE_S, met_once, nothing_left, publish_for

NAMES = 2000  # Of streams, to find one by.


def rewriters_in(shown: QueryShown) -> list[RewriterStatus]:
    return [
        rewriter
        for each in shown.subgraphs
        if each.status is not None and each.status.index is not None
        for rewriter in each.status.index.rewriters
    ]


async def test_each_publisher_is_read_by_one_of_two_rewriters(network: Cluster):
    """All publish to both streams; how many tuples each rewriter has read follows from who is in its share."""
    peers = [PeerId(bytes.fromhex(network.client(n).get("/status")["peer_id"])) for n in (1, 2, 3)]
    names = ("requests", "replies")
    async with client(network, 1) as one, client(network, 2) as two, client(network, 3) as three:
        for name in names:
            await one.create_stream(name, "n int, k int")
        text = "SELECT q.n AS q, p.n AS p FROM requests q, replies p WHERE q.k = p.k WITH (replicas = 2)"
        async with three.query(text, name="answered", engine="dai-t") as found:
            for count, each in ((10, one), (20, two), (30, three)):
                for name in names:
                    await each.publish(name, [(n, n) for n in range(count)])
            due = Counter({(n, n): sum(n < count for count in (10, 20, 30)) ** 2 for n in range(30)})
            rows, got = aiter(found), Counter[tuple[int, int]]()
            async with asyncio.timeout(DEADLINE_S):
                while got.total() < due.total():
                    got[tuple(await anext(rows))] += 1
            assert got == due
            read = {
                (alias, replica): sum(
                    count
                    for publisher, count in zip(peers, (10, 20, 30), strict=True)
                    if PublisherShare(replica, 2).has(publisher)
                )
                for alias in "qp"
                for replica in (0, 1)
            }
            seen = dict[tuple[str, int], int]()
            async with asyncio.timeout(DEADLINE_S):
                while seen != read:
                    await asyncio.sleep(0.1)
                    seen = {(e.alias, e.replica): e.tuples for e in rewriters_in(await three.show_query("answered"))}
            record = json.loads((await asyncio.to_thread(peer, network, "query", "show", "answered", "-p", "3")).stdout)
            (subgraph,) = record["subgraphs"]
            shown = [(each["attribute"], each["replica"], each["replicas"]) for each in subgraph["index"]["rewriters"]]
            assert shown == [(f"{name}.k", replica, 2) for name in names for replica in (0, 1)]
            said = (await asyncio.to_thread(peer, network, "explain", "answered", "-p", "3")).stdout
            assert "(replica 2 of 2)" in said
        await nothing_left(three, *names)


def name_for(peers: dict[int, PeerId], number: int) -> str:
    """Of a stream whose second rewriter is that peer, and its first one another, if there can be such a one."""

    def nearest(name: str, replica: int) -> int:
        key = attribute_key(Attribute(name, ("k",)), replica)
        return min(peers, key=lambda each: distance(key, peers[each]))

    names = [name for name in (f"lefts_{n}" for n in range(NAMES)) if nearest(name, 1) == number]
    return min(names, key=lambda name: nearest(name, 0) == number, default="lefts")


@pytest.mark.slow
async def test_a_join_is_exact_though_one_replica_is_killed(fragile: Cluster):
    """Three publishers of the left stream, one of the right; a peer that reads a share of them dies in mid-stream."""
    peers = {n: PeerId(bytes.fromhex(fragile.client(n).get("/status")["peer_id"])) for n in range(1, 6)}
    numbers = {peer_id: n for n, peer_id in peers.items()}
    left = name_for(peers, 4)
    stop, got = asyncio.Event(), Counter[tuple[int, int]]()
    lefts, rights = dict[int, bool](), dict[int, bool]()
    async with client(fragile, 1) as one, client(fragile, 5, patience_s=PATIENCE_S) as five:
        await one.create_stream(left, "n int, k int")
        await one.create_stream("rights", "n int, k int")
        text = f"SELECT l.n AS l, r.n AS r FROM {left} l, rights r WHERE l.k = r.k WITH (replicas = 2)"
        async with five.query(text, name="pairs", engine="sai") as pairs:
            publishing = [
                asyncio.create_task(publish_for(fragile, n, stream, stop, sent, met_once))
                for n, stream, sent in ((1, left, lefts), (2, left, lefts), (3, left, lefts), (2, "rights", rights))
            ]

            async def read() -> None:
                async for row in pairs:
                    got[row.l, row.r] += 1

            reading = asyncio.create_task(read())
            await until(lambda: got.total() > 50, "results come", PATIENCE_S)
            there = rewriters_in(await five.show_query("pairs"))
            assert {(each.alias, each.replica) for each in there} == {(alias, n) for alias in "lr" for n in (0, 1)}
            dies = next(numbers[each.peer] for each in there if (each.alias, each.replica) == ("l", 1))
            fragile.kill(dies)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(fragile.restart, dies)
            enough = got.total() + 50
            await until(lambda: got.total() > enough, "results come again", PATIENCE_S)
            stop.set()
            await asyncio.gather(*publishing)
            by_key = {n % 1_000_000: n for n, is_acked in rights.items() if is_acked}
            due = {(n, by_key[n % 1_000_000]) for n, is_acked in lefts.items() if is_acked and n % 1_000_000 in by_key}
            await until(lambda: due <= got.keys() or reading.done(), "everything due has come", PATIENCE_S)
            shown = await five.show_query("pairs")
            print(f"peer {dies} was killed: {len(due)} due, {len(got)} came; {shown.reason}")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert not due - got.keys()
        assert not [pair for pair, times in got.items() if times > 1]
        assert not [(a, b) for a, b in got if a % 1_000_000 != b % 1_000_000 or a not in lefts or b not in rights]
