"""The commands about streams: `peer stream create`, `alter`, `ls`, `show`, `dead`, `rm`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.cli.common import client_for, read_span, target_options
from peerd.cli.output import Column, Row, chosen_form, output_option, show_record, show_rows
from peerd.errors import Exit, PeerError
from peerd.words import ago, count, megabytes, span

if TYPE_CHECKING:
    from protocols.catalogue.events import DerivedEntry
    from protocols.catalogue.messages import PublisherShown
    from protocols.catalogue.streams import StreamDefinition
    from protocols.delivery.messages import DeadLetter
    from protocols.sharing.messages import SharedShown
    from queries.schema import Schema
    from queries.sql_streams import AlterStream

SHORT_ID: Final = 8

_STREAM_COLUMNS: Final = (
    Column("stream", lambda row: str(row["name"])),
    Column("durability", lambda row: str(row["durability"])),
    Column("retention", lambda row: span(row["retention_s"])),
    Column("created", lambda row: ago(time.time() - row["created_at"])),
    Column("schema", lambda row: str(row["schema"])),
)
_DERIVED_COLUMNS: Final = (
    Column("stream", lambda row: str(row["name"])),
    Column("made by", lambda row: str(row["host"])[:SHORT_ID]),
    Column("for query", lambda row: str(row["query"]).rpartition(".")[0]),
    Column("tuples/s", lambda row: f"{row['rate_per_s']:,.1f}", right=True),
    Column("schema", lambda row: str(row["schema"])),
)


def _sources_of(row: Row) -> str:
    """From whom a stream comes, where that is not its publishers alone."""
    relays = [each["peer_id"][:SHORT_ID] for each in row["relays"]]
    relayed = sum(each["publishers"] for each in row["relays"])
    return ", ".join([*relays, *(["publishers"] if relayed < row["publishers"] or not relays else [])])


_SHARED_COLUMNS: Final = (
    Column("stream", lambda row: str(row["stream"])),
    Column("taps", lambda row: f"{row['taps']:,}", right=True),
    Column("alone", lambda row: f"{row['alone']:,}", right=True),
    Column("publishers", lambda row: f"{row['publishers']:,}", right=True),
    Column("selections", lambda row: "all" if row["conjunctions"] is None else f"{row['conjunctions']:,}", right=True),
    Column("columns", lambda row: "all" if row["columns"] is None else f"{row['columns']:,}", right=True),
    Column("from", _sources_of),
    Column("guests", lambda row: f"{row['guests']:,}", right=True),
    Column("read", lambda row: megabytes(row["bytes_read"]), right=True),
    Column("saved", lambda row: megabytes(row["bytes_saved"]), right=True),
    Column("windows", lambda row: f"{row['windows']:,}", right=True),
    Column("slices", lambda row: f"{row['slices']:,}", right=True),
)
_PUBLISHER_COLUMNS: Final = (
    Column("publisher", lambda row: str(row["peer_id"])[:SHORT_ID]),
    Column("accepted", lambda row: f"{row['accepted']:,}", right=True),
    Column("processed", lambda row: f"{row['processed']:,}", right=True),
    Column("pending", lambda row: f"{row['pending']:,}", right=True),
    Column("dead", lambda row: f"{row['dead_lettered']:,}", right=True),
    Column("expired", lambda row: f"{row['expired']:,}", right=True),
    Column("tuples/s", lambda row: f"{row['rate_per_s']:,.1f}", right=True),
    Column("bytes/tuple", lambda row: f"{row['row_bytes']:,.0f}", right=True),
    Column("backup", lambda row: str(row["backup"] or "-")[:SHORT_ID]),
)
_DEAD_COLUMNS: Final = (
    Column("subscription", lambda row: str(row["subscription"])),
    Column("publisher", lambda row: str(row["peer_id"])[:SHORT_ID]),
    Column("tuple", lambda row: str(row["sequence"]), right=True),
    Column("put aside", lambda row: ago(time.time() - row["at"])),
    Column("reason", lambda row: str(row["reason"])),
    Column("row", lambda row: json.dumps(row["row"])),
)


@click.group()
def stream() -> None:
    """Create, alter, list, show and remove streams.

    \b
        $ peer stream create flights "id int, flight string, at timestamp, delay float null"
        $ peer stream ls
    """


@stream.command()
@click.argument("name", metavar="NAME|STATEMENT")
@click.argument("schema", required=False)
@target_options
@click.option(
    "--durability",
    type=click.Choice(["memory", "disk", "replicated"]),
    default="disk",
    show_default=True,
    help="What an acknowledgement means: received, on disk, or on two disks.",
)
@click.option(
    "--retention", "retention_s", callback=read_span, default="24h", show_default=True, help="How long tuples are kept."
)
@click.option("--event-time", metavar="FIELD", help="The field that says when a tuple happened.")
@click.option(
    "--lateness", "lateness_s", callback=read_span, default="0s", help="How late by event time tuples may be."
)
@click.option(
    "--idle",
    "idle_s",
    callback=read_span,
    default="0s",
    help="A publisher that is silent for so long counts as finished, so the last windows close [never].",
)
@click.option(
    "--policy",
    type=click.Choice(["block", "drop-oldest"]),
    default="block",
    show_default=True,
    help="When a stream in memory is full: let publishers wait, or drop the oldest tuples.",
)
@click.pass_context
def create(
    ctx: click.Context,
    /,
    name: str,
    schema: str | None,
    data_dir: Path | None,
    number: int | None,
    retention_s: float,
    lateness_s: float,
    idle_s: float,
    **promises: Any,
) -> None:
    """Create a stream: a name, and a schema of names and types; or all of it as one statement.

    Types: int, float, decimal, string, bool, timestamp, bytes, record(...); with "null" behind one, it may be missing.

    \b
        $ peer stream create flights "id int, flight string, at timestamp, delay float null"
        $ peer stream create "CREATE STREAM flights (id int, at timestamp) WITH (event_time = at, retention = 1h)"
    """
    definition: dict[str, Any] = {
        "name": name,
        "schema": schema,
        "retention_ms": int(retention_s * 1000),
        "lateness_ms": int(lateness_s * 1000),
        "idle_ms": int(idle_s * 1000),
        **promises,
    }
    if schema is None:
        definition = _stated(ctx, name)

    async def work() -> None:
        async with client_for(data_dir, number) as client:
            done = await client.create_stream(**definition)
        click.echo(f'stream "{definition["name"]}" created, its definition on {count(done.replicas, "peer")}', err=True)
        if done.replicas < 2:
            click.echo("note: with one peer, what is lost with its disk is lost", err=True)

    asyncio.run(work())


@stream.command()
@click.argument("name", metavar="NAME|STATEMENT")
@click.argument("change", required=False)
@target_options
def alter(name: str, change: str | None, data_dir: Path | None, number: int | None) -> None:
    """Add a column to a stream, or drop one that nobody reads. Running queries go on.

    In rows from before, a column that was added is null.

    \b
        $ peer stream alter flights "ADD COLUMN delay float NULL"
        $ peer stream alter "ALTER STREAM flights DROP COLUMN gate"
    """
    statement = _change(name, change)

    async def work() -> int:
        async with client_for(data_dir, number) as client:
            await client.alter_stream(statement.name, add=statement.adds, drop=statement.drops)
            return (await client.stream(statement.name)).definition.version

    version = asyncio.run(work())
    click.echo(f'stream "{statement.name}" altered: its columns have version {version}', err=True)


@stream.command()
@click.option("--derived", is_flag=True, help="Those that parts of running queries make for each other.")
@click.option("--shared", is_flag=True, help="Those that this peer reads for queries, once for all of them.")
@target_options
@output_option
def ls(derived: bool, shared: bool, data_dir: Path | None, number: int | None, form: str | None) -> None:
    """List the streams of the network.

    \b
        $ peer stream ls
        stream   durability  retention  created  schema
        flights  disk        1d         2m ago   id int, flight string, at timestamp, delay float null
    """

    if derived:
        _list_derived(data_dir, number, form)
        return
    if shared:
        _list_shared(data_dir, number, form)
        return

    async def work() -> list[StreamDefinition]:
        async with client_for(data_dir, number) as client:
            return await client.streams()

    streams = asyncio.run(work())
    if not streams and chosen_form(form) == "table":
        click.echo('there are no streams yet; "peer stream create" makes one', err=True)
        return
    show_rows([_stream_row(each) for each in streams], _STREAM_COLUMNS, form)


@stream.command()
@click.argument("name")
@target_options
@output_option
def show(name: str, data_dir: Path | None, number: int | None, form: str | None) -> None:
    """Show one stream: its promises, who publishes to it, and what became of the tuples.

    Of every publisher, accepted = processed + pending + dead + expired.

    \b
        $ peer stream show flights
    """

    async def work() -> Any:
        async with client_for(data_dir, number) as client:
            return await client.stream(name)

    shown = asyncio.run(work())
    row = _stream_row(shown.definition)
    publishers = [_publisher_row(each) for each in shown.publishers]
    facts = [
        ("stream", name),
        ("schema", row["schema"]),
        ("version", str(row["version"])),
        ("durability", row["durability"]),
        ("retention", span(row["retention_s"])),
        ("event time", row["event_time"] or "-"),
        ("policy", row["policy"]),
        ("created", ago(time.time() - row["created_at"])),
        ("subscriptions", str(shown.subscriptions)),
    ]
    record = {**row, "subscriptions": shown.subscriptions, "publishers": publishers}
    show_record(record, facts, form)
    if chosen_form(form) == "table" and publishers:
        click.echo()
        show_rows(publishers, _PUBLISHER_COLUMNS, form)


@stream.command()
@click.argument("name")
@click.option("--name", "subscription", metavar="NAME", default="", help="Of this subscription alone.")
@target_options
@output_option
def dead(name: str, subscription: str, data_dir: Path | None, number: int | None, form: str | None) -> None:
    """List the dead letters of this peer's subscriptions: tuples that their clients could not process.

    A tuple is tried three times, then put aside. The newest come first; the first line counts all there were.

    \b
        $ peer stream dead flights --name dashboard
    """

    async def work() -> tuple[int, list[Row]]:
        async with client_for(data_dir, number) as client:
            schema = await client.schema(name)
            found = await client.dead_letters(name, subscription)
        rows = [_dead_row(each.subscription, letter, schema) for each in found for letter in each.letters]
        return sum(each.count for each in found), rows

    total, rows = asyncio.run(work())
    click.echo(f'stream "{name}": {count(total, "dead letter")} at this peer, {len(rows)} shown', err=True)
    if rows or chosen_form(form) != "table":
        show_rows(rows, _DEAD_COLUMNS, form)


@stream.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also while it is read.")
@target_options
def rm(name: str, force: bool, data_dir: Path | None, number: int | None) -> None:
    """Remove a stream, with its tuples. Refused while queries or kept subscriptions read it.

    \b
        $ peer stream rm flights
    """

    async def work() -> None:
        async with client_for(data_dir, number) as client:
            await client.drop_stream(name, force=force)

    asyncio.run(work())
    click.echo(f'stream "{name}" removed', err=True)


def _list_derived(data_dir: Path | None, number: int | None, form: str | None) -> None:
    async def work() -> list[DerivedEntry]:
        async with client_for(data_dir, number) as client:
            return await client.derived_streams()

    streams = asyncio.run(work())
    if not streams and chosen_form(form) == "table":
        click.echo("no part of a query makes a stream for another now", err=True)
        return
    show_rows([_derived_row(each) for each in streams], _DERIVED_COLUMNS, form)


def _list_shared(data_dir: Path | None, number: int | None, form: str | None) -> None:
    async def work() -> list[SharedShown]:
        async with client_for(data_dir, number) as client:
            return await client.shared_streams()

    streams = asyncio.run(work())
    if not streams and chosen_form(form) == "table":
        click.echo("this peer reads no stream for a query now", err=True)
        return
    rows: list[Row] = [
        {name: getattr(each, name) for name in each.__struct_fields__}
        | {"relays": [{"peer_id": peer.hex(), "publishers": count} for peer, count in each.relays]}
        for each in streams
    ]
    show_rows(rows, _SHARED_COLUMNS, form)


def _stated(ctx: click.Context, text: str) -> dict[str, Any]:
    """What CREATE STREAM … says; its WITH takes the place of the flags."""
    import msgspec

    from peerd.cli.explain import bad_text
    from queries.errors import QueryError
    from queries.sql_streams import AlterStream, CreateStream, read

    if len(text.split()) < 2:
        example = f'peer stream create {text} "id int, at timestamp"'
        raise PeerError(f'stream "{text}" needs a schema', hint=f"For example: {example}", exit_code=Exit.MISUSE)
    for flag in ("durability", "retention_s", "event_time", "lateness_s", "idle_s", "policy"):
        if ctx.get_parameter_source(flag) is click.core.ParameterSource.COMMANDLINE:
            option = flag.removesuffix("_s").replace("_", "-")
            problem = f"--{option} does not go with a statement"
            hint = f"Write it into the statement: WITH ({option.replace('-', '_')} = …)."
            raise PeerError(problem, hint=hint, exit_code=Exit.MISUSE)
    try:
        statement = read(text)
    except QueryError as error:
        raise bad_text(error) from error
    if isinstance(statement, AlterStream):
        hint = f"peer stream alter '{text}'"
        raise PeerError("ALTER STREAM does not create a stream", hint=hint, exit_code=Exit.MISUSE)
    if not isinstance(statement, CreateStream):
        hint = f'"peer stream rm {statement.name}" removes it.'
        raise PeerError("DROP STREAM does not create a stream", hint=hint, exit_code=Exit.MISUSE)
    return msgspec.structs.asdict(statement)


def _change(name: str, change: str | None) -> AlterStream:
    from peerd.cli.explain import bad_text
    from queries.errors import QueryError
    from queries.sql_streams import AlterStream, read, read_change

    if change is None and len(name.split()) < 2:
        example = f'peer stream alter {name} "ADD COLUMN delay float NULL"'
        raise PeerError(f'what to alter of stream "{name}"?', hint=f"For example: {example}", exit_code=Exit.MISUSE)
    try:
        statement = read(name) if change is None else read_change(name, change)
    except QueryError as error:
        raise bad_text(error) from error
    if not isinstance(statement, AlterStream):
        raise PeerError("only ALTER STREAM alters a stream", exit_code=Exit.MISUSE)
    return statement


def _stream_row(definition: StreamDefinition) -> Row:
    from protocols.clock import wall_ms

    return {
        "name": definition.name,
        "schema": str(definition.current),
        "version": definition.version,
        "durability": definition.durability,
        "retention_s": definition.retention_ms / 1000,
        "event_time": definition.event_time,
        "lateness_s": definition.lateness_ms / 1000,
        "idle_s": definition.idle_ms / 1000 or None,
        "policy": definition.policy,
        "created_at": wall_ms(definition.created_at) / 1000,
    }


def _derived_row(entry: DerivedEntry) -> Row:
    return {
        "name": entry.name,
        "host": entry.host.hex(),
        "rate_per_s": entry.rate_per_s,
        "query": entry.query,
        "subgraph": entry.number,
        "schema": str(entry.schema),
    }


def _dead_row(subscription: str, letter: DeadLetter, schema: Schema) -> Row:
    batch = letter.batch
    return {
        "subscription": subscription,
        "peer_id": batch.origin.publisher.hex(),
        "epoch": batch.origin.epoch,
        "sequence": batch.first,
        "at": letter.at / 1000,
        "reason": letter.reason,
        "row": schema.to_json(schema.decode(batch.rows)[0]),
    }


def _publisher_row(publisher: PublisherShown) -> Row:
    statistics = publisher.statistics
    return {
        "peer_id": publisher.peer.hex(),
        "epoch": publisher.epoch,
        "backup": publisher.backup.hex() if publisher.backup else None,
        "accepted": publisher.accepted,
        "processed": publisher.processed,
        "pending": publisher.pending,
        "dead_lettered": publisher.dead_lettered,
        "expired": publisher.expired,
        "rate_per_s": statistics.rate_per_s if statistics else 0.0,
        "row_bytes": statistics.row_bytes if statistics else 0.0,
        "fields": {
            each.name: {"distinct": each.distinct, "frequent": dict(each.frequent)}
            for each in (statistics.fields if statistics else ())
        },
        "quantiles": {".".join(each.path): each.quantiles for each in (statistics.numbers if statistics else ())},
    }
