"""What a peer says of itself: its signed record, renewed in time and whenever others see it differently.

A peer bound to one address, or told which one to advertise, knows where it is. A peer bound to every interface guesses,
and corrects itself if others see it elsewhere: a container that returns after a partition often has a new address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter, OrderedDict
from typing import Final

from overlay.identity import CLOCK_SKEW_MAX_S, RECORD_LIFE_S, Address, Identity, PeerRecord, highest_incarnation
from overlay.keyring import Keyring
from overlay.room import Room
from protocols.ids import PeerId
from protocols.versions import VERSIONS, Versions

_VOTERS_MAX: Final = 8


class OwnRecord:
    """The current record of this peer, always newer than those before it."""

    def __init__(
        self,
        identity: Identity,
        version: str,
        bound: Address,
        advertise: str | None,
        now_s: float,
        *,
        able: tuple[bool, Room] = (False, Room()),
        versions: Versions = VERSIONS,
        ring: Keyring | None = None,
    ) -> None:
        self._identity = identity
        self._version = version
        self._has_engine, self._room = able
        self._versions = versions
        self._ring = ring
        self._incarnation = 0
        self._voters: OrderedDict[PeerId, str] = OrderedDict()  # Which peer saw us at which host, latest last.
        is_wildcard = ipaddress.ip_address(bound[0]).is_unspecified
        self._is_certain = advertise is not None or not is_wildcard
        host = advertise or (likely_host(bound[0]) if is_wildcard else bound[0])
        self.record = self._sign((host, bound[1]), now_s)

    def renew(self, now_s: float, at_least: int = 0) -> None:
        """Sign a new record, with an incarnation no lower than asked: nobody may remember a newer one of ours.

        An incarnation ahead of our clock is ignored. Nobody can have seen it, and others would refuse a record with it.
        """
        if at_least <= highest_incarnation(now_s, 2 * CLOCK_SKEW_MAX_S):
            self.record = self._sign(self.record.address, now_s, at_least=at_least)

    def renew_if_due(self, now_s: float) -> None:
        if self.record.expires_at - now_s < RECORD_LIFE_S / 2:
            self.renew(now_s)

    def say(self, has_engine: bool, room: Room, now_s: float) -> None:
        """What this peer can do for others."""
        self._has_engine, self._room = has_engine, room
        self.renew(now_s)

    def say_ring(self, ring: Keyring, now_s: float) -> None:
        self._ring = ring
        self.renew(now_s)

    def say_goodbye(self, now_s: float) -> None:
        self.record = self._sign(self.record.address, now_s, left=True)

    def seen_at(self, host: str, by: PeerId, peers_known: int, now_s: float) -> bool:
        """A peer saw a datagram of ours come from this host; True if that changed our address.

        Two voices are enough, or the only one there is. A loopback address says nothing about other interfaces.
        """
        own = self.record.address[0]
        if self._is_certain or not _is_address(host) or _is_loopback(host) != _is_loopback(own):
            return False
        self._voters.pop(by, None)
        self._voters[by] = host
        if len(self._voters) > _VOTERS_MAX:
            self._voters.popitem(last=False)
        votes = Counter(self._voters.values())
        favourite, count = votes.most_common(1)[0]
        if favourite == own or count <= votes[own] or count < min(2, peers_known):
            return False
        self.record = self._sign((favourite, self.record.address[1]), now_s)
        return True

    def _sign(self, address: Address, now_s: float, *, at_least: int = 0, left: bool = False) -> PeerRecord:
        self._incarnation = max(int(now_s * 1000), self._incarnation + 1, at_least)
        return PeerRecord.sign(
            self._identity,
            address,
            incarnation=self._incarnation,
            now_s=now_s,
            version=self._version,
            left=left,
            has_engine=self._has_engine,
            versions=self._versions,
            generation=self._ring.current.generation if self._ring else 0,
            ring=self._ring.stated if self._ring else b"",
            room=self._room,
        )


def likely_host(wildcard: str) -> str:
    """The address this machine would send from; connecting a datagram socket sends nothing."""
    family, far = (socket.AF_INET6, "2001:db8::1") if ":" in wildcard else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((far, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_loopback
