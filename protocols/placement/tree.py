"""Processing trees: the operators of a query, what flows between them, and what a mapping to peers costs.

The paper's tree ends at the operator whose results go to the proxy. Ours has one more vertex, the delivery: it is
pinned to the proxy, so the results' way there is paid for, and is part of every path that a delay bound limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import msgspec

from protocols.ids import Amount, Count, PeerId
from queries.cost import Rates
from queries.plan import Operator, Source

Distance = Callable[[PeerId, PeerId], float]
"""One-way delay between two peers in milliseconds; symmetric, 0 from a peer to itself."""


class Vertex(msgspec.Struct, frozen=True, array_like=True):
    """An operator, a source, or the delivery."""

    name: str
    children: tuple[Count, ...]
    beta: Amount  # What flows to its parent, in bytes per second: the paper's β of the edge above it.
    peer: PeerId | None = None  # The place of a source (the paper's DHT function) or of the proxy; None: an operator.
    able: tuple[PeerId, ...] | None = None  # The peers that can run an operator; None: every peer.
    instead: tuple[tuple[PeerId, PeerId], ...] = ()  # For each peer that cannot, the nearest that can.


class Site(msgspec.Struct, frozen=True, array_like=True):
    """All that placing one operator needs to know of the tree; the proxy computes it before anything is placed."""

    operator: Count
    children: tuple[Count, ...]
    betas: tuple[Amount, ...]  # Of the edge to each child.
    below: tuple[tuple[PeerId, ...], ...]  # dl of each child: the locations of the sources below it.
    common: tuple[PeerId, ...]  # cl: the locations in every child's dl.
    wanted: tuple[PeerId, ...]  # Where an operator above may want this one, because several of its inputs meet there.
    peer: PeerId | None
    able: tuple[PeerId, ...] | None = None  # Who can run it; None: any peer.
    instead: tuple[tuple[PeerId, PeerId], ...] = ()

    def standing_in(self, location: PeerId) -> PeerId:
        """Who stands for a location of the paper, whose servers all run everything: the location itself if it can run
        this.
        """
        return _standing_in(self.instead, location)

    def can_be_at(self, location: PeerId | None) -> bool:
        """Whether a peer can run the operator; None stands for any peer."""
        return self.able is None or location in self.able

    @property
    def locations(self) -> tuple[PeerId, ...]:
        """dl of the operator itself."""
        return _union(self.below)


class ProcessingTree:
    """The vertices of a tree in post-order: children before parents, the delivery last."""

    def __init__(self, vertices: Sequence[Vertex]) -> None:
        self.vertices = tuple(vertices)
        self.parents = [-1] * len(self.vertices)
        below: list[tuple[PeerId, ...]] = []
        for index, vertex in enumerate(self.vertices):
            assert all(child < index for child in vertex.children), "the vertices are not in post-order"
            assert bool(vertex.children) or vertex.peer is not None, "a source has a peer"
            assert vertex.able is None or vertex.able, "somebody can run each operator"
            for child in vertex.children:
                assert self.parents[child] == -1, "a vertex has one parent"
                self.parents[child] = index
            leaf = (vertex.peer,) if vertex.peer is not None and not vertex.children else ()
            below.append(_union((leaf, *(below[child] for child in vertex.children))))
        assert self.parents.count(-1) == 1, "a tree has one root"
        assert self.vertices[-1].peer is not None, "the delivery is pinned to the proxy"
        self.below = below

    @property
    def proxy(self) -> PeerId:
        peer = self.vertices[-1].peer
        assert peer is not None
        return peer

    @property
    def root(self) -> int:
        return len(self.vertices) - 1

    @cached_property
    def operators(self) -> tuple[int, ...]:
        """What is to be placed: neither the sources nor the delivery."""
        return tuple(index for index, vertex in enumerate(self.vertices) if vertex.peer is None)

    @cached_property
    def sources(self) -> tuple[int, ...]:
        return tuple(index for index, vertex in enumerate(self.vertices) if not vertex.children)

    @cached_property
    def source_peers(self) -> tuple[PeerId, ...]:
        return self.below[self.root]

    def path(self, index: int) -> tuple[int, ...]:
        """The ancestors of a vertex, nearest first: the rest of the paper's leaf-to-root path."""
        path = []
        while (index := self.parents[index]) != -1:
            path.append(index)
        return tuple(path)

    @cached_property
    def sites(self) -> dict[int, Site]:
        """The operators and the delivery, as whoever places them sees them."""
        return {index: self._site(index) for index, vertex in enumerate(self.vertices) if vertex.children}

    def _site(self, index: int) -> Site:
        vertex = self.vertices[index]
        return Site(
            operator=index,
            children=vertex.children,
            betas=tuple(self.vertices[child].beta for child in vertex.children),
            below=tuple(self._locations(child) for child in vertex.children),
            common=_in_several([self.below[child] for child in vertex.children], len(vertex.children)),
            wanted=_union([self._meeting(ancestor) for ancestor in self.path(index)]),
            peer=vertex.peer,
            able=vertex.able,
            instead=vertex.instead,
        )

    def _locations(self, index: int) -> tuple[PeerId, ...]:
        """dl of a vertex, with stand-ins for peers that cannot run it."""
        instead = self.vertices[index].instead
        return _union([(_standing_in(instead, each),) for each in self.below[index]])

    def _meeting(self, index: int) -> tuple[PeerId, ...]:
        """The locations that at least two inputs have in common; for two inputs that is the paper's cl.

        For an operator that not every peer can run: all locations under consideration.
        """
        vertex = self.vertices[index]
        if vertex.peer is not None:
            return ()  # The delivery never moves, whatever lies below it.
        meeting = _in_several([self.below[child] for child in vertex.children], min(2, len(vertex.children)))
        if vertex.able is None:
            return meeting
        # For a peer that nobody has named, it is not known whether it can run what is below.
        named = tuple(peer for peer in self.below[index] if peer in vertex.able)
        return _union([meeting, named, tuple(other for _, other in vertex.instead)])


