"""Members that are faulty or lie by datagram, and strangers that only listen and repeat: nobody else is led astray."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from overlay import datagrams
from overlay.coordinates import Coordinate
from overlay.datagrams import Envelope, FindNode, Found, Hint, ListPeers, Message, Obituary, Ping, Pong, WireCoordinate
from overlay.identity import Address, Identity, Network, PeerRecord
from overlay.overlay import Overlay
from overlay.seal import BODY_BYTES_MAX, Opener, Sealer
from protocols.ids import Key
from tests.overlay.linked import on_both_loops
from tests.overlay.networks import PATIENCE_S, started, true_owner, until


class Rogue(asyncio.DatagramProtocol):
    """A member that answers PING as it should, and every question for peers with the hints it was given."""

    def __init__(self, network: Network, hints: list[Hint]) -> None:
        self.identity = Identity.generate()
        self._hints = hints
        self._sealer, self._opener = Sealer(network), Opener(network)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.record = self.signed(transport.get_extra_info("sockname"))

    def signed(self, address: Address) -> PeerRecord:
        now_s = time.time()
        return PeerRecord.sign(self.identity, address, incarnation=int(now_s * 1000), now_s=now_s, version="")

    def encoded(self, message: Message, call: int = 0) -> bytes:
        return datagrams.encode(Envelope(call, self.record.raw, WireCoordinate.of(Coordinate()), message))

    def tell(self, address: Address, message: Message, call: int = 0) -> None:
        self.transport.sendto(self._sealer.seal(self.encoded(message, call), time.time()), address)

    def datagram_received(self, datagram: bytes, source: Address) -> None:
        body = self._opener.open(datagram, time.time())
        assert body is not None
        question = datagrams.decode(body)
        if isinstance(question.message, Ping):
            self.tell(source, Pong(source[0], settled=True, incarnation=0, at_ms=0), question.call)
        elif isinstance(question.message, FindNode | ListPeers):
            self.tell(source, Found(self._hints), question.call)


@contextlib.asynccontextmanager
async def rogue_among(peers: list[Overlay], hints: list[Hint]) -> AsyncIterator[Rogue]:
    """A rogue that the first peer knows; an exception that nobody handles fails the test."""
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    rogue = Rogue(peers[0].network, hints)
    await loop.create_datagram_endpoint(lambda: rogue, local_addr=("127.0.0.1", 0))
    try:
        rogue.tell(peers[0].address, Ping())
        await until(lambda: peers[0].dht.find(rogue.identity.peer_id), "the rogue is known")
        yield rogue
    finally:
        rogue.transport.close()
    assert unhandled == []


def forged_hint(host: bytes) -> Hint:
    """A hint that our own code would not make."""
    hint = Hint(b"\x01" * 20, bytes(4), 7, 1)
    msgspec.structs.force_setattr(hint, "host", host)
    return hint


@pytest.mark.slow
async def test_a_hint_with_no_address_in_it_neither_raises_nor_holds_up_a_lookup() -> None:
    async with started(2) as peers, rogue_among(peers, [forged_hint(b"12345")]) as rogue:
        async with asyncio.timeout(PATIENCE_S):
            await peers[0].owner(Key(rogue.identity.peer_id))
            await peers[0].crawl()


async def test_a_page_that_leads_nowhere_does_not_keep_a_walk_from_ending() -> None:
    async with started(1) as peers:
        page = [Hint(bytes(peers[0].peer_id), bytes(4), 7, 1)] * datagrams.HINTS_MAX
        async with rogue_among(peers, page), asyncio.timeout(PATIENCE_S):
            assert len(await peers[0].crawl()) == 2


@pytest.mark.slow
async def test_an_obituary_from_the_far_future_does_not_drive_a_peer_out_of_the_network() -> None:
    async with started(3) as peers, rogue_among(peers, []) as rogue:
        victim = peers[1]
        for incarnation in (2**63 - 1, 2**62, int(time.time() * 1000) + 3_600_000):
            rogue.tell(victim.address, Obituary(bytes(victim.peer_id), incarnation, b"", forced=False))
        await asyncio.sleep(1.5)
        assert PeerRecord.verify(victim.dht.record.raw, time.time())
        assert [peer.stats().get("datagrams_malformed_total", 0) for peer in peers] == [0, 0, 0]
        rogue.tell(victim.address, Obituary(bytes(victim.peer_id), victim.dht.record.incarnation, b"", forced=False))
        before = victim.dht.record.incarnation
        await until(lambda: victim.dht.record.incarnation > before, "a plausible one is refuted")


async def test_a_farewell_that_is_none_is_not_passed_on() -> None:
    async with started(3) as peers, rogue_among(peers, []) as rogue:
        rogue.record = rogue.signed(("::1", 9))  # Shorter than a peer's own, so what it fills is too long for others.
        used = len(rogue.encoded(Obituary(b"x" * 20, 1, b"y" * 300, forced=False))) - 300
        for number, size in enumerate((10, 400, BODY_BYTES_MAX - used)):
            rogue.tell(peers[0].address, Obituary(bytes([number]) * 20, 1, b"y" * size, forced=False))
        await asyncio.sleep(0.3)
        assert not [rumour for peer in peers for rumour in peer.dht._liveness._rumours]


async def test_a_stranger_that_sends_our_questions_back_to_us_changes_no_answer() -> None:
    async with started(8, shaped=True) as peers:
        asking = peers[0]
        for peer in peers:
            assert peer.dht.shaper is not None
            peer.dht.shaper.shape(delay_ms=10)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            transport = asking.dht.protocol.transport

            class Overheard:
                def sendto(self, datagram: bytes, address: Address) -> None:
                    transport.sendto(datagram, address)
                    stranger.sendto(datagram, asking.address)

                def is_closing(self) -> bool:
                    return transport.is_closing()

            asking.dht.protocol.transport = Overheard()
            for number in range(10):
                key = Key.of("key", str(number))
                assert (await asking.owner(key)).peer_id == true_owner(key, peers)
            asking.dht.protocol.transport = transport


@on_both_loops
async def test_a_peer_is_ready_for_datagrams_that_are_there_before_it_is():
    network = Network.create("early")
    rogue = Rogue(network, [])
    rogue.record = rogue.signed(("127.0.0.1", 9))
    for _ in range(20):
        peer = Overlay(Identity.generate(), network, port=0)
        listen = peer.dht.listen

        async def listen_under_fire(port: int, *rest: Any, listen: Any = listen) -> None:
            listening = asyncio.ensure_future(listen(port, *rest))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as impatient:
                while not listening.done():
                    with contextlib.suppress(OSError):
                        body = rogue.encoded(Ping(), 1)
                        impatient.sendto(rogue._sealer.seal(body, time.time()), ("127.0.0.1", port))
                    await asyncio.sleep(0)
            await listening

        peer.dht.listen = listen_under_fire
        await peer.start()
        await peer.stop()
