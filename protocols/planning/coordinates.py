"""Distances from network coordinates: where a matrix would be too large, and for proofs that need a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protocols.ids import PeerId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
else:
    Numbers = Any


class Coordinates:
    """A point and a height for each peer: two are as far apart as their points, and both heights more."""

    def __init__(self, peers: Sequence[PeerId], points: Sequence[Sequence[float]], heights: Sequence[float]) -> None:
        import numpy as np

        assert len(peers) == len(points) == len(heights), "a point and a height for each peer"
        self.peers = tuple(peers)
        self.index = {peer: number for number, peer in enumerate(self.peers)}
        self.points: Numbers = np.asarray(points, np.float64)
        self.heights: Numbers = np.asarray(heights, np.float64)

    def distance(self, a: PeerId, b: PeerId) -> float:
        if a == b:
            return 0.0
        one, other = self.index[a], self.index[b]
        return math.dist(self.points[one], self.points[other]) + float(self.heights[one] + self.heights[other])

    def between(self, froms: Sequence[PeerId], tos: Sequence[PeerId]) -> Numbers:
        """The distance from each peer (a row) to each other (a column)."""
        import numpy as np

        rows, columns = (np.array([self.index[peer] for peer in peers], int) for peers in (froms, tos))
        found = apart(self.points[rows], self.points[columns])
        found += self.heights[rows][:, None] + self.heights[columns]
        found[rows[:, None] == columns] = 0.0
        return found

    def rows_between(self, froms: Sequence[PeerId], tos: Sequence[PeerId]) -> list[list[float]]:
        rows: list[list[float]] = self.between(froms, tos).tolist()
        return rows


def apart(froms: Numbers, tos: Numbers) -> Numbers:
    """How far each point (a row) is from each other (a column)."""
    import numpy as np

    squares = np.zeros((len(froms), len(tos)))
    for axis in range(froms.shape[1]):
        squares += (froms[:, axis, None] - tos[:, axis]) ** 2
    return np.sqrt(squares)
