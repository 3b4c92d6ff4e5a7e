"""`peer explain` with a network: which peers and engines run the operators of a query, and what flows between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from peerd.cli.query import index_sentence
from protocols.catalogue.known import busiest, known_of
from protocols.catalogue.messages import StreamShown
from protocols.execution.cut import cut
from protocols.execution.cut import indexed as through_index
from protocols.execution.messages import FlowInput, QueryShown, Subgraph
from protocols.ids import PeerId
from protocols.join_index import explain as indexed
from protocols.join_index.condition import algorithm_for
from queries import explain as shown
from queries.catalogue import Stream
from queries.cost import Rates, StreamStatistics
from queries.plan import Operator, Source, sources
from queries.query import Query, parse

if TYPE_CHECKING:
    from peerd.client import Client

SHORT_ID: Final = 8
PLANNED: Final = "q"  # The name of a query that has none yet.


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

    query: Query
    streams: Mapping[str, Stream]
    hosted: tuple[Hosted, ...]  # Those that are read before those that read them.
    known: Mapping[str, StreamStatistics]
    in_index: str = ""  # What it costs in the join index, or where in it it is.


async def planned(client: Client, text: str, peer: PeerId, engine: str) -> Explained:
    """A query that does not run yet, as this peer would deploy it now."""
    query, streams, found = await _looked_up(client, text)
    publishers = {each.alias: busiest(found[each.stream].publishers) for each in sources(query.plan)}
    chains = {alias: at for alias, at in publishers.items() if at is not None}
    algorithm = algorithm_for(query.plan) if engine == "auto" else None
    if algorithm is not None:
        made = through_index(query.plan, 0, peer, algorithm)
    else:
        made = cut(PLANNED, query.plan, 0, chains, peer, peer, engine)
    hosted = tuple(Hosted(*each) for each in zip(made.subgraphs, made.hosts, strict=True))
    known = {name: known_of(each) for name, each in found.items()}
    return Explained(query, streams, hosted, known, indexed.as_text(query.plan))


async def running(client: Client, told: QueryShown) -> Explained:
    """A query as it runs."""
    query, streams, found = await _looked_up(client, told.text)
    hosted = tuple(Hosted(each.subgraph, each.host) for each in told.subgraphs)
    known = {name: known_of(each) for name, each in found.items()}
    indices = [f"index    {said}" for each in told.subgraphs if (said := index_sentence(each.status))]
    return Explained(query, streams, hosted, known, "\n".join(indices))


async def _looked_up(client: Client, text: str) -> tuple[Query, dict[str, Stream], dict[str, StreamShown]]:
    from peerd.history import as_stream

    streams = {each.name: as_stream(each) for each in await client.streams()}
    query = parse(text, streams)
    names = dict.fromkeys(each.stream for each in sources(query.plan))
    return query, streams, {name: await client.stream(name) for name in names}


def show(explained: Explained, form: str) -> None:
    rates = Rates(_with_flows(explained))
    if form == "json":
        said = shown.as_json(explained.query, explained.streams, Rates(explained.known))
        click.echo(json.dumps(said | {"subgraphs": [_json(each, rates) for each in explained.hosted]}, indent=2))
        return
    facts = shown.as_text(explained.query, explained.streams).splitlines()
    tree = shown.tree(explained.query.plan)
    last = explained.hosted[-1]
    by_number = {each.subgraph.number: each for each in explained.hosted}
    lines = [
        (
            f"{prefix}{vertex.operator}",
            f"peer {vertex.of.host.hex()[:SHORT_ID]}",
            vertex.of.subgraph.engine,
            *shown.flow_cells(rates.estimate(vertex.operator)),
        )
        for prefix, vertex in shown.branches(_Vertex(last.subgraph.plan, last), lambda each: _below(each, by_number))
    ]
    index = [explained.in_index] if explained.in_index else []
    click.echo("\n".join([*facts[: len(facts) - len(tree)], *shown.aligned(lines), *index]))


def _below(vertex: _Vertex, by_number: Mapping[int, Hosted]) -> Sequence[_Vertex]:
    """What an operator reads: where that is the flow of another subgraph, what makes it."""
    flows = {each.alias: each.subgraph for each in vertex.of.subgraph.inputs if isinstance(each, FlowInput)}
    below = []
    for each in vertex.operator.inputs:
        if isinstance(each, Source) and each.alias in flows:
            maker = by_number[flows[each.alias]]
            below.append(_Vertex(maker.subgraph.plan, maker))
        else:
            below.append(_Vertex(each, vertex.of))
    return below


def _with_flows(explained: Explained) -> dict[str, StreamStatistics]:
    """What is known of the streams, and what that makes of the flows between subgraphs."""
    known = dict(explained.known)
    by_number = {each.subgraph.number: each.subgraph for each in explained.hosted}
    for subgraph, _ in explained.hosted:
        for alias, made_by in ((each.alias, each.subgraph) for each in subgraph.inputs if isinstance(each, FlowInput)):
            flow = Rates(known).estimate(by_number[made_by].plan)
            stream = next(each.stream for each in sources(subgraph.plan) if each.alias == alias)
            known[stream] = StreamStatistics(
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
        "engine": subgraph.engine,
        "read_by": subgraph.consumer,
        "plan": shown.operator_json(subgraph.plan, rates),
    }
