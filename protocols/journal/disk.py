"""The little that the journal asks of a disk: real files in the daemon, faulty memory in the simulator."""

from __future__ import annotations

from typing import Protocol


class DiskFull(Exception):
    """There is no room for this write, and none of it has happened; it may be tried again."""


class Disk(Protocol):
    """A flat folder of files that only grow at their end.

    Once sync() or replace() has returned, its data survives any crash. A crash keeps any part of what was appended to a
    file after its last sync(). A removed file may come back until a new file is synced or one is replaced. One thread
    at a time changes the disk; others may read meanwhile.
    """

    @property
    def room_bytes(self) -> int:
        """How much more can be written, about: others may use the same disk."""
        ...

    def names(self) -> list[str]:
        """The files there are, sorted."""
        ...

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """A part of a file, shorter where the file ends; FileNotFoundError if there is no such file."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Write all of the data at the end of a file, creating it if need be, or nothing and raise DiskFull."""
        ...

    def sync(self, name: str) -> None:
        """Make the file, as it is now, survive a crash. After a failure nobody knows what the disk holds."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Replace the content of a file atomically and durably, or raise DiskFull."""
        ...

    def truncate(self, name: str, size: int) -> None:
        """Cut a file off, durably."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; a missing file is no error."""
        ...
