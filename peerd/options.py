"""The flags that set a peer's settings, the same for `peerd`, `peer up`, `peer init` and `peer join`.

They stay text here: config.py reads every layer with the same functions, so a wrong value gets one answer everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from peerd.datadir import DataDir

if TYPE_CHECKING:
    from peerd.config import Config

Command = TypeVar("Command", bound=Callable[..., object])

_NETWORK_FLAGS: Final = (
    ("--host", "ADDRESS", "Address to listen on; 0.0.0.0 for all [127.0.0.1]."),
    ("--port", "PORT", "Port for UDP and TCP; 0 picks a free one [7400]."),
    ("--advertise", "ADDRESS", "Address that other peers shall use, if not the one listened on."),
    ("--http-host", "ADDRESS", "Address of /healthz and /metrics [127.0.0.1]."),
    ("--http-port", "PORT", "Port of /healthz and /metrics; 0 is off [port + 1000]."),
)
VALUELESS: Final = ("host_nothing",)  # They are there or not.
_RUN_FLAGS: Final = (
    ("--spark", "WHEN", "auto (when a query needs it), off or warm (at once) [auto]."),
    ("--spark-master", "URL", "Where Spark runs: local, or the URL of a cluster [local]."),
    ("--spark-memory", "SIZE", "Heap of this peer's Spark [420m]."),
    ("--cpu-share", "SHARE", "Of all cores, for parts of queries: a query that needs more is refused [no limit]."),
    ("--uplink", "RATE", "What the links may send, all together, like 1mbit [no limit]."),
    ("--downlink", "RATE", "What the links may receive, all together, like 10mbit [no limit]."),
    ("--log-level", "LEVEL", "debug, info, warning or error [info]."),
    ("--log-format", "FORMAT", "console or json [console]."),
)


def network_options(command: Command) -> Command:
    """Flags that belong to the peer and may be kept in its peerd.toml."""
    return _with_flags(command, _NETWORK_FLAGS)


def settings_options(command: Command) -> Command:
    """All flags of a peer that runs."""
    seeds = click.option("--seed", "seeds", multiple=True, metavar="HOST:PORT", help="Another peer to join through.")
    file = click.option(
        "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Settings [DIR/peerd.toml]."
    )
    without = click.option("--no-spark", "spark", flag_value="off", help="The same as --spark off.")
    closed = click.option(
        "--host-nothing", "host_nothing", flag_value="true", help="Run no parts of other peers' queries."
    )
    return network_options(seeds(file(_with_flags(closed(without(command)), _RUN_FLAGS))))


def _with_flags(command: Command, flags: tuple[tuple[str, str, str], ...]) -> Command:
    for name, metavar, text in reversed(flags):
        command = click.option(name, metavar=metavar, help=text)(command)
    return command


def settings(data: DataDir, flags: Mapping[str, object], config_file: Path | None = None) -> Config:
    """The configuration of the peer of a data directory, all layers read."""
    from peerd.config import load_config

    chosen = config_file or (Path(text).expanduser() if (text := os.environ.get("PEER_CONFIG")) else None)
    return load_config(chosen or data.config_file, os.environ, flags, must_exist=chosen is not None)
