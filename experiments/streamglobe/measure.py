"""One set-up under one strategy, measured: the cell of StreamGlobe's experiments, and means over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from experiments import sweep
from experiments.streamglobe import ours, subscribe
from experiments.streamglobe.capacity import Refusal, cpu_name, link_name
from experiments.streamglobe.world import CPU, World, world

STRATEGIES: Final = (*subscribe.STRATEGIES, *ours.OURS)
PAPERS: Final = tuple(subscribe.STRATEGIES)
SEEDS: Final = 30
"""At scale 1."""

Found = dict[str, Any]


def cells(
    chosen: sweep.Options, setup: int, strategies: Iterable[str] = STRATEGIES, *, is_tight: bool = False, **more: Any
) -> list[dict[str, Any]]:
    seeds = range(chosen.seed, chosen.seed + max(1, round(SEEDS * chosen.scale)))
    return [
        {"setup": setup, "seed": seed, "strategy": strategy, "is_tight": is_tight, **more}
        for strategy in strategies
        for seed in seeds
    ]


def measure(
    setup: int, seed: int, strategy: str, is_tight: bool, factor: float = 1.0, is_parsed_once: bool = False
) -> Found:
    """What a strategy makes of all queries of a set-up."""
    asked = world(setup, seed, is_tight=is_tight, factor=factor, is_parsed_once=is_parsed_once)
    return told(asked, *posed(asked, strategy))


def posed(asked: World, strategy: str) -> tuple[dict[str, float], list[Refusal], list[float]]:
    """What is used of each resource, who was refused, and the CPU time to plan each query."""
    if strategy in subscribe.STRATEGIES:
        network = subscribe.run(asked, strategy)
        return network.used, network.refusals, network.plan_ms
    forest, plan_ms = ours.run(asked, strategy)
    return forest.used, forest.refusals, plan_ms


def told(asked: World, used: dict[str, float], refusals: Sequence[Refusal], plan_ms: Sequence[float]) -> Found:
    links = {link_name(*each): used.get(link_name(*each), 0.0) for each in asked.backbone.links}
    cpus = [used.get(cpu_name(node), 0.0) for node in asked.backbone.neighbours]
    first = [each.shortages[0].resource.partition(" ")[0] for each in refusals]
    return {
        "refused": len(refusals),
        "refused_for_cpu": first.count("CPU"),
        "links_kbps": {name: bits / 1e3 for name, bits in links.items()},
        "peers_mbps": [_of_peer(links, node) / 1e6 for node in asked.backbone.neighbours],
        "cpu_percent": [100 * each / (10 * CPU) for each in cpus],  # Of a whole peer.
        "total_mbps": sum(links.values()) / 1e6,
        "source_cpu": max(cpus[node] for node in asked.backbone.sources) / asked.per_s,
        "all_cpu": sum(cpus) / asked.per_s,
        "plan_ms": list(plan_ms),
    }


def _of_peer(links: dict[str, float], node: int) -> float:
    """In and out."""
    return sum(bits for name, bits in links.items() if str(node) in name.removeprefix("link ").split("-"))


def by_strategy(asked: Sequence[dict[str, Any]], found: Sequence[Found]) -> dict[str, list[Found]]:
    gathered: dict[str, list[Found]] = {}
    for cell, result in zip(asked, found, strict=True):
        gathered.setdefault(cell["strategy"], []).append(result)
    return gathered


def mean(found: Sequence[Found], value: Callable[[Found], float]) -> float:
    return statistics.fmean(map(value, found))


def means(found: Sequence[Found], values: Callable[[Found], Sequence[float]]) -> list[float]:
    """Place by place."""
    return [statistics.fmean(each) for each in zip(*map(values, found), strict=True)]
