"""Queries that share joins: sweeps never cost more, nobody loses what is needed, and the joint optimum is near."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from protocols.planning.exhaustive import plans_of
from protocols.planning.problem import Base, Joined, Plan, Problem, members_of
from protocols.planning.together import Join, Side, Together, Wanted
from tests.protocols.planning.problems import make_problem, make_view
from tests.seeds import draw_seed


def make(luck: Random, peers: int, streams: int, hosts: int | None = None) -> Together:
    problem = make_problem(luck, make_view(luck, peers), streams, hosts=hosts, derived=0.0, extra=1.0)
    return Together(problem.network, problem.hosts, problem.streams, problem.graph, problem.beta)


def make_queries(luck: Random, together: Together, count: int, joined: tuple[int, ...]) -> list[Wanted]:
    found = []
    for number in range(count):
        chosen = luck.sample(range(len(together.streams)), luck.choice(joined))
        found.append(Wanted(f"q{number}", sum(1 << each for each in chosen), luck.choice(together.hosts)))
    return found


def test_sweeps_never_cost_more_and_end():
    luck = Random(draw_seed())
    for _ in range(10):
        together = make(luck, 20, 6)
        for query in make_queries(luck, together, 12, (2, 3, 4)):
            together.add(query)
            together.validate()
        costs = [together.cost()]
        while together.sweep():
            together.validate()
            costs.append(together.cost())
        assert costs == sorted(costs, reverse=True)
        assert len(costs) < 20


def test_a_join_runs_as_long_as_somebody_needs_it():
    luck = Random(2)
    together = make(luck, 8, 4)
    for query in make_queries(luck, together, 6, (3, 4)):
        together.add(query)
    for name in list(together.wanted):
        together.remove(name)
        together.validate()
    assert together.inputs == {}
    assert together.cost() == 0


def test_two_equal_queries_share_all_but_the_delivery():
    luck = Random(3)
    together = make(luck, 8, 3)
    together.add(Wanted("a", 0b111, together.hosts[0]))
    once, joins = together.cost(), dict(together.inputs)
    together.add(Wanted("b", 0b111, together.hosts[0]))
    assert together.inputs == joins
    assert once <= together.cost() <= 2 * once


def joint_optimum(together: Together, queries: list[Wanted]) -> float:
    """The least over all combinations of plans, none of which reads another: equal joins are shared all the same."""
    choices = []
    for query in queries:
        numbers = list(members_of(query.streams))

        def everywhere(chosen: int, numbers: list[int] = numbers) -> int:
            return sum(1 << numbers[each] for each in members_of(chosen))

        def beta(chosen: int, everywhere=everywhere) -> float:
            return together.beta(everywhere(chosen))

        streams = tuple(together.streams[number] for number in numbers)
        graph = tuple(((1 << len(numbers)) - 1) ^ 1 << number for number in range(len(numbers)))
        problem = Problem(together.network, together.hosts, streams, graph, beta, query.sink)

        def shape(plan: Plan, inputs: dict[Join, tuple[Side, Side]], everywhere=everywhere, numbers=numbers) -> Side:
            if isinstance(plan, Base):
                return numbers[plan.stream]
            assert isinstance(plan, Joined)
            join = Join(everywhere(plan.streams), plan.peer)
            inputs[join] = (shape(plan.left, inputs), shape(plan.right, inputs))
            return join

        options = []
        for plan in plans_of(problem):
            inputs: dict[Join, tuple[Side, Side]] = {}
            options.append((shape(plan, inputs), inputs))
        choices.append(options)
    least = float("inf")
    for combination in product(*choices):
        trial = Together(together.network, together.hosts, together.streams, together.graph, together.beta)
        for query, (root, inputs) in zip(queries, combination, strict=True):
            trial.wanted[query.name], trial.roots[query.name] = query, root
            for join, sides in inputs.items():
                trial.inputs.setdefault(join, sides)
        least = min(least, trial.cost())
    return least


@pytest.mark.slow
def test_the_joint_optimum_of_two_queries_is_never_above_what_sweeps_find():
    luck = Random(draw_seed())
    above = []
    for _ in range(12):
        together = make(luck, 6, 3, hosts=3)
        queries = [Wanted(f"q{number}", 0b111, luck.choice(together.network.peers)) for number in range(2)]
        for query in queries:
            together.add(query)
        alone = together.cost()
        together.settle(10)
        best = joint_optimum(together, queries)
        assert best <= together.cost() * (1 + 1e-9) <= alone * (1 + 2e-9)
        above.append(together.cost() / best - 1 if best else 0.0)
    print(f"above the joint optimum: {sum(above) / len(above):.1%} on average, {max(above):.1%} at most")
    assert sum(above) / len(above) < 0.15
