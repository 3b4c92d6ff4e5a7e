"""Helpers of the link tests: both event loops, peers that are linked and nothing more, and a member that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from overlay.channel import Channel
from overlay.frames import HEADER, HELLO, Hello, encode
from overlay.identity import Address, Identity, Network
from overlay.links import LinkLimits, Links
from overlay.pace import Paces
from overlay.shaping import Shaper
from overlay.tls import LinkCredentials
from overlay.understanding import Understanding
from protocols.ids import PeerId
from protocols.versions import VERSIONS, Versions
from tests.overlay.networks import PATIENCE_S

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
NETWORK = Network("test", b"n" * 32)


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on asyncio's own loop and on uvloop; an exception that nobody handled fails it."""

    @functools.wraps(test)
    def run(loop_name: str, **arguments: Any) -> None:
        unhandled: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            async with asyncio.timeout(3 * PATIENCE_S):
                await test(**arguments)
            gc.collect()  # A future whose exception nobody asked for tells so when it is collected.
            await asyncio.sleep(0)

        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(watched())
        assert unhandled == []

    signature = inspect.signature(test)
    first = inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), first])  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    loops = [pytest.param("asyncio", marks=pytest.mark.slow), "uvloop"]  # The daemon runs on uvloop.
    return pytest.mark.parametrize("loop_name", loops)(run)


class LinkedPeer:
    """One peer's links, and all that they have told."""

    def __init__(
        self,
        identity: Identity | None = None,
        *,
        network: Network = NETWORK,
        limits: LinkLimits = LinkLimits(),
        seed: int = 0,
        versions: Versions = VERSIONS,
        paces: Paces = Paces(),
    ) -> None:
        self.identity = identity or Identity.generate()
        self.credentials = LinkCredentials(self.identity, network)
        self.shaper = Shaper(random.Random(seed))
        understanding = Understanding(versions)
        self.links = Links(self.credentials, understanding, shaper=self.shaper, paces=paces, limits=limits)
        self.links.on_control = lambda peer, body: self.received.append((peer, body))
        self.links.on_channel = self._on_channel
        self.links.on_round_trip = lambda peer, ms: self.round_trips_ms.append(ms)
        self.links.on_lost = self._on_lost
        self.received: list[tuple[PeerId, bytes]] = []
        self.channels: asyncio.Queue[Channel] = asyncio.Queue()
        self.round_trips_ms: list[float] = []
        self.lost: list[PeerId] = []
        self.address: Address = ("", 0)

    @property
    def id(self) -> PeerId:
        return self.identity.peer_id

    @property
    def stats(self) -> dict[str, int]:
        return self.links.stats()

    def bodies(self) -> list[bytes]:
        return [body for _, body in self.received]

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> LinkedPeer:
        self.address = (host, await self.links.listen(host, port))
        return self

    async def send(self, other: LinkedPeer, body: bytes) -> None:
        await self.links.send(other.id, other.address, body)

    async def send_bulk(self, other: LinkedPeer, body: bytes) -> None:
        link = await self.links.link(other.id, other.address)
        await link.control(body, is_bulk=True)

    async def open(self, other: LinkedPeer, window: int = 64 << 10) -> tuple[Channel, Channel]:
        """A channel to another peer: this end of it, and the other."""
        link = await self.links.link(other.id, other.address)
        channel = link.open("test", window)
        return channel, await other.channels.get()

    def _on_channel(self, channel: Channel) -> None:
        self.channels.put_nowait(channel)

    def _on_lost(self, peer: PeerId) -> None:
        self.lost.append(peer)


@contextlib.asynccontextmanager
async def peers(count: int = 2, *, limits: LinkLimits = LinkLimits(), seed: int = 0) -> AsyncIterator[list[LinkedPeer]]:
    """So many peers that listen on loopback, in the order of their ids."""
    made = sorted((LinkedPeer(limits=limits, seed=seed + n) for n in range(count)), key=lambda peer: peer.id)
    try:
        for peer in made:
            await peer.listen()
        yield made
    finally:
        await asyncio.gather(*(peer.links.close() for peer in made))


def frame(kind: int, body: bytes = b"", channel: int = 0, *, flags: int = 0, length: int | None = None) -> bytes:
    return HEADER.pack(len(body) if length is None else length, kind, flags, channel) + body


class RawMember:
    """A member of the network that gets through the handshake and then sends whatever it likes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, identity: Identity | None = None) -> None:
        self.identity = identity or Identity.generate()
        self._credentials = LinkCredentials(self.identity, NETWORK)

    async def dial(self, address: Address, *, greet: bool = True) -> RawMember:
        context = self._credentials.client
        self.reader, self.writer = await asyncio.open_connection(*address, ssl=context, server_hostname="")
        if greet:
            self.writer.write(frame(HELLO, encode(Hello("", 0, dict(VERSIONS)))))
            assert (await self.read_frame())[0] == HELLO
        return self

    async def read_frame(self) -> tuple[int, int, bytes]:
        """Type, channel and body of the next frame."""
        length, kind, _, channel = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        return kind, channel, await self.reader.readexactly(length)

    async def ended(self) -> bool:
        """Whether the other side hangs up, whatever it says before."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await self.reader.read(1 << 16):
                    continue
            except ConnectionError:
                return True
        return True

    async def hang_up(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()
