"""`peer explain`: what a query means, without a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peerd.errors import Exit, PeerError
from peerd.parameters import value_of

if TYPE_CHECKING:
    from queries.catalogue import Stream
    from queries.cost import Rates
    from queries.errors import QueryError


@click.command()
@click.argument("query", metavar="QUERY|-")
@click.option(
    "--stream",
    "given",
    multiple=True,
    metavar="'NAME: SCHEMA'",
    help='A stream the query may name, for example "flights: num int, gate string".',
)
@click.option(
    "--streams",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Streams as CREATE STREAM statements.",
)
@click.option(
    "--stats",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What is known of the streams, as peer history --stats -o json tells it: shows what flows.",
)
@click.option("--parameter", "parameters", multiple=True, metavar="VALUE", help='The value of a "?", in order.')
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "dot"]),
    default="text",
    show_default=True,
    help="A tree, JSON, or a graph for dot.",
)
def explain(
    query: str,
    given: tuple[str, ...],
    files: tuple[Path, ...],
    stats: Path | None,
    parameters: tuple[str, ...],
    form: str,
) -> None:
    """Show what a query in SQL or WXQuery means: the types of its columns, its class, its plan.

    It needs no network: say which streams there are.

    \b
        $ peer explain "SELECT a.gate FROM f a, f b WHERE a.num = b.num" --stream "f: num int, gate string"
        class    T1: a join of two streams by one column of each; the DHT can index it
        columns  gate string
        kept     f for 1 d
        Project a.gate
        └── Join a.num = b.num
            ├── Source f AS a
            └── Source f AS b
    """
    from queries import explain as shown
    from queries.errors import QueryError
    from queries.query import parse

    text = sys.stdin.read() if query == "-" else query
    if not given and not files:
        hint = 'For example: --stream "flights: num int, gate string", or --streams FILE.'
        raise PeerError("say which streams there are", hint=hint, exit_code=Exit.MISUSE)
    try:
        streams = _streams(given, files)
        found = parse(text, streams, [value_of(each) for each in parameters])
    except QueryError as error:
        raise bad_text(error) from error
    rates = None if stats is None else _rates(stats)
    match form:
        case "json":
            click.echo(json.dumps(shown.as_json(found, streams, rates), indent=2))
        case "dot":
            click.echo(shown.as_dot(found))
        case _:
            click.echo(shown.as_text(found, streams, None if rates is None else shown.flow_notes(rates)))


def bad_text(error: QueryError) -> PeerError:
    """A query error the way the command line says errors."""
    said = str(error).removesuffix(f"\nhint: {error.hint}")
    return PeerError(said, hint=error.hint or None, exit_code=Exit.MISUSE)


def _streams(given: tuple[str, ...], files: tuple[Path, ...]) -> dict[str, Stream]:
    from queries.catalogue import Stream
    from queries.sql_streams import DropStream, read_all

    streams: dict[str, Stream] = {}
    for path in files:
        for statement in read_all(_read(path)):
            if isinstance(statement, DropStream):
                streams.pop(statement.name, None)
            else:
                streams[statement.name] = statement.stream
    for text in given:
        name, colon, schema = text.partition(":")
        if not colon:
            hint = 'Write name: schema, for example "flights: num int, gate string".'
            raise PeerError(f'"{text}" does not describe a stream', hint=hint, exit_code=Exit.MISUSE)
        from peerd.rows import parse_schema

        streams[name.strip()] = Stream(name.strip(), parse_schema(schema))
    return streams


def _rates(path: Path) -> Rates:
    from queries.cost import Rates
    from queries.statistics import from_json

    try:
        return Rates(from_json(_read(path)))
    except ValueError as error:
        hint = '"peer history QUERY --stats -o json" writes them.'
        raise PeerError(f'"{path}" holds no statistics', detail=str(error), hint=hint, exit_code=Exit.MISUSE) from error


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PeerError(f'"{path}" cannot be read', detail=str(error), exit_code=Exit.MISUSE) from error
