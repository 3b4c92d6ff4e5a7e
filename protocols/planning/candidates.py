"""Which peers of a large network may be good hosts: those near the ends of a query, and near means between them.

The least of Σ weight × distance² lies at the weighted mean of some ends, whatever space the peers are in. So no
coordinates are needed: one row of distances for each end.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

from protocols.planning.problem import Origin, Problem

CANDIDATES: Final = 96
DERIVED_MAX: Final = 16  # Of the streams that flow already, those nearest to the ends are ends as well.


def narrowed(problem: Problem, count: int = CANDIDATES) -> Problem:
    """The same problem with about so many hosts: for each mean between two ends, and between all, the nearest ones."""
    if len(problem.hosts) <= count:
        return problem
    import numpy as np

    ends = _ends(problem)
    weights = np.array([each.beta for each in ends])
    squares = problem.network.between([each.peer for each in ends], problem.hosts) ** 2 * weights[:, None]
    groups = [[one] for one in range(len(ends))]
    if len(ends) ** 2 < 2 * count:
        groups += [list(pair) for pair in combinations(range(len(ends)), 2)]
    else:  # The heaviest count most.
        heavy = [int(number) for number in np.argsort(-weights)[: int((2 * count) ** 0.5)]]
        groups += [list(pair) for pair in combinations(heavy, 2)]
    groups.append(list(range(len(ends))))
    each = max(1, count // len(groups))
    near = [np.argpartition(squares[group].sum(axis=0), each - 1)[:each] for group in groups]
    chosen = dict.fromkeys(sorted(int(number) for numbers in near for number in numbers))
    return problem.among(tuple(problem.hosts[number] for number in chosen))


def _ends(problem: Problem) -> list[Origin]:
    """The publishers, the sink, and what flows already nearest to them."""
    fixed = [origin for stream in problem.streams for origin in stream.publishers]
    fixed.append(Origin(problem.sink, problem.beta(problem.whole)))
    derived = dict.fromkeys(each.origin for each in problem.derived)
    if len(derived) > DERIVED_MAX:
        import numpy as np

        rows = problem.network.between([each.peer for each in derived], [each.peer for each in fixed])
        paid = rows.min(axis=1) * np.array([each.beta for each in derived])
        order = np.argsort(paid, kind="stable")[:DERIVED_MAX]
        known = list(derived)
        derived = dict.fromkeys(known[int(number)] for number in order)
    return list(dict.fromkeys((*fixed, *derived)))
