"""CQ-DHT, experiment E4 (figure 8): how filtering and storage load are spread over the peers, by algorithm.

    python -m experiments.cqdht.e4 --scale 0.08

TF of a peer is what came to it and was compared: tuples at the attribute level (RF), rewritten queries and tuples at
the value level (EF). TS is what it keeps: queries (RS), rewritten queries and tuples (ES). DR is 10, as in the paper.
DAI-Q and DAI-T keep what is recent on both sides for a while (docs/papers.md); so storage is counted after that
while.

The column "live" is what peers run (live.py), with 64 peers, and with the relations, queries and tuples of
`--scale 0.02` at most; then with 200 peers, a quarter of the tuples, and DR = 1, since whole peers take long for more.
SAI, DAI-T and cells of the same size stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments import plots, report, sweep
from experiments.cqdht import live
from experiments.cqdht.live import Column, LiveRun, labelled
from experiments.cqdht.messages import AnyAlgorithm
from experiments.cqdht.workload import Run, Size, limits_of

TUPLES: Final = 50_000
REPLICAS: Final = 10
ALL: Final[tuple[AnyAlgorithm, ...]] = ("sai", "dai-q", "dai-t", "dai-v", "cells")
RANKS: Final = 60
NETWORKS: Final[dict[int, dict[str, Any]]] = {  # With the column "live", by their peers,
    live.ALL_KNOWN: {"replicas": REPLICAS},
    live.SOME_KNOWN: {"replicas": 1, "tuples": 0.25},
}
BESIDE: Final[tuple[Column, ...]] = ("sai", "dai-t", "cells", "live")  # and what runs there.

Load = dict[str, Any]
Loads = dict[str, Load]


def cell(
    *,
    algorithm: Column,
    scale: float,
    seed: int,
    tuples: float = 1.0,
    queries: float = 1.0,
    peers: float = 1.0,
    replicas: int = REPLICAS,
) -> dict[str, Load]:
    """TF and TS of the peers after the paper's tuples, or so many times as many; likewise queries and peers."""
    base = Size.of(scale)
    size = base._replace(queries=round(base.queries * queries), peers=round(base.peers * peers))
    if algorithm == "live":
        whole = LiveRun(size, seed, replicas=replicas)
        whole.pose()
        whole.insert(round(TUPLES * scale * tuples))
        return {"TF": described(whole.filtering()), "TS": described(whole.storage())}
    run = Run(algorithm, size, seed, limits_of(size, replicas=replicas))
    run.pose()
    run.insert(round(TUPLES * scale * tuples))
    run.network.sweep(run.now + run.limits.recent_ms + run.limits.late_ms)
    nodes = run.network.nodes.values()
    filtering = [node.rewriter.filtered + node.evaluator.filtered for node in nodes]
    storage = [node.rewriter.stored + node.evaluator.stored_queries + node.evaluator.stored_tuples for node in nodes]
    return {"TF": described(filtering), "TS": described(storage)}


def described(loads: list[int]) -> Load:
    """How even a load is, and its curve: the load of the heaviest peers together, as in the figure."""
    ranked = sorted(loads, reverse=True)
    total = sum(ranked)
    steps = sorted({round(len(ranked) * (step / RANKS) ** 2) for step in range(1, RANKS + 1)})
    curve, seen, sofar = [], 0, 0
    for rank in steps:
        sofar += sum(ranked[seen:rank])
        seen = rank
        curve.append([rank, sofar])
    return {
        "total": total,
        "mean": total / len(ranked),
        "max": ranked[0],
        "uneven": ranked[0] * len(ranked) / max(1, total),
        "used": sum(load > 0 for load in ranked),
        "half": next((rank for rank, load in curve if 2 * load >= total), len(ranked)),
        "curve": curve,
    }


def cells(scale: float, seed: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"algorithm": algorithm, "scale": scale, "seed": seed} for algorithm in ALL]
    small = min(scale, live.SCALE_MAX)
    for peers, more in NETWORKS.items():
        plain = {"scale": small, "seed": seed, "peers": peers / Size.of(small).peers, **more}
        found += [{"algorithm": each, **plain} for each in BESIDE]
    return found


