"""The routing table: whom a peer knows, ordered so that it knows its own neighbourhood best.

Pure: no socket, no clock. Like Kademlia's buckets, it has one level for each length of the prefix shared with our own
id, and k peers a level. The nearest peers of all (the leaf set) always have a place. The library's table stops at the
first k peers it meets and may answer with none at all; this one answers with the true k nearest of all it holds.
"""

from __future__ import annotations

import heapq
import random
from bisect import insort
from dataclasses import dataclass, field
from typing import Final

from kademlia.node import Node
from kademlia.routing import RoutingTable

from overlay.clocks import ClockSamples
from overlay.coordinates import Coordinate
from overlay.identity import Address, PeerRecord
from protocols.events import NEIGHBOURS_MAX
from protocols.ids import ID_BITS, Key, PeerId

BUCKET_PEERS: Final = 8
_SPARES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that may be worth asking: an id, an address, and how recent that is."""

    peer_id: PeerId
    address: Address
    incarnation: int


class Contact(Node):
    """A peer that has answered us: its signed record, and how it has been answering since."""

    def __init__(self, record: PeerRecord, answered_at: float, since_at: float) -> None:
        super().__init__(record.peer_id, *record.address)
        self.record = record
        self.answered_at = answered_at  # The loop's clock.
        self.since_at = since_at  # The wall's clock: alive, or suspect, since then.
        self.silent_since: float | None = None  # The loop's clock; None while it answers.
        self.rtt_ms: float | None = None
        self.rtt_deviation_ms = 0.0
        self.coordinate = Coordinate()
        self.clock = ClockSamples()

    @property
    def peer_id(self) -> PeerId:
        return self.record.peer_id

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.record.peer_id, self.record.address, self.record.incarnation)

    @property
    def is_suspect(self) -> bool:
        return self.silent_since is not None

    def renew(self, record: PeerRecord) -> None:
        """Take over a newer record of the same peer."""
        self.record = record
        self.ip, self.port = record.address

    def observe(self, round_trip_ms: float) -> None:
        """Smooth the round trip and its deviation as TCP does (RFC 6298)."""
        if self.rtt_ms is None:
            self.rtt_ms, self.rtt_deviation_ms = round_trip_ms, round_trip_ms / 2
        else:
            self.rtt_deviation_ms += (abs(round_trip_ms - self.rtt_ms) - self.rtt_deviation_ms) / 4
            self.rtt_ms += (round_trip_ms - self.rtt_ms) / 8


@dataclass(slots=True)
class _Level:
    peers: dict[PeerId, Contact] = field(default_factory=dict)
    spares: dict[PeerId, Candidate] = field(default_factory=dict)  # Oldest first; asked when a place falls free.


class Table(RoutingTable):
    """All contacts of one peer."""

    def __init__(self, own_id: PeerId, bucket_peers: int = BUCKET_PEERS, leaf_peers: int = NEIGHBOURS_MAX) -> None:
        self.leaf_peers = leaf_peers
        super().__init__(None, bucket_peers, Node(own_id))

    def flush(self) -> None:
        self._peers: dict[PeerId, Contact] = {}
        self._levels: dict[int, _Level] = {}
        self._leaves: list[Contact] | None = None  # Computed again after a change.

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, peer_id: PeerId) -> Contact | None:
        return self._peers.get(peer_id)

    def contacts(self) -> list[Contact]:
        return list(self._peers.values())

    def level_of(self, peer_id: Key) -> int:
        """How many leading bits an id shares with ours."""
        return ID_BITS - (peer_id.number ^ int(self.node.long_id)).bit_length()

    def depth(self) -> int:
        """The deepest level that holds a peer."""
        return max((number for number, level in self._levels.items() if level.peers), default=0)

    def has_room_for(self, peer_id: PeerId) -> bool:
        level = self._levels.get(self.level_of(peer_id))
        return level is None or len(level.peers) < self.ksize or self._is_leaf(peer_id)

    def add_contact(self, contact: Contact) -> bool:
        """Give a contact its place; False, and a place among the spares, if its level is full."""
        peer_id = contact.peer_id
        level = self._levels.setdefault(self.level_of(peer_id), _Level())
        is_leaf, is_new = self._is_leaf(peer_id), peer_id not in level.peers
        if is_new and len(level.peers) >= self.ksize and not is_leaf:
            self._spare(level, contact.candidate)
            return False
        level.spares.pop(peer_id, None)
        level.peers[peer_id] = self._peers[peer_id] = contact
        if not is_new:
            self._leaves = None
        elif is_leaf:
            leaves = self.leaves()
            insort(leaves, contact, key=lambda leaf: leaf.long_id ^ self.node.long_id)
            if len(leaves) > self.leaf_peers:
                self._trim(self.level_of(leaves.pop().peer_id))
        return True

    def _trim(self, number: int) -> None:
        """Beyond the k of a level only leaves have places; the farthest one that is no leaf gives way."""
        level = self._levels[number]
        if len(level.peers) > self.ksize:
            farthest = max(level.peers.values(), key=lambda other: other.long_id ^ self.node.long_id)
            if farthest.long_id ^ self.node.long_id > self.leaves()[-1].long_id ^ self.node.long_id:
                self.remove_contact(farthest)
                self._spare(level, farthest.candidate)

    def remove_contact(self, contact: Contact) -> bool:
        level = self._levels.get(self.level_of(contact.peer_id))
        if level is None:
            return False
        level.spares.pop(contact.peer_id, None)
        self._peers.pop(contact.peer_id, None)
        if self._is_leaf(contact.peer_id) or contact is self.leaves()[-1]:
            self._leaves = None
        return level.peers.pop(contact.peer_id, None) is not None

    def spare_for(self, peer_id: PeerId) -> Candidate | None:
        """Who could replace a contact that has gone: the spare of its level heard of last."""
        level = self._levels.get(self.level_of(peer_id))
        return level.spares.popitem()[1] if level and level.spares else None

    def nearest(self, target: Key, count: int, exclude: PeerId | None = None) -> list[Contact]:
        """The true `count` nearest contacts to a key, nearest first."""
        number = target.number
        contacts = [contact for contact in self._peers.values() if contact.id != exclude]
        return heapq.nsmallest(count, contacts, key=lambda contact: contact.long_id ^ number)

    def find_neighbors(self, node: Node, k: int | None = None, exclude: Node | None = None) -> list[Contact]:
        return self.nearest(Key(node.id), k or self.ksize, PeerId(exclude.id) if exclude else None)

    def leaves(self) -> list[Contact]:
        """The nearest contacts to ourselves."""
        if self._leaves is None:
            self._leaves = self.nearest(Key(self.node.id), self.leaf_peers)
        return self._leaves

    def page(self, after: PeerId, count: int) -> list[Contact]:
        """The contacts that follow an id, in the order of ids."""
        later = [contact for contact in self._peers.values() if contact.peer_id > after]
        return heapq.nsmallest(count, later, key=lambda contact: contact.peer_id)

    def is_home(self, key: Key) -> bool:
        """Whether we know everybody around a key: it is within the leaf set, or all peers are in the leaf set."""
        leaves = self.leaves()
        own = self.node.long_id
        return len(leaves) < self.leaf_peers or key.number ^ own <= leaves[-1].long_id ^ own

    def nearer(self, key: Key) -> Contact | None:
        """The nearest answering contact that is nearer to the key than we are; None if we are the nearest."""
        target = key.number
        own = target ^ self.node.long_id
        nearer = (contact for contact in self._peers.values() if contact.long_id ^ target < own)
        return min(
            (contact for contact in nearer if not contact.is_suspect),
            key=lambda contact: contact.long_id ^ target,
            default=None,
        )

    def random_key(self, level: int, rng: random.Random) -> Key:
        """A random key that shares exactly `level` leading bits with our id."""
        free = ID_BITS - 1 - level
        number = ((self.node.long_id >> free) ^ 1) << free | rng.getrandbits(free) if free else self.node.long_id ^ 1
        return Key(number.to_bytes(ID_BITS // 8, "big"))

    def _is_leaf(self, peer_id: PeerId) -> bool:
        leaves = self.leaves()
        own = self.node.long_id
        return len(leaves) < self.leaf_peers or peer_id.number ^ own < leaves[-1].long_id ^ own

    def _spare(self, level: _Level, candidate: Candidate) -> None:
        level.spares.pop(candidate.peer_id, None)
        level.spares[candidate.peer_id] = candidate
        if len(level.spares) > _SPARES_MAX:
            del level.spares[next(iter(level.spares))]
