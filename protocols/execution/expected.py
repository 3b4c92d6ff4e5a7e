"""What is expected to flow through the subgraphs of a query: what their hosts are asked to have room for."""

from __future__ import annotations

import math
from collections.abc import Mapping

from protocols.catalogue.messages import StreamShown
from protocols.demand import Demand, Traffic
from protocols.execution.cut import Cut
from protocols.execution.decision import known_of, publishers_of
from protocols.ids import PeerId
from protocols.subgraphs import StreamInput
from queries.cost import MOST, UNKNOWN, Estimate, Rates, StreamRates
from queries.plan import sources


def demands_of(made: Cut, streams: Mapping[str, StreamShown], told: Mapping[str, StreamRates]) -> dict[int, Demand]:
    """The demand of each subgraph of a cut, by its number. `told` is what the client says of the streams."""
    flowing = {name: known for name, shown in streams.items() if (known := known_of(shown) or _silent(shown))}
    rates = {**told, **flowing}
    hosts, flows = made.by_number, dict[int, Estimate]()
    demands: dict[int, Demand] = {}
    for subgraph, host in made.placed:
        names = {each.alias: each.stream for each in sources(subgraph.plan)}
        inputs = []
        for each in subgraph.inputs:
            if isinstance(each, StreamInput):
                known = rates.get(each.stream, UNKNOWN)
                bytes_per_s = known.rate_per_s * known.row_bytes
                inputs.append(_traffic(known.rate_per_s, bytes_per_s * _elsewhere(streams.get(each.stream), host)))
            else:
                flow = flows[each.subgraph]
                rates[names[each.alias]] = _as_stream(flow)
                inputs.append(_traffic(flow.rate_per_s, flow.beta if hosts[each.subgraph] != host else 0.0))
        flow = flows[subgraph.number] = Rates(rates).estimate(subgraph.plan)
        travels = subgraph.consumer is not None and hosts[subgraph.consumer] != host
        demands[subgraph.number] = Demand(tuple(inputs), _traffic(flow.rate_per_s, flow.beta if travels else 0.0))
    return demands


def _silent(shown: StreamShown) -> StreamRates | None:
    """A stream that has flowed, and does not now. To planners it is unknown; nothing is expected of it."""
    sizes = [each.statistics.row_bytes for each in shown.publishers if each.statistics is not None]
    return StreamRates(rate_per_s=0.0, row_bytes=max(sizes)) if sizes else None


def _elsewhere(shown: StreamShown | None, host: PeerId) -> float:
    """The share of a stream that is published at other peers than its reader."""
    return math.fsum(share for peer, share in publishers_of(shown) if peer != host)


def _as_stream(flow: Estimate) -> StreamRates:
    columns = {path: known for (_, path), known in flow.columns.items()}
    return StreamRates(rate_per_s=flow.rate_per_s, row_bytes=flow.row_bytes, columns=columns)


def _traffic(rows: float, size: float) -> Traffic:
    return Traffic(min(rows, MOST), min(size, MOST))
