"""Checks that the operators of all queries are where their proxies say, each at one live peer and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from overlay.sim.peer import SimPeer
from protocols.execution.submitted import SubmittedQuery
from protocols.ids import PeerId
from protocols.peer import Peer
from protocols.placement.machine import Row


def disagreements(peers: Iterable[SimPeer]) -> list[str]:
    """Where live peers disagree about the place of operators; empty in the end."""
    live = {each.peer_id: each.machine for each in peers if isinstance(each.machine, Peer)}
    queries = [each for peer in live.values() for each in peer.proxy.queries.values()]
    placed = [each for each in queries if each.planning.index is None]
    waiting = [f"query {each.name} is {each.state}: {each.retry.reason}" for each in placed if each.state != "running"]
    return waiting or [*_misplaced(live, placed), *_claimed_twice(live, placed)]


def _misplaced(live: dict[PeerId, Peer], placed: list[SubmittedQuery]) -> Iterator[str]:
    """Subgraphs that run elsewhere than their proxy says, or for nobody."""
    wanted = {
        (query.stream, subgraph.number): [(host.short, query.attempt.number)]
        for query in placed
        if query.attempt is not None
        for subgraph, host in query.attempt.cut.placed
    }
    running: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for host, peer in live.items():
        for key, hosted in peer.executor.hosted.items():
            running.setdefault(key, []).append((host.short, hosted.run.deploy.attempt))
    for key in dict.fromkeys((*wanted, *running)):
        there, here = wanted.get(key, []), running.get(key, [])
        if there != here:
            yield f"subgraph {key[1]} of {key[0]} should run at {there} and runs at {here}"


def _claimed_twice(live: dict[PeerId, Peer], placed: list[SubmittedQuery]) -> Iterator[str]:
    """Operators of the latest attempt that are in the tables of several hosts, or at a host that nobody means."""
    rows: dict[tuple[str, int], dict[PeerId, Row]] = {}
    for host, peer in live.items():
        for place, row in peer.placement.mapped.items():
            rows.setdefault(place, {})[host] = row
    meant = {query.stream: _hosts(query) for query in placed if query.planning.placing.is_by_coordinators}
    for (placement, operator), told in rows.items():
        latest = max(row.attempt for row in told.values())
        hosts = [host for host, row in told.items() if row.attempt == latest and row.configuration is not None]
        others = [host.short for host in hosts if host not in meant.get(placement, hosts)]
        if len(hosts) > 1 or others:
            claims = ", ".join(host.short for host in hosts)
            yield f"operator {operator} of {placement} is in the tables of {claims}; its proxy did not mean {others}"


def _hosts(query: SubmittedQuery) -> list[PeerId]:
    """Who may have an operator of a query in its table: hosts of subgraphs, and publishers."""
    attempt, placing = query.attempt, query.planning.placing
    assert attempt is not None
    assert placing.choice is not None
    publishers = [each.peer for shown in placing.streams.values() for each in shown.publishers]
    return [*attempt.cut.hosts, *placing.choice.chains.values(), *publishers]
