"""An embedded network: several peers of one machine, each a daemon process with its own data directory up/1..N.

Used by `peer up --peers N`, by the demonstration and by tests. Peers keep their keys and their network from one start
to the next; each start chooses free ports.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from overlay.identity import JoinToken, Network
from overlay.sim.topology import TopologyName, TransitStubShape, make_topology
from peerd.admission import store_token, stored_token
from peerd.config import DEFAULT_PORT, HTTP_PORT_OFFSET, KEYS, PORT_MAX, write_settings
from peerd.control_client import ControlClient
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError
from peerd.process import POLL_S, DaemonProcess, wait_until_member
from peerd.words import count as counted

TOPOLOGY_SEED: Final = 1  # The same network each time.
HOST: Final = "127.0.0.1"
UP_TIMEOUT_S: Final = 60.0
UP_TIMEOUT_EACH_S: Final = 2.0  # More for each peer: two processors need about a second to start one.
_PORTS_TRIED: Final = 2000
_SHARED_SETTINGS: Final = ("log_level", "log_format", "spark", "spark_master", "spark_memory")


@dataclass(slots=True)
class EmbeddedPeer:
    """One peer of an embedded network."""

    number: int
    data: DataDir
    port: int
    daemon: DaemonProcess
    up_after_s: float | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


class Cluster:
    """The embedded network of one data directory, started by this process."""

    def __init__(self, base: DataDir) -> None:
        self.base = base
        self.peers: list[EmbeddedPeer] = []
        self._lifeline: tuple[int, int] | None = None  # A pipe: peers watch one end, and we hold the other.

    def start(
        self,
        count: int,
        *,
        name: str = "local",
        first_port: int = DEFAULT_PORT,
        detached: bool = False,
        settings: Mapping[str, str] | None = None,
        settings_of: Mapping[int, Mapping[str, str]] | None = None,
        topology: TopologyName | None = None,
    ) -> None:
        """Start all daemons at once; unless detached, they stop when this process ends, however it ends."""
        if running := self.base.embedded_running():
            raise PeerError(
                f"{counted(len(running), 'embedded peer')} already run here",
                detail=f'In "{self.base.path / "up"}".',
                hint='"peer members" shows them, "peer down" stops them.',
            )
        self.base.prepare()
        ports = free_ports(count, first_port)
        token = self._token(name, ports[0])
        delays = _delays(topology, ports) if topology is not None else {}
        if not detached:
            self._lifeline = os.pipe()
        for number, port in enumerate(ports, start=1):
            data = self.base.embedded(number)
            data.prepare()
            store_token(data, token)
            shaped = {"delays": delays[port]} if port in delays else {}
            chosen = {"host": HOST, "port": port, **shaped, **(settings or {}), **(settings_of or {}).get(number, {})}
            write_settings(data.config_file, chosen, note='Written anew by each "peer up --peers".')
            self.peers.append(EmbeddedPeer(number, data, port, self._start_daemon(data)))

    def _token(self, name: str, port: int) -> JoinToken:
        """The network of the first embedded peer, if there is one, with its present address."""
        self.base.embedded(1).prepare()
        before = stored_token(self.base.embedded(1))
        return JoinToken(before.network if before else Network.create(name), ((HOST, port),))

    def wait_until_up(
        self, on_up: Callable[[EmbeddedPeer], None] = lambda peer: None, timeout_s: float | None = None
    ) -> None:
        """Wait until each peer is a member and sees all the others; a peer that dies on the way is an error."""
        if timeout_s is None:
            timeout_s = UP_TIMEOUT_S + UP_TIMEOUT_EACH_S * len(self.peers)
        started_at = time.monotonic()
        waiting = list(self.peers)
        while waiting:
            for peer in list(waiting):
                status = _status(peer)
                if status is not None and status["state"] == "running" and status["alive"] >= len(self.peers):
                    peer.up_after_s = time.monotonic() - started_at
                    waiting.remove(peer)
                    on_up(peer)
            if time.monotonic() > started_at + timeout_s:
                names = ", ".join(str(peer.number) for peer in waiting)
                raise PeerError(
                    f"embedded peers {names} do not see all others after {timeout_s:.0f} s",
                    hint=f'Their logs are in "{self.base.path / "up"}".',
                    exit_code=Exit.TIMEOUT,
                )
            time.sleep(POLL_S)

    def client(self, number: int) -> ControlClient:
        return ControlClient(self.base.embedded(number), f" -p {number}")

    def kill(self, number: int) -> None:
        """End one peer as a power failure would."""
        process = self.peers[number - 1].daemon.process
        process.kill()
        process.wait()

    def restart(self, number: int, timeout_s: float = UP_TIMEOUT_S) -> None:
        """Start a stopped peer again, at its old address, and wait until it is a member."""
        peer = self.peers[number - 1]
        peer.daemon = self._start_daemon(peer.data)
        wait_until_member(peer.daemon, timeout_s)

    def stop(self) -> int:
        """Stop every peer cleanly; returns how many had to be killed."""
        for peer in self.peers:
            peer.daemon.stop()
        killed = sum(not peer.daemon.ended() for peer in self.peers)
        for end in self._lifeline or ():
            os.close(end)
        self._lifeline = None
        return killed

    def _start_daemon(self, data: DataDir) -> DaemonProcess:
        lifeline = None if self._lifeline is None else self._lifeline[0]
        return DaemonProcess.start(data, lifeline=lifeline, environ=_own_environment())


def _status(peer: EmbeddedPeer) -> dict[str, Any] | None:
    try:
        return peer.daemon.status()
    except PeerError as error:
        raise PeerError(
            f"embedded peer {peer.number} did not start: {error.error}",
            detail=error.detail,
            hint=error.hint,
            exit_code=error.exit_code,
        ) from error


def free_ports(count: int, first: int) -> list[int]:
    """Unused ports from `first` on, free for UDP and TCP and for the HTTP port that goes with each."""
    last = min(first + _PORTS_TRIED, PORT_MAX - HTTP_PORT_OFFSET)
    ports: list[int] = []
    for port in range(first, last + 1):
        if len(ports) == count:
            break
        if _is_free(port, socket.SOCK_DGRAM) and all(
            _is_free(each, socket.SOCK_STREAM) for each in (port, port + HTTP_PORT_OFFSET)
        ):
            ports.append(port)
    if len(ports) < count:
        raise PeerError(
            f"found only {len(ports)} free ports of {count} between {first} and {last}",
            hint="Start from another one with --port.",
        )
    return ports


def _is_free(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind == socket.SOCK_STREAM:  # As servers do: a port whose last connection has just ended counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _own_environment() -> dict[str, str]:
    """Our environment without PEER_* settings, which are about one peer and not about each of these."""
    shadowed = {f"PEER_{key.upper()}" for key in KEYS if key not in _SHARED_SETTINGS} | {"PEER_CONFIG"}
    return {name: value for name, value in os.environ.items() if name not in shadowed}


def _delays(topology: TopologyName, ports: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """For each peer of a drawn network, the delays to all others, by port."""
    drawn = make_topology(topology, random.Random(TOPOLOGY_SEED), TransitStubShape())
    return {
        port: tuple(f"{HOST}:{other}={drawn.delay_ms(a, b)}ms" for b, other in enumerate(ports) if other != port)
        for a, port in enumerate(ports)
    }