def _standing_in(instead: tuple[tuple[PeerId, PeerId], ...], location: PeerId) -> PeerId:
    return next((other for peer, other in instead if peer == location), location)


def _union(groups: Sequence[tuple[PeerId, ...]]) -> tuple[PeerId, ...]:
    return tuple(sorted({peer for group in groups for peer in group}))


def _in_several(groups: Sequence[tuple[PeerId, ...]], count: int) -> tuple[PeerId, ...]:
    """What is in at least so many of the groups; no group names a peer twice."""
    counts: dict[PeerId, int] = {}
    for group in groups:
        for peer in group:
            counts[peer] = counts.get(peer, 0) + 1
    return tuple(sorted(peer for peer, found in counts.items() if found >= count))


def tree_of(plan: Operator, rates: Rates, publishers: Mapping[str, PeerId], proxy: PeerId) -> ProcessingTree:
    """The tree of a plan: β from the statistics of its streams, each source where its stream is published most."""
    vertices: list[Vertex] = []

    def add(operator: Operator) -> int:
        children = tuple(add(each) for each in operator.inputs)
        peer = publishers.get(operator.stream, proxy) if isinstance(operator, Source) else None
        name = operator.alias if isinstance(operator, Source) else type(operator).__name__
        vertices.append(Vertex(name, children, rates.estimate(operator).beta, peer))
        return len(vertices) - 1

    top = add(plan)
    vertices.append(Vertex("delivery", (top,), 0.0, proxy))
    return ProcessingTree(vertices)


def overlay_cost(tree: ProcessingTree, hosts: Sequence[PeerId], distance: Distance) -> float:
    """The paper's objective with distances: Σ β(a) · d over the edges whose ends are at different peers."""
    return sum(
        vertex.beta * distance(hosts[index], hosts[parent])
        for index, (vertex, parent) in enumerate(zip(tree.vertices, tree.parents, strict=True))
        if parent != -1 and hosts[index] != hosts[parent]
    )


def path_delay(tree: ProcessingTree, hosts: Sequence[PeerId], distance: Distance) -> float:
    """The paper's δ of the whole tree: the longest way of a tuple from its source to the proxy."""
    delays: list[float] = []
    for index, vertex in enumerate(tree.vertices):
        arrivals = (delays[child] + distance(hosts[child], hosts[index]) for child in vertex.children)
        delays.append(max(arrivals, default=0.0))
    return delays[-1]
