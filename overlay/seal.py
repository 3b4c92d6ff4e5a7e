"""Sealed datagrams: only members of the network can make one, and each is accepted once.

A datagram is a header in clear and a body under AES-256-GCM. The header names the sender's boot (one run of one
daemon), its count of datagrams and the time of sending. The key is derived from the network key and the boot id; the
nonce is the count. What does not open is dropped silently, so a stranger gets no answer that it could aim at anybody.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from overlay.identity import CLOCK_SKEW_MAX_S, Network

DATAGRAM_BYTES_MAX: Final = 1200  # Fits every path without fragments.
_VERSION: Final = 0xD1
_HEADER: Final = struct.Struct(">B8sQI")  # version, boot id, count, seconds since 1970
_TAG_BYTES: Final = 16
_WINDOW_BITS: Final = 1024
_WINDOW_MASK: Final = (1 << _WINDOW_BITS) - 1
_SESSIONS_MAX: Final = 16_384

BODY_BYTES_MAX: Final = DATAGRAM_BYTES_MAX - _HEADER.size - _TAG_BYTES


class Sealer:
    """Seals what this daemon sends during one run."""

    def __init__(self, network: Network) -> None:
        self.boot = os.urandom(8)
        self._aead = _aead(network, self.boot)
        self._count = 0

    def seal(self, body: bytes, now_s: float) -> bytes:
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"a datagram's body may have {BODY_BYTES_MAX} bytes, this one has {len(body)}")
        self._count += 1
        header = _HEADER.pack(_VERSION, self.boot, self._count, int(now_s))
        return header + self._aead.encrypt(_nonce(self._count), body, header)

    def has_sealed(self, datagram: bytes) -> bool:
        """Whether an opened datagram is one of our own."""
        return datagram[1:9] == self.boot


class Opener:
    """Opens what others have sealed, and remembers what it has opened."""

    def __init__(self, *networks: Network) -> None:
        self._networks = {network.tag: network for network in networks}  # By the tag of their key, the present first.
        # Least recently heard first. A boot enters only after one of its datagrams has opened, so strangers cannot fill
        # it.
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def accept(self, networks: Sequence[Network]) -> None:
        """Open what was sealed under these keys, and nothing else from now on."""
        self._networks = {network.tag: network for network in networks}
        for boot in [boot for boot, session in self._sessions.items() if session.tag not in self._networks]:
            del self._sessions[boot]

    def open(self, datagram: bytes, now_s: float) -> bytes | None:
        """The body; None for anything forged, altered, repeated, too old or too long."""
        opened = self.open_under(datagram, now_s)
        return opened[0] if opened is not None else None

    def open_under(self, datagram: bytes, now_s: float) -> tuple[bytes, bytes] | None:
        """The body, and the tag of the key that opened it."""
        if not _HEADER.size + _TAG_BYTES <= len(datagram) <= DATAGRAM_BYTES_MAX:
            return None
        version, boot, count, sent_at = _HEADER.unpack_from(datagram)
        if version != _VERSION:
            return None
        session = self._sessions.get(boot)
        # For a boot without a window, only the clock distinguishes a first datagram from one recorded before we
        # started.
        if session is None and abs(now_s - sent_at) > CLOCK_SKEW_MAX_S:
            return None
        sessions = [session] if session else [_Session(_aead(each, boot), tag) for tag, each in self._networks.items()]
        for candidate in sessions:
            try:
                body = candidate.aead.decrypt(_nonce(count), datagram[_HEADER.size :], datagram[: _HEADER.size])
            except InvalidTag:
                continue
            if session is None:
                self._sessions[boot] = candidate
                if len(self._sessions) > _SESSIONS_MAX:
                    self._sessions.popitem(last=False)
            else:
                self._sessions.move_to_end(boot)
            return (body, candidate.tag) if candidate.admit(count) else None
        return None


class Seals:
    """What one daemon seals and opens with, while one network key takes the place of another.

    The boot of a sealer goes with its key, so that no count is used twice under one key.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self._opener = Opener()
        self._sealers: dict[bytes, Sealer] = {}
        self.accept(networks)

    def accept(self, networks: Sequence[Network]) -> None:
        """Use these keys: the present one first."""
        before = self._sealers
        self._sealers = {network.tag: before.get(network.tag) or Sealer(network) for network in networks}
        self._opener.accept(networks)
        self.tags = list(self._sealers)

    def seal(self, body: bytes, now_s: float, tag: bytes) -> bytes:
        return self._sealers[tag].seal(body, now_s)

    def open(self, datagram: bytes, now_s: float) -> tuple[bytes, bytes] | None:
        """The body and the tag of its key, or None: see Opener."""
        return self._opener.open_under(datagram, now_s)

    def has_sealed(self, datagram: bytes) -> bool:
        """Whether an opened datagram is one of our own."""
        return any(sealer.has_sealed(datagram) for sealer in self._sealers.values())


class _Session:
    """One boot of one sender: its key, and which of its last counts have been seen."""

    __slots__ = ("_highest", "_seen", "aead", "tag")

    def __init__(self, aead: AESGCM, tag: bytes) -> None:
        self.aead = aead
        self.tag = tag
        self._highest = 0
        self._seen = 0  # Bit i stands for the count `highest - i`.

    def admit(self, count: int) -> bool:
        ahead = count - self._highest
        if ahead > 0:
            self._seen = (self._seen << ahead | 1) & _WINDOW_MASK if ahead < _WINDOW_BITS else 1
            self._highest = count
            return True
        bit = 1 << -ahead
        if -ahead >= _WINDOW_BITS or self._seen & bit:
            return False
        self._seen |= bit
        return True


def _aead(network: Network, boot: bytes) -> AESGCM:
    return AESGCM(network.derive("peerd datagram", boot))


def _nonce(count: int) -> bytes:
    return count.to_bytes(12, "big")
