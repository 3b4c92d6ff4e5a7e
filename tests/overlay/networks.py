"""Helpers of the overlay's tests: records without keys to spare, and networks of peers in one process."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Container, Mapping

from overlay.identity import Identity, Network, PeerRecord
from overlay.keyring import OVERLAP_MS
from overlay.overlay import Overlay
from overlay.pace import Paces
from overlay.shaping import Shaper
from overlay.table import Contact
from protocols.ids import Key, PeerId
from protocols.versions import VERSIONS, Versions

PATIENCE_S = 60.0  # A busy machine makes a test slow, not wrong.


def peer_id(number: int) -> PeerId:
    return PeerId(number.to_bytes(20, "big"))


def contact(peer: PeerId, incarnation: int = 1, port: int = 7400) -> Contact:
    """A contact with a record nobody signed: tables and lookups do not look at signatures."""
    address, flags = ("127.0.0.1", port), {"left": False, "has_engine": False}
    record = PeerRecord(peer, address, incarnation, 0, "0", **flags, versions=VERSIONS, raw=b"")
    return Contact(record, answered_at=0.0, since_at=0.0)


async def until(condition: Callable[[], object], what: str) -> float:
    """Wait for a condition that is bound to hold soon; returns how many seconds it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not condition():
        assert loop.time() - started < PATIENCE_S, f"not within {PATIENCE_S:g} s: {what}"
        await asyncio.sleep(0.005)
    return loop.time() - started


@contextlib.asynccontextmanager
async def started(
    count: int,
    *,
    shaped: bool = False,
    seed: int = 0,
    engines: Container[int] = (),
    versions: Mapping[int, Versions] = {},
    overlap_ms: int = OVERLAP_MS,
    paces: Mapping[int, Paces] = {},
) -> AsyncIterator[list[Overlay]]:
    """A network of so many peers on loopback, all in this process, joined one after the other.

    Each speaks the versions of this release, but for those that `versions` names by their place; `paces` likewise.
    """
    network = Network.create("test")
    rng = random.Random(seed)
    peers: list[Overlay] = []
    try:
        for place in range(count):
            seeds = [rng.choice(peers).address] if peers else []
            shaper = Shaper(random.Random(rng.random())) if shaped else None
            peer = Overlay(
                Identity.generate(),
                network,
                port=0,
                version="test",
                has_engine=place in engines,
                versions=versions.get(place, VERSIONS),
                seeds=seeds,
                shaper=shaper,
                paces=paces.get(place, Paces()),
                overlap_ms=overlap_ms,
            )
            await peer.start()
            peers.append(peer)
            await peer.join()
        yield peers
    finally:
        await asyncio.gather(*(peer.stop() for peer in peers))


def true_owner(key: Key, peers: list[Overlay]) -> PeerId:
    return min((peer.peer_id for peer in peers), key=lambda peer: peer.number ^ key.number)
