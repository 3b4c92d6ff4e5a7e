"""What commands share: which peer they speak to, and common options."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from peerd.control_client import ControlClient
from peerd.datadir import DataDir, default_data_dir
from peerd.errors import Exit, PeerError
from peerd.words import parse_span

if TYPE_CHECKING:
    from peerd.client import Client

Command = TypeVar("Command", bound=Callable[..., object])


def read_span(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback of options that take a duration: 10s, 500ms, 2m."""
    try:
        return None if value is None else parse_span(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def data_dir_option(command: Command) -> Command:
    option = click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Data directory [PEER_DATA_DIR, else ~/.local/share/peerd].",
    )
    return option(command)


def target_options(command: Command) -> Command:
    """--data-dir and -p: which peer a command speaks to."""
    number = click.option(
        "-p", "--peer", "number", type=click.IntRange(min=1), metavar="N", help="Embedded peer N of peer up --peers."
    )
    return number(data_dir_option(command))


def base_dir(data_dir: Path | None) -> DataDir:
    return DataDir(data_dir if data_dir is not None else default_data_dir(os.environ))


def chosen_dir(data_dir: Path | None, number: int | None) -> DataDir:
    """The data directory that the options name, embedded peers included."""
    base = base_dir(data_dir)
    return base if number is None else base.embedded(number)


def client_for(data_dir: Path | None, number: int | None, *, patience_s: float | None = None) -> Client:
    """A client of the same daemon, for commands that publish and subscribe."""
    from peerd.client import PATIENCE_S, Client

    path, patience_s = target(data_dir, number).data.path, PATIENCE_S if patience_s is None else patience_s
    return Client(path, patience_s=patience_s, token=presented_token())


def presented_token() -> str:
    """The client token of this command: `peer --token`, or PEER_CLIENT_TOKEN; empty for the peer's own user."""
    context = click.get_current_context(silent=True)
    given = context.find_root().params.get("token") if context is not None else None
    return given or os.environ.get("PEER_CLIENT_TOKEN", "")


def target(data_dir: Path | None, number: int | None) -> ControlClient:
    """The daemon to speak to: the one named, else this directory's own, else the first running embedded peer."""
    base = base_dir(data_dir)
    option = "" if data_dir is None else f" --data-dir {data_dir}"
    embedded = base.embedded_numbers()
    if number is None and embedded and not base.network_file.exists():
        running = base.embedded_running()
        if not running:
            raise PeerError(
                "the embedded peers of this data directory are not running",
                detail=f'Data directory "{base.path}".',
                hint=f'"peer up --peers {len(embedded)}{option}" starts them again.',
                exit_code=Exit.UNREACHABLE,
            )
        number = running[0]
    if number is None:
        return ControlClient(base, option, token=presented_token())
    if number not in embedded:
        there = f"Here are embedded peers {', '.join(map(str, embedded))}." if embedded else None
        raise PeerError(
            f"there is no embedded peer {number}",
            detail=there,
            hint=f'"peer up --peers {max(number, 2)}{option}" starts that many.',
            exit_code=Exit.NOT_FOUND,
        )
    return ControlClient(base.embedded(number), f"{option} -p {number}", token=presented_token())
