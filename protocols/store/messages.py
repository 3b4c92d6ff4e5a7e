"""Messages and records of the store.

Writing and reading; the peer nearest to the key coordinates, the R nearest are its owners:

    writer ── STORE_PUT ──▶ coordinator ── STORE_REPLICATE ──▶ owners
    writer ◀── STORE_PUT_DONE ── coordinator ◀── STORE_ACK ── owners       once W of them have it on disk

    reader ── STORE_GET ──▶ coordinator ── STORE_FETCH ──▶ owners
    reader ◀── STORE_FOUND ── coordinator ◀── STORE_ENTRIES ── owners      once enough of them have answered

Catching up, between any two owners of the same keys, now and then and whenever somebody comes or goes:

    peer ── STORE_DIGEST ──▶ other ── STORE_OFFER ──▶ peer ── STORE_PULL ──▶ other ── STORE_REPLICATE ──▶ peer

Handing over what belongs to others now; dropped once each of them has said STORE_ACK:

    peer ── STORE_OFFER ──▶ owner ── STORE_PULL ──▶ peer ── STORE_REPLICATE ──▶ owner ── STORE_ACK ──▶ peer
"""

from __future__ import annotations

from collections.abc import Sized

import msgspec

from protocols.clock import Stamp
from protocols.errors import expect
from protocols.ids import Count, Key, Millis, PeerId
from protocols.messages import Answer, Command, Message, Record
from protocols.store.entries import Entry, Order
from protocols.store.limits import BUCKETS, OFFERED_MAX, PEERS_MAX

Round = int
"""Names one comparison between two peers, as the one that began it counts; 0 where there is none."""


class Version(msgspec.Struct, frozen=True, array_like=True):
    """Which version of an entry somebody holds, without its value."""

    key: Key
    item: str
    stamp: Stamp
    writer: PeerId
    size: Count  # Bytes the entry takes in a message.

    @property
    def order(self) -> Order:
        return (self.stamp, self.writer)


class ItemName(msgspec.Struct, frozen=True, array_like=True):
    """One entry under a key, whatever its version."""

    key: Key
    item: str


class Sighting(msgspec.Struct, frozen=True, array_like=True):
    """What a peer knows of another peer around it."""

    peer: PeerId
    gone_ms: Millis  # It is gone, and will be remembered for so long; 0: it is here.
    is_doubted: bool  # I have not caught up with it since my start.


# Writing.


class StorePut(Message, frozen=True, kw_only=True, tag="STORE_PUT"):
    """A writer asks the coordinator of a key to have an entry kept by its owners."""

    entry: Entry

    def check(self) -> None:
        self.entry.check()


class StoreReplicate(Message, frozen=True, kw_only=True, tag="STORE_REPLICATE"):
    """Take these entries; a coordinator sends them, or whoever was asked for them with STORE_PULL."""

    entries: tuple[Entry, ...]
    round: Round = 0

    def check(self) -> None:
        for entry in self.entries:
            entry.check()


class StoreAck(Message, frozen=True, kw_only=True, tag="STORE_ACK"):
    """An owner has these versions, or the newer ones named here, on disk, and answers for them."""

    kept: tuple[Version, ...]
    not_mine: tuple[ItemName, ...] = ()  # I am no owner of these, or have not caught up on them.
    closer: tuple[PeerId, ...] = ()  # The owners as I see them: the peers nearest to the keys of `not_mine`.
    refused: tuple[ItemName, ...] = ()  # I have no room for these.

    def check(self) -> None:
        _expect_peers(self.closer)


class StorePutDone(Message, frozen=True, kw_only=True, tag="STORE_PUT_DONE"):
    """The coordinator tells the writer how many owners have the entry, or that none has room for it."""

    name: ItemName
    stamp: Stamp  # Of the entry that was put.
    replicas: Count
    newest: Stamp  # Of what the owners hold now.
    is_newest: bool  # Whether that is the entry that was put; if not, its stamp was too old.
    refusal: str = ""


# Reading.


