"""`peer explain --why`: where a query would run on this network, and what every other placement would cost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peerd.cli.common import client_for
from peerd.cli.output import Column, chosen_form, show_record, show_rows
from peerd.words import milliseconds

if TYPE_CHECKING:
    from protocols.execution.messages import PartPlaced, QueryShown, QueryWeighed

SHORT_ID: Final = 8

_COLUMNS: Final = (
    Column("placement", lambda row: str(row["placement"])),
    Column("under way", lambda row: "-" if row["bytes_under_way"] is None else f"{row['bytes_under_way']:,.0f} B"),
    Column("over best", lambda row: "-" if row["over_best"] is None else f"{row['over_best']:.0%}"),
    Column("delay", lambda row: milliseconds(row["delay_ms"]), right=True),
    Column("stretch", lambda row: "-" if row["stretch"] is None else f"{row['stretch']:.2f}", right=True),
    Column("hosts", lambda row: _hosts(row["hosts"]) if row["hosts"] else "cannot keep the bound"),
)


def why(text: str, data_dir: Path | None, number: int | None, form: str) -> None:
    """Show why a query runs where it does, or would: a text, or the name of one that runs at this peer."""

    async def work() -> tuple[QueryShown | None, QueryWeighed]:
        async with client_for(data_dir, number) as client:
            if len(text.split()) > 1:
                return None, await client.weigh(text)
            shown = await client.show_query(text)
            return shown, await client.weigh(shown.text)

    shown, weighed = asyncio.run(work())
    record = _record(weighed)
    if shown is not None:
        record |= {"placement": shown.placement, "hosts": _running(shown), "why": shown.why or None}
        record["moves"] = sum(not each.is_given_up for each in shown.moves)
    facts = [
        ("placement", record["placement"]),
        ("runs at" if shown is not None else "would run at", _hosts(record["hosts"]) if record["hosts"] else "-"),
        ("why", record["why"] or "nothing it reads grows on the way"),
        *([("moves", f'{record["moves"]}; "peer query show {shown.query}" tells why')] if shown is not None else []),
        ("candidates", f"{weighed.peers} peers, {weighed.engines} of them with Spark"),
        *([("no room", _crowded(record["crowded"]))] if record["crowded"] else []),
        ("flows", ", ".join(f"{name} {beta:,.0f} B/s" for name, beta in weighed.betas)),
    ]
    show_record(record, facts, form)
    if chosen_form(form) == "table":
        click.echo()
        show_rows(record["placements"], _COLUMNS, form)


def _record(weighed: QueryWeighed) -> dict[str, Any]:
    costs = [each.cost for each in weighed.options if each.cost is not None]
    best = min(costs, default=None)
    rows = [
        {
            "placement": each.algorithm,
            "bytes_under_way": each.cost,
            "over_best": each.cost / best - 1 if each.cost is not None and best else None,
            "delay_ms": each.delay_ms,
            "stretch": each.stretch,
            "hosts": _named(each.parts),
        }
        for each in weighed.options
    ]
    return {
        "placement": weighed.placement,
        "hosts": _named(weighed.chosen),
        "why": weighed.why or None,
        "candidates": weighed.peers,
        "engines": weighed.engines,
        "bytes_per_s": [{"part": name, "bytes_per_s": beta} for name, beta in weighed.betas],
        "placements": rows,
        "crowded": [{"host": peer.hex(), "lacks": lack} for peer, lack in weighed.crowded],
    }


def _crowded(peers: list[dict[str, str]]) -> str:
    """Which peers have no room, as they say themselves.

    >>> _crowded([{"host": "3f9a77c0b1", "lacks": "hosting"}, {"host": "77c0b1d2aa", "lacks": "cpu"}])
    '3f9a77c0 (hosts nothing for others), 77c0b1d2 (CPU)'
    """
    words = {"hosting": "hosts nothing for others", "cpu": "CPU"}
    return ", ".join(f"{each['host'][:SHORT_ID]} ({words.get(each['lacks'], each['lacks'])})" for each in peers)


def _running(shown: QueryShown) -> list[dict[str, str]]:
    """Where the subgraphs of a query are now, the last one last."""
    parts = [
        (f"{each.subgraph.engine.name} for {each.subgraph.consumer_alias or 'results'}", each)
        for each in shown.subgraphs
    ]
    return [{"part": part, "host": each.host.hex()} for part, each in parts]


def _named(parts: tuple[PartPlaced, ...]) -> list[dict[str, str]]:
    return [{"part": each.part, "host": each.host.hex()} for each in parts]


def _hosts(parts: list[dict[str, str]]) -> str:
    return ", ".join(f"{each['part']} {each['host'][:SHORT_ID]}" for each in parts)
