"""How far a plan can be from the optimum of a large network: bounds over a tree of cells, opened where they matter.

A cell is some peers within a radius of its centre. No peer of one cell is nearer to a peer of another than the centres
are, less both radii and with the least heights. The programme over a few hundred cells with these distances costs no
more than any plan; read backwards, too, it says the least that any plan costs that has a join in a cell. Cells above
the best plan are dropped, the others opened. It is Top-Down with a proof, and needs coordinates, since measured
distances may have shorter detours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from protocols.ids import PeerId
from protocols.placement.exact import carried
from protocols.planning.coordinates import Coordinates, apart
from protocols.planning.exact import plan_exactly
from protocols.planning.problem import Decision, Problem, Streams
from protocols.planning.programme import Splits, Tables, all_splits, read_costs, tabulated, ways_to_read

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
else:
    Numbers = Any

FIRST: Final = 48  # Cells looked at first.
CELLS_MAX: Final = 400  # At a time.
ROUNDS_MAX: Final = 12
HOSTS_MAX: Final = 256  # Of so few hosts the best plan is found at once.
EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Cell:
    """Some hosts near each other."""

    hosts: tuple[int, ...]  # Their numbers in the coordinates.
    centre: Numbers
    radius: float
    height: float  # The least of its hosts.
    halves: tuple[Cell, ...] = ()


def cells_of(network: Coordinates, hosts: Sequence[PeerId]) -> Cell:
    """The tree of cells over some peers; it serves all queries as long as they stay where they are."""
    import numpy as np

    return _cell(network, np.array([network.index[host] for host in hosts], int))


def _cell(network: Coordinates, numbers: Any) -> Cell:
    import numpy as np

    points = network.points[numbers]
    centre = points.mean(axis=0)
    radius = float(np.sqrt(((points - centre) ** 2).sum(axis=1).max())) if len(numbers) > 1 else 0.0
    halves: tuple[Cell, ...] = ()
    if len(numbers) > 1:
        axis = int(np.ptp(points, axis=0).argmax())  # Along the longest side.
        order = np.argsort(points[:, axis], kind="stable")
        middle = len(numbers) // 2
        gaps = np.diff(points[order, axis])
        quarter = len(numbers) // 4
        cut = quarter + int(gaps[quarter : len(numbers) - quarter].argmax()) + 1 if len(numbers) > 3 else middle
        halves = (_cell(network, numbers[order[:cut]]), _cell(network, numbers[order[cut:]]))
    return Cell(tuple(map(int, numbers)), centre, radius, float(network.heights[numbers].min()), halves)


def prove(problem: Problem, network: Coordinates, cells: Cell, decision: Decision) -> Decision:
    """The decision with a bound that no plan is below; a better plan where the search comes upon one.

    If few hosts are left that an optimal plan can use, the plan over those is optimal.
    """
    if len(problem.streams) == 1:  # Nothing is joined, so there is nowhere to be chosen.
        return plan_exactly(problem)._replace(planner=decision.planner)
    front, bound = _opened([cells], FIRST), 0.0
    pinned = _pinned(problem)
    for _ in range(ROUNDS_MAX):
        least, bound = _bounds(problem, network, pinned, front)
        ceiling = decision.cost * (1 + EPSILON)
        bound = min(max(bound, decision.bound), decision.cost)
        alive = [
            cell for cell, cost in sorted(zip(front, least, strict=True), key=lambda each: each[1]) if cost <= ceiling
        ]
        hosts = {number for cell in alive for number in cell.hosts}
        if len(hosts) + len(pinned) <= HOSTS_MAX:
            left = sorted({*(network.peers[number] for number in sorted(hosts)), *pinned})
            best = plan_exactly(problem.among(tuple(left))) if left else decision
            best = min((decision, best), key=lambda each: each.cost)
            return best._replace(planner=decision.planner, examined=decision.examined, bound=best.cost)
        front = _opened(alive, min(4 * len(alive), CELLS_MAX))
        if len(front) == len(alive) or decision.cost - bound <= EPSILON * decision.cost:
            break
    return decision._replace(bound=bound)


def _pinned(problem: Problem) -> tuple[PeerId, ...]:
    """The hosts at which something is already: each is a cell of its own, beside the one it lies in."""
    froms = [origin.peer for stream in problem.streams for origin in stream.publishers]
    froms += [each.origin.peer for each in problem.derived]
    able = dict.fromkeys(problem.hosts)
    return tuple(peer for peer in dict.fromkeys((*froms, problem.sink)) if peer in able)


def _opened(cells: Sequence[Cell], count: int) -> list[Cell]:
    """About so many cells in place of these: the widest are opened first."""
    front = list(cells)
    while len(front) < count:
        widest = max(
            (number for number, cell in enumerate(front) if cell.halves), key=lambda n: front[n].radius, default=None
        )
        if widest is None:
            break
        front[widest : widest + 1] = front[widest].halves
    return front


def _bounds(
    problem: Problem, network: Coordinates, pinned: Sequence[PeerId], front: Sequence[Cell]
) -> tuple[list[float], float]:
    """For each cell the least that a plan with a join in it costs, and the least that any plan costs."""
    import numpy as np

    centres = np.array([cell.centre for cell in front])
    radii = np.array([cell.radius for cell in front])
    heights = np.array([cell.height for cell in front])

    def to_hosts(peers: Sequence[PeerId]) -> Numbers:
        numbers = [network.index[peer] for peer in peers]
        off = np.maximum(apart(network.points[numbers], centres) - radii, 0.0)
        return np.hstack([network.between(peers, pinned), off + network.heights[numbers][:, None] + heights])

    own = np.maximum(apart(centres, centres) - radii[:, None] - radii, 0.0) + heights[:, None] + heights
    np.fill_diagonal(own, 0.0)
    to_pinned = to_hosts(pinned)
    distances = np.vstack([to_pinned, np.hstack([to_pinned[:, len(pinned) :].T, own])])
    splits, ways = all_splits(problem.graph), ways_to_read(problem)
    betas = {streams: problem.beta(streams) for streams in splits}
    tables = tabulated(splits, betas, distances, read_costs(problem, ways, to_hosts), problem.whole)
    to_sink = to_hosts([problem.sink])[0]
    through = _through(splits, betas, tables, distances, to_sink)
    read = min((problem.cost(way) for way in ways.get(problem.whole, ())), default=math.inf)
    least = through[:, len(pinned) :].min(axis=0)
    return least.tolist(), min(read, float(through.min()))


def _through(
    splits: Splits, betas: dict[Streams, float], tables: Tables, distances: Numbers, to_sink: Numbers
) -> Numbers:
    """For each set (a row) and host, the least that any plan costs that makes the set there."""
    import numpy as np

    left: dict[Streams, Numbers] = {}  # What is still to be paid once a set is had at each host.
    through = []
    for number, (streams, parts) in enumerate(reversed(list(splits.items()))):
        rest = to_sink * betas[streams] if number == 0 else carried(left[streams], betas[streams], distances)
        through.append(np.asarray(tables.made[streams]) + rest)
        for part in parts:
            for one, other in ((part, streams ^ part), (streams ^ part, part)):
                paid = rest + np.asarray(tables.had[other])
                left[one] = np.minimum(left[one], paid) if one in left else paid
    return np.array(through)
