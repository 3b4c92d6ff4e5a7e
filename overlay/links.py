"""All links of one peer: dialling, accepting, and settling on one link for each other peer.

Two peers may dial each other at the same time. Both links then work, until the peer with the higher id says goodbye on
the link that it dialled, once it has the other one. Only the dialler of the losing link may decide this, because it
alone knows that it has the winner. Frames still in flight on the losing link arrive before it closes. A dialler dials
again only after losing its link, so a second link from the same dialler replaces the first. A few replaced links of one
peer may live until their channels end; the oldest beyond those are dropped.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from overlay.channel import Channel, ChannelClosed
from overlay.frames import Hello
from overlay.identity import Address, format_address
from overlay.link import CHANNEL_BYTES_MAX, Link, LinkEvents
from overlay.outbox import LinkCounters, LinkError
from overlay.pace import Paces
from overlay.shaping import Shaper
from overlay.tls import ALPN, LinkCredentials, NotAMember, Proof, server_name
from overlay.understanding import Understanding
from protocols.ids import PeerId

__all__ = ["Channel", "ChannelClosed", "Link", "LinkError", "LinkLimits", "Links"]

_BACKLOG: Final = 512
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # Hosts that mean every interface.
_BACKOFFS_MAX: Final = 4096
_TRIES_MAX: Final = 3
_ACCEPT_PAUSE_S: Final = 0.1
_LATE_S: Final = 0.25  # A heartbeat later than this tells of our own loop, not of the peers.


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Time and space limits for the links of one peer."""

    handshake_s: float = 3.0  # From the first packet to both HELLOs.
    dials_max: int = 32  # At a time.
    half_open_max: int = 128  # Inbound connections that have not proved anything yet.
    ping_every_s: float = 2.0
    silence_s: float = 15.0
    backoff_min_s: float = 0.1
    backoff_max_s: float = 5.0
    drain_s: float = 5.0
    leaving_max: int = 4  # Replaced links of one peer that have not closed yet.
    channel_bytes_max: int = CHANNEL_BYTES_MAX  # For each link, see Link.


@dataclass(slots=True)
class _Dial:
    task: asyncio.Task[None]
    link: asyncio.Future[Link]  # The first link to the peer, whoever dialled it.


@dataclass(slots=True)
class _Backoff:
    address: Address
    reason: str
    wait_s: float
    until_at: float


def _ignore(*_: object) -> None:
    """The default callback: do nothing."""


