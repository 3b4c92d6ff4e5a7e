"""The command line of the daemon, `peerd`; what it runs is in service.py, imported once the settings are understood."""

from __future__ import annotations

import os
from pathlib import Path

import click

from peerd import __version__
from peerd.datadir import DataDir, default_data_dir
from peerd.options import settings, settings_options


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIR", help="Data directory [PEER_DATA_DIR].")
@settings_options
@click.option("--stand-by", "stands_by", is_flag=True, help='After "peer leave", wait until "peer up" calls it back.')
@click.option("--lifeline", type=int, hidden=True)
@click.version_option(__version__, prog_name="peerd", message="%(prog)s %(version)s")
def peerd(
    data_dir: Path | None, config_file: Path | None, stands_by: bool, lifeline: int | None, **flags: object
) -> None:
    """Run a peer in the foreground; the same as "peer up", for service managers and containers.

    \b
        $ PEER_DATA_DIR=/var/lib/peerd peerd --host 0.0.0.0 --log-format json
    """
    data = DataDir(data_dir if data_dir is not None else default_data_dir(os.environ))
    config = settings(data, flags, config_file)

    from peerd.service import run_daemon

    run_daemon(config, data, lifeline=lifeline, stands_by=stands_by)
