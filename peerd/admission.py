"""Which network a peer belongs to: founded here, stored in its data directory, or handed over in a token file.

Containers start together and share one file: the founder (PEER_FOUND=1) creates the network and writes the token to
PEER_TOKEN_FILE; the others wait until it is there.
"""

from __future__ import annotations

import asyncio
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
from peerd.addresses import own_seed
from peerd.config import Config
from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError

TOKEN_POLL_S: Final = 0.2
JOIN_HINT: Final = (
    "Check that the token is of this network and a seed runs, that a firewall lets UDP and TCP through on its port, "
    'and that the clocks agree within 60 s. "peer doctor" looks at these.'
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
    """The network of this data directory, if it has one."""
    try:
        return parse_token(read_secret(data.network_file).decode(), source=f'"{data.network_file}"')
    except FileNotFoundError:
        return None
    except (IdentityError, OSError, UnicodeDecodeError) as error:
        raise PeerError(f"cannot read the network of this peer: {error}") from error


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


def not_joined(token: JoinToken, waited_s: float, refusal: str = "") -> PeerError:
    """The answer of `peer join` when membership was not reached; `refusal` tells of peers with other versions."""
    return PeerError(
        f'could not join the network "{token.network.name}" within {waited_s:g} s',
        detail=f"{refusal[:1].upper()}{refusal[1:]}." if refusal else f"There was {unanswered(token.seeds)}.",
        hint=UPGRADE_HINT if refusal else JOIN_HINT,
        exit_code=Exit.TIMEOUT,
    )
