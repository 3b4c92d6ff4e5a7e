"""The real files under the journal: appended to, synced together with their folder, cut back after a failed write."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from protocols.journal.disk import DiskFull

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_SCRATCH: Final = ".new"  # Suffix of a file that is about to replace another.
# fdatasync, where it exists, saves writing a modification time that nobody reads.
_sync_data = getattr(os, "fdatasync", os.fsync)


class FileDisk:
    """One folder of files as the journal wants it (protocols.journal.disk.Disk says what each method promises).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, FileDisk(Path(folder)) as disk:
    ...     disk.append("a", b"on the disk")
    ...     disk.sync("a")
    ...     disk.names(), disk.read("a", offset=7)
    (['a'], b'disk')
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open_name = ""  # The last file appended to stays open: there is one writer, and it stays with one file.
        self._open_file = -1
        self._linked: set[str] = set()  # Names known to survive a crash.
        for leftover in path.glob(f"*{_SCRATCH}"):
            leftover.unlink()

    def __enter__(self) -> FileDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; the disk cannot be used afterwards."""
        self._close_file()
        os.close(self._folder)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self._path.iterdir() if entry.is_file())

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        # Opened anew each time: a reader in another thread must not meet a closed file whose number was reused.
        with (self._path / name).open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(-1 if size is None else size)

    def append(self, name: str, data: bytes) -> None:
        file = self._opened(name, os.O_CREAT)
        size = os.fstat(file).st_size
        try:
            _write_all(file, data)
        except OSError as error:
            os.ftruncate(file, size)
            _raise_if_full(error, name)
            raise

    def sync(self, name: str) -> None:
        _sync_data(self._opened(name))
        self._link(name)

    def replace(self, name: str, data: bytes) -> None:
        scratch = self._path / (name + _SCRATCH)
        try:
            file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(file, data)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            with suppress(OSError):
                scratch.unlink()
            _raise_if_full(error, name)
            raise
        if name == self._open_name:
            self._close_file()
        scratch.replace(self._path / name)
        self._linked.discard(name)
        self._link(name)

    def truncate(self, name: str, size: int) -> None:
        file = self._opened(name)
        os.ftruncate(file, size)
        os.fsync(file)
        self._link(name)

    def remove(self, name: str) -> None:
        if name == self._open_name:
            self._close_file()
        self._linked.discard(name)
        (self._path / name).unlink(missing_ok=True)

    @property
    def room_bytes(self) -> int:
        found = os.fstatvfs(self._folder)
        return found.f_bavail * found.f_frsize

    @property
    def used_share(self) -> float:
        """How full the file system is for us, between 0 and 1; space reserved for others counts as used."""
        found = os.fstatvfs(self._folder)
        return 1 - found.f_bavail / found.f_blocks if found.f_blocks else 0.0

    def _opened(self, name: str, flags: int = 0) -> int:
        if name != self._open_name:
            self._close_file()
            self._open_file = os.open(self._path / name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
            self._open_name = name
        return self._open_file

    def _close_file(self) -> None:
        if self._open_name:
            os.close(self._open_file)
            self._open_name = ""

    def _link(self, name: str) -> None:
        """Make a name survive a crash: it is stored in the folder, not in the file."""
        if name not in self._linked:
            os.fsync(self._folder)
            self._linked.add(name)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _raise_if_full(error: OSError, name: str) -> None:
    if error.errno in _FULL:
        raise DiskFull(f'no room for "{name}": {(error.strerror or "the disk is full").lower()}') from error
