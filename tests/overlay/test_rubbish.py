"""A million malformed datagrams and frames: nothing is raised, nothing answered, nothing kept."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from overlay import datagrams
from overlay.coordinates import Coordinate
from overlay.datagrams import (
    Envelope,
    Message,
    Ping,
    WireCoordinate,
)
from overlay.identity import Identity, Network
from overlay.overlay import Overlay
from overlay.seal import BODY_BYTES_MAX, Opener, Sealer
from tests.overlay.datagram_things import one_of_each, record_of
from tests.overlay.networks import PATIENCE_S, started

SEED = 20
DATAGRAMS = 700_000
FRAMES = 300_000
LAST_CALL = 99


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def envelope(identity: Identity, now_s: float, message: Message, call: int = 1) -> bytes:
    return datagrams.encode(Envelope(call, record_of(identity, now_s).raw, WireCoordinate.of(Coordinate()), message))


def mutated(luck: random.Random, good: bytes) -> bytes:
    """Good bytes with a few of them changed, cut off or repeated."""
    bad = bytearray(good)
    for _ in range(luck.randrange(1, 4)):
        place = luck.randrange(len(bad))
        match luck.randrange(3):
            case 0:
                bad[place] ^= luck.randrange(1, 256)
            case 1:
                del bad[place:]
            case _:
                bad[place:place] = bad[:place]
        if not bad:
            return b""
    return bytes(bad[:BODY_BYTES_MAX])


def rubbish(luck: random.Random, network: Network, sender: Identity, count: int) -> Iterator[bytes]:
    """Noise, sealed noise, and sealed envelopes that are almost right: a member's faults are ours to survive too."""
    sealer = Sealer(network)
    now_s = time.time()
    good = [envelope(sender, now_s, message) for message in one_of_each(now_s)]
    sealed = [sealer.seal(body, now_s) for body in good]
    deep = b"\x91" * (BODY_BYTES_MAX - 1) + b"\xc0"
    for _ in range(count):
        match luck.randrange(8):
            case 0:
                yield luck.randbytes(luck.randrange(1400))
            case 1 | 2:
                yield mutated(luck, luck.choice(sealed))
            case 3:
                yield sealer.seal(luck.randbytes(luck.randrange(64)), now_s)
            case 4:
                yield sealer.seal(deep, now_s)
            case _:
                yield sealer.seal(mutated(luck, luck.choice(good)), now_s)


async def flood(pieces: Iterator[bytes], take: Callable[[bytes], None]) -> int:
    """Feed every piece, letting the loop breathe; returns how much memory grew after a first tenth."""
    warm = 0
    for number, piece in enumerate(pieces):
        take(piece)
        if number % 2000 == 0:
            await asyncio.sleep(0)
        if number == (DATAGRAMS + FRAMES) // 20:
            gc.collect()
            warm = resident_bytes()
    gc.collect()
    return resident_bytes() - warm


@pytest.mark.slow
async def test_a_million_malformed_datagrams_and_frames_raise_nothing_and_leave_nothing() -> None:
    luck = random.Random(SEED)
    failures: list[dict[str, object]] = []
    async with started(2) as (peer, other):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        protocol, router = peer.dht.protocol, peer.router
        members = {member.peer_id for member in peer.members()}
        sender = Identity.generate()

        grown = await flood(
            rubbish(luck, peer.network, sender, DATAGRAMS),
            lambda piece: protocol.datagram_received(piece, ("127.0.0.1", 9)),
        )
        delivery = msgspec.msgpack.encode([1, b"bootboot", 7, [[b"k" * 20, b"payload"], [b"", b"payload"]]])
        receipt = msgspec.msgpack.encode([2, router._boot, 7, [None, [b"n" * 20, b"\x7f\0\0\1", 9, 1]]])
        peer.router.on_message = lambda sender, key, payload: None
        frames = (
            luck.randbytes(luck.randrange(100))
            if luck.random() < 0.3
            else mutated(luck, luck.choice((delivery, delivery, receipt)))
            for _ in range(FRAMES)
        )
        grown += await flood(frames, lambda piece: router._read(other.peer_id, piece))

        assert not failures, f"seed={SEED}"
        assert grown < 64 * 2**20, f"seed={SEED}: memory grew by {grown >> 20} MiB"
        # A mutated answer can, by luck, be the right answer to the ping that asks the sender whether it is there.
        assert {member.peer_id for member in peer.members()} - {sender.peer_id} == members, f"seed={SEED}"
        assert (await other.owner(peer.dht.peer_id)).peer_id == peer.peer_id


async def is_answered(peer: Overlay, datagram: bytes) -> bool:
    """Whether a socket gets anything back for one datagram before the answer to a good question that follows it."""
    loop = asyncio.get_running_loop()
    now_s = time.time()
    good = envelope(Identity.generate(), now_s, Ping(), call=LAST_CALL)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setblocking(False)
        stranger.bind(("127.0.0.1", 0))
        stranger.sendto(datagram, peer.address)
        stranger.sendto(Sealer(peer.network).seal(good, now_s), peer.address)
        async with asyncio.timeout(PATIENCE_S):
            answer = await loop.sock_recv(stranger, 65536)
    body = Opener(peer.network).open(answer, time.time())
    assert body is not None
    return datagrams.decode(body).call != LAST_CALL


async def test_only_a_member_with_a_valid_record_is_answered() -> None:
    now_s = time.time()
    async with started(1) as (peer,):
        mine = Sealer(peer.network)
        good = envelope(Identity.generate(), now_s, Ping())
        assert await is_answered(peer, mine.seal(good, now_s)), "a member is answered"
        unsealed = good
        foreign = Sealer(Network.create("other")).seal(good, now_s)
        expired = mine.seal(envelope(Identity.generate(), now_s - 7200, Ping()), now_s)
        altered = mine.seal(good.replace(b"127.0.0.1", b"127.0.0.2"), now_s)
        for refused in (unsealed, foreign, expired, altered, mine.seal(b"", now_s), b"", b"\x00" * 1200):
            assert not await is_answered(peer, refused)
        replayed = mine.seal(good, now_s)
        assert await is_answered(peer, replayed)
        assert not await is_answered(peer, replayed), "a recording is not answered again"
        assert [member.is_self for member in peer.members()] == [True], "nobody entered the table"


async def test_the_librarys_own_datagrams_get_no_answer() -> None:
    """Stock kademlia: 77 bytes of find_node drew 739, and one datagram overwrote a stored value."""
    import umsgpack

    async with started(1) as (peer,):
        for name, arguments in (("ping", [b"x" * 20]), ("store", [b"x" * 20, b"k" * 20, b"v"]), ("stun", [])):
            stock = b"\x00" + b"i" * 20 + umsgpack.packb([name, arguments])
            assert not await is_answered(peer, stock)