class Found:
    """The loads of all runs; those with the column "live" by the number of peers."""

    def __init__(self, asked: Sequence[dict[str, Any]], results: Sequence[Loads]) -> None:
        both = list(zip(asked, results, strict=True))
        self.loads: dict[str, Loads] = {each["algorithm"]: loads for each, loads in both if "peers" not in each}
        self.live: dict[int, dict[str, Loads]] = {}
        for each, loads in both:
            if "peers" in each:
                peers = round(Size.of(each["scale"]).peers * each["peers"])
                self.live.setdefault(peers, {})[each["algorithm"]] = loads


def claims(found: Mapping[str, Loads]) -> list[report.Claim]:
    tf = {name: loads["TF"] for name, loads in found.items()}
    ts = {name: loads["TS"] for name, loads in found.items()}

    def shown(loads: Mapping[str, Load], what: str) -> str:
        return ", ".join(f"{labelled(name)} {load[what]:.1f}" for name, load in loads.items())

    times = tf["dai-q"]["mean"] / tf["dai-t"]["mean"]
    is_between = tf["dai-t"]["mean"] < tf["sai"]["mean"] < tf["dai-q"]["mean"]
    return [
        report.Claim("fig 8a", "DAI-Q loads peers 100 times as much as DAI-T", f"{times:.0f} times", times > 30),
        report.Claim("fig 8a", "SAI is between DAI-T and DAI-Q", shown(tf, "mean"), is_between),
        report.Claim(
            "fig 8a",
            "DAI-V has its load on few peers",
            "half of it on this many: " + shown(tf, "half"),
            tf["dai-v"]["half"] == min(load["half"] for load in tf.values()),
        ),
        report.Claim(
            "fig 8b",
            "storage: DAI-Q is lighter than DAI-T",
            shown(ts, "mean"),
            ts["dai-q"]["mean"] < ts["dai-t"]["mean"],
        ),
        is_evener("cells", found, "at this scale"),
    ]


def is_evener(column: str, found: Mapping[str, Loads], where: str) -> report.Claim:
    """What we claim of filtering."""
    uneven = {name: loads["TF"]["uneven"] for name, loads in found.items()}
    return report.Claim(
        "ours",
        f"{labelled(column)}: max/mean of filtering is at most half of DAI-T's, {where}",
        ", ".join(f"{labelled(name)} {value:.1f}" for name, value in uneven.items()),
        uneven[column] <= uneven["dai-t"] / 2,
    )


def main() -> None:
    chosen = sweep.options(sweep.parser(__doc__.splitlines()[0], scale=0.08).parse_args())
    asked = cells(chosen.scale, chosen.seed)
    print(f"seed={chosen.seed} {Size.of(chosen.scale)}", flush=True)
    results = sweep.run("cqdht_e4", cell, asked, chosen)
    found = Found(asked, results)
    _print_loads(found.loads)
    for peers, loads in found.live.items():
        print(f"\nlive, {peers} peers, DR = {NETWORKS[peers]['replicas']}, beside the same size of the others:")
        _print_loads(loads)
    ours = [is_evener("live", loads, f"with {peers} peers") for peers, loads in found.live.items()]
    report.print_claims([*claims(found.loads), *ours])
    for kind, what in (("TF", "filtering"), ("TS", "storage")):
        series = {labelled(name): loads[kind]["curve"] for name, loads in found.loads.items()}
        series |= {f"live, {peers} peers": loads["live"][kind]["curve"] for peers, loads in found.live.items()}
        path = chosen.out / f"cqdht_e4_{what}.png"
        plots.lines(path, series, title=f"E4: {what} load", x="heaviest peers", y=f"their {what} load", log="y")


def _print_loads(found: Mapping[str, Loads]) -> None:
    names = ("mean", "max", "uneven", "used", "half")
    rows = [
        (kind, labelled(name), *(loads[kind][each] for each in names))
        for kind in ("TF", "TS")
        for name, loads in found.items()
    ]
    report.print_table(("load", "algorithm", "mean", "max", "max/mean", "peers with any", "half is on"), rows)


if __name__ == "__main__":
    main()
