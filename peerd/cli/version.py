"""`peer version`."""

from __future__ import annotations

import platform

import click

from peerd import __version__
from peerd.cli.output import output_option, show_record


@click.command()
@output_option
def version(form: str | None) -> None:
    """Print the version of peerd, and of the Python that runs it.

    \b
        $ peer version
        version  0.2.0
        python   3.11.7
        system   Linux 6.1 x86_64
    """
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    record = {"version": __version__, "python": platform.python_version(), "system": system}
    show_record(record, list(record.items()), form)
