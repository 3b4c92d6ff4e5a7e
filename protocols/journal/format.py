"""The bytes of the journal: checksummed entries, one after another, in segments and snapshots.

    entry    crc32 of all that follows (4) | size of the body (4) | kind (1) | body         integers: little endian
    MARK     magic (8) | segment (8) | offset (8)
    RECORD   as its encoder made it
    BATCH    first (8) | count (4) | published_at (8) | length of the name (2) | name of the log | rows
    MOVED    as BATCH: a copy of a batch whose segment is to be removed; the later of two copies counts
    RELEASE  below (8) | name of the log; below is the highest number there is if the log is gone for good
    END      number of records in the snapshot (8) | number of releases in it (8)

Every write to a segment begins with a MARK that states its own place, and is synced before the next write begins. So a
valid MARK proves that everything before it had reached the disk. Damage before the last MARK is an error; damage after
it may be just a write that a crash cut short. Hence every segment and every snapshot begins with a MARK; a snapshot
also ends with an END.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final
from zlib import crc32

from protocols.clock import Stamp
from protocols.events import StoredBatch
from protocols.ids import LogId

MARK: Final = 1
RECORD: Final = 2
BATCH: Final = 3
RELEASE: Final = 4
END: Final = 5
MOVED: Final = 6
GONE: Final = (1 << 64) - 1  # RELEASE of a log that never comes back.

_MAGIC: Final = b"peerd\xffJ1"  # The last character is the version of this format.
_HEADER: Final = Struct("<IIB")
_CHECKED: Final = Struct("<IB")  # The part of the header that the checksum covers.
_CRC_BYTES: Final = 4
_MARK: Final = Struct("<8sQQ")
_BATCH: Final = Struct("<QIQH")
_RELEASE: Final = Struct("<Q")
_END: Final = Struct("<QQ")

HEADER_BYTES: Final = _HEADER.size
_BATCH_BYTES: Final = HEADER_BYTES + _BATCH.size


class JournalCorrupt(Exception):
    """Bytes that were safe on disk have changed or gone, so this peer cannot tell what it promised."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(f'journal file "{name}" is damaged at byte {offset}: {reason}')
        self.name = name
        self.offset = offset


def seal(kind: int, *body: bytes) -> bytes:
    """An entry with its checksum."""
    checked = _CHECKED.pack(sum(map(len, body)), kind)
    crc = crc32(checked)
    for part in body:
        crc = crc32(part, crc)
    return b"".join((crc.to_bytes(_CRC_BYTES, "little"), checked, *body))


def seal_mark(segment: int, offset: int) -> bytes:
    return seal(MARK, _MARK.pack(_MAGIC, segment, offset))


def seal_batch(log: LogId, batch: StoredBatch, *, is_moved: bool = False) -> bytes:
    name = log.encode()
    kind = MOVED if is_moved else BATCH
    return seal(kind, _BATCH.pack(batch.first, batch.count, batch.published_at, len(name)), name, batch.rows)


def seal_release(log: LogId, below: int) -> bytes:
    return seal(RELEASE, _RELEASE.pack(below), log.encode())


def seal_end(records: int, releases: int) -> bytes:
    return seal(END, _END.pack(records, releases))


def scan(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, offset and end of each entry, up to the first place without a whole, valid entry."""
    view, offset, size = memoryview(data), 0, len(data)
    while offset + HEADER_BYTES <= size:
        crc, length, kind = _HEADER.unpack_from(data, offset)
        end = offset + HEADER_BYTES + length
        if end > size or crc32(view[offset + _CRC_BYTES : end]) != crc:
            return
        yield kind, offset, end
        offset = end


def body(data: bytes, offset: int, end: int) -> bytes:
    return data[offset + HEADER_BYTES : end]


def size_of_entry(data: bytes) -> int:
    """How long the entry at the beginning of the data says it is; the data may hold less."""
    _, length, _ = _HEADER.unpack_from(data)
    return HEADER_BYTES + int(length)


def open_batch_header(data: bytes, offset: int) -> tuple[LogId, int, int, Stamp]:
    """The log, the first sequence, the number of tuples and the stamp of a batch; its rows stay unread."""
    first, count, published_at, length = _BATCH.unpack_from(data, offset + HEADER_BYTES)
    return data[offset + _BATCH_BYTES : offset + _BATCH_BYTES + length].decode(), first, count, published_at


def open_batch(data: bytes, offset: int, end: int) -> tuple[LogId, StoredBatch]:
    """A batch, and the log that it is part of."""
    first, count, published_at, length = _BATCH.unpack_from(data, offset + HEADER_BYTES)
    rows_at = offset + _BATCH_BYTES + length
    return data[offset + _BATCH_BYTES : rows_at].decode(), StoredBatch(first, count, published_at, data[rows_at:end])


def is_batch(entry: bytes) -> bool:
    """Whether the bytes are exactly one batch, as it was written."""
    return list(scan(entry)) in ([(BATCH, 0, len(entry))], [(MOVED, 0, len(entry))])


def open_release(data: bytes, offset: int, end: int) -> tuple[LogId, int]:
    (below,) = _RELEASE.unpack_from(data, offset + HEADER_BYTES)
    return data[offset + HEADER_BYTES + _RELEASE.size : end].decode(), below


def find_mark(data: bytes, segment: int, start: int) -> int | None:
    """Where the first MARK of this segment stands, at `start` or behind it, whatever lies between."""
    at = data.find(_MAGIC, start + HEADER_BYTES)
    while at >= 0:
        offset = at - HEADER_BYTES
        if is_mark(data, segment, offset):
            return offset
        at = data.find(_MAGIC, at + 1)
    return None


def is_mark(data: bytes, segment: int, offset: int) -> bool:
    """Whether exactly this MARK stands here: its own checksum, and the place that it states."""
    return data.startswith(seal_mark(segment, offset), offset)
