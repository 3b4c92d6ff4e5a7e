"""The dynamic programme over (set of streams, peer) behind the exact planner, and all that search exhaustively.

made(S, u) is the least that it costs to have the join of S made at u: the least had(A, u) + had(B, u) over the splits
of S into A and B. had(S, v) is the least that it costs to have it at v: made(S, u) + β(S) · d(u, v) at the best u, or
what it costs to read S from where it flows already. Since the place is part of the state, the principle of optimality
holds; IFLOW (section 3) says that it does not. A query has no stream twice, so what is reused is paid for once.

For few streams and peers plain Python is done before numpy would be loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from protocols.ids import PeerId
from protocols.placement.exact import FEW, carried
from protocols.planning.problem import Base, Joined, Plan, Problem, Reused, Streams, members_of, reached

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
else:
    Numbers = Any

Splits = Mapping[Streams, tuple[Streams, ...]]
"""For each set that may be joined, smaller ones first, one part of each split; the rest is the other part."""

Costs = Sequence[float]
"""A cost at each host: a list or an array."""

SETS_MAX: Final = 1100  # Ten streams of which each two have a condition, or a chain of forty.
_A_COST: Final = 12  # What it takes to ask for the cost of reading something, beside one step of the programme.


@lru_cache(maxsize=64)
def all_splits(graph: tuple[Streams, ...]) -> Splits:
    """Every split of every set that conditions connect into two that they connect, each split once (DPccp).

    >>> all_splits((0b010, 0b101, 0b010))  # A chain: 0 and 2 have no condition.
    {3: (1,), 6: (2,), 7: (1, 3)}
    """
    connected = connected_sets(graph)
    assert len(connected) <= SETS_MAX, "whoever asks has looked whether there are few enough"
    found: dict[Streams, tuple[Streams, ...]] = {}
    for streams in connected:
        lowest = streams & -streams
        if streams != lowest:
            is_sparse = 1 << streams.bit_count() > 2 * len(connected)
            within = (part for part in connected if part & ~streams == 0 and part & lowest and part != streams)
            parts = within if is_sparse else (lowest | rest for rest in _subsets(streams ^ lowest))
            found[streams] = tuple(part for part in parts if part in connected and streams ^ part in connected)
    return found


def connected_sets(graph: tuple[Streams, ...]) -> dict[Streams, None]:
    """The sets that conditions connect, small ones first; where there are too many, one more than the limit."""
    found = {1 << stream: None for stream in range(len(graph))}
    largest = list(found)
    while largest and len(found) <= SETS_MAX:
        grown: dict[Streams, None] = {}
        for streams in largest:
            for stream in members_of(reached(graph, streams) & ~streams):
                grown[streams | 1 << stream] = None
                if len(found) + len(grown) > SETS_MAX:
                    return found | grown
        largest = sorted(grown)
        found |= dict.fromkeys(largest)
    return found


def is_plannable(graph: tuple[Streams, ...]) -> bool:
    """Whether a query has few enough joins to choose among; one with more keeps the order of its text.

    >>> is_plannable(tuple(1023 ^ 1 << n for n in range(10))), is_plannable(tuple(2047 ^ 1 << n for n in range(11)))
    (True, False)
    """
    return len(connected_sets(graph)) <= SETS_MAX


def _subsets(streams: Streams) -> Iterator[Streams]:
    """All subsets but the set itself, in rising order."""
    subset = 0
    while subset != streams:
        yield subset
        subset = (subset - streams) & streams


def best_plan(problem: Problem, splits: Splits, ceiling: float = math.inf) -> Plan:
    """The cheapest of all plans with these splits; `ceiling` is what one of them is known to cost."""
    return _Search(problem, splits, ceiling).plan()


@dataclass(slots=True)
class Tables:
    """What the programme found: costs at each host."""

    made: dict[Streams, Costs]
    had: dict[Streams, Costs]


class _Search:
    """One run of the programme, and the choices read from it."""

    def __init__(self, problem: Problem, splits: Splits, ceiling: float) -> None:
        self._problem, self._splits = problem, splits
        self._ways = ways_to_read(problem)
        self._tables = Tables({}, {})
        if len(splits) > 0:
            costs = len(splits) * len(problem.hosts) + _A_COST * (len(problem.streams) + len(problem.derived))
            is_small = costs * len(problem.hosts) <= FEW
            self._tables = self._by_hand() if is_small else self._by_arrays(ceiling)

    def plan(self) -> Plan:
        return self._best(self._problem.whole, self._problem.sink)

    def _by_hand(self) -> Tables:
        problem, tables = self._problem, Tables({}, {})
        rows = problem.network.rows_between(problem.hosts, problem.hosts)
        for streams, ways in self._ways.items():
            costs = ([problem.cost(way, host) for host in problem.hosts] for way in ways)
            tables.had[streams] = [min(each) for each in zip(*costs, strict=True)]
        for streams, parts in self._splits.items():
            pairs = [(tables.had[part], tables.had[streams ^ part]) for part in parts]
            made = [min([a[host] + b[host] for a, b in pairs]) for host in range(len(rows))]
            tables.made[streams] = made
            if streams != problem.whole:
                beta = problem.beta(streams)
                columns = zip(*rows, strict=True)
                had = [min([cost + beta * ms for cost, ms in zip(made, to, strict=True)]) for to in columns]
                tables.had[streams] = list(map(min, had, tables.had.get(streams, had)))
        return tables

    def _by_arrays(self, ceiling: float) -> Tables:
        problem = self._problem
        distances = problem.network.between(problem.hosts, problem.hosts)
        betas = {streams: problem.beta(streams) for streams in self._splits}
        read = read_costs(problem, self._ways, lambda froms: problem.network.between(froms, problem.hosts))
        return tabulated(self._splits, betas, distances, read, problem.whole, ceiling)

    def _best(self, streams: Streams, to: PeerId) -> Plan:
        """The cheapest way to have some streams at a peer: the same choice as in the tables."""
        problem = self._problem
        least, best = min(
            ((problem.cost(way, to), way) for way in self._ways.get(streams, ())),
            key=lambda each: each[0],
            default=(math.inf, None),
        )
        if streams in self._splits:
            beta, hosts = problem.beta(streams), problem.hosts
            made = _listed(self._tables.made[streams])
            costs = [cost + beta * problem.network.distance(host, to) for cost, host in zip(made, hosts, strict=True)]
            place = min(range(len(costs)), key=costs.__getitem__)
            if best is None or costs[place] < least:
                return self._joined(streams, place)
        assert best is not None, "a set of streams is a join or can be read"
        return best

    def _joined(self, streams: Streams, place: int) -> Plan:
        had, host = self._tables.had, self._problem.hosts[place]
        part = min(self._splits[streams], key=lambda part: had[part][place] + had[streams ^ part][place])
        return Joined(streams, host, self._best(part, host), self._best(streams ^ part, host))


Ways = Mapping[Streams, Sequence[Plan]]


def ways_to_read(problem: Problem) -> dict[Streams, list[Plan]]:
    """For each set of streams, how it can be had without making it: from its publishers, or from what flows."""
    ways: dict[Streams, list[Plan]] = {1 << stream: [Base(stream)] for stream in range(len(problem.streams))}
    for number, each in enumerate(problem.derived):
        ways.setdefault(each.streams, []).append(Reused(number))
    return ways


def read_costs(problem: Problem, ways: Ways, to_hosts: Callable[[Sequence[PeerId]], Numbers]) -> dict[Streams, Numbers]:
    """What it costs to have each set at each host without making it, given how far hosts are from where things are."""
    import numpy as np

    froms = dict.fromkeys(origin.peer for plans in ways.values() for way in plans for origin in problem.origins(way))
    numbers = {peer: number for number, peer in enumerate(froms)}
    distances = to_hosts(list(froms))
    costs: dict[Streams, Numbers] = {}
    for streams, plans in ways.items():
        best = np.full(distances.shape[1], np.inf)
        for way in plans:
            if origins := problem.origins(way):
                own = sum((distances[numbers[peer]] * beta for peer, beta in origins), np.zeros(len(best)))
                own += problem.derived[way.derived].widening if isinstance(way, Reused) else 0.0
                np.minimum(best, own, out=best)
        costs[streams] = best
    return costs


def tabulated(
    splits: Splits,
    betas: Mapping[Streams, float],
    distances: Numbers,
    read: Mapping[Streams, Numbers],
    whole: Streams,
    ceiling: float = math.inf,
) -> Tables:
    """The programme with arrays. What costs more than the ceiling is in no optimal plan, so it is not carried."""
    import numpy as np

    rows = {streams: row for row, streams in enumerate(dict.fromkeys((*read, *splits)))}
    had = np.full((len(rows), len(distances)), np.inf)
    for streams, costs in read.items():
        had[rows[streams]] = costs
    made: dict[Streams, Costs] = {}
    for streams, parts in splits.items():
        left, right = [rows[part] for part in parts], [rows[streams ^ part] for part in parts]
        costs = made[streams] = (had[left] + had[right]).min(axis=0)
        if streams != whole:
            cheap = np.flatnonzero(costs <= ceiling)
            if len(cheap) == 0:
                continue
            froms = slice(None) if len(cheap) > len(costs) / 2 else cheap
            own = had[rows[streams]]
            np.minimum(own, carried(costs[froms], betas[streams], distances[froms]), out=own)
    return Tables(made, {streams: had[row] for streams, row in rows.items()})


def _listed(costs: Costs) -> Sequence[float]:
    return costs if isinstance(costs, list) else costs.tolist()  # type: ignore[attr-defined]
