"""A disk in memory that behaves as badly as a disk may.

A crash loses, keeps or tears what was not synced, file by file, as the rng decides: the last bytes may be missing, and
sectors before them may never have been written. A new file that was never synced may vanish; a removed one may come
back until the folder is synced. The caller decides how long a sync takes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from protocols.journal.disk import DiskFull

SECTOR_BYTES: Final = 512
CAPACITY_BYTES: Final = 1 << 30


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0  # So many of the bytes survive a crash.
    is_linked: bool = False  # Whether its name survives a crash.


@dataclass(slots=True)
class SimDisk:
    """The disk of one simulated peer.

    >>> disk = SimDisk(random.Random(7), lost_share=1.0, torn_share=0.0)
    >>> disk.append("a", b"safe "), disk.sync("a"), disk.append("a", b"not safe"), disk.read("a")
    (None, None, None, b'safe not safe')
    >>> disk.crash(), disk.read("a")
    (None, b'safe ')
    """

    rng: random.Random
    capacity_bytes: int = CAPACITY_BYTES
    lost_share: float = 0.3  # How often a crash loses everything that a file had not synced,
    torn_share: float = 0.4  # and how often it tears it; otherwise all of it survives.
    _files: dict[str, _File] = field(default_factory=dict)
    _removed: dict[str, _File] = field(default_factory=dict)
    _own_bytes: int = 0
    _filled_bytes: int = 0

    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        data = self._file(name).data
        return bytes(data[offset:] if size is None else data[offset : offset + size])

    def append(self, name: str, data: bytes) -> None:
        self._reserve(len(data))
        if name not in self._files:
            self._files[name] = _File()
        self._files[name].data += data

    def sync(self, name: str) -> None:
        file = self._file(name)
        file.synced = len(file.data)
        if not file.is_linked:
            self._link(file)

    def replace(self, name: str, data: bytes) -> None:
        self._reserve(len(data))
        if name in self._files:
            self._own_bytes -= len(self._files[name].data)
        self._files[name] = file = _File(bytearray(data), len(data))
        self._link(file)

    def truncate(self, name: str, size: int) -> None:
        file = self._file(name)
        assert size <= len(file.data)
        self._own_bytes -= len(file.data) - size
        del file.data[size:]
        self.sync(name)

    def remove(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            self._own_bytes -= len(file.data)
            self._removed[name] = file

    @property
    def room_bytes(self) -> int:
        return max(0, self.capacity_bytes - self._own_bytes - self._filled_bytes)

    @property
    def used_share(self) -> float:
        """How full the disk is, between 0 and 1."""
        return min(1.0, (self._own_bytes + self._filled_bytes) / self.capacity_bytes)

    # What the simulator does to it.

    def crash(self) -> None:
        """The power fails: chance decides what is left of what was not synced."""
        for name, file in sorted(self._removed.items()):
            if name not in self._files and self.rng.random() < 0.5:
                self._files[name] = file
        self._removed.clear()
        for name, file in sorted(self._files.items()):
            self._settle(file)
            if not file.is_linked and self.rng.random() < 0.5:
                del self._files[name]
            file.is_linked = True
        self._own_bytes = sum(len(file.data) for file in self._files.values())

    def fill(self, share: float) -> None:
        """Somebody else occupies this share of the disk; 0 gives it all back."""
        self._filled_bytes = int(share * self.capacity_bytes)

    def lose(self) -> None:
        """The disk is gone for good; an empty one takes its place."""
        self._files.clear()
        self._removed.clear()
        self._own_bytes = 0

    def damage(self, name: str, offset: int) -> None:
        """Flip one bit of what is written, synced or not."""
        self._file(name).data[offset] ^= 1 << self.rng.randrange(8)

    def _file(self, name: str) -> _File:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def _reserve(self, size: int) -> None:
        if self._own_bytes + self._filled_bytes + size > self.capacity_bytes:
            raise DiskFull(f"no room for {size} bytes")
        self._own_bytes += size

    def _link(self, file: _File) -> None:
        """Sync the folder: names created and removed so far stay that way."""
        file.is_linked = True
        self._removed.clear()

    def _settle(self, file: _File) -> None:
        """Decide what a crash leaves of the unsynced end of a file."""
        unsynced = len(file.data) - file.synced
        luck = self.rng.random()
        if unsynced and luck < self.lost_share:
            del file.data[file.synced :]
        elif unsynced and luck < self.lost_share + self.torn_share:
            del file.data[file.synced + self.rng.randrange(unsynced) :]
            self._blank_sectors(file)
        file.synced = len(file.data)

    def _blank_sectors(self, file: _File) -> None:
        """Blank some of the unsynced sectors: a disk writes them in an order of its own."""
        start = file.synced
        while start < len(file.data):
            end = min(start - start % SECTOR_BYTES + SECTOR_BYTES, len(file.data))
            if self.rng.random() < 0.25:
                file.data[start:end] = bytes(end - start)
            start = end
