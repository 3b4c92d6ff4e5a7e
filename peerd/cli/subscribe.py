"""`peer subscribe` and `peer unsubscribe`: read a stream as it comes, from now on or from the past, or a query."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from peerd.cli.common import client_for, target_options
from peerd.cli.output import output_option
from peerd.cli.query_options import (
    EXISTING_FILE,
    EngineName,
    JoinName,
    engine_options,
    file_option,
    parameter_option,
    query_text,
    runs_by,
    with_parameters,
)
from peerd.cli.writers import Writer, writer_for
from peerd.errors import Exit, PeerError
from peerd.words import count as counted
from peerd.words import parse_span

if TYPE_CHECKING:
    from peerd.client import Client, QueryOptions, Subscription
    from protocols.delivery.messages import DeadLettered, Missed
    from protocols.execution.messages import PlacementName, ResultsDurability

PATIENCE_S: Final = 365 * 86400.0  # A reader waits for its peer to come back; Ctrl-C ends that.
LAST_QUIET_S: Final = 0.5
_STAMP_BITS: Final = 16


@click.command()
@click.argument("text", metavar="[STREAM|QUERY|-]", required=False)
@target_options
@file_option
@click.option(
    "--name",
    metavar="NAME",
    help="Keep the place in a stream under this name: a later subscribe goes on. Or: name the query.",
)
@click.option(
    "--since", metavar="T", help='Begin at a time: "now" (default), "start", an age like 10m, or 2026-05-01T12:00Z.'
)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Begin with the last N tuples.")
@click.option("-n", "--number", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N tuples.")
@click.option("--detach", is_flag=True, help="Print the name of the subscription or query, and leave; tuples wait.")
@engine_options
@click.option(
    "--placement",
    type=click.Choice(["auto", "baseline", "edge", "edge+", "in-network", "exact"]),
    default="auto",
    show_default=True,
    help="How a query's operators are placed; auto: where that saves something, the optimum.",
)
@click.option("--within", metavar="T", help="No tuple may be longer under way to this peer, for example 120ms.")
@click.option(
    "--durability",
    type=click.Choice(["auto", "disk", "replicated"]),
    default="auto",
    show_default=True,
    help="Where a query's results are kept: on the disk of its peer, or on a second one, too; auto: as its text says.",
)
@click.option(
    "--takeover",
    metavar="T",
    help="The backup of a replicated query goes on with it once this peer has been gone for so long, for example 5m.",
)
@click.option(
    "--stats",
    type=EXISTING_FILE,
    metavar="FILE",
    help="What is known of streams that say nothing yet, as peer history --stats -o json tells it: to place the query.",
)
@parameter_option
@output_option
def subscribe(
    text: str | None,
    data_dir: Path | None,
    number: int | None,
    file: Path | None,
    name: str | None,
    since: str | None,
    last: int | None,
    limit: int | None,
    detach: bool,
    engine: EngineName,
    join: JoinName,
    placement: PlacementName,
    within: str | None,
    durability: ResultsDurability,
    takeover: str | None,
    stats: Path | None,
    parameters: tuple[str, ...],
    form: str | None,
) -> None:
    """Read a stream, or the results of a query in SQL or WXQuery, at any peer, whoever publishes.

    Each tuple is shown once, in the order of each publishing peer. Should the peer stop, reading goes on where it was
    as soon as the peer is back. With a name, this holds for this command too: run it again and it goes on.

    A query begins now, or with --since in the past, over what its streams have kept. It is stopped when this command
    ends. With --detach it goes on: "peer query attach" reads it, "peer query stop" ends it.

    \b
        $ peer subscribe flights --since 10m
        {"id": 1, "flight": "LH400", "at": "2026-05-01T12:00:00Z", "delay": 12.5}
        $ peer subscribe flights --name dashboard -n 100 -o csv
        $ peer subscribe "SELECT flight, delay FROM flights WHERE delay > 30"
        {"flight": "LH400", "delay": 35.0}
        $ peer subscribe "SELECT count(*) AS flights FROM flights [RANGE 1 HOUR SLIDE 1 HOUR]" --since 24h
    """
    query = query_text(text, file)
    if query is not None:
        _check_last(last)
        from peerd.cli.query import run_query

        how: QueryOptions = {"name": name or "", "engine": runs_by(engine, join), "since": since_of(since)}
        how |= {"placement": placement, "within_ms": _milliseconds(within), "statistics": _text_of(stats)}
        how |= {"durability": durability, "takeover_ms": _milliseconds(takeover)}
        run_query(with_parameters(query, parameters), data_dir, number, how, limit, detach, form)
        return
    assert text is not None
    of_queries = {
        "--parameter": parameters,
        "--within": within,
        "--stats": stats,
        "--placement": placement != "auto",
        "--durability": durability != "auto",
        "--takeover": takeover,
        "--join": join != "auto",
        "--engine": engine != "auto",
    }
    _check_flags(of_queries, {"--since": since, "--name": name, "--detach": detach} if last is not None else {})
    client = client_for(data_dir, number, patience_s=None if detach else PATIENCE_S)
    asyncio.run(_read_stream(client, text, name, since_of(since), last, limit, form, detach=detach))


def _first(asked: Mapping[str, object]) -> str | None:
    """The first of some options that was given."""
    return next((option for option, value in asked.items() if value), None)


async def _read_stream(
    client: Client,
    stream: str,
    name: str | None,
    begin: Literal["now", "start"] | int,
    last: int | None,
    limit: int | None,
    form: str | None,
    *,
    detach: bool,
) -> None:
    async with client:
        if detach:
            await _open_only(client, stream, name, begin)
            return
        writer = writer_for(await client.schema(stream), form)
        try:
            await _read(client, stream, name, begin, last, limit, writer)
        finally:
            writer.close()


def _check_flags(of_queries: Mapping[str, object], without_last: Mapping[str, object]) -> None:
    """Flags that do not go with a stream, and those that do not go with --last."""
    if wrong := _first(of_queries):
        raise PeerError(f"{wrong} goes with a query, not with a stream", exit_code=Exit.MISUSE)
    if other := _first(without_last):
        raise PeerError(f"--last and {other} do not go together", exit_code=Exit.MISUSE)


def _check_last(last: int | None) -> None:
    if last is not None:
        hint = "--since lets a query begin in the past, with what its streams have kept."
        raise PeerError("--last goes with a stream, not with a query", hint=hint, exit_code=Exit.MISUSE)


def _text_of(file: Path | None) -> str:
    return file.read_text() if file is not None else ""


def _milliseconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_span(text) * 1000
    except ValueError as error:
        raise PeerError(str(error), exit_code=Exit.MISUSE) from error


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
    writer: Writer,
) -> None:
    shown = 0
    subscription = client.subscribe(stream, name=name, since=since if last is None else "start")
    reading = nullcontext(aiter(subscription)) if last is None else aclosing(_last(subscription, last))
    subscription.on_missed = tell_missed
    subscription.on_dead_lettered = _tell_dead_lettered
    async with subscription, reading as rows:
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


async def _last(subscription: Subscription, last: int) -> AsyncGenerator[Any]:
    """The youngest N of the tuples that are there, by time of publication, then what follows.

    The past is over when a tuple comes that was published after we began to read, or when nothing comes for a moment.
    """
    past: list[tuple[int, Any]] = []
    batches = subscription.batches()
    newest = 0
    coming = asyncio.ensure_future(anext(batches))
    try:
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
    finally:  # The reader has had enough, and nobody waits for the next batch.
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def since_of(text: str | None) -> Literal["now", "start"] | int:
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


def tell_missed(missed: Missed) -> None:
    number = counted(missed.next - missed.first, "tuple")
    click.echo(f"missed {number} of peer {missed.origin.publisher.short}: kept no longer", err=True)


def _tell_dead_lettered(letter: DeadLettered) -> None:
    click.echo(f"tuple {letter.sequence} of peer {letter.origin.publisher.short} put aside: {letter.reason}", err=True)
