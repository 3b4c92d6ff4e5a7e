"""`peer publish`: tuples from the command line, a file or stdin, as JSON or CSV, into a stream.

Input is read as it comes, so a pipe that speaks once a minute is published once a minute. Every tuple is checked before
it is sent: a bad one is named by its line, and what was published before it is told.
"""

from __future__ import annotations

import asyncio
import codecs
import csv
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from peerd.cli.common import client_for, target_options
from peerd.errors import Exit, PeerError
from peerd.words import count as counted

if TYPE_CHECKING:
    from peerd.client import Client
    from queries.schema import Schema

BATCH_ROWS: Final = 100
BATCHES_PER_S: Final = 20  # At least, with --rate: a slow flow does not wait for a full batch.
CHUNK_BYTES: Final = 1 << 16
PROGRESS_EVERY_S: Final = 0.25


class BadLine(Exception):
    """A line of the input that is not a tuple of the stream."""

    def __init__(self, line: int, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem
        self.hint = hint


def _read_time(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    """A point in time, as in tuples."""
    from queries.casts import read_timestamp

    if text is None:
        return None
    read: datetime | None = read_timestamp(text)
    if read is None:
        raise click.BadParameter(f'"{text}" is not a time; for example 2026-05-01T12:00:00Z')
    return read


@click.command()
@click.argument("stream")
@click.argument("data", required=False, metavar="[JSON|-]")
@target_options
@click.option("-f", "--file", type=click.Path(path_type=Path), metavar="FILE", help="Read tuples from a file.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["json", "csv"]),
    help="Of the input [csv for *.csv, else json, one per line].",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="R", help="Publish R tuples per second.")
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="Publish N tuples; JSON or a file starts over at its end."
)
@click.option("--no-ack", is_flag=True, help="Do not wait to hear that the tuples are safe.")
@click.option("--skip-bad", is_flag=True, help="Report bad lines and go on.")
@click.option("--done", is_flag=True, help="Then say that no more comes from this peer: the last windows close.")
@click.option(
    "--done-before",
    metavar="TIME",
    callback=_read_time,
    help="Then say that no more comes from before this event time.",
)
def publish(
    stream: str,
    data: str | None,
    data_dir: Path | None,
    number: int | None,
    file: Path | None,
    kind: str | None,
    rate: float | None,
    count: int | None,
    no_ack: bool,
    skip_bad: bool,
    done: bool,
    done_before: datetime | None,
) -> None:
    """Publish tuples to a stream.

    JSON is an object, or an array of the values in order; from a file or stdin, one on each line. CSV begins with a
    line of names. When the command ends without an error, every tuple is as safe as its stream promises.

    \b
        $ peer publish flights '{"id": 1, "flight": "LH400", "at": "2026-05-01T12:00:00Z", "delay": 12.5}'
        published 1 tuple
        $ sensor | peer publish readings -
        $ peer publish flights -f flights.csv --rate 1000 --done
        $ peer publish flights --done-before 2026-05-01T13:00:00Z
    """
    is_done = done or done_before is not None
    has_data = _has_data(stream, data, file, is_done=is_done)
    kind = kind or ("csv" if file is not None and file.suffix.lower() == ".csv" else "json")
    source = _Source(data, file, kind, repeats=count is not None)
    outcome = _Outcome()

    async def work() -> None:
        async with client_for(data_dir, number) as client:
            if has_data:
                await publish_all(client)
            if is_done:
                await client.finish(stream, before=done_before)

    async def publish_all(client: Client) -> None:
        reader = _Reader(await client.schema(stream), source, outcome, skip_bad=skip_bad)
        rows = _limited(reader.rows(), rate, count)
        with _progress(outcome, count):
            if no_ack:
                await _hand_over(client, stream, rows, outcome)
            else:
                await _publish(client, stream, rows, outcome, rate)

    try:
        asyncio.run(work())
    except BadLine as error:
        raise _bad_line(error, source, outcome) from error
    except PeerError as error:
        error.detail = " ".join(filter(None, [error.detail, outcome.told() if outcome.taken else None]))
        raise
    if has_data:
        click.echo(outcome.summary(no_ack=no_ack), err=True)
    if is_done:
        until = "" if done_before is None else f" before {done_before.isoformat()}"
        click.echo(f'said that no more tuples of stream "{stream}"{until} come from this peer', err=True)


def _has_data(stream: str, data: str | None, file: Path | None, *, is_done: bool) -> bool:
    """Whether there are tuples to publish; with --done there need not be any."""
    has_data = data is not None or file is not None
    if (data is not None and file is not None) or not (has_data or is_done):
        raise PeerError(
            "nothing to publish" if not has_data else "give either tuples or --file, not both",
            hint=f"For example: peer publish {stream} '{{…}}', or - to read stdin, or -f FILE.",
            exit_code=Exit.MISUSE,
        )
    return has_data


class _Outcome:
    """What has become of the input so far."""

    def __init__(self) -> None:
        self.taken = 0
        self.accepted = 0
        self.skipped = 0
        self.started_at = time.monotonic()

    def told(self) -> str:
        unknown = self.taken - self.accepted
        what = f"{counted(self.accepted, 'tuple')} before that {'is' if self.accepted == 1 else 'are'} published"
        return f"{what}; of {unknown} more it is not known." if unknown else f"{what}."

    def summary(self, *, no_ack: bool) -> str:
        took_s = time.monotonic() - self.started_at
        number = self.taken if no_ack else self.accepted
        text = f"{'sent' if no_ack else 'published'} {counted(number, 'tuple')}"
        if number >= BATCH_ROWS:
            text += f" in {took_s:.1f} s, {number / took_s:,.0f}/s"
        return text + (f"; skipped {counted(self.skipped, 'bad line')}" if self.skipped else "")


async def _publish(
    client: Client, stream: str, rows: AsyncIterator[Any], outcome: _Outcome, rate: float | None
) -> None:
    batch_rows = BATCH_ROWS if rate is None else max(1, min(BATCH_ROWS, int(rate / BATCHES_PER_S)))
    publisher = client.publisher(stream, batch_rows=batch_rows)
    try:
        try:
            async for row in rows:
                outcome.taken += 1
                await publisher.send(row)
                outcome.accepted = publisher.accepted
        finally:  # Also before a bad line is reported: what came before it is in flight.
            await publisher.flush()
    finally:
        outcome.accepted = publisher.accepted


async def _hand_over(client: Client, stream: str, rows: AsyncIterator[Any], outcome: _Outcome) -> None:
    batch: list[Any] = []
    async for row in rows:
        outcome.taken += 1
        batch.append(row)
        if len(batch) == BATCH_ROWS:
            await client.publish_unacknowledged(stream, batch)
            batch = []
    if batch:
        await client.publish_unacknowledged(stream, batch)


async def _limited(rows: AsyncIterator[Any], rate: float | None, count: int | None) -> AsyncIterator[Any]:
    """At most so many rows, at most so many a second."""
    loop = asyncio.get_running_loop()
    started_at, number = loop.time(), 0
    async for row in rows:
        if rate is not None and (wait_s := started_at + number / rate - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        yield row
        number += 1
        if number == count:
            return


# Reading.


class _Source:
    """Where lines come from."""

    def __init__(self, text: str | None, file: Path | None, kind: str, *, repeats: bool) -> None:
        self.kind = kind
        self.name = str(file) if file is not None else "stdin" if text == "-" else "the command line"
        self._text = text
        self._file = file
        self.repeats = repeats and text != "-"

    async def lines(self) -> AsyncIterator[bytes]:
        if self._file is not None:
            try:
                with self._file.open("rb") as file:
                    async for line in _lines_of(file):
                        yield line
            except OSError as error:
                raise PeerError(
                    f'cannot read "{self._file}": {(error.strerror or str(error)).lower()}', exit_code=Exit.MISUSE
                ) from error
        elif self._text == "-":
            async for line in _lines_of(sys.stdin.buffer):
                yield line
        else:
            yield os.fsencode(self._text or "")


async def _lines_of(file: BinaryIO) -> AsyncIterator[bytes]:
    """Lines as they come. A pipe is waited for in the event loop, so that Ctrl-C and pending batches have their way."""
    rest = b""
    while chunk := await _chunk(file.fileno()):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _decoded(number: int, line: bytes) -> str:
    """The text of a line; the first one may begin with a byte order mark."""
    line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} (0x{line[error.start]:02x}) is not valid UTF-8"
        hint = "Convert the input, for instance: iconv -f latin1 -t utf-8. --skip-bad reports such lines and goes on."
        raise BadLine(number, problem, hint) from error


async def _chunk(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # A file on disk: always ready.
        return os.read(descriptor, CHUNK_BYTES)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, CHUNK_BYTES)


class _Reader:
    """Makes rows of lines."""

    def __init__(self, schema: Schema, source: _Source, outcome: _Outcome, *, skip_bad: bool) -> None:
        import msgspec

        self._schema = schema
        self._source = source
        self._outcome = outcome
        self._skip_bad = skip_bad
        exact = any(field.type == "decimal" for field in schema.fields)
        self._decode = msgspec.json.Decoder(float_hook=Decimal if exact else None).decode

    async def rows(self) -> AsyncIterator[Any]:
        while True:
            taken = self._outcome.taken
            async for row in self._csv() if self._source.kind == "csv" else self._json():
                yield row
            if not self._source.repeats or self._outcome.taken == taken:
                return

    async def _json(self) -> AsyncIterator[Any]:
        number = 0
        async for line in self._source.lines():
            number += 1
            for row in self._good(number, line) if line.strip() else ():
                yield row

    def _good(self, number: int, line: bytes) -> list[Any]:
        import msgspec

        try:
            try:
                value = self._decode(_decoded(number, line))
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadLine(number, f"not valid JSON: {error}") from error
            is_many = isinstance(value, list) and all(isinstance(each, dict | list) for each in value)
            return [self._row(number, each) for each in (value if is_many else [value])]
        except BadLine as error:
            self._skip(error)
            return []

    async def _csv(self) -> AsyncIterator[Any]:
        names: list[str] | None = None
        number, text, begun = 0, "", 0
        async for line in self._source.lines():
            number += 1
            begun = begun if text else number
            try:
                text = f"{text}\n{_decoded(number, line)}" if text else _decoded(number, line)
            except BadLine as error:
                self._skip(error)
                text = ""
                continue
            if text.count('"') % 2 or not text.strip():  # A line break within quotes; or nothing.
                text = text if text.strip() else ""
                continue
            values = next(csv.reader([text.rstrip("\r")]))
            text = ""
            if names is None:
                names = [name.strip() for name in values]
                continue
            try:
                if len(values) != len(names):
                    raise BadLine(begun, f"{counted(len(values), 'value')} where the first line has {len(names)} names")
                row = self._row(begun, dict(zip(names, values, strict=True)), from_text=True)
            except BadLine as error:
                self._skip(error)
            else:
                yield row

    def _row(self, number: int, values: Any, *, from_text: bool = False) -> Any:
        from queries.schema import ROW_BYTES_MAX, RowError

        try:
            row = self._schema.row(values, from_text=from_text)
        except RowError as error:
            where = f'field "{error.field}": ' if error.field else ""
            problem = f"{where}expected {error.expected}, got {error.got}"
            raise BadLine(number, problem, f"The schema is: {self._schema}") from error
        size = len(self._schema.encode([row]))
        if size > ROW_BYTES_MAX:
            raise BadLine(number, f"a tuple of {size:,} bytes, where {ROW_BYTES_MAX:,} are allowed")
        return row

    def _skip(self, error: BadLine) -> None:
        if not self._skip_bad:
            raise error
        self._outcome.skipped += 1
        click.echo(f"skipped line {error.line} of {self._source.name}: {error.problem}", err=True)


def _bad_line(error: BadLine, source: _Source, outcome: _Outcome) -> PeerError:
    return PeerError(
        f"line {error.line} of {source.name}: {error.problem}",
        detail=f"{outcome.told()} Nothing from that line on is.",
        hint=error.hint or "--skip-bad reports such lines and goes on.",
        exit_code=Exit.MISUSE,
    )


@contextmanager
def _progress(outcome: _Outcome, count: int | None) -> Iterator[None]:
    """Show how far it is, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), *([BarColumn()] if count else []))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("publishing", total=count)

        async def show() -> None:
            while True:
                rate = outcome.accepted / max(time.monotonic() - outcome.started_at, 0.001)
                text = f"{outcome.accepted:,} published  {rate:,.0f}/s"
                progress.update(bar, description=text, completed=outcome.accepted)
                await asyncio.sleep(PROGRESS_EVERY_S)

        task = asyncio.ensure_future(show())
        try:
            yield
        finally:
            task.cancel()