class Links:
    """The links of one peer. Set the callbacks, then listen(); send() and link() dial as needed."""

    def __init__(
        self,
        credentials: LinkCredentials,
        understanding: Understanding,
        *,
        shaper: Shaper | None = None,
        paces: Paces = Paces(),
        limits: LinkLimits = LinkLimits(),
    ) -> None:
        self.on_control: Callable[[PeerId, bytes], None] = _ignore
        self.on_channel: Callable[[Channel], None] = lambda channel: channel.close()
        self.on_round_trip: Callable[[PeerId, float], None] = _ignore
        self.on_lost: Callable[[PeerId], None] = _ignore
        self.on_linked: Callable[[Link], None] = _ignore
        self.on_unlinked: Callable[[PeerId], None] = _ignore  # There is no link in use to that peer any more.
        self.on_ring: Callable[[PeerId, bytes], None] = _ignore
        # Why a peer that has proved its id is no member, and what to tell it; None if it is one.
        self.refuse: Callable[[PeerId, bytes], tuple[str, bytes] | None] = lambda _peer, _tag: None
        self.tags_for: Callable[[PeerId], Sequence[bytes]] = lambda _peer: self.credentials.tags[:1]
        self.stated = b""  # What HELLO says of our keyring.
        self.address: Address = ("", 0)  # Where we say we listen: set by listen(), corrected by whoever knows better.
        self.peer_id = credentials.peer_id
        self.credentials = credentials
        self._understanding = understanding
        self._shaper = shaper
        self._paces = paces
        self._limits = limits
        self._rng = random.Random()
        self._counters = LinkCounters()
        self._sent: Counter[PeerId] = Counter()  # Bytes sent over links that are gone.
        self._dialled = self._dials_failed = self._accepted = self._refused = self._broken = self._no_members = 0
        self._no_common_version = 0
        self._links: dict[PeerId, list[Link]] = {}  # Links in use; we send on the last, the newest.
        self._leaving: dict[Link, None] = {}  # Links that said goodbye and are not closed yet.
        self._dials: dict[PeerId, _Dial] = {}
        self._dial_slots = asyncio.Semaphore(limits.dials_max)
        self._backoffs: dict[PeerId, _Backoff] = {}
        self._half_open: dict[asyncio.Task[None], None] = {}
        self._listener: socket.socket | None = None
        self._acceptor: asyncio.Task[None] | None = None
        self._heart: asyncio.Task[None] | None = None
        self._is_closed = False

    async def listen(self, host: str, port: int) -> int:
        """Accept links on the first address of the host; returns the bound port."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, bind_address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(bind_address)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        bound_port = int(listener.getsockname()[1])
        self.address = ("" if host in _WILDCARDS else str(bind_address[0]), bound_port)
        self._listener = listener
        self._is_closed = False  # This may be the second try, after a close().
        self._acceptor = asyncio.create_task(self._accept(listener))
        return bound_port

    async def send(self, peer: PeerId, address: Address, body: bytes) -> None:
        """Send a control message; when this returns, it is accepted for sending."""
        link = await self.link(peer, address)
        await link.control(body)

    async def link(self, peer: PeerId, address: Address) -> Link:
        """The link to a peer, dialled if there is none; concurrent callers share one dial."""
        for _ in range(_TRIES_MAX):
            if link := self._current(peer):
                return link
            # The link may be gone before we get to run: then use another one, or dial again.
            await asyncio.shield(self._first_link(peer, address))
        raise LinkError(f"no link to peer {peer.short}: {_TRIES_MAX} links were lost as soon as they were made")

    def address_of(self, peer: PeerId) -> Address | None:
        """Where a peer listens that we have a link to."""
        link = self._current(peer)
        return link.address if link else None

    def peers(self) -> list[PeerId]:
        """Everybody there is a link to."""
        return list(self._links)

    def close_peer(self, peer: PeerId) -> None:
        """Close the link to a peer and forget how the last dial went."""
        self._backoffs.pop(peer, None)
        self._cancel_dial(peer)
        links = self._links.pop(peer, [])
        for link in links:
            self._leaving[link] = None
            link.close()
        if links:
            self.on_unlinked(peer)

    def tell_ring(self, peer: PeerId, body: bytes) -> None:
        """Send a message about the network key over the link to a peer, if there is one."""
        if link := self._current(peer):
            link.tell_ring(body)

    def shut(self, peer: PeerId, body: bytes) -> None:
        """End every link to a peer that is no member, and tell it why."""
        for link in [link for link in self._all_links() if link.peer == peer]:
            link.tell_ring(body)
            link.close()
        self.close_peer(peer)

    async def meet(self, address: Address) -> str:
        """Dial whoever listens at an address, under each of our keys; returns why there is no link then, or nothing."""

        def identify(transport: asyncio.BaseTransport) -> Proof:
            return self._identify_inbound(transport)

        try:
            async with self._dial_slots, asyncio.timeout(self._limits.handshake_s):
                await self._connect(identify, address, self.credentials.tags)
        except (OSError, ValueError, OverflowError) as error:
            return _reason(error, self._limits.handshake_s)
        return ""

    async def drain(self) -> None:
        """Start nothing new and say goodbye on every link; what is in flight still gets through."""
        self._stop_beginning()
        for link in [link for links in self._links.values() for link in links]:
            self._retire(link)
        if self._leaving:
            await asyncio.wait([link.gone for link in self._leaving], timeout=self._limits.drain_s)

    async def close(self) -> None:
        """Drop everything at once; call drain() first to be polite."""
        tasks = [dial.task for dial in self._dials.values()] + list(self._half_open)
        tasks += [task for task in (self._acceptor, self._heart) if task]
        self._stop_beginning()
        if self._heart is not None:
            self._heart.cancel()
        links = list(self._all_links())
        self._links.clear()
        for link in links:
            self._leaving[link] = None
            link.abort("closed on this side")
        await asyncio.gather(*tasks, return_exceptions=True)
        if links:
            await asyncio.wait([link.gone for link in links], timeout=self._limits.drain_s)

    def bytes_to(self, peer: PeerId) -> int:
        """How many bytes were sent to a peer, over all links so far."""
        return self._sent[peer] + sum(link.bytes_out for link in self._all_links() if link.peer == peer)

    def stats(self) -> dict[str, int]:
        counters = self._counters
        return {
            "links_open": sum(map(len, self._links.values())),
            "links_leaving": len(self._leaving),
            "links_half_open": len(self._half_open),
            "links_dialling": len(self._dials),
            "link_channels_open": sum(link.channels_open for link in self._all_links()),
            "links_dialled_total": self._dialled,
            "links_accepted_total": self._accepted,
            "links_lost_total": self._broken,
            "link_dials_failed_total": self._dials_failed,
            "link_accepts_refused_total": self._refused,
            "links_no_common_version_total": self._no_common_version,
            "links_no_member_total": self._no_members,
            "link_protocol_errors_total": counters.protocol_errors,
            "link_channels_refused_total": counters.channels_refused,
            "link_bytes_in_total": counters.bytes_in,
            "link_bytes_out_total": counters.bytes_out,
            "link_control_in_total": counters.control_in,
            "link_control_out_total": counters.control_out,
        }

    # Dialling.

    def _first_link(self, peer: PeerId, address: Address) -> asyncio.Future[Link]:
        if self._is_closed:
            raise LinkError(f"no link to peer {peer.short}: this peer is closing its links")
        if peer == self.peer_id:
            raise LinkError(f"no link to peer {peer.short}: that is this peer itself")
        if (refused := self.refuse(peer, self.credentials.tags[0])) is not None:
            raise LinkError(f"no link to peer {peer.short}: {refused[0]}", retry_in_s=self._limits.backoff_max_s)
        dial = self._dials.get(peer)
        if dial is None:
            self._check_backoff(peer, address)
            first: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
            dial = self._dials[peer] = _Dial(asyncio.create_task(self._dial(peer, address)), first)
        elif dial.link.done():  # The link that came in while we dialled is gone again; the dial goes on.
            dial.link = asyncio.get_running_loop().create_future()
        return dial.link

    async def _dial(self, peer: PeerId, address: Address) -> None:
        """Dial once. The link itself reports success, through _on_ready."""

        def identify(transport: asyncio.BaseTransport) -> Proof:
            proof = self._proof(transport)
            if proof.peer != peer:
                raise NotAMember(f"peer {proof.peer.short} answers there")
            return proof

        try:
            async with self._dial_slots, asyncio.timeout(self._limits.handshake_s):
                await self._connect(identify, address, self.tags_for(peer))
        except (OSError, ValueError, OverflowError) as error:  # The last two: not a valid address.
            self._dial_failed(peer, address, _reason(error, self._limits.handshake_s))
        else:
            dial = self._dials.pop(peer)
            _fail(dial.link, LinkError(f"no link to peer {peer.short}: it was lost as soon as it was made"))

    async def _connect(
        self, identify: Callable[[asyncio.BaseTransport], Proof], address: Address, tags: Sequence[bytes]
    ) -> None:
        """Make a link under the first of these network keys that the other side takes."""
        loop = asyncio.get_running_loop()
        host, port = address
        for tries_left, tag in zip(reversed(range(len(tags))), tags, strict=True):
            link = self._new_link(identify, dialled=address)
            try:
                if self._shaper is not None:
                    await self._shaper.hold_dial(address)
                context = self.credentials.client_for(tag)
                # Peers have ids, not names; the name tells which key we know.
                await loop.create_connection(
                    partial(_same, link), host, port, ssl=context, server_hostname=server_name(tag)
                )
                await link.ready
            except OSError as error:
                link.abort("dial given up")
                if not tries_left or isinstance(error, TimeoutError | ConnectionRefusedError):
                    raise
            except (ValueError, OverflowError):
                link.abort("dial given up")
                raise
            except asyncio.CancelledError:
                link.abort("dial cancelled")
                raise
            else:
                return

    def _cancel_dial(self, peer: PeerId) -> None:
        if dial := self._dials.pop(peer, None):
            dial.task.cancel()
            _fail(dial.link, LinkError(f"no link to peer {peer.short}: it was closed while being dialled"))

    def _dial_failed(self, peer: PeerId, address: Address, reason: str) -> None:
        self._dials_failed += 1
        dial = self._dials.pop(peer)
        if self._current(peer):  # It has dialled us meanwhile.
            return
        now = asyncio.get_running_loop().time()
        limits = self._limits
        before = self._backoffs.pop(peer, None)
        wait_s = before.wait_s if before and before.address == address else limits.backoff_min_s
        wait_s = min(limits.backoff_max_s, self._rng.uniform(limits.backoff_min_s, 3 * wait_s))
        if len(self._backoffs) >= _BACKOFFS_MAX:
            del self._backoffs[next(iter(self._backoffs))]
        self._backoffs[peer] = _Backoff(address, reason, wait_s, now + wait_s)
        where = f"peer {peer.short} at {format_address(address)}"
        _fail(dial.link, LinkError(f"{where} cannot be reached: {reason}", retry_in_s=wait_s))

    def _check_backoff(self, peer: PeerId, address: Address) -> None:
        """Fail at once shortly after a failure: the caller may have another peer to turn to."""
        backoff = self._backoffs.get(peer)
        if backoff is None or backoff.address != address:
            return
        left_s = backoff.until_at - asyncio.get_running_loop().time()
        if left_s > 0:
            where = f"peer {peer.short} at {format_address(address)}"
            message = f"{where} could not be reached a moment ago: {backoff.reason}; next try in {left_s:.1f} s"
            raise LinkError(message, retry_in_s=left_s)

    # Accepting.

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # Gone already, or we are out of file descriptors.
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._half_open) >= self._limits.half_open_max:
                # A member finishes in milliseconds, so the oldest half-open connection is the least likely to be one.
                oldest = next(iter(self._half_open))
                del self._half_open[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._welcome(connection))
            self._half_open[task] = None
            task.add_done_callback(lambda task: self._half_open.pop(task, None))
            await asyncio.sleep(0)  # A waiting connection is accepted without a pause; let others run.

    async def _welcome(self, connection: socket.socket) -> None:
        """Let one inbound connection prove who it is. Strangers and early hang-ups are only counted."""
        link = self._new_link(self._identify_inbound, dialled=None)
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: link, connection, ssl=self.credentials.server)
                await link.ready
        except OSError:
            self._refused += 1
            link.abort("refused")
        except asyncio.CancelledError:
            link.abort("too slow")
            raise

    def _identify_inbound(self, transport: asyncio.BaseTransport) -> Proof:
        proof = self._proof(transport)
        if proof.peer == self.peer_id:
            raise NotAMember("this peer has dialled itself")
        return proof

    def _proof(self, transport: asyncio.BaseTransport) -> Proof:
        """What the handshake proved."""
        connection: ssl.SSLObject = transport.get_extra_info("ssl_object")
        if connection.selected_alpn_protocol() != ALPN:
            raise NotAMember(f"the other side does not speak {ALPN}")
        return self.credentials.proof(connection)

    def _stop_beginning(self) -> None:
        self._is_closed = True
        for peer in list(self._dials):
            self._cancel_dial(peer)
        if self._acceptor is not None:
            self._acceptor.cancel()
        for task in self._half_open:
            task.cancel()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    # Called by links.

    def _new_link(self, identify: Callable[[asyncio.BaseTransport], Proof], *, dialled: Address | None) -> Link:
        events = LinkEvents(
            identify=identify,
            greeted=self._on_greeted,
            ready=self._on_ready,
            control=lambda link, body: self.on_control(link.peer, body),
            channel=lambda channel: self.on_channel(channel),  # noqa: PLW0108  Set later than this is made.
            round_trip=self._on_link_round_trip,
            goodbye=self._retire,
            lost=self._on_link_lost,
            ring=lambda link, body: self.on_ring(link.peer, body),
        )
        return Link(
            events,
            self._counters,
            Hello(*self.address, dict(self._understanding.versions), self._understanding.release, self.stated),
            dialled=dialled,
            shaper=self._shaper,
            paces=self._paces,
            channel_bytes_max=self._limits.channel_bytes_max,
        )

    def _on_greeted(self, link: Link, hello: Hello) -> str:
        assert link.address is not None, "HELLO says where its sender listens"
        if (refused := self.refuse(link.peer, link.tag)) is not None:
            self._no_members += 1
            reason, body = refused
            link.tell_ring(body)
            return reason
        apart = self._understanding.learn(link.peer, link.address, hello.release, hello.versions)
        if apart is None or not apart.refusal:
            return ""
        self._no_common_version += 1
        return f"no common version: {apart.refusal}"

    def _on_ready(self, link: Link) -> None:
        peer = link.peer
        if link.dialled:
            self._dialled += 1
        else:
            self._accepted += 1
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        self._backoffs.pop(peer, None)
        links = self._links.setdefault(peer, [])
        links.append(link)
        for other in links[:-1]:
            if other.dialled == link.dialled:
                self._retire(other)
        if self.peer_id > peer and len(links) > 1:
            self._retire(next(link for link in links if link.dialled))
        leaving = [other for other in self._leaving if other.peer == peer]
        for oldest in leaving[: -self._limits.leaving_max]:
            oldest.abort("replaced too often")
        if (dial := self._dials.get(peer)) and not dial.link.done():
            dial.link.set_result(self._links[peer][-1])
        self.on_linked(link)

    def _retire(self, link: Link) -> None:
        """Stop using a link; it closes once both sides have said goodbye."""
        self._forget(link)
        self._leaving[link] = None
        link.goodbye()

    def _on_link_round_trip(self, link: Link, round_trip_ms: float) -> None:
        # A round trip longer than the ping interval tells of a cut or of full buffers, not of the distance.
        if round_trip_ms < self._limits.ping_every_s * 1000:
            self.on_round_trip(link.peer, round_trip_ms)

    def _on_link_lost(self, link: Link) -> None:
        if link.is_identified:
            self._sent[link.peer] += link.bytes_out
        if not link.is_identified or link in self._leaving:
            self._leaving.pop(link, None)
        elif self._forget(link):
            self._broken += 1
            if link.peer not in self._links:
                self.on_lost(link.peer)

    def _forget(self, link: Link) -> bool:
        links = self._links.get(link.peer, [])
        if link not in links:
            return False
        links.remove(link)
        if not links:
            del self._links[link.peer]
            self.on_unlinked(link.peer)
        return True

    def _current(self, peer: PeerId) -> Link | None:
        for link in reversed(self._links.get(peer, [])):
            if not link.closed:  # An aborted one reports its own end.
                return link
        return None

    def _all_links(self) -> Iterator[Link]:
        for links in self._links.values():
            yield from links
        yield from self._leaving

    # Heartbeat.

    async def _beat(self) -> None:
        """Ping every link now and then, and drop those that were silent for long while we were listening."""
        loop = asyncio.get_running_loop()
        every_s, silence_s = self._limits.ping_every_s, self._limits.silence_s
        while True:
            due_at = loop.time() + every_s / 4
            await asyncio.sleep(every_s / 4)
            now = loop.time()
            late_s = now - due_at
            for link in list(self._all_links()):
                if late_s > _LATE_S:
                    link.heard_at = min(now, link.heard_at + late_s)
                if now - link.heard_at > silence_s:
                    link.abort(f"silent for {silence_s:.0f} s")
                elif now >= link.ping_due_at:
                    link.ping_due_at = now + every_s * self._rng.uniform(0.7, 1.0)
                    link.ping()


def _same(link: Link) -> Link:
    return link


def _reason(error: Exception, timeout_s: float) -> str:
    """Why a dial failed, in a few words."""
    match error:
        case TimeoutError():
            return f"no answer within {timeout_s:.1f} s"
        case ssl.SSLCertVerificationError():
            return "it is not a member of this network"
        case ConnectionRefusedError():
            return "connection refused"
        case OSError(strerror=str() as words) if words:
            return words
    return str(error) or type(error).__name__


def _fail(future: asyncio.Future[Link], error: LinkError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Perhaps nobody waits any more; that is no error.
