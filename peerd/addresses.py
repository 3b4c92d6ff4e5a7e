"""Which address of this machine to listen on and to advertise, and what to say if it is not available."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

from overlay.identity import Address
from peerd.config import Config
from peerd.errors import PeerError

_FAR_AWAY = "192.0.2.1"  # Reserved for documentation; connecting a datagram socket to it sends nothing.


def local_address(towards: str = _FAR_AWAY) -> str | None:
    """The address this machine would send from to reach the given host; None if there is no route."""
    try:
        family, _, _, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def resolve_host(host: str) -> str:
    """The address behind a name; an address stays what it is."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError as error:
        reason = str(error.strerror or error).lower()
        raise PeerError(f'the host "{host}" does not resolve: {reason}', hint="Give its address instead.") from error


def is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_wildcard(host: str) -> bool:
    return is_address(host) and ipaddress.ip_address(host).is_unspecified


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def listening_host(config: Config, seeds: Sequence[Address]) -> str:
    """The host to listen on: the setting, otherwise the interface that faces the seeds.

    The default, loopback, cannot reach another machine, so a peer could never join a network elsewhere.
    """
    if "host" not in config.origins:
        for host, _ in seeds:
            if not is_loopback(host) and (facing := local_address(host)) is not None:
                return facing
    return config.host


def own_seed(config: Config) -> Address:
    """The address of this peer to write into join tokens."""
    if config.advertise_seed is not None:
        return config.advertise_seed
    host = config.advertise or config.host
    return (local_address() or "127.0.0.1") if is_wildcard(host) else host, config.port


def cannot_listen(error: OSError, host: str, port: int, *, key: str, origin: str) -> PeerError:
    """Why an address cannot be listened on, in words; `key` is the setting of the port."""
    option = f"--{key.replace('_', '-')}"
    # uvloop hides the kernel's error for a datagram socket behind one of its own.
    cause = error.__cause__ if error.errno is None and isinstance(error.__cause__, OSError) else error
    match cause.errno:
        case errno.EADDRINUSE:
            return PeerError(
                f"port {port} on {host} is taken by another process",
                detail=f"The port comes from {origin}; a peer needs it for both UDP and TCP."
                if key == "port"
                else f"The port comes from {origin}; it serves /healthz and /metrics.",
                hint=f"Choose another with {option} {port + 1}"
                + ("." if key == "port" else f", or switch it off with {option} 0.")
                + f' "ss -lntup sport = :{port}" shows who has it.',
            )
        case errno.EADDRNOTAVAIL:
            return PeerError(
                f'cannot listen on "{host}": this machine has no such address',
                hint="Use an address of this machine, or 0.0.0.0 for all of them.",
            )
        case errno.EACCES | errno.EPERM:
            return PeerError(
                f"not allowed to listen on port {port}",
                hint=f"Ports below 1024 need privileges; choose another with {option}.",
            )
    return PeerError(f"cannot listen on {host}, port {port}: {(cause.strerror or str(cause)).lower()}")
