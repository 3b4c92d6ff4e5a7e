"""Continuous queries: `peer subscribe QUERY`, and `peer query ls`, `show`, `attach`, `stop`, `adopt`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.cli.background import in_background
from peerd.cli.common import client_for, target, target_options
from peerd.cli.output import Column, Row, chosen_form, output_option, show_record, show_rows
from peerd.cli.taps import tap_sentences
from peerd.cli.up import interruptible
from peerd.cli.watermark import explaining, hold_record, holder_of, lag_ms, shown_time, watermark_sentence
from peerd.cli.writers import writer_for
from peerd.errors import PeerError
from peerd.words import ago, count, milliseconds, span
from queries.decimals import BOUNDS

if TYPE_CHECKING:
    from peerd.cli.watermark import Watch
    from peerd.client import Client, QueryOptions, RunningQuery
    from peerd.control_client import ControlClient
    from protocols.execution.messages import (
        QueryListed,
        QueryShown,
        QueryStarting,
        SubgraphShown,
    )
    from protocols.subgraphs import RewriterStatus, SubgraphStatus

PATIENCE_S: Final = 365 * 86400.0  # A reader waits for its peer to come back; Ctrl-C ends that.
PROGRESS_EVERY_S: Final = 0.25
SHORT_ID: Final = 8
STORY_SHOWN: Final = 8  # Of the latest events of a query; JSON has all that its peer keeps.
_TEXT_WIDTH: Final = 80

_QUERY_COLUMNS: Final = (
    Column("query", lambda row: str(row["query"])),
    Column("state", lambda row: str(row["state"])),
    Column("results", lambda row: f"{row['results']:,}", right=True),
    Column("submitted", lambda row: ago(time.time() - row["submitted_at"])),
    Column("text", lambda row: _one_line(str(row["text"]))),
)
_PROXY_COLUMN: Final = Column("proxy", lambda row: str(row["proxy"] or "-")[:SHORT_ID])
_SUBGRAPH_COLUMNS: Final = (
    Column("subgraph", lambda row: str(row["number"]), right=True),
    Column("host", lambda row: str(row["host"])[:SHORT_ID]),
    Column("engine", lambda row: str(row["engine"])),
    Column("reads", lambda row: ", ".join(each["alias"] or each["from"] for each in row["inputs"])),
    Column("rows in", lambda row: _number(row["rows_in"]), right=True),
    Column("rows out", lambda row: _number(row["rows_out"]), right=True),
    Column("in work", lambda row: _number(row["waiting"]), right=True),
    Column("state", lambda row: _number(row["state_rows"]), right=True),
    Column("late", lambda row: _number(row["late"]), right=True),
    Column("lag", lambda row: milliseconds(row["lag_ms"]), right=True),
    Column("operators", lambda row: " < ".join(row["operators"])),
)


def run_query(
    text: str,
    data_dir: Path | None,
    number: int | None,
    how: QueryOptions,
    limit: int | None,
    detach: bool,
    form: str | None,
) -> None:
    """Submit a query and show its results until somebody has had enough; or leave it to itself."""

    async def work() -> None:
        progress = _Progress(target(data_dir, number))
        async with client_for(data_dir, number, patience_s=None if detach else PATIENCE_S) as client, progress:
            if detach:
                accepted = await client.submit(text, **how, on_starting=progress.begin)
                click.echo(accepted.query)
                click.echo(
                    f'"peer query attach {accepted.query}" reads it, "peer query stop {accepted.query}" ends it',
                    err=True,
                )
                return
            async with client.query(text, **how, on_starting=progress.begin) as results:
                progress.end()
                click.echo(f"query {results.query} runs; Ctrl-C stops it", err=True)
                async with explaining(lambda: shown_record(client, results.query)) as watch:
                    await _show_results(results, limit, form, watch)

    with interruptible():
        asyncio.run(work())


class _Progress:
    """Says on stderr what a query waits for, while it waits for Spark to start."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        """Nothing to say before the query starts."""

    async def __aexit__(self, *error: object) -> None:
        self.end()

    def begin(self, news: QueryStarting) -> None:
        if news.waits_for == "Spark" and self._task is None:  # Anything else is over before it is read.
            self._task = asyncio.create_task(self._tell())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _tell(self) -> None:
        began_at, said = time.monotonic(), ""
        while True:
            try:
                status = await in_background(lambda: self._control.get("/status"))
            except PeerError:  # Whoever waits for the query hears of it, too.
                return
            spark = status["spark"]
            now = "the query is being deployed" if spark["state"] == "ready" else spark.get("waits_for") or "Spark"
            if now != said:
                click.echo(f"{time.monotonic() - began_at:5.1f} s  {now} …", err=True)
                said = now
            await asyncio.sleep(PROGRESS_EVERY_S)


async def shown_record(client: Client, query: str) -> dict[str, Any]:
    """What `peer query show` prints of a query."""
    return _shown_record(await client.show_query(query))


async def _show_results(results: RunningQuery, limit: int | None, form: str | None, watch: Watch) -> None:
    from peerd.cli.subscribe import tell_missed

    results.results.on_missed = tell_missed
    writer = writer_for(results.schema, form, results.envelope)
    shown = 0
    try:
        async for row in results:
            try:
                writer.write(row)
            except OSError:  # Nobody reads what we write: no fault of the result.
                results.results.close(is_done=False)
                raise
            shown += 1
            watch.hear()
            if shown == limit:
                return
    finally:
        writer.close()


@click.group()
def query() -> None:
    """List, show, read and stop queries.

    A name means the query of this peer, else that of another. If several peers have one of that name, NAME@PEER says
    which, with the beginning of the peer's id.

    \b
        $ peer subscribe "SELECT flight FROM flights WHERE delay > 30" --name late --detach
        late
        $ peer query ls
    """


@query.command()
@click.option("--all", "everywhere", is_flag=True, help="Those of all peers.")
@target_options
@output_option
def ls(everywhere: bool, data_dir: Path | None, number: int | None, form: str | None) -> None:
    """List the queries of this peer, oldest first.

    \b
        $ peer query ls
        query  state    results  submitted  text
        late   running       12  2m ago     SELECT flight FROM flights WHERE delay > 30
        $ peer query ls --all
        query  proxy     state    results  submitted  text
        late   1a57fae9  running       12  2m ago     SELECT flight FROM flights WHERE delay > 30
    """

    async def work() -> list[QueryListed]:
        async with client_for(data_dir, number) as client:
            return await client.queries(everywhere=everywhere)

    queries = asyncio.run(work())
    if not queries and chosen_form(form) == "table":
        where = "in the network" if everywhere else "at this peer"
        click.echo(f'no query runs {where}; "peer subscribe QUERY" begins one', err=True)
        return
    columns = (_QUERY_COLUMNS[0], _PROXY_COLUMN, *_QUERY_COLUMNS[1:]) if everywhere else _QUERY_COLUMNS
    show_rows([_query_row(each) for each in queries], columns, form)


@query.command()
@click.argument("name")
@target_options
@output_option
def show(name: str, data_dir: Path | None, number: int | None, form: str | None) -> None:
    """Show one query: its subgraphs, where they run and how they are doing, and who holds the watermark.

    \b
        $ peer query show late
    """

    async def work() -> QueryShown:
        async with client_for(data_dir, number) as client:
            return await client.show_query(name)

    shown = asyncio.run(work())
    record = _shown_record(shown)
    facts = [
        ("query", shown.query),
        ("state", shown.state),
        ("text", _one_line(shown.text)),
        ("stream", shown.stream),
        *((("proxy", shown.proxy.short),) if shown.proxy is not None else ()),
        ("durability", shown.durability),
        *((("takeover", _takeover_sentence(shown)),) if shown.takeover_ms or shown.term > 1 else ()),
        ("submitted", ago(time.time() - record["submitted_at"])),
        ("results", f"{shown.results:,}"),
        *((("dropped", f"{shown.dropped:,}; the last: {shown.dropped_for}"),) if shown.dropped else ()),
        ("attempt", _attempt_sentence(record)),
        (
            "watermark",
            watermark_sentence(record["watermark"]) if record["is_timed"] else "none: results wait for nothing",
        ),
        ("placement", f"{shown.placement}; {shown.why}" if shown.why else shown.placement),
        *(("not moved" if each["given_up"] else "moved", _move_sentence(each)) for each in record["moves"]),
        *(("moving", f"once peer {each[:SHORT_ID]} has its engine ready") for each in record["preparing"]),
    ]
    facts += [("story", f"{ago(time.time() - each['at'])}: {each['what']}") for each in record["story"][-STORY_SHOWN:]]
    facts += [("not read", said) for each in record["subgraphs"] for said in _unfit_sentences(each)]
    facts += [("tap", said) for said in tap_sentences(shown.subgraphs)]
    facts += [("index", said) for each in shown.subgraphs if (said := index_sentence(each.status))]
    show_record(record, facts, form)
    if chosen_form(form) == "table" and record["subgraphs"]:
        click.echo()
        show_rows(record["subgraphs"], _SUBGRAPH_COLUMNS, form)


@query.command()
@click.argument("name")
@target_options
@click.option("--as", "place", metavar="NAME", help="Keep the place under this name: a later attach goes on there.")
@click.option("--since", metavar="T", help='Begin at a time: "start" (default), "now", an age like 10m, or a date.')
@click.option("-n", "--number", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N results.")
@output_option
def attach(
    name: str,
    data_dir: Path | None,
    number: int | None,
    place: str | None,
    since: str | None,
    limit: int | None,
    form: str | None,
) -> None:
    """Read the results of a query, from the first that is kept. Ctrl-C leaves the query running.

    \b
        $ peer query attach late -n 3
        {"flight": "LH400"}
    """
    from peerd.cli.subscribe import since_of

    begin = since_of(since or "start")

    async def work() -> None:
        async with (
            client_for(data_dir, number, patience_s=PATIENCE_S) as client,
            client.attach(name, name=place, since=begin) as results,
            explaining(lambda: shown_record(client, name)) as watch,
        ):
            await _show_results(results, limit, form, watch)

    asyncio.run(work())


@query.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@target_options
def stop(names: tuple[str, ...], data_dir: Path | None, number: int | None) -> None:
    """Stop queries, and drop their results.

    \b
        $ peer query stop late
    """

    async def work() -> None:
        async with client_for(data_dir, number) as client:
            for name in names:
                await client.stop_query(name)
                click.echo(f'query "{name}" stopped', err=True)

    asyncio.run(work())


# What is shown.


@query.command()
@click.argument("name")
@target_options
def adopt(name: str, data_dir: Path | None, number: int | None) -> None:
    """Have a query go on whose peer is gone: at the backup of its results, if it has durability = replicated.

    \b
        $ peer query adopt late
    """

    async def work() -> None:
        async with client_for(data_dir, number) as client:
            await client.adopt_query(name)
            shown = await client.show_query(name)
            proxy = shown.proxy.short if shown.proxy is not None else "?"
            click.echo(f'query "{name}" goes on at peer {proxy}', err=True)

    asyncio.run(work())


def _query_row(listed: QueryListed) -> Row:
    from protocols.clock import wall_ms

    return {
        "query": listed.query,
        "state": listed.state,
        "results": listed.rows_out,
        "submitted_at": wall_ms(listed.inserted_at) / 1000,
        "stream": listed.stream,
        "proxy": listed.proxy.hex() if listed.proxy is not None else None,
        "text": listed.text,
    }


def _shown_record(shown: QueryShown) -> dict[str, Any]:
    from protocols.clock import wall_ms

    now = time.time()
    subgraphs = [_subgraph_row(each, now) for each in sorted(shown.subgraphs, key=lambda each: each.subgraph.number)]
    return {
        "query": shown.query,
        "state": shown.state,
        "text": shown.text,
        "stream": shown.stream,
        "proxy": shown.proxy.hex() if shown.proxy is not None else None,
        "durability": shown.durability,
        "takeover_s": shown.takeover_ms / 1000 or None,
        "term": shown.term,
        "submitted_at": wall_ms(shown.inserted_at) / 1000,
        "since": wall_ms(shown.since) / 1000,
        "results": shown.results,
        "dropped": shown.dropped,
        "dropped_for": shown.dropped_for or None,
        "attempt_at": wall_ms(shown.attempt) / 1000 if shown.attempt else None,
        "last_failure": shown.reason or None,
        "is_timed": any(each.subgraph.is_timed for each in shown.subgraphs),
        "watermark": holder_of(subgraphs),
        "placement": shown.placement,
        "why": shown.why or None,
        "moves": [
            {
                "at": each.at / 1000,
                "from": each.before.hex(),
                "to": each.after.hex(),
                "why": each.why,
                "given_up": each.is_given_up,
            }
            for each in shown.moves
        ],
        "preparing": [each.hex() for each in shown.preparing],
        "story": [{"at": at / 1000, "what": what} for at, what in shown.story],
        "subgraphs": subgraphs,
    }


def _subgraph_row(shown: SubgraphShown, now: float) -> dict[str, Any]:
    from protocols.subgraphs import StreamInput
    from queries.plan import walk

    subgraph, status = shown.subgraph, shown.status
    inputs: list[dict[str, Any]] = []
    for each in subgraph.inputs:
        told = next((told for told in status.inputs if told.alias == each.alias), None) if status else None
        inputs.append(
            {
                "alias": each.alias,
                "from": each.stream if isinstance(each, StreamInput) else f"subgraph {each.subgraph}",
                "rows": told.rows if told else None,
                "late": told.late if told else None,
                "unfit": told.unfit if told else None,
                "sharing": each.sharing if isinstance(each, StreamInput) else None,
                "shared_with": told.others if told else None,
                "is_idle": told.is_idle if told else None,
                "watermark": shown_time(told.watermark_us) if told else None,
                "lag_ms": lag_ms(told.watermark_us, now) if told else None,
                "has_finished": told.has_finished if told else None,
                "held_by": hold_record(told.hold) if told and told.hold else None,
                "left_out": [peer.hex() for peer in told.left_out] if told else [],
            }
        )
    return {
        "number": subgraph.number,
        "host": shown.host.hex(),
        "engine": subgraph.engine.name,
        "operators": [type(each).__name__ for each in reversed(list(walk(subgraph.plan)))],
        "rows_in": status.rows_in if status else None,
        "rows_out": status.rows_out if status else None,
        "waiting": status.waiting if status else None,
        "state_rows": status.state_rows if status else None,
        "windows_with": status.windows_with if status else None,
        "late": sum(each.late for each in status.inputs) if status else None,
        "lag_ms": max((each["lag_ms"] or 0.0 for each in inputs if each["is_idle"] is False), default=None),
        "inputs": inputs,
        "index": _index_record(status) if status is not None and status.index is not None else None,
    }


def _unfit_sentences(subgraph: dict[str, Any]) -> list[str]:
    """For each input how many of its tuples no query reads.

    >>> _unfit_sentences({"inputs": [{"from": "trades", "unfit": 3}, {"from": "subgraph 1", "unfit": 0}]})
    ['3 tuples of trades: a decimal has at most 20 digits before the point and 18 behind it']
    """
    return [
        f"{each['unfit']:,} tuples of {each['from']}: a decimal has {BOUNDS}"
        for each in subgraph["inputs"]
        if each["unfit"]
    ]


def _index_record(status: SubgraphStatus) -> dict[str, Any]:
    """Where in the join index a query is, and what a tuple costs there."""
    index = status.index
    assert index is not None
    return {
        "rewriters": [{**rewriter_record(each), "tuples": each.tuples} for each in index.rewriters],
        "algorithm": index.algorithm,
        "why": index.why,
        "evaluators": [peer.hex() for peer in index.evaluators],
        "evaluators_used": index.used,
        "heavy_values": [{"value": value, "evaluators": count} for value, count in index.heavy],
        "messages_per_tuple": index.parts / status.rows_in if status.rows_in else None,
    }


def rewriter_record(rewriter: RewriterStatus) -> dict[str, Any]:
    return {
        "alias": rewriter.alias,
        "attribute": rewriter.attribute,
        "peer": rewriter.peer.hex(),
        "rewrites": rewriter.rewrites,
        "replica": rewriter.replica,
        "replicas": rewriter.replicas,
    }


def rewriter_sentence(record: dict[str, Any]) -> str:
    """What a rewriter does, and where; of several which one it is.

    >>> one = {"attribute": "R.b", "rewrites": True, "peer": "0123456789", "replica": 0, "replicas": 1}
    >>> rewriter_sentence(one), rewriter_sentence(one | {"rewrites": False, "replicas": 2})
    ('R.b rewritten at peer 01234567', 'R.b read at peer 01234567 (replica 1 of 2)')
    """
    said = f"{record['attribute']} {'rewritten' if record['rewrites'] else 'read'} at peer {record['peer'][:SHORT_ID]}"
    return said if record["replicas"] == 1 else f"{said} (replica {record['replica'] + 1} of {record['replicas']})"


def index_sentence(status: SubgraphStatus | None) -> str:
    """The same for people; nothing where it is not in the index."""
    if status is None or status.index is None:
        return ""
    index = _index_record(status)
    said = ", ".join(map(rewriter_sentence, index["rewriters"]))
    cost = index["messages_per_tuple"]
    seen = "" if cost is None else f"; {cost:.2f} messages per tuple"
    heavy = f", {count} values at several" if (count := len(index["heavy_values"])) else ""
    said = f"{index['algorithm']}, {index['why']}; {said}"
    return f"{said}; {index['evaluators_used']} of {len(index['evaluators'])} evaluators in use{heavy}{seen}"


def _attempt_sentence(record: dict[str, Any]) -> str:
    if record["attempt_at"] is None:
        return f"none runs: {record['last_failure'] or 'it is being planned'}"
    began = f"began {ago(time.time() - record['attempt_at'])}"
    return f"{began}, for the one before ended: {record['last_failure']}" if record["last_failure"] else began


def _move_sentence(move: dict[str, Any]) -> str:
    way = f"from peer {move['from'][:SHORT_ID]} to {move['to'][:SHORT_ID]}"
    return f"{ago(time.time() - move['at'])} {way}: {move['why']}"


def _takeover_sentence(shown: QueryShown) -> str:
    after = f"once its peer is gone for {span(shown.takeover_ms / 1000)}" if shown.takeover_ms else "when asked for"
    taken = count(shown.term - 1, "time")
    return f"{after}; it was taken over {taken}" if shown.term > 1 else after


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_WIDTH else f"{line[: _TEXT_WIDTH - 1]}…"
