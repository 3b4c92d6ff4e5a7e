"""`peer subscribe` and `peer unsubscribe`: read a stream as it comes, from now on or from the past."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import click

from peerd.cli.common import client_for, target_options
from peerd.cli.output import chosen_form, output_option
from peerd.errors import Exit, PeerError
from peerd.words import count as counted
from peerd.words import parse_span

if TYPE_CHECKING:
    from peerd.client import Client, Subscription
    from protocols.delivery.messages import DeadLettered, Missed
    from queries.schema import Schema

PATIENCE_S: Final = 365 * 86400.0  # A reader waits for its peer to come back; Ctrl-C ends that.
LAST_QUIET_S: Final = 0.5
_STAMP_BITS: Final = 16
_CELL_WIDTH_MIN: Final = 6


@click.command()
@click.argument("stream")
@target_options
@click.option("--name", metavar="NAME", help="Keep the place under this name: a later subscribe goes on there.")
@click.option(
    "--since", metavar="T", help='Begin at a time: "now" (default), "start", an age like 10m, or 2026-05-01T12:00Z.'
)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Begin with the last N tuples.")
@click.option("-n", "--number", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N tuples.")
@click.option("--detach", is_flag=True, help="Open the subscription, print its name, and leave; tuples wait for it.")
@output_option
def subscribe(
    stream: str,
    data_dir: Path | None,
    number: int | None,
    name: str | None,
    since: str | None,
    last: int | None,
    limit: int | None,
    detach: bool,
    form: str | None,
) -> None:
    """Read a stream, at any peer, whoever publishes to it.

    Each tuple is shown once, in the order of each publishing peer. Should the peer stop, reading goes on where it was
    as soon as the peer is back. With a name, this holds for this command too: run it again and it goes on.

    \b
        $ peer subscribe flights --since 10m
        {"id": 1, "flight": "LH400", "at": "2026-05-01T12:00:00Z", "delay": 12.5}
        $ peer subscribe flights --name dashboard -n 100 -o csv
    """
    other = "--since" if since is not None else "--name" if name is not None else "--detach" if detach else None
    if last is not None and other is not None:
        raise PeerError(f"--last and {other} do not go together", exit_code=Exit.MISUSE)
    begin = _since(since)

    async def work() -> None:
        async with client_for(data_dir, number, patience_s=None if detach else PATIENCE_S) as client:
            if detach:
                await _open_only(client, stream, name, begin)
                return
            schema = await client.schema(stream)
            writer = _WRITERS[chosen_form(form)](schema)
            try:
                await _read(client, stream, name, begin, last, limit, writer)
            finally:
                writer.close()

    asyncio.run(work())


@click.command()
@click.argument("name")
@target_options
def unsubscribe(name: str, data_dir: Path | None, number: int | None) -> None:
    """Forget a subscription that has a name, and the tuples that wait for it.

    \b
        $ peer unsubscribe dashboard
    """

    async def work() -> None:
        async with client_for(data_dir, number) as client:
            await client.unsubscribe(name)

    asyncio.run(work())
    click.echo(f'subscription "{name}" forgotten', err=True)


async def _open_only(client: Client, stream: str, name: str | None, since: Literal["now", "start"] | int) -> None:
    import secrets

    name = name or f"{stream}-{secrets.token_hex(4)}"
    async with client.subscribe(stream, name=name, since=since):
        click.echo(name)
        click.echo(f'"peer subscribe {stream} --name {name}" reads it, "peer unsubscribe {name}" ends it', err=True)


async def _read(
    client: Client,
    stream: str,
    name: str | None,
    since: Literal["now", "start"] | int,
    last: int | None,
    limit: int | None,
    writer: _Writer,
) -> None:
    shown = 0
    subscription = client.subscribe(stream, name=name, since=since if last is None else "start")
    rows = aiter(subscription) if last is None else _last(subscription, last)
    subscription.on_missed = _tell_missed
    subscription.on_dead_lettered = _tell_dead_lettered
    async with subscription:
        if subscription.dead_lettered:
            number = counted(subscription.dead_lettered, "tuple")
            click.echo(f'{number} in its dead letters: "peer stream dead {stream} --name {name}"', err=True)
        async for row in rows:
            try:
                writer.write(row)
            except OSError:  # Nobody reads what we write: no fault of the tuple.
                subscription.close(is_done=False)
                raise
            shown += 1
            if shown == limit:
                return


async def _last(subscription: Subscription, last: int) -> AsyncIterator[Any]:
    """The youngest N of the tuples that are there, by time of publication, then what follows.

    The past is over when a tuple comes that was published after we began to read, or when nothing comes for a moment.
    """
    past: list[tuple[int, Any]] = []
    batches = subscription.batches()
    newest = 0
    coming = asyncio.ensure_future(anext(batches))
    while newest <= subscription.opened_at and (await asyncio.wait([coming], timeout=LAST_QUIET_S))[0]:
        batch = coming.result()
        newest = max(newest, batch.published_at)
        past = sorted([*past, *((batch.published_at, row) for row in batch.rows)], key=lambda each: each[0])[-last:]
        coming = asyncio.ensure_future(anext(batches))
    for _, row in past:
        yield row
    while True:
        for row in (await coming).rows:
            yield row
        coming = asyncio.ensure_future(anext(batches))


def _since(text: str | None) -> Literal["now", "start"] | int:
    """A stamp from what people write."""
    if text is None or text == "now":
        return "now"
    if text == "start":
        return "start"
    try:
        at_s = time.time() - parse_span(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError as error:
            raise PeerError(
                f'"{text}" is not a time',
                hint="Write now, start, an age like 10m, or a date like 2026-05-01T12:00:00Z.",
                exit_code=Exit.MISUSE,
            ) from error
        at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return int(at_s * 1000) << _STAMP_BITS


def _tell_missed(missed: Missed) -> None:
    number = counted(missed.next - missed.first, "tuple")
    click.echo(f"missed {number} of peer {missed.origin.publisher.short}: kept no longer", err=True)


def _tell_dead_lettered(letter: DeadLettered) -> None:
    click.echo(f"tuple {letter.sequence} of peer {letter.origin.publisher.short} put aside: {letter.reason}", err=True)


# Writing.


class _Writer(Protocol):
    """Shows rows as they come."""

    def __init__(self, schema: Schema) -> None: ...

    def write(self, row: Any) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, schema: Schema) -> None:
        self._to_json = schema.to_json

    def write(self, row: Any) -> None:
        sys.stdout.write(json.dumps(self._to_json(row)) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """A line is complete in itself."""


class _Json(_JsonLines):
    """One array, however long it takes."""

    _separator = "["

    def write(self, row: Any) -> None:
        sys.stdout.write(f"{self._separator}\n  {json.dumps(self._to_json(row))}")
        sys.stdout.flush()
        self._separator = ","

    def close(self) -> None:
        sys.stdout.write("[]\n" if self._separator == "[" else "\n]\n")


class _Csv:
    def __init__(self, schema: Schema) -> None:
        self._to_json = schema.to_json
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._writer.writerow([field.name for field in schema.fields])

    def write(self, row: Any) -> None:
        self._writer.writerow(self._to_json(row).values())
        sys.stdout.flush()

    def close(self) -> None:
        """A line is complete in itself."""


class _Table:
    """Columns that widen when they must."""

    def __init__(self, schema: Schema) -> None:
        self._to_json = schema.to_json
        self._right = [field.type in ("int", "float", "decimal") for field in schema.fields]
        self._widths = [max(len(field.name), _CELL_WIDTH_MIN) for field in schema.fields]
        click.secho(self._line([field.name for field in schema.fields]), bold=True)

    def write(self, row: Any) -> None:
        click.echo(self._line(["-" if value is None else str(value) for value in self._to_json(row).values()]))

    def close(self) -> None:
        """A line is complete in itself."""

    def _line(self, cells: list[str]) -> str:
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        placed = zip(cells, self._widths, self._right, strict=True)
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in placed).rstrip()


_WRITERS: Final[dict[str, type[_Writer]]] = {"table": _Table, "json": _Json, "jsonl": _JsonLines, "csv": _Csv}
