"""Disks that fail during a write: some steps are done, one is begun, the rest never happen."""

from __future__ import annotations

from protocols.journal.disk import Disk


class PowerLost(Exception):
    """From here on nothing reaches the disk."""


class CountedDisk:
    """Passes everything on to a disk, until so many steps are done. Then `end` is raised in place of the next one."""

    end: type[Exception]

    def __init__(self, disk: Disk, steps: int) -> None:
        self._disk = disk
        self._steps = steps

    @property
    def room_bytes(self) -> int:
        return self._disk.room_bytes

    def names(self) -> list[str]:
        return self._disk.names()

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        return self._disk.read(name, offset, size)

    def append(self, name: str, data: bytes) -> None:
        self._step()
        self._disk.append(name, data)

    def sync(self, name: str) -> None:
        self._step()
        self._disk.sync(name)

    def replace(self, name: str, data: bytes) -> None:
        self._step()
        self._disk.replace(name, data)

    def truncate(self, name: str, size: int) -> None:
        self._step()
        self._disk.truncate(name, size)

    def remove(self, name: str) -> None:
        self._step()
        self._disk.remove(name)

    def _step(self) -> None:
        if self._steps == 0:
            raise self.end
        self._steps -= 1


class FailingDisk(CountedDisk):
    """Its power is gone after so many steps that are safe at once."""

    end = PowerLost

    def append(self, name: str, data: bytes) -> None:
        self._disk.append(name, data)  # Not synced yet: the crash decides what is left of it.
