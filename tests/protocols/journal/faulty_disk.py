"""The journal on a disk that may fail at any step."""

from __future__ import annotations

import random

from overlay.sim.disk import SimDisk
from tests.protocols.journal.model import JournalMachine


class FaultyDiskMachine(JournalMachine):
    """On a simulated disk, which loses and tears what was not synced, and fills up."""

    disk: SimDisk

    def new_disk(self, luck: random.Random) -> SimDisk:
        return SimDisk(luck, capacity_bytes=1 << 20)

    def lose_power(self) -> None:
        self.disk.crash()

    def fill(self, room_bytes: int) -> None:
        self.disk.fill(1 - self.disk.used_share - room_bytes / self.disk.capacity_bytes)

    def empty(self) -> None:
        self.disk.fill(0)
