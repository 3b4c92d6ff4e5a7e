"""What is known of the network: some peers, and the distance between each two of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from protocols.ids import PeerId
from protocols.placement.tree import Distance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class NetworkView:
    """Distances as a matrix: asked for once, read many times.

    Distances from coordinates, or along shortest paths, are a metric: no detour is shorter than the direct way. For
    measured distances that is unknown. If the caller declares a metric, the search within a bound need not look for
    detours.
    """

    def __init__(self, peers: Sequence[PeerId], rows: Sequence[Sequence[float]], *, is_metric: bool = False) -> None:
        self.is_metric = is_metric
        self.peers = tuple(peers)
        self.rows = rows
        self.index = {peer: number for number, peer in enumerate(self.peers)}
        assert len(self.index) == len(rows), "a row for each peer, and no peer twice"

    @classmethod
    def of(cls, peers: Iterable[PeerId], distance: Distance, *, is_metric: bool = False) -> NetworkView:
        ordered = sorted(set(peers))
        rows = [[0.0 if a == b else distance(a, b) for b in ordered] for a in ordered]
        return cls(ordered, rows, is_metric=is_metric)

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """The rows as an array. Loads numpy, which a daemon without placements can do without."""
        import numpy as np

        return np.asarray(self.rows, np.float64)

    @cached_property
    def short_matrix(self) -> NDArray[np.float32]:
        """The same as 32-bit floats, for a first pass."""
        import numpy as np

        return self.matrix.astype(np.float32)

    def distance(self, a: PeerId, b: PeerId) -> float:
        return self.rows[self.index[a]][self.index[b]]

    def between(self, froms: Sequence[PeerId], tos: Sequence[PeerId]) -> NDArray[np.float64]:
        """The distance from each peer (a row) to each other (a column)."""
        rows, columns = ([self.index[peer] for peer in peers] for peers in (froms, tos))
        if len(columns) == len(self.peers) and columns == list(range(len(columns))):
            return self.matrix[rows]
        return self.matrix[rows][:, columns]

    def rows_between(self, froms: Sequence[PeerId], tos: Sequence[PeerId]) -> list[list[float]]:
        """The same without loading numpy."""
        columns = [self.index[peer] for peer in tos]
        return [[row[column] for column in columns] for row in (self.rows[self.index[peer]] for peer in froms)]

    def nearest(self, peer: PeerId, others: Iterable[PeerId]) -> PeerId:
        return min(others, key=lambda other: (self.distance(peer, other), other))

    def shortest_from(self, peer: PeerId) -> list[float]:
        """The shortest way to every peer: a measured distance can be longer than a detour."""
        best = list(self.rows[self.index[peer]])
        if self.is_metric:
            return best
        waiting = dict.fromkeys(range(len(best)))
        while waiting:
            nearest = min(waiting, key=best.__getitem__)
            del waiting[nearest]
            base = best[nearest]
            best = [min(known, base + ms) for known, ms in zip(best, self.rows[nearest], strict=True)]
        return best

    def among(self, peers: Iterable[PeerId]) -> NetworkView:
        """The same distances, among some of the peers only."""
        numbers = sorted({self.index[peer] for peer in peers})
        rows = [[row[number] for number in numbers] for row in (self.rows[number] for number in numbers)]
        return NetworkView([self.peers[number] for number in numbers], rows, is_metric=self.is_metric)
