"""The options by which `peer subscribe`, `peer explain` and `peer history` say which query is meant and how it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

import click

from peerd.errors import Exit, PeerError
from peerd.parameters import filled, value_of

if TYPE_CHECKING:
    from peerd.client import QueryEngine

Command = TypeVar("Command", bound=Callable[..., object])
EngineName = Literal["auto", "inline", "spark"]
JoinName = Literal["auto", "sai", "dai-q", "dai-t", "dai-v"]

EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_STREAM: Final = re.compile(r"[^\s<{(]+")  # No query is one word.


def engine_options(command: Command) -> Command:
    """--engine and --join; runs_by() says what they ask for together."""
    engine = click.option(
        "--engine",
        type=click.Choice(get_args(EngineName)),
        default="auto",
        show_default=True,
        help="What runs the query.",
    )
    join = click.option(
        "--join",
        type=click.Choice(get_args(JoinName)),
        default="auto",
        show_default=True,
        help="How a join goes through the DHT; auto: by what is known of its streams.",
    )
    return engine(join(command))


def runs_by(engine: EngineName, join: JoinName) -> QueryEngine:
    """What --engine and --join ask for together."""
    if join != "auto" and engine != "auto":
        hint = "The join index runs a join by itself; leave --engine out."
        raise PeerError("--engine and --join do not go together", hint=hint, exit_code=Exit.MISUSE)
    return engine if join == "auto" else join


def parameter_option(command: Command) -> Command:
    option = click.option(
        "--parameter", "parameters", multiple=True, metavar="VALUE", help='The value of a "?", in order.'
    )
    return option(command)


def with_parameters(text: str, parameters: Sequence[str]) -> str:
    """A query with the values of --parameter in the places of its question marks."""
    return filled(text, [value_of(each) for each in parameters])


def file_option(command: Command) -> Command:
    option = click.option("-f", "--file", type=EXISTING_FILE, metavar="FILE", help="Read the query from a file.")
    return option(command)


def query_text(text: str | None, file: Path | None) -> str | None:
    """The query that was asked for; None for a stream, whose name is one word."""
    if (text is None) == (file is None):
        problem = "name a stream, or write a query" if text is None else "a query comes from a file or from the line"
        raise PeerError(problem, hint='For example: peer subscribe "SELECT * FROM flights".', exit_code=Exit.MISUSE)
    if file is not None:
        try:
            return file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise PeerError(f'"{file}" cannot be read', detail=str(error), exit_code=Exit.MISUSE) from error
    if text == "-":
        return sys.stdin.read()
    assert text is not None
    return None if _STREAM.fullmatch(text) else text
