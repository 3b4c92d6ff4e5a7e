"""How a command ends: exit codes, errors in our shape on stderr, and no traceback for Ctrl-C or a closed pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from peerd.errors import Exit, PeerError

INTERRUPTED: Final = 130  # As shells count it: 128 + SIGINT.
_COLOURS: Final = {"error": "red", "detail": "bright_black", "hint": "cyan"}


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a click command as this process's whole purpose."""
    try:
        result = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except PeerError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        show_error(_misuse(error, name))
        sys.exit(Exit.MISUSE)
    except click.ClickException as error:
        show_error(PeerError(error.format_message()))
        sys.exit(Exit.FAILED)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Nobody reads our output any more; the interpreter must not try to flush it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.FAILED)
    # Without standalone mode click returns the code of ctx.exit(), or what the command returned.
    sys.exit(result if isinstance(result, int) else Exit.DONE)


def show_error(error: PeerError) -> None:
    for line in str(error).splitlines():
        label, colon, rest = line.partition(": ")
        if colon and label in _COLOURS:
            line = click.style(f"{label}:", fg=_COLOURS[label], bold=label == "error") + f" {rest}"
        click.echo(line, err=True)


def _misuse(error: click.UsageError, name: str) -> PeerError:
    """A click error in our form."""
    message = error.format_message().rstrip(".")
    path = error.ctx.command_path if error.ctx else name
    hint = getattr(error, "hint", None) or f'"{path} --help" shows how to use it.'
    return PeerError(message[:1].lower() + message[1:], hint=hint)
