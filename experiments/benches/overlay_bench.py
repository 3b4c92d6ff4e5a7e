"""Lookups of our DHT beside the stock package's, in one run: how long, how many questions, how often right.

Run as `python -m experiments.benches.overlay_bench [PEERS]`. All peers share this process and its loop, for both.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
import uvloop
from kademlia.crawling import NodeSpiderCrawl
from kademlia.network import Server
from kademlia.node import Node

from experiments.benches.figures import note
from overlay.identity import Identity, Network
from overlay.overlay import Overlay
from protocols.ids import Key

SEED = 7
LOOKUPS = 400
SLOW_LOOKUPS = 4  # Of the stock package after the kill: each waits for 5 s timeouts, round after round.
GIVE_UP_S = 20.0


@dataclass
class Figures:
    """What one implementation did with the same keys."""

    took_ms: list[float]
    wrong: int
    dead_named: int

    def __str__(self) -> str:
        ordered = sorted(self.took_ms)
        share = 100 / len(ordered)
        return (
            f"p50 {statistics.median(ordered):7.2f} ms   p99 {ordered[int(len(ordered) * 0.99)]:8.2f} ms   "
            f"wrong owner {self.wrong * share:5.1f} %   dead peer named {self.dead_named * share:5.1f} %"
        )


async def measure(
    keys: list[Key], alive: Sequence[bytes], dead: Sequence[bytes], ask: Callable[[Key], Awaitable[list[bytes]]]
) -> Figures:
    figures = Figures([], 0, 0)
    for key in keys:
        asked_at = time.perf_counter()
        try:
            named = await asyncio.wait_for(ask(key), GIVE_UP_S)
        except TimeoutError:
            named = []
        figures.took_ms.append((time.perf_counter() - asked_at) * 1000)
        owner = nearest(alive, key)
        figures.wrong += not named or named[0] != owner
        figures.dead_named += any(peer in dead for peer in named)
    return figures


async def ours(peers_count: int, keys: list[Key], luck: random.Random) -> tuple[Figures, Figures]:
    network = Network.create("bench")
    peers: list[Overlay] = []
    for _ in range(peers_count):
        seeds = [luck.choice(peers).address] if peers else []
        peer = Overlay(Identity.generate(), network, port=0, seeds=seeds)
        await peer.start()
        await peer.join()
        peers.append(peer)

    async def ask(key: Key) -> list[bytes]:
        return [record.peer_id for record in await luck.choice(peers).closest(key, 3)]

    before = await measure(keys, [peer.peer_id for peer in peers], [], ask)
    victims = luck.sample(peers, peers_count // 5)
    peers = [peer for peer in peers if peer not in victims]
    await asyncio.gather(*(victim.stop() for victim in victims))
    await asyncio.sleep(5)
    alive = [peer.peer_id for peer in peers]
    after = await measure(keys, alive, [victim.peer_id for victim in victims], ask)
    await asyncio.gather(*(peer.stop() for peer in peers))
    return before, after


async def stock(peers_count: int, keys: list[Key], luck: random.Random) -> tuple[Figures, Figures]:
    servers: list[Server] = []
    addresses: list[tuple[str, int]] = []
    for _ in range(peers_count):
        server = Server(node_id=luck.randbytes(20))
        port = free_port()
        await server.listen(port, interface="127.0.0.1")
        if addresses:
            await server.bootstrap([luck.choice(addresses)])
        servers.append(server)
        addresses.append(("127.0.0.1", port))

    async def ask(key: Key) -> list[bytes]:
        server, node = luck.choice(servers), Node(key)
        near = server.protocol.router.find_neighbors(node)
        crawl = NodeSpiderCrawl(server.protocol, node, near, server.ksize, server.alpha)
        named = [found.id for found in await crawl.find()] + [server.node.id]
        return sorted(named, key=lambda peer: int.from_bytes(peer, "big") ^ key.number)[:3]

    before = await measure(keys, [server.node.id for server in servers], [], ask)
    victims = luck.sample(servers, peers_count // 5)
    servers = [server for server in servers if server not in victims]
    for victim in victims:
        victim.stop()
    await asyncio.sleep(5)
    alive = [server.node.id for server in servers]
    after = await measure(keys[:SLOW_LOOKUPS], alive, [victim.node.id for victim in victims], ask)
    for server in servers:
        server.stop()
    return before, after


def nearest(peers: Sequence[bytes], key: Key) -> bytes:
    return min(peers, key=lambda peer: int.from_bytes(peer, "big") ^ key.number)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(peers_count: int) -> None:
    keys = [Key.of("bench", str(number)) for number in range(LOOKUPS)]
    print(
        f"seed={SEED}: {peers_count} peers in one process, {LOOKUPS} lookups of the 3 nearest to random keys",
        flush=True,
    )
    mine, mine_after = await ours(peers_count, keys, random.Random(SEED))
    theirs, theirs_after = await stock(peers_count, keys, random.Random(SEED))
    print(f"ours,  all alive                {mine}")
    print(f"stock, all alive                {theirs}")
    print(f"ours,  5 s after a fifth died   {mine_after}")
    print(f"stock, 5 s after a fifth died   {theirs_after}")
    ratio = statistics.median(theirs.took_ms) / statistics.median(mine.took_ms)
    ratio_after = statistics.median(theirs_after.took_ms) / statistics.median(mine_after.took_ms)
    note("lookup", statistics.median(mine.took_ms), "ms", "kademlia", statistics.median(theirs.took_ms))
    after = [statistics.median(each.took_ms) for each in (mine_after, theirs_after)]
    note("lookup after a fifth died", after[0], "ms", "kademlia", after[1])
    print(f"stock / ours, p50: {ratio:.1f} x with all alive, {ratio_after:.0f} x after the kill")


def main() -> None:
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    uvloop.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else 64))


if __name__ == "__main__":
    main()
