"""Which network a peer belongs to: founded here, stored in its data directory, or handed over in a token file.

Containers start together and share one file: the founder (PEER_FOUND=1) creates the network and writes the token to
PEER_TOKEN_FILE; the others wait until it is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from overlay.identity import (
    Address,
    Identity,
    IdentityError,
    JoinToken,
    Network,
    format_address,
    read_secret,
    write_secret,
)
from overlay.keyring import Keyring, KeyringError, Statement
from overlay.membership import when
from peerd.addresses import own_seed
from peerd.config import Config
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError

TOKEN_POLL_S: Final = 0.2
JOIN_HINT: Final = (
    "Check that the token is of this network and a seed runs, that a firewall lets UDP and TCP through on its port, "
    'and that the clocks agree within 60 s. "peer doctor" looks at these.'
)
REPLACED_HINT: Final = (
    'A member that was away for over a week while the key was replaced joins again: "peer join TOKEN", with the token '
    'that "peer token" prints on a member now. It keeps its data directory.'
)
UPGRADE_HINT: Final = "Peers link only if they share a version of the link and the store: upgrade the older one."

log = structlog.get_logger("peerd")


def load_identity(data: DataDir) -> Identity:
    try:
        return Identity.load(data.key_file)
    except (IdentityError, OSError) as error:
        raise PeerError(f"cannot read the key of this peer: {error}") from error


def parse_token(text: str, *, source: str) -> JoinToken:
    """Read a join token that somebody gave us; `source` says where it stood."""
    try:
        return JoinToken.parse(text)
    except IdentityError as error:
        raise PeerError(
            f"{source} is not usable: {error}",
            hint='Copy it whole from "peer token" on a member; a token is one word.',
            exit_code=Exit.MISUSE,
        ) from error


def stored_token(data: DataDir) -> JoinToken | None:
    """The network of this data directory, if it has one, with the newest key that it has had here."""
    try:
        token = parse_token(read_secret(data.network_file).decode(), source=f'"{data.network_file}"')
        return JoinToken(ring_for(data, token).current, token.seeds)
    except FileNotFoundError:
        return None
    except (IdentityError, OSError, UnicodeDecodeError) as error:
        raise PeerError(f"cannot read the network of this peer: {error}") from error


def stored_ring(data: DataDir) -> Keyring | None:
    """The keyring of this data directory, if it has one."""
    try:
        return Keyring.decode(read_secret(data.keyring_file))
    except FileNotFoundError:
        return None
    except (IdentityError, KeyringError, OSError) as error:
        raise PeerError(
            f'cannot read the keyring of this peer, "{data.keyring_file}": {error}',
            hint='Move that file away, then "peer join TOKEN" with the token that a member prints now.',
        ) from error


def ring_for(data: DataDir, token: JoinToken) -> Keyring:
    """The keyring to start with: the stored one if the token is of its network, with the token's key if newer."""
    stored = stored_ring(data)
    if stored is None or stored.network_id != token.network.id:
        return Keyring.of(token.network)
    if token.network.generation < stored.current.generation:
        return stored
    return stored.with_token(token.network, time.time_ns() // 1_000_000)


def expelled_error(name: str, statement: Statement) -> PeerError:
    """What a peer is told that wants to join a network which has expelled it."""
    return PeerError(
        f'this peer was expelled from the network "{name}"',
        detail=f"By peer {statement.maker.hex()} at {when(statement)}.",
        hint="An expulsion cannot be taken back. Another data directory makes another peer, if the members want it.",
    )


def check_not_expelled(data: DataDir, token: JoinToken) -> None:
    """Raise an error if the peer of this data directory knows that it was expelled."""
    if data.key_file.exists() and (ring := ring_for(data, token)).expelled:
        statement = ring.expelled.get(load_identity(data).peer_id)
        if statement is not None:
            raise expelled_error(ring.name, statement)


def keep_ring(config: Config, data: DataDir, ring: Keyring, seeds: tuple[Address, ...]) -> None:
    """Write the keyring; then, if the network key is a new one, the tokens that follow from it."""
    write_secret(data.keyring_file, ring.encode())
    token = JoinToken(ring.current, seeds)
    if data.network_file.exists() and read_secret(data.network_file).decode().strip() != str(token):
        store_token(data, token)
        if config.found and config.token_file is not None:
            try:
                _hand_over(token, config.token_file)
            except PeerError as error:
                log.warning("the token file still has the old join token", reason=error.error)


def store_token(data: DataDir, token: JoinToken) -> None:
    write_secret(data.network_file, f"{token}\n".encode())


def found_network(config: Config, data: DataDir) -> JoinToken:
    """Create a network with this peer as its first member."""
    # A peer on any free port does not know its address yet; "peer token" knows it once the peer runs.
    seeds = (own_seed(config),) if config.port or config.advertise_seed else ()
    token = JoinToken(Network.create(config.name), seeds)
    store_token(data, token)
    return token


async def admit(config: Config, data: DataDir) -> JoinToken:
    """The token of the network that this peer belongs to; may wait for the token file."""
    stored = stored_token(data)
    if config.found:
        token = stored or found_network(config, data)
        if stored is None:
            log.info("network founded", network=token.network.name)
        if config.token_file is not None:
            _hand_over(token, config.token_file)
        return token
    if config.token_file is not None:
        token = await _await_token(config.token_file)
        if stored is not None and _is_older(token.network, stored.network):
            log.info("the token file has an older join token; this peer keeps its own", file=str(config.token_file))
            return stored
        if token != stored:
            store_token(data, token)
        return token
    if stored is None:
        raise PeerError(
            "this peer belongs to no network yet",
            detail=f'Data directory "{data.path}".',
            hint='"peer init" creates one, "peer join TOKEN" joins one; "peer up --peers 5" starts a network here.',
        )
    return stored


def _is_older(network: Network, stored: Network) -> bool:
    """Whether a network key was replaced by the stored one, or together with it."""
    is_other = network.key != stored.key
    return is_other and network.id == stored.id and network.generation <= stored.generation


def _hand_over(token: JoinToken, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_secret(file, f"{token}\n".encode())
    except OSError as error:
        raise PeerError(f'cannot write the join token to "{file}": {(error.strerror or str(error)).lower()}') from error
    log.info("join token written", file=str(file))


async def _await_token(file: Path) -> JoinToken:
    token = _token_in(file)
    if token is None:
        log.info("waiting for the join token", file=str(file))
    while token is None:
        await asyncio.sleep(TOKEN_POLL_S)
        token = _token_in(file)
    return token


def _token_in(file: Path) -> JoinToken | None:
    """The token of a file, None if the file is not there yet."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise PeerError(f'cannot read the join token in "{file}": {(reason or str(error)).lower()}') from error
    return parse_token(text, source=f'the join token in "{file}"')


def unanswered(seeds: Sequence[Address]) -> str:
    return f"no answer from {', '.join(format_address(seed) for seed in seeds)}"


def not_joined(token: JoinToken, waited_s: float, refusal: str = "", hint: str = UPGRADE_HINT) -> PeerError:
    """The answer of `peer join` when membership was not reached; `refusal` tells why others refused this peer."""
    return PeerError(
        f'could not join the network "{token.network.name}" within {waited_s:g} s',
        detail=f"{refusal[:1].upper()}{refusal[1:]}." if refusal else f"There was {unanswered(token.seeds)}.",
        hint=hint if refusal else JOIN_HINT,
        exit_code=Exit.TIMEOUT,
    )
