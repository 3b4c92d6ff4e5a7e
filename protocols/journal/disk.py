"""The little that the journal asks of a disk: real files in the daemon, faulty memory in the simulator."""

from __future__ import annotations

from typing import Protocol


class DiskFull(Exception):
    """There is no room for this write, and none of it has happened; it may be tried again."""


class Disk(Protocol):
    """A flat folder of files that only grow at their end.

    What sync() or replace() has returned from survives any crash. Of what was appended after the last sync() of a file
    a crash keeps all, nothing, or anything between, in pieces; a removed file may come back. One thread changes the
    disk at a time; others may read meanwhile.
    """

    def names(self) -> list[str]:
        """The files there are, sorted."""
        ...

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """A part of a file, shorter where the file ends; FileNotFoundError if there is no such file."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Write at the end of a file, and make it if need be: all of the data, or none and DiskFull."""
        ...

    def sync(self, name: str) -> None:
        """Make the file, as it is now, survive a crash. If this fails, what the disk holds is not known any more."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Make a file hold this and nothing else, wholly or not at all, and survive a crash; or DiskFull."""
        ...

    def truncate(self, name: str, size: int) -> None:
        """Cut a file off, and make that survive a crash."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; it is no error if it is not there."""
        ...
