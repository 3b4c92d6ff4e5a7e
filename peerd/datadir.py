"""The data directory of one peer: where its files are, who may read them, and which process holds it.

    peer.key    the peer's private key (0600)            peer.sock   control socket (0600)
    network     the join token of its network (0600)     peer.pid    process id of the running daemon
    peerd.toml  settings (optional)                      lock        held (flock) while a daemon runs
    peerd.log   log of a detached daemon                 data.sock   socket of the clients' streams (0600)
    journal/    what this peer has promised to keep      contacts    addresses of members, for the next start
    left        written by `peer leave`, with the time   up/1..N     data directories of embedded peers
    keyring     keys of the network, the members met, and who was expelled (0600); wins over `network` where it is newer
    standby     held while a daemon waits to be called back

This module imports nothing heavy: every command of the CLI needs it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peerd.errors import Exit, PeerError

# The kernel's limit is 108 bytes on Linux and 104 elsewhere, with a closing zero.
SOCKET_PATH_BYTES_MAX: Final = 100
CONTACTS_MAX: Final = 32
# A command that checks whether a daemon runs holds the lock for an instant; that must not turn a daemon away.
LOCK_PATIENCE_S: Final = 0.1


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """PEER_DATA_DIR, otherwise the usual place for program data."""
    if chosen := environ.get("PEER_DATA_DIR"):
        return Path(chosen).expanduser()
    if base := environ.get("XDG_DATA_HOME"):
        return Path(base) / "peerd"
    try:
        return Path.home() / ".local" / "share" / "peerd"
    except RuntimeError:
        raise PeerError(
            "cannot tell where to keep data: there is no home directory",
            hint="Set PEER_DATA_DIR, or give --data-dir.",
            exit_code=Exit.MISUSE,
        ) from None


@dataclass(frozen=True, slots=True)
class DataDir:
    """Paths and small files of one peer's data directory."""

    path: Path

    @property
    def key_file(self) -> Path:
        return self.path / "peer.key"

    @property
    def network_file(self) -> Path:
        return self.path / "network"

    @property
    def keyring_file(self) -> Path:
        return self.path / "keyring"

    @property
    def config_file(self) -> Path:
        return self.path / "peerd.toml"

    @property
    def log_file(self) -> Path:
        return self.path / "peerd.log"

    @property
    def pid_file(self) -> Path:
        return self.path / "peer.pid"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def left_file(self) -> Path:
        return self.path / "left"

    @property
    def standby_file(self) -> Path:
        return self.path / "standby"

    @property
    def contacts_file(self) -> Path:
        return self.path / "contacts"

    @property
    def journal_dir(self) -> Path:
        return self.path / "journal"

    @property
    def socket_path(self) -> Path:
        """The control socket."""
        return self._socket("peer.sock")

    @property
    def data_socket_path(self) -> Path:
        """The socket of clients that publish and subscribe, beside the control socket."""
        return self._socket("data.sock")

    def _socket(self, name: str) -> Path:
        """Here, or in a private folder under the temporary directory if the path here is too long."""
        own = self.path.absolute() / name
        if len(os.fsencode(own)) <= SOCKET_PATH_BYTES_MAX:
            return own
        place = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:24]
        return Path(tempfile.gettempdir()) / f"peerd-{os.getuid()}" / f"{place}.{name}"

    def embedded(self, number: int) -> DataDir:
        """The data directory of embedded peer `number` of `peer up --peers N`."""
        return DataDir(self.path / "up" / str(number))

    def embedded_numbers(self) -> list[int]:
        """Which embedded peers have a directory here, in order."""
        try:
            return sorted(int(entry.name) for entry in (self.path / "up").iterdir() if entry.name.isdigit())
        except OSError:
            return []

    def embedded_running(self) -> list[int]:
        """Which embedded peers have a daemon running, in order."""
        return [number for number in self.embedded_numbers() if self.embedded(number).is_held()]

    def prepare(self) -> None:
        """Create the directory (0700), or check that an existing one is ours alone and writable."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.path.stat().st_mode
            if mode & 0o077:
                self._close_to_others(mode)
            descriptor, probe = tempfile.mkstemp(dir=self.path, prefix=".probe-")
            os.close(descriptor)
            Path(probe).unlink()
        except OSError as error:
            raise PeerError(
                f'cannot use the data directory "{self.path}": {_reason(error)}',
                hint="Give a directory that you may write: --data-dir DIR, or PEER_DATA_DIR.",
            ) from error

    def _close_to_others(self, mode: int) -> None:
        """Tighten the mode of a new directory or of our own, never that of a folder with other things in it."""
        if self.lock_file.exists() or not any(self.path.iterdir()):
            self.path.chmod(0o700)
            return
        raise PeerError(
            f'the data directory "{self.path}" is open to others (mode {stat.S_IMODE(mode):o})',
            detail="It has files that are not ours, so its mode is left as it is.",
            hint=f"Choose an empty directory, or run: chmod 700 {self.path}",
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory as its only daemon; files that a dead daemon left are removed first."""
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(descriptor)
            self.remove_traces()
            self.pid_file.write_text(f"{os.getpid()}\n")
            try:
                yield
            finally:
                self.remove_traces()
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            _lock(descriptor)
        except BlockingIOError as error:
            pid = self.pid()
            holder = f"process {pid}" if pid else "another process"
            raise PeerError(
                f'the data directory "{self.path}" is in use by {holder}',
                hint='"peer status" shows that daemon, "peer down" stops it; or give another --data-dir.',
            ) from error
        except OSError as error:
            raise PeerError(f'cannot lock "{self.lock_file}": {_reason(error)}') from error

    def is_held(self) -> bool:
        """Whether a daemon runs here. The lock is right even if a process id has been reused."""
        return _is_locked(self.lock_file)

    @contextmanager
    def standing_by(self) -> Iterator[None]:
        """Let commands see that a daemon waits here until this peer is called back."""
        descriptor = os.open(self.standby_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise PeerError(f'another daemon already stands by in "{self.path}"') from error
        try:
            yield
        finally:
            os.close(descriptor)

    def is_stood_by(self) -> bool:
        """Whether a daemon waits here until this peer is called back."""
        return _is_locked(self.standby_file)

    def remove_traces(self) -> None:
        for path in (self.socket_path, self.data_socket_path, self.pid_file):
            with suppress(FileNotFoundError):
                path.unlink()

    def pid(self) -> int | None:
        """The process id that the running daemon wrote."""
        with suppress(OSError, ValueError):
            return int(self.pid_file.read_text())
        return None

    def prepare_socket_folder(self) -> None:
        """Make sure that the folder of a control socket outside this directory is ours, and closed to others."""
        folder = self.socket_path.parent
        if folder == self.path.absolute():
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PeerError(
                f'cannot put the control socket into "{folder}": it is not a folder of ours alone',
                detail=f'The path "{self.path}" is too long for a socket ({SOCKET_PATH_BYTES_MAX} bytes).',
                hint=f'Remove "{folder}", or give a shorter --data-dir.',
            )

    def read_contacts(self) -> list[str]:
        """Addresses of members met before; none if the file is missing or malformed."""
        with suppress(OSError, ValueError, RecursionError):
            contacts = json.loads(self.contacts_file.read_text())
            if isinstance(contacts, list):
                return [contact for contact in contacts if isinstance(contact, str)][:CONTACTS_MAX]
        return []

    def write_contacts(self, contacts: list[str]) -> None:
        _replace(self.contacts_file, json.dumps(contacts))

    def mark_left(self, network: str, left_at: float) -> None:
        _replace(self.left_file, json.dumps({"network": network, "left_at": left_at}))

    def clear_left(self) -> None:
        try:
            self.left_file.unlink(missing_ok=True)
        except OSError as error:
            raise PeerError(f"cannot start: {_reason(error)}", hint=f'Remove "{self.left_file}".') from error

    def left(self) -> tuple[str, float] | None:
        """The network that this peer left with `peer leave`, and when; None if it did not, or came back."""
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            mark = json.loads(self.left_file.read_text())
            return str(mark["network"]), float(mark["left_at"])
        return None


def _lock(descriptor: int) -> None:
    """Hold a file alone; raises BlockingIOError if somebody else holds it for longer than a command looks at it."""
    deadline_at = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() > deadline_at:
                raise BlockingIOError(errno.EAGAIN, "held by another process") from error
        time.sleep(LOCK_PATIENCE_S / 10)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two askers never mistake each other for a daemon.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _replace(path: Path, text: str) -> None:
    """Write a small file atomically."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(text)
    scratch.replace(path)


def _reason(error: OSError) -> str:
    where = f' ("{error.filename}")' if error.filename else ""
    return f"{(error.strerror or str(error)).lower()}{where}"