class StoreGet(Message, frozen=True, kw_only=True, tag="STORE_GET"):
    """A reader asks the coordinator of a key for all that is known under it."""

    key: Key
    reader: PeerId
    request: Stamp


class StoreFetch(Message, frozen=True, kw_only=True, tag="STORE_FETCH"):
    """The coordinator asks an owner for its entries, on behalf of a reader."""

    key: Key
    reader: PeerId
    request: Stamp


class StoreEntries(Message, frozen=True, kw_only=True, tag="STORE_ENTRIES"):
    """What an owner holds under a key, tombstones included."""

    key: Key
    reader: PeerId
    request: Stamp
    entries: tuple[Entry, ...]
    is_owner: bool  # Only owners that have caught up count; the others may still help.
    closer: tuple[PeerId, ...] = ()

    def check(self) -> None:
        _expect_peers(self.closer)
        expect(all(entry.key == self.key for entry in self.entries), "an entry of another key")
        for entry in self.entries:
            entry.check()


class StoreFound(Message, frozen=True, kw_only=True, tag="STORE_FOUND"):
    """The coordinator tells the reader the newest of all that enough owners hold."""

    request: Stamp
    entries: tuple[Entry, ...]

    def check(self) -> None:
        for entry in self.entries:
            entry.check()


# Catching up and handing over.


class StoreDigest(Message, frozen=True, kw_only=True, tag="STORE_DIGEST"):
    """Compare what we both own: one checksum for each bucket of entries, from bucket `start` up to, not including,
    `until`.
    """

    round: Round
    # The peers by which the sender determines its keys; both sides must mean the same keys.
    neighbours: tuple[PeerId, ...]
    start: Count
    digests: tuple[tuple[Count, int], ...]  # Bucket and checksum, of the buckets that hold anything.
    wants_sightings: bool = False
    until: Count = BUCKETS  # A peer of 0.2 takes it for the end, and lists more than is asked.

    def check(self) -> None:
        _expect_peers(self.neighbours)


class StoreOffer(Message, frozen=True, kw_only=True, tag="STORE_OFFER"):
    """I hold these: pull what you lack.

    As the answer to STORE_DIGEST: everything in the buckets that differ, up to, not including, bucket `end`.
    """

    versions: tuple[Version, ...]
    round: Round = 0
    buckets: tuple[Count, ...] = ()
    end: Count = 0
    sightings: tuple[Sighting, ...] = ()  # All peers around me, if you asked for them.

    def check(self) -> None:
        _expect_peers(self.sightings)
        expect(len(self.versions) <= OFFERED_MAX, f"an offer of {len(self.versions)} versions")


class StorePull(Message, frozen=True, kw_only=True, tag="STORE_PULL"):
    """Send me these."""

    names: tuple[ItemName, ...]
    round: Round = 0


class StoreLeaving(Message, frozen=True, kw_only=True, tag="STORE_LEAVING"):
    """I am about to go: own my keys as if I were gone, and take the entries from me while I am here."""

    is_done: bool = False  # All new owners have all I held: nobody needs to miss me.


def _expect_peers(named: Sized) -> None:
    expect(len(named) <= PEERS_MAX, f"{len(named)} peers, more than are around anybody")


# Between a peer and whoever runs it.


class Leave(Command, frozen=True, kw_only=True, tag="LEAVE"):
    """Hand over what you hold for the network, before you are stopped."""


class Leaving(Answer, frozen=True, kw_only=True, tag="LEAVING"):
    """How far a handover is; the last one says how it ended."""

    entries: int  # Held when the handover began,
    left: int  # of which some new owner still lacks so many.


# In the journal.


class EntryKept(Record, frozen=True, kw_only=True, tag="STORE_ENTRY"):
    """This peer holds an entry, in place of any older version."""

    entry: Entry


class KeyDropped(Record, frozen=True, kw_only=True, tag="STORE_DROPPED"):
    """This peer has handed over all it held under a key."""

    key: Key


class NeighboursKept(Record, frozen=True, kw_only=True, tag="STORE_NEIGHBOURS"):
    """Who was around this peer: after a restart it misses those of them that are not there."""

    peers: tuple[PeerId, ...]
