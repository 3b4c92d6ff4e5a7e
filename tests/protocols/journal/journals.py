"""What the tests of the journal share: a record, batches, and a disk that dies in the middle of a write."""

from __future__ import annotations

import random

import msgspec

from overlay.sim.disk import SimDisk
from overlay.sim.power import CountedDisk
from protocols.events import StoredBatch
from protocols.journal.disk import Disk
from protocols.journal.journal import Journal
from protocols.messages import Record


class Noted(Record, frozen=True, kw_only=True, tag="NOTED"):
    """A record that says nothing but its number."""

    number: int
    padding: bytes = b""


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Noted).decode


def new_journal(disk: Disk, segment_bytes: int = 1000) -> Journal:
    return Journal(disk, encode, decode, segment_bytes)


def recovered_journal(disk: Disk, segment_bytes: int = 1000) -> Journal:
    journal = new_journal(disk, segment_bytes)
    journal.recover()
    return journal


def sim_disk(seed: int = 1, **options: float) -> SimDisk:
    return SimDisk(random.Random(seed), **options)


def batch(first: int, count: int = 1, rows: bytes = b"rows") -> StoredBatch:
    return StoredBatch(first, count, published_at=1_700_000_000_000 + first, rows=rows)


def commit(journal: Journal, disk: Disk) -> None:
    """Write everything, and what becomes removable by that."""
    while pending := journal.take():
        pending.write(disk)
        journal.done(pending)


class Died(Exception):
    """The process was killed here."""


class DyingDisk(CountedDisk):
    """Passes everything on to a disk, until the process dies instead of making one more change."""

    end = Died
