"""`peer explain --analyze`: a query watched for a while; what flowed through it, and what a tuple cost in the index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.cli.common import client_for
from peerd.cli.output import Column, chosen_form, show_record, show_rows
from peerd.cli.query import rewriter_record, rewriter_sentence
from peerd.cli.up import interruptible
from peerd.errors import Exit, PeerError
from peerd.words import count as counted
from protocols.join_index.explain import messages_per_tuple
from protocols.subgraphs import ALGORITHMS

if TYPE_CHECKING:
    from peerd.client import Client, QueryEngine
    from protocols.execution.messages import QueryShown, SubgraphShown
    from protocols.subgraphs import SubgraphStatus

SHORT_ID: Final = 8
LOOK_S: Final = 0.2
START_S: Final = 60.0  # A query that has not reported for so long is not going to.

_COLUMNS: Final = (
    Column("subgraph", lambda row: str(row["number"]), right=True),
    Column("host", lambda row: str(row["host"])[:SHORT_ID]),
    Column("engine", lambda row: str(row["engine"])),
    Column("rows in", lambda row: f"{row['rows_in']:,}", right=True),
    Column("in/s", lambda row: f"{row['rows_in_per_s']:,.1f}", right=True),
    Column("rows out", lambda row: f"{row['rows_out']:,}", right=True),
    Column("out/s", lambda row: f"{row['rows_out_per_s']:,.1f}", right=True),
)


def analyze(text: str, data_dir: Path | None, number: int | None, engine: QueryEngine, for_s: float, form: str) -> None:
    """Watch a query that runs at this peer, by its name; or run one for so long, and stop it."""

    async def work() -> dict[str, Any]:
        async with client_for(data_dir, number) as client, _running(client, text, engine) as query:
            before = await _under_way(client, query)
            began_at = time.monotonic()
            click.echo(f"query {query} is watched for {for_s:g} s …", err=True)
            await asyncio.sleep(for_s)
            after = await _under_way(client, query)
            return measured(before, after, time.monotonic() - began_at)

    with interruptible():
        _show(asyncio.run(work()), form)


@asynccontextmanager
async def _running(client: Client, text: str, engine: QueryEngine) -> AsyncIterator[str]:
    if len(text.split()) == 1:
        if engine != "auto":
            hint = "Give --join or --engine with the text of a query."
            raise PeerError(f'query "{text}" runs already, as it was asked to', hint=hint, exit_code=Exit.MISUSE)
        yield text
        return
    accepted = await client.submit(text, engine=engine)
    try:
        yield accepted.query
    finally:
        await client.stop_query(accepted.query)


async def _under_way(client: Client, query: str) -> QueryShown:
    """The query once every part of it has said how it is doing."""
    deadline_at = time.monotonic() + START_S
    while True:
        shown = await client.show_query(query)
        if shown.subgraphs and all(each.status is not None for each in shown.subgraphs):
            return shown
        if time.monotonic() > deadline_at:
            raise PeerError(
                f'query "{query}" does not run now',
                detail=shown.reason or None,
                hint=f'"peer query show {query}" says what it waits for.',
                exit_code=Exit.TIMEOUT,
            )
        await asyncio.sleep(LOOK_S)


def measured(before: QueryShown, after: QueryShown, took_s: float) -> dict[str, Any]:
    """What happened between two looks at a query; all of an attempt that began in between."""
    is_same = before.attempt == after.attempt
    earlier = {each.subgraph.number: each.status for each in before.subgraphs} if is_same else {}
    results = after.results - before.results
    return {
        "query": after.query,
        "for_s": round(took_s, 3),
        "began_anew": not is_same,
        "reason": "" if is_same else after.reason,
        "results": results,
        "results_per_s": results / took_s,
        "subgraphs": [_subgraph(each, earlier.get(each.subgraph.number), took_s) for each in after.subgraphs],
    }


def _subgraph(shown: SubgraphShown, before: SubgraphStatus | None, took_s: float) -> dict[str, Any]:
    now = shown.status
    assert now is not None
    rows_in = now.rows_in - (before.rows_in if before else 0)
    rows_out = now.rows_out - (before.rows_out if before else 0)
    return {
        "number": shown.subgraph.number,
        "host": shown.host.hex(),
        "engine": shown.subgraph.engine.name,
        "rows_in": rows_in,
        "rows_in_per_s": rows_in / took_s,
        "rows_out": rows_out,
        "rows_out_per_s": rows_out / took_s,
        "index": _index(now, before, rows_in),
    }


def _index(now: SubgraphStatus, before: SubgraphStatus | None, tuples: int) -> dict[str, Any] | None:
    if now.index is None:
        return None
    algorithm = next(each for each in ALGORITHMS if each == now.index.algorithm)
    earlier = before.index.rewriters if before and before.index else ()
    was_read = {(each.alias, each.replica): each.tuples for each in earlier}
    messages = now.index.parts - (before.index.parts if before and before.index else 0)
    return {
        "algorithm": algorithm,
        "rewriters": [
            {**rewriter_record(each), "tuples": each.tuples - was_read.get((each.alias, each.replica), 0)}
            for each in now.index.rewriters
        ],
        "evaluators": [peer.hex() for peer in now.index.evaluators],
        "evaluators_used": now.index.used,
        "messages": messages,
        "messages_per_tuple": {
            "expected": messages_per_tuple(algorithm),
            "seen": messages / tuples if tuples else None,
        },
    }


def facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people."""
    anew = f"; it began anew: {record['reason']}" if record["began_anew"] else ""
    said = [
        ("query", f"{record['query']}, watched for {record['for_s']:.1f} s{anew}"),
        ("results", f"{record['results']:,} ({record['results_per_s']:,.1f}/s)"),
    ]
    for index in (each["index"] for each in record["subgraphs"] if each["index"] is not None):
        said += [
            (
                "rewriter",
                f"{rewriter_sentence(each)}: {counted(each['tuples'], 'tuple')} "
                f"({each['tuples'] / record['for_s']:,.1f}/s)",
            )
            for each in index["rewriters"]
        ]
        cost = index["messages_per_tuple"]
        seen = "nothing came" if cost["seen"] is None else f"{cost['seen']:.2f} seen"
        said += [
            ("evaluators", f"{index['evaluators_used']} of {len(index['evaluators'])} in use"),
            ("messages", f"{cost['expected']} expected per tuple to evaluators, {seen}"),
        ]
    return said


def _show(record: dict[str, Any], form: str) -> None:
    show_record(record, facts(record), form)
    if chosen_form(form) == "table":
        click.echo()
        show_rows(record["subgraphs"], _COLUMNS, form)
