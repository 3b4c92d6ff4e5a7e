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

import msgspec

from protocols.clock import Stamp
from protocols.ids import Key, Millis, PeerId
from protocols.messages import Answer, Command, Message, Record
from protocols.store.entries import Entry, Order

Round = int
"""Names one comparison between two peers, as the one that began it counts; 0 where there is none."""


class Version(msgspec.Struct, frozen=True, array_like=True):
    """Which version of an entry somebody holds, without its value."""

    key: Key
    item: str
    stamp: Stamp
    writer: PeerId
    size: int  # Bytes the entry takes in a message.

    @property
    def order(self) -> Order:
        return (self.stamp, self.writer)


class ItemName(msgspec.Struct, frozen=True, array_like=True):
    """One entry under a key, whatever its version."""

    key: Key
    item: str


class Sighting(msgspec.Struct, frozen=True, array_like=True):
    """What a peer knows of another around it."""

    peer: PeerId
    gone_ms: Millis  # So long it will still be remembered though it has gone; 0: it is here.
    is_doubted: bool  # I have not caught up with it since my start.


# Writing.


class StorePut(Message, frozen=True, kw_only=True, tag="STORE_PUT"):
    """A writer asks the coordinator of a key to have an entry kept by its owners."""

    entry: Entry


class StoreReplicate(Message, frozen=True, kw_only=True, tag="STORE_REPLICATE"):
    """Take these entries; a coordinator sends them, or whoever was asked for them with STORE_PULL."""

    entries: tuple[Entry, ...]
    round: Round = 0


class StoreAck(Message, frozen=True, kw_only=True, tag="STORE_ACK"):
    """An owner has these versions, or newer ones as told here, on its disk, and answers for them."""

    kept: tuple[Version, ...]
    not_mine: tuple[ItemName, ...] = ()  # Of these I am no owner, or not one that has caught up.
    closer: tuple[PeerId, ...] = ()  # Who I believe to be: the peers nearest to the keys of `not_mine`.
    refused: tuple[ItemName, ...] = ()  # For these there is no room.


class StorePutDone(Message, frozen=True, kw_only=True, tag="STORE_PUT_DONE"):
    """The coordinator tells the writer: so many owners have the entry, or none has room for it."""

    name: ItemName
    stamp: Stamp  # Of the entry that was put.
    replicas: int
    newest: Stamp  # Of what the owners hold.
    is_newest: bool  # Whether that is the entry that was put; otherwise its stamp was too old to count.
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
    is_owner: bool  # Only the answers of owners that have caught up count; the others may still help.
    closer: tuple[PeerId, ...] = ()


class StoreFound(Message, frozen=True, kw_only=True, tag="STORE_FOUND"):
    """The coordinator tells the reader the newest of all that enough owners hold."""

    request: Stamp
    entries: tuple[Entry, ...]


# Catching up and handing over.


class StoreDigest(Message, frozen=True, kw_only=True, tag="STORE_DIGEST"):
    """Compare what we both own: one checksum for each bucket of entries, from bucket `start` on."""

    round: Round
    neighbours: tuple[PeerId, ...]  # By which the sender tells its keys: both must mean the same ones.
    start: int
    digests: tuple[tuple[int, int], ...]  # Bucket and checksum of those that hold anything.
    wants_sightings: bool = False


class StoreOffer(Message, frozen=True, kw_only=True, tag="STORE_OFFER"):
    """I hold these: pull what you lack.

    As the answer to STORE_DIGEST: everything in the buckets that differ, up to, not including, bucket `end`.
    """

    versions: tuple[Version, ...]
    round: Round = 0
    buckets: tuple[int, ...] = ()
    end: int = 0
    sightings: tuple[Sighting, ...] = ()  # All around me, if you asked.


class StorePull(Message, frozen=True, kw_only=True, tag="STORE_PULL"):
    """Send me these."""

    names: tuple[ItemName, ...]
    round: Round = 0


class StoreLeaving(Message, frozen=True, kw_only=True, tag="STORE_LEAVING"):
    """I am about to go: own what I own as if I were gone, and take it from me while I am here."""

    is_done: bool = False  # All I had is with all its new owners: there is nothing to miss me for.


# Between a peer and whoever runs it.


class Leave(Command, frozen=True, kw_only=True, tag="LEAVE"):
    """Hand over what you hold for the network; you will be stopped then."""


class Leaving(Answer, frozen=True, kw_only=True, tag="LEAVING"):
    """How far a handover is; the last one says how it ended."""

    entries: int  # Held when it began,
    left: int  # and not yet with each of their new owners.


# In the journal.


class EntryKept(Record, frozen=True, kw_only=True, tag="STORE_ENTRY"):
    """This peer holds an entry, in place of any older version."""

    entry: Entry


class KeyDropped(Record, frozen=True, kw_only=True, tag="STORE_DROPPED"):
    """This peer has handed over all it held under a key."""

    key: Key


class NeighboursKept(Record, frozen=True, kw_only=True, tag="STORE_NEIGHBOURS"):
    """Who was around this peer: after a restart it misses those that are not there any more."""

    peers: tuple[PeerId, ...]
