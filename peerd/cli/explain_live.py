"""`peer explain` with a network: which peers and engines run the operators of a query, and what flows between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from peerd.cli.query import index_sentence
from peerd.cli.taps import tap_sentences
from peerd.errors import PeerError
from protocols.execution.decision import known_of
from protocols.execution.messages import QueryId, SubgraphShown
from protocols.ids import PeerId
from protocols.join_index import explain as indexed
from protocols.subgraphs import FlowInput, Indexed, Subgraph
from queries import explain as shown
from queries.catalogue import Stream
from queries.cost import UNKNOWN, Rates, StreamRates
from queries.plan import Operator, Source, sources
from queries.query import ParsedQuery, parse

if TYPE_CHECKING:
    from peerd.client import Client, QueryEngine

SHORT_ID: Final = 8
SILENT: Final = StreamRates(rate_per_s=0.0, row_bytes=UNKNOWN.row_bytes)  # Of which nothing flows.


class Hosted(NamedTuple):
    """A subgraph and its host."""

    subgraph: Subgraph
    host: PeerId


class _Vertex(NamedTuple):
    """An operator, and the subgraph it is in."""

    operator: Operator
    of: Hosted


class Explained(NamedTuple):
    """A query as it runs or would run."""

    query: ParsedQuery
    streams: Mapping[str, Stream]
    hosted: tuple[Hosted, ...]  # In reading order: a subgraph comes after those it reads.
    known: Mapping[str, StreamRates]
    why: str = ""  # Why it would run there, if it is only planned.
    in_index: str = ""  # Its cost in the join index, or its place there.


async def planned(client: Client, text: str, engine: QueryEngine, peers: int) -> Explained:
    """A query that does not run yet, as this peer would deploy it now, in a network of so many peers."""
    told = await client.plan_query(text, engine=engine)
    explained = await _explained(client, text, told.subgraphs)
    lines = [indexed.as_text(explained.query.plan)]
    engines = [each.subgraph.engine for each in told.subgraphs]
    if any(isinstance(each, Indexed) and each.is_open for each in engines):
        shown = [await client.stream(name) for name in explained.known]
        statistics = {
            each.definition.name: [one.statistics for one in each.publishers if one.statistics is not None]
            for each in shown
        }
        lines.append(indexed.chosen_text(explained.query.plan, statistics, peers))
    return explained._replace(why=told.why, in_index="\n".join(filter(None, lines)))


async def running(client: Client, name: QueryId) -> Explained:
    """A query as it runs."""
    told = await client.show_query(name)
    if not told.subgraphs:
        raise PeerError(f'query "{name}" does not run now', detail=told.reason or None, hint="Try again in a moment.")
    explained = await _explained(client, told.text, told.subgraphs)
    indices = [f"index    {said}" for each in told.subgraphs if (said := index_sentence(each.status))]
    taps = [f"tap      {said}" for said in tap_sentences(told.subgraphs)]
    return explained._replace(in_index="\n".join([*taps, *indices]))


async def _explained(client: Client, text: str, subgraphs: Sequence[SubgraphShown]) -> Explained:
    streams = {each.name: each.stream() for each in await client.streams()}
    query = parse(text, streams)
    names = dict.fromkeys(each.stream for each in sources(query.plan))
    known = {name: known_of(await client.stream(name)) or SILENT for name in names}
    return Explained(query, streams, tuple(Hosted(each.subgraph, each.host) for each in subgraphs), known)


def show(explained: Explained, form: str) -> None:
    rates = Rates(_with_flows(explained))
    if form == "json":
        said = shown.as_json(explained.query, explained.streams, Rates(explained.known))
        click.echo(
            json.dumps(
                said | {"placed": explained.why, "subgraphs": [_json(each, rates) for each in explained.hosted]},
                indent=2,
            )
        )
        return
    facts = shown.as_text(explained.query, explained.streams).splitlines()
    tree = shown.tree(explained.query.plan)
    last = explained.hosted[-1]
    by_number = {each.subgraph.number: each for each in explained.hosted}
    lines = [
        (
            f"{prefix}{vertex.operator}",
            f"peer {vertex.of.host.hex()[:SHORT_ID]}",
            vertex.of.subgraph.engine.name,
            *shown.flow_cells(rates.estimate(vertex.operator)),
        )
        for prefix, vertex in shown.branches(_Vertex(last.subgraph.plan, last), lambda each: _below(each, by_number))
    ]
    placed = [f"placed   {explained.why}"] if explained.why else []
    index = [explained.in_index] if explained.in_index else []
    click.echo("\n".join([*facts[: len(facts) - len(tree)], *placed, *shown.aligned(lines), *index]))


def _below(vertex: _Vertex, by_number: Mapping[int, Hosted]) -> Sequence[_Vertex]:
    """What an operator reads; for a flow of another subgraph, the operator that makes it."""
    flows = {each.alias: each.subgraph for each in vertex.of.subgraph.inputs if isinstance(each, FlowInput)}
    below = []
    for each in vertex.operator.inputs:
        if isinstance(each, Source) and each.alias in flows:
            maker = by_number[flows[each.alias]]
            below.append(_Vertex(maker.subgraph.plan, maker))
        else:
            below.append(_Vertex(each, vertex.of))
    return below


def _with_flows(explained: Explained) -> dict[str, StreamRates]:
    """What is known of the streams, and the flows between subgraphs that follow from it."""
    known = dict(explained.known)
    by_number = {each.subgraph.number: each.subgraph for each in explained.hosted}
    for subgraph, _ in explained.hosted:
        for alias, made_by in ((each.alias, each.subgraph) for each in subgraph.inputs if isinstance(each, FlowInput)):
            flow = Rates(known).estimate(by_number[made_by].plan)
            stream = next(each.stream for each in sources(subgraph.plan) if each.alias == alias)
            known[stream] = StreamRates(
                rate_per_s=flow.rate_per_s,
                row_bytes=flow.row_bytes,
                columns={path: each for (_, path), each in flow.columns.items()},
            )
    return known


def _json(hosted: Hosted, rates: Rates) -> dict[str, Any]:
    subgraph = hosted.subgraph
    return {
        "number": subgraph.number,
        "host": hosted.host.hex(),
        "engine": subgraph.engine.name,
        "read_by": subgraph.consumer,
        "plan": shown.operator_json(subgraph.plan, rates),
    }
