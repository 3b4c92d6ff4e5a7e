"""`peer history`: a query over what streams have kept, or over files of it; and what these tell of the streams."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.cli.common import client_for, target_options
from peerd.cli.output import Column, chosen_form, output_option, show_rows
from peerd.cli.query_options import file_option, parameter_option, query_text, with_parameters
from peerd.cli.subscribe import since_of
from peerd.cli.writers import writer_for
from peerd.errors import Exit, PeerError
from peerd.words import count as counted

if TYPE_CHECKING:
    from peerd.client import Client
    from queries.catalogue import Stream
    from queries.cost import StreamRates
    from queries.query import ParsedQuery
    from queries.schema import Field, Schema
    from spark_jobs.recordings import Recording

PROGRESS_EVERY_S: Final = 0.5
_COUNT_BITS: Final = 16

_FIELD_COLUMNS: Final = (
    Column("stream", lambda row: str(row["stream"])),
    Column("tuples/s", lambda row: _number(row["rate_per_s"]), right=True),
    Column("bytes/tuple", lambda row: _number(row["stream_bytes"]), right=True),
    Column("field", lambda row: str(row["field"])),
    Column("bytes", lambda row: _number(row["row_bytes"]), right=True),
    Column("nulls", lambda row: f"{row['nulls']:.0%}" if row["nulls"] else "", right=True),
    Column("distinct", lambda row: _number(row["distinct"]), right=True),
    Column("lowest", lambda row: _end(row["low"], row["type"]), right=True),
    Column("highest", lambda row: _end(row["high"], row["type"]), right=True),
    Column("frequent", lambda row: ", ".join(f"{value} {share:.0%}" for value, share in row["frequent"].items())),
)


@click.command()
@click.argument("text", metavar="[QUERY|-]", required=False)
@target_options
@file_option
@click.option(
    "--from", "since", metavar="T", help='Tuples published from then on: "start" (default), an age like 24h, a date.'
)
@click.option("--to", "until", metavar="T", help='Up to then: "now" (default), an age, a date.')
@click.option(
    "--export",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the tuples there, a Parquet file for each stream.",
)
@click.option(
    "--parquet",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Read tuples that --export has kept; needs no network.",
)
@click.option("--stats", is_flag=True, help="Tell about the streams instead; -o json is for peer explain --stats.")
@parameter_option
@click.option("--memory", type=click.IntRange(min=512), default=512, show_default=True, help="Heap of Spark, in MB.")
@output_option
def history(
    text: str | None,
    data_dir: Path | None,
    number: int | None,
    file: Path | None,
    since: str | None,
    until: str | None,
    export: Path | None,
    parquet: Path | None,
    stats: bool,
    parameters: tuple[str, ...],
    memory: int,
    form: str | None,
) -> None:
    """Try a query on the past: on tuples that streams have kept, all at once, as a batch job in Spark.

    It brings what the query would have brought, had it begun at --from and had everything been complete at --to. Which
    tuples these are goes by when they were published. Nothing is left running.

    \b
        $ peer history "SELECT flight, delay FROM flights WHERE delay > 30" --from 24h
        $ peer history "SELECT * FROM flights" --export yesterday --from 48h --to 24h -o csv
        $ peer history "SELECT count(*) FROM flights [RANGE 1 HOUR]" --parquet yesterday
        $ peer history "SELECT * FROM flights" --parquet yesterday --stats -o json > flights.json
    """
    query = query_text(text, file)
    if query is None:
        query = " ".join(("SELECT * FROM", str(text)))  # One word is a stream, as in peer subscribe.
    wrong = "--from" if since else "--to" if until else "--export" if export else None
    if parquet is not None and wrong is not None:
        raise PeerError(f"--parquet and {wrong} do not go together", exit_code=Exit.MISUSE)
    query = with_parameters(query, parameters)
    progress = _Progress()
    with _folder() as work:
        if parquet is None:
            client = client_for(data_dir, number)
            recordings, found = _gathered(client, query, since, until, _kept_in(export) or work, progress)
        else:
            recordings, found = _exported(parquet, query)
        if stats:
            _show_statistics(recordings, form)
        else:
            _show_results(found, recordings, work, memory, form, progress)


def _show_results(
    query: ParsedQuery,
    recordings: Mapping[str, Recording],
    work: Path,
    memory: int,
    form: str | None,
    progress: _Progress,
) -> None:
    from queries.plan import Restructure, output_schema
    from queries.spark_forms import NoForm
    from spark_jobs.history import results_of
    from spark_jobs.session import NoSession

    envelope = query.plan.envelope if isinstance(query.plan, Restructure) else ()
    shown = 0
    try:
        results = results_of(query.plan, recordings, work, memory, progress.say)
        first = next(results, None)
        writer = writer_for(output_schema(query.plan), form, envelope)
        while first is not None:
            writer.write(first)
            shown += 1
            first = next(results, None)
        writer.close()
    except NoSession as error:
        hint = '"peer doctor" looks for Java; "make java" installs one beside this Python.'
        raise PeerError(
            "a query over the past needs Spark, and there is none here", detail=str(error), hint=hint
        ) from error
    except NoForm as error:
        hint = "The daemon and the reference evaluator know it; Spark does not."
        raise PeerError(f"Spark has no form for this query: {error}", hint=hint, exit_code=Exit.MISUSE) from error
    progress.say(counted(shown, "result"))


# The tuples.


def _gathered(
    client: Client, text: str, since: str | None, until: str | None, folder: Path, progress: _Progress
) -> tuple[dict[str, Recording], ParsedQuery]:
    """What the network has kept of the streams of a query."""
    from peerd.history import Gathering
    from queries.decimals import BOUNDS
    from queries.plan import sources
    from spark_jobs.recordings import open_all

    begin, end = since_of(since or "start"), since_of(until or "now")
    if begin == "now" or end == "start":
        wrong = "--from now" if begin == "now" else "--to start"
        raise PeerError(f"{wrong} leaves no past to read", exit_code=Exit.MISUSE)
    end = int(time.time() * 1000) << _COUNT_BITS if end == "now" else end
    if begin != "start" and begin > end:
        raise PeerError("--from is later than --to", exit_code=Exit.MISUSE)
    last = end | ((1 << _COUNT_BITS) - 1)

    async def work() -> ParsedQuery:
        async with client:
            definitions = {each.name: each for each in await client.streams()}
            found = _parsed(text, {name: each.stream() for name, each in definitions.items()})
            wanted = dict.fromkeys(each.stream for each in sources(found.plan))
            gathering = Gathering(client, folder, begin, last)
            gathering.on_rows = lambda: progress.now_and_then(
                f"read {counted_rows(sum(gathering.rows.values()))} so far"
            )
            await gathering.gather([definitions[name] for name in wanted])
        for name, rows in gathering.rows.items():
            gone = gathering.missed[name]
            lost = f"; {counted_rows(gone)} of that time {'is' if gone == 1 else 'are'} kept no longer" if gone else ""
            other = gathering.unfit[name]
            left_out = f"; {counted_rows(other)} not read, as a decimal has {BOUNDS}" if other else ""
            progress.say(f'stream "{name}": {counted_rows(rows)}{lost}{left_out}')
        return found

    query = asyncio.run(work())
    recordings = open_all(folder)
    if not any(each.rows for each in recordings.values()):
        raise PeerError(
            "nothing is kept of that time",
            detail=", ".join(f'Stream "{name}" is kept for {_span(each.stream)}' for name, each in recordings.items())
            + ".",
            hint='"peer stream show" tells what was published; --from start reads all there is.',
            exit_code=Exit.NOT_FOUND,
        )
    return recordings, query


def _exported(folder: Path, text: str) -> tuple[dict[str, Recording], ParsedQuery]:
    """What files have kept of the streams of a query."""
    from queries.plan import sources
    from spark_jobs.recordings import NoRecording, open_all

    try:
        recordings = open_all(folder)
    except NoRecording as error:
        raise PeerError(str(error), exit_code=Exit.MISUSE) from error
    if not recordings:
        hint = '"peer history QUERY --export DIR" writes it.'
        raise PeerError(f'there is no recording in "{folder}"', hint=hint, exit_code=Exit.NOT_FOUND)
    query = _parsed(text, {name: each.stream for name, each in recordings.items()})
    named = dict.fromkeys(each.stream for each in sources(query.plan))
    return {name: recordings[name] for name in named}, query


def _parsed(text: str, streams: Mapping[str, Stream]) -> ParsedQuery:
    from peerd.cli.explain import bad_text
    from queries.errors import QueryError
    from queries.query import parse

    try:
        return parse(text, streams)
    except QueryError as error:
        raise bad_text(error) from error


def _kept_in(export: Path | None) -> Path | None:
    """The folder for files that stay: made, and empty of recordings."""
    if export is None:
        return None
    try:
        export.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PeerError(f'"{export}" cannot be made', detail=str(error), exit_code=Exit.MISUSE) from error
    if any(export.glob("*.parquet")):
        hint = "Choose another, or remove them: tuples of two times would be mixed."
        raise PeerError(f'there are recordings in "{export}" already', hint=hint, exit_code=Exit.MISUSE)
    return export


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for what lies between, which goes with the command."""
    path = Path(tempfile.mkdtemp(prefix="peer-history-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# What is shown.


def _show_statistics(recordings: Mapping[str, Recording], form: str | None) -> None:
    from queries.statistics import to_json
    from spark_jobs.statistics import all_statistics

    known = all_statistics(recordings)
    if chosen_form(form) == "json":
        sys.stdout.write(to_json(known).decode() + "\n")
        return
    schemas = {name: each.stream.schema for name, each in recordings.items()}
    rows = [row for name, each in known.items() for row in _field_rows(name, schemas[name], each)]
    show_rows(rows, _FIELD_COLUMNS, form)


def _field_rows(name: str, schema: Schema, known: StreamRates) -> Iterator[dict[str, Any]]:
    for path, column in known.columns.items():
        yield {
            "stream": name,
            "rate_per_s": known.rate_per_s,
            "stream_bytes": known.row_bytes,
            "field": ".".join(path),
            "type": _type_of(schema.fields, path),
            "row_bytes": column.row_bytes,
            "nulls": column.nulls,
            "distinct": column.distinct,
            "low": column.low,
            "high": column.high,
            "increment": column.increment,
            "frequent": dict(column.frequent),
        }


def _type_of(fields: Sequence[Field], path: tuple[str, ...]) -> str:
    field = next(each for each in fields if each.name == path[0])
    return field.type if len(path) == 1 else _type_of(field.fields, path[1:])


def _end(value: float | None, kind: str) -> str:
    if value is None or kind != "timestamp":
        return _number(value)
    return datetime.fromtimestamp(value / 1_000_000, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def counted_rows(rows: int) -> str:
    return f"{rows:,} tuple{'' if rows == 1 else 's'}"


def _span(stream: Stream) -> str:
    from peerd.words import span

    return span(stream.retention_ms / 1000)


class _Progress:
    """Says on stderr what goes on, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._said_at = self._began_at

    def say(self, what: str) -> None:
        self._said_at = time.monotonic()
        click.echo(f"{self._said_at - self._began_at:5.1f} s  {what}", err=True)

    def now_and_then(self, what: str) -> None:
        if time.monotonic() - self._said_at >= PROGRESS_EVERY_S:
            self.say(what)
