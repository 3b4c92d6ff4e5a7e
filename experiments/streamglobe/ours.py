"""The queries of a set-up posed to our trees."""

from __future__ import annotations

import time
from typing import Final

from experiments.streamglobe.subscribe import result
from experiments.streamglobe.trees import Facts, Forest, Need, Partial, Reader, Tree
from experiments.streamglobe.world import EVERYTHING, PARTIAL_BYTES, WEIGHTS, Asked, World, item_bytes

OURS: Final = ("widening", "ours")


def run(world: World, name: str) -> tuple[Forest, list[float]]:
    """All queries, one after the other, and how many milliseconds of CPU each took; `ours` also moves nodes."""
    forest = forest_of(world, moves=name == "ours")
    plan_ms = []
    for query in world.queries:
        begun = time.process_time()
        forest.add(reader_of(world, forest.trees[query.stream].facts, query))
        plan_ms.append(1000 * (time.process_time() - begun))
    if name == "ours":
        forest.improve()  # In the background, so it is not counted.
    return forest, plan_ms


def forest_of(world: World, *, moves: bool) -> Forest:
    trees = [
        Tree(root, _facts(world, stream), world.work, world.is_parsed_once)
        for stream, root in enumerate(world.backbone.sources)
    ]
    limits = {name: (each.limit, each.unit) for name, each in world.capacity().resources.items()}
    return Forest(world.backbone, trees, limits, WEIGHTS, moves)


def _facts(world: World, stream: int) -> Facts:
    return Facts(
        lambda selections: world.rows_per_s(stream, selections),
        lambda paths: item_bytes(list(paths)),
        frozenset(EVERYTHING),
        PARTIAL_BYTES,
    )


def reader_of(world: World, facts: Facts, query: Asked) -> Reader:
    needs, name = query.needs, f"q-{query.number}"
    selections = (facts.number(needs.predicate),)
    if needs.grouping is None:
        return Reader(name, query.stream, query.node, Need(selections, frozenset(needs.returned)))
    element = str(needs.grouping.aggregates[0].argument)
    partial = Partial(element, needs.grouping.window, result(world, query).items_per_s)
    return Reader(name, query.stream, query.node, Need(selections, frozenset(needs.referenced)), partial)
