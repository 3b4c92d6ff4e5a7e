"""Random processing trees on random networks, and every mapping of a small one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import msgspec

from protocols.ids import PeerId
from protocols.placement.tree import ProcessingTree, Vertex
from protocols.placement.view import NetworkView


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(20, "big"))


def random_view(luck: random.Random, peers: int, *, is_metric: bool = False) -> NetworkView:
    """Peers in a square; unless it is to be a metric, some distances are longer than the way round."""
    places = {peer(number): (luck.uniform(0, 100), luck.uniform(0, 100)) for number in range(peers)}
    drawn: dict[tuple[PeerId, PeerId], float] = {}

    def distance(a: PeerId, b: PeerId) -> float:
        a, b = min(a, b), max(a, b)
        if (a, b) not in drawn:
            (x, y), (p, q) = places[a], places[b]
            detour = 1.0 if is_metric else luck.choice((1.0, 1.0, 1.0, luck.uniform(1, 3)))
            drawn[a, b] = ((x - p) ** 2 + (y - q) ** 2) ** 0.5 * detour
        return drawn[a, b]

    return NetworkView.of(places, distance, is_metric=is_metric)


def random_tree(
    luck: random.Random, view: NetworkView, operators: int, source_peers: int = 0, *, is_choosy: bool = False
) -> ProcessingTree:
    """A tree of so many operators with one to three inputs each, its sources at so many different peers at most.

    Of a choosy one, the topmost operator can only be at some of the peers.
    """
    homes = luck.sample(view.peers, min(source_peers or len(view.peers), len(view.peers)))
    vertices: list[Vertex] = []

    def add(vertex: Vertex) -> int:
        vertices.append(vertex)
        return len(vertices) - 1

    def grow(left: int) -> int:
        if left == 0:
            return add(Vertex("source", (), luck.uniform(1, 100), luck.choice(homes)))
        fanout = luck.choice((1, 2, 2, 2, 3))
        cuts = sorted(luck.randint(0, left - 1) for _ in range(fanout - 1))
        shares = [b - a for a, b in itertools.pairwise((0, *cuts, left - 1))]
        children = tuple(grow(share) for share in shares)
        flow = sum(vertices[child].beta for child in children)
        return add(Vertex("operator", children, flow * luck.choice((0.1, 0.5, 1.0, luck.random(), 1.5))))

    top = grow(operators)
    if is_choosy:
        able = tuple(luck.sample(view.peers, luck.randint(1, len(view.peers))))
        vertices[top] = msgspec.structs.replace(vertices[top], able=able)
    add(Vertex("delivery", (top,), 0.0, luck.choice(view.peers)))
    return ProcessingTree(vertices)


def all_mappings(tree: ProcessingTree, view: NetworkView) -> Iterator[tuple[PeerId, ...]]:
    pinned = [vertex.peer for vertex in tree.vertices]
    for chosen in itertools.product(view.peers, repeat=len(tree.operators)):
        hosts = list(pinned)
        for operator, host in zip(tree.operators, chosen, strict=True):
            hosts[operator] = host
        if not all(tree.sites[operator].can_be_at(hosts[operator]) for operator in tree.operators):
            continue
        yield tuple(host for host in hosts if host is not None)
