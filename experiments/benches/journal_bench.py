"""What a journal takes of the disk when streams keep their tuples for different times, and what compaction costs.

    python -m experiments.benches.journal_bench

The journal and a disk in memory, in virtual time, a sixteenth of a daemon in size. First a stream that keeps a minute
of tuples beside two that keep a day and say little; then a hundred streams that keep theirs for 10 s to 1,000 s, so
that nearly every segment holds a bit of everything: the worst that can happen to compaction.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

from experiments.benches.figures import note
from overlay.sim.disk import SimDisk
from protocols.events import StoredBatch
from protocols.journal.journal import SEGMENT_BYTES, Journal
from protocols.wire import RECORDS

SCALE: Final = 16
BATCH_BYTES: Final = 5_800  # A hundred tuples.
FOR_S: Final = 17 * 60
DAY_S: Final = 24 * 3600


@dataclass(slots=True)
class Stream:
    """A stream that publishes at a steady rate, and lets go of what is older than its retention."""

    name: str
    every_s: float  # From one batch to the next.
    retention_s: float
    next: int = 0
    released: int = 0

    def tick(self, journal: Journal, now_s: float) -> int:
        """Publish and release what is due; returns the bytes published."""
        published = 0
        while self.next * self.every_s <= now_s:
            journal.append_batch(self.name, StoredBatch(self.next, 1, self.next, bytes(BATCH_BYTES)))
            self.next += 1
            published += BATCH_BYTES
        due = min(self.next, int((now_s - self.retention_s) / self.every_s))
        if due > self.released:
            self.released = due
            journal.release(self.name, due)
        return published


class CountingDisk(SimDisk):
    """Counts what is written to it."""

    written = 0

    def append(self, name: str, data: bytes) -> None:
        self.written += len(data)
        super().append(name, data)


class Run:
    """A journal with these streams."""

    def __init__(self, streams: list[Stream], disk_bytes: int) -> None:
        self.streams = streams
        self.disk = CountingDisk(random.Random(1), disk_bytes)
        self.journal = Journal(self.disk, RECORDS.encode, RECORDS.decode, SEGMENT_BYTES // SCALE)
        self.journal.recover()
        self.published = 0
        self.worst = 0.0  # On disk, less a segment, to what is kept.
        self.held_ms = 0.0  # The longest step that holds the loop.

    def play(self, for_s: int) -> None:
        """Ten commits a second, each followed by what a driver does to save space."""
        for tenth in range(for_s * 10):
            self.published += sum(stream.tick(self.journal, tenth / 10) for stream in self.streams)
            self._commit()
            self._save_space()
            over = self.journal.bytes_on_disk - SEGMENT_BYTES // SCALE
            self.worst = max(self.worst, over / self.journal.bytes_kept)

    def _commit(self) -> None:
        while pending := self.journal.take():
            pending.write(self.disk)
            self.journal.done(pending)

    def _save_space(self) -> None:
        if self.journal.wants_snapshot:
            self.journal.snapshot([])
        while piece := self.journal.compact():
            found = piece.read(self.disk)
            began = time.perf_counter()
            self.journal.move(piece, found)
            self.held_ms = max(self.held_ms, (time.perf_counter() - began) * 1000)
        self._commit()


def measure(title: str, streams: list[Stream]) -> None:
    run = Run(streams, disk_bytes=1 << 34)
    run.play(FOR_S)
    journal, mb = run.journal, 1e6
    sizes = f"{journal.bytes_kept / mb:>6.1f} MB kept, {journal.bytes_on_disk / mb:>6.1f} MB on disk"
    factor = run.disk.written / run.published
    print(
        f"{title:<28} {run.published / mb:>6.1f} MB published: {sizes}, at worst {run.worst:.2f} x and a segment;"
        f" {factor:.2f} bytes written for one; the loop held for {run.held_ms:.1f} ms at most",
        flush=True,
    )
    note(f"journal on disk, {title}", journal.bytes_on_disk, "bytes", "kept", journal.bytes_kept)
    note(f"journal written, {title}", run.disk.written, "bytes", "published", run.published)


def main() -> None:
    print(f"{FOR_S // 60} minutes of virtual time, segments of {SEGMENT_BYTES // SCALE / 1e6:.1f} MB", flush=True)
    per_s = 1.7e6 / SCALE
    slow = [Stream(name, every_s=5, retention_s=DAY_S) for name in ("a day", "another day")]
    measure("a minute beside two days", [Stream("a minute", BATCH_BYTES / per_s, retention_s=60), *slow])
    luck = random.Random(1)
    kept_s = [10 ** luck.uniform(1, 3) for _ in range(100)]
    measure("10 s to 1,000 s", [Stream(f"{each:g} s", 100 * BATCH_BYTES / per_s, each) for each in kept_s])


if __name__ == "__main__":
    main()
