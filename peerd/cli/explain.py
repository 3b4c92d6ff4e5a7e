"""`peer explain`: what a query means, and with a network also who would run it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peerd.cli.common import client_for, read_span, target, target_options
from peerd.cli.query_options import (
    EXISTING_FILE,
    EngineName,
    JoinName,
    engine_options,
    parameter_option,
    runs_by,
    with_parameters,
)
from peerd.errors import Exit, PeerError
from peerd.parameters import value_of

if TYPE_CHECKING:
    from peerd.client import QueryEngine
    from queries.catalogue import Stream
    from queries.cost import Rates
    from queries.errors import QueryError
    from queries.sql_streams import AlterStream


@click.command()
@click.argument("query", metavar="QUERY|NAME|-")
@target_options
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
    type=EXISTING_FILE,
    metavar="FILE",
    help="Streams as CREATE STREAM statements.",
)
@click.option(
    "--stats",
    type=EXISTING_FILE,
    metavar="FILE",
    help="What is known of the streams, as peer history --stats -o json tells it: shows what flows.",
)
@click.option(
    "--why", is_flag=True, help="Where it runs, or would, on the network, and what other placements would cost."
)
@click.option(
    "--analyze",
    "analyze_s",
    callback=read_span,
    metavar="TIME",
    help="Watch it for so long, for example 10s, and tell what flowed; a text is run for that, and stopped.",
)
@parameter_option
@engine_options
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
    data_dir: Path | None,
    number: int | None,
    given: tuple[str, ...],
    files: tuple[Path, ...],
    stats: Path | None,
    why: bool,
    analyze_s: float | None,
    parameters: tuple[str, ...],
    engine: EngineName,
    join: JoinName,
    form: str,
) -> None:
    """Show what a query in SQL or WXQuery means: the types of its columns, its class, its plan.

    With streams given it needs no network. Otherwise it shows which peers and engines would run the query, submitted
    at this peer now, and what would flow between its operators, by what is known of its streams. One word is the name
    of a query that runs here. With --analyze it is counted what does flow, and in the join index what a tuple costs.

    \b
        $ peer explain "SELECT a.gate FROM f a, f b WHERE a.num = b.num" --stream "f: num int, gate string"
        class    T1: a join of two streams by one column of each; the DHT can index it
        columns  gate string
        kept     f for 1 d
        Project a.gate
        └── Join a.num = b.num
            ├── Source f AS a
            └── Source f AS b
        index    at f.num and f.num; messages per tuple to evaluators: sai 1 (auto), dai-q 2, dai-t 2, dai-v 1
    """
    text = sys.stdin.read() if query == "-" else query
    how = runs_by(engine, join)
    if why or analyze_s is not None:
        _look_closer(text, parameters, data_dir, number, how, analyze_s, form, offline=bool(given or files or stats))
        return
    if not given and not files:
        if stats is not None or form == "dot":
            wrong = "--stats" if stats is not None else "--format dot"
            hint = 'For example: --stream "flights: num int, gate string", or --streams FILE.'
            raise PeerError(f"{wrong} needs to be told which streams there are", hint=hint, exit_code=Exit.MISUSE)
        _explain_live(with_parameters(text, parameters), data_dir, number, how, form)
        return
    _explain_offline(text, parameters, given, files, stats, form)


def _explain_offline(
    text: str,
    parameters: tuple[str, ...],
    given: tuple[str, ...],
    files: tuple[Path, ...],
    stats: Path | None,
    form: str,
) -> None:
    """What the text means over the streams that the options describe."""
    from protocols.join_index import explain as indexed
    from queries import explain as shown
    from queries.errors import QueryError
    from queries.query import parse

    try:
        streams = _streams(given, files)
        found = parse(text, streams, [value_of(each) for each in parameters])
    except QueryError as error:
        raise bad_text(error) from error
    rates = None if stats is None else _rates(stats)
    match form:
        case "json":
            record = shown.as_json(found, streams, rates) | {"index": indexed.as_json(found.plan)}
            click.echo(json.dumps(record, indent=2))
        case "dot":
            click.echo(shown.as_dot(found))
        case _:
            click.echo(shown.as_text(found, streams, None if rates is None else shown.flow_notes(rates)))
            if said := indexed.as_text(found.plan):
                click.echo(said)


def _look_closer(
    text: str,
    parameters: tuple[str, ...],
    data_dir: Path | None,
    number: int | None,
    how: QueryEngine,
    analyze_s: float | None,
    form: str,
    *,
    offline: bool,
) -> None:
    """--why, or --analyze: both ask the network."""
    option = "--why" if analyze_s is None else "--analyze"
    if offline or form == "dot":
        wrong = "--format dot" if form == "dot" else "--stream, --streams and --stats"
        raise PeerError(f"{option} asks the network; leave out {wrong}", exit_code=Exit.MISUSE)
    asked, shape = with_parameters(text, parameters), "json" if form == "json" else "table"
    if analyze_s is None:
        from peerd.cli import explain_why

        explain_why.why(asked, data_dir, number, shape)
    else:
        from peerd.cli import explain_analyze

        explain_analyze.analyze(asked, data_dir, number, how, analyze_s, shape)


def _explain_live(text: str, data_dir: Path | None, number: int | None, engine: QueryEngine, form: str) -> None:
    from peerd.cli import explain_live
    from queries.errors import QueryError

    async def work() -> explain_live.Explained:
        async with client_for(data_dir, number) as client:
            if len(text.split()) == 1:
                return await explain_live.running(client, text)
            return await explain_live.planned(client, text, engine, len(members))

    try:
        members = [each for each in target(data_dir, number).get("/members", crawl=0) if each["status"] == "alive"]
        explain_live.show(asyncio.run(work()), form)
    except QueryError as error:
        raise bad_text(error) from error
    except PeerError as error:
        if error.exit_code != Exit.UNREACHABLE:
            raise
        hint = f'Without a network, say which streams there are: --stream "f: num int, gate string". {error.hint or ""}'
        raise PeerError(error.error, detail=error.detail, hint=hint.strip(), exit_code=error.exit_code) from error


def bad_text(error: QueryError) -> PeerError:
    """A query error the way the command line says errors."""
    said = str(error).removesuffix(f"\nhint: {error.hint}")
    return PeerError(said, hint=error.hint or None, exit_code=Exit.MISUSE)


def _altered(streams: dict[str, Stream], statement: AlterStream) -> Stream:
    import msgspec

    stream = streams.get(statement.name)
    if stream is None:
        raise PeerError(f'stream "{statement.name}" is altered before it is created', exit_code=Exit.MISUSE)
    try:
        return msgspec.structs.replace(stream, schema=statement.applied(stream.schema))
    except ValueError as error:
        raise PeerError(f'stream "{statement.name}": {error}', exit_code=Exit.MISUSE) from error


def _streams(given: tuple[str, ...], files: tuple[Path, ...]) -> dict[str, Stream]:
    from queries.catalogue import Stream
    from queries.sql_streams import CreateStream, DropStream, read_all

    streams: dict[str, Stream] = {}
    for path in files:
        for statement in read_all(_read(path)):
            if isinstance(statement, DropStream):
                streams.pop(statement.name, None)
            elif isinstance(statement, CreateStream):
                streams[statement.name] = statement.stream
            else:
                streams[statement.name] = _altered(streams, statement)
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
