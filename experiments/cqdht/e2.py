"""CQ-DHT, experiment E2 (figure 6): hops per tuple and fingers as big relations get more tuples for one of the small.

    python -m experiments.cqdht.e2 --scale 0.08
    python -m experiments.cqdht.e2 --scale 1 --master local[2]

Fingers are trained with 40 K tuples (times the scale), then 1,100 are measured. What is counted: workload.py.
At larger scales only the rewriters of one attribute of each relation are looked at, a tenth of all; the attributes are
alike, so a tuple is taken to cost ten times as much.

The column "live" is what peers run (live.py), with 64 peers and the relations and queries of `--scale 0.02` at most.
SAI and DAI-T of the same size stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from experiments import plots, report, sweep
from experiments.cqdht import live
from experiments.cqdht.live import Column, LiveRun, labelled
from experiments.cqdht.messages import AnyAlgorithm
from experiments.cqdht.workload import ATTRIBUTES, Run, Size, limits_of

RATIOS: Final = (1, 3, 9, 19, 49, 99)
TRAINED: Final = 40_000
MEASURED: Final = 1_100
WHOLE_BELOW: Final = 0.3  # Smaller ones are looked at whole.
ALL: Final[tuple[AnyAlgorithm, ...]] = ("sai", "dai-q", "dai-t", "dai-v", "cells")
BESIDE: Final[tuple[Column, ...]] = ("sai", "dai-t", "live")

Found = Mapping[tuple[str, int], dict[str, float]]


def cell(*, algorithm: Column, bos: int, scale: float, seed: int, peers: int = 0) -> dict[str, float]:
    """Hops of a tuple; the scale says how many peers there are, unless `peers` does."""
    size = Size.of(scale)
    size = size._replace(peers=peers or size.peers)
    tuples = max(100, round(MEASURED * scale))  # Of each class at least one, at the largest ratio too.
    if algorithm == "live":
        whole = LiveRun(size, seed, bos=bos)
        whole.pose()
        whole.insert(round(TRAINED * scale))
        return whole.measure(tuples)
    looked_at = ATTRIBUTES if scale < WHOLE_BELOW else 1
    part = frozenset(f"a{number}" for number in range(looked_at))
    limits = limits_of(size, is_kept=False, part=looked_at / ATTRIBUTES)
    run = Run(algorithm, size, seed, limits, bos=bos, part=part)
    run.pose()
    run.insert(round(TRAINED * scale))
    run.measure(tuples)
    sizes = [len(node.rewriter.fingers) for node in run.network.nodes.values()]
    hops = run.network.hops / tuples * ATTRIBUTES / looked_at
    return {"hops": hops, "fingers": sum(sizes) / max(1, sum(size > 0 for size in sizes))}


def cells(scale: float, seed: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"algorithm": name, "bos": bos, "scale": scale, "seed": seed} for bos in RATIOS for name in ALL
    ]
    small = {"scale": min(scale, live.SCALE_MAX), "seed": seed, "peers": live.ALL_KNOWN}
    return found + [{"algorithm": name, "bos": bos, **small} for bos in RATIOS for name in BESIDE]


def claims(found: Found, beside: Found) -> list[report.Claim]:
    def hops(name: str, bos: int) -> float:
        return found[name, bos]["hops"]

    at_nine = hops("sai", 9) / hops("dai-t", 9)
    sizes = {name: found[name, 9]["fingers"] for name in ALL}
    last = RATIOS[-1]
    return [
        report.Claim(
            "fig 6a",
            "bos = 1: DAI-T needs clearly fewer hops than SAI",
            f"DAI-T {hops('dai-t', 1):.0f}, SAI {hops('sai', 1):.0f}",
            hops("dai-t", 1) < 0.9 * hops("sai", 1),
        ),
        report.Claim(
            "fig 6a",
            "bos = 9 and more: SAI and DAI-T need about the same",
            f"at 9 SAI needs {at_nine:.2f} of DAI-T",
            0.67 <= at_nine <= 1.5,
        ),
        report.Claim(
            "fig 6a",
            "SAI needs far fewer as bos grows",
            f"{hops('sai', 1):.0f} at 1, {hops('sai', last):.0f} at {last}",
            hops("sai", last) < 0.7 * hops("sai", 1),
        ),
        report.Claim(
            "fig 6b",
            "DAI-T needs more fingers than SAI",
            ", ".join(f"{labelled(name)} {size:.0f}" for name, size in sizes.items()),
            sizes["dai-t"] > sizes["sai"],
        ),
        report.Claim(
            "ours",
            f"live: fewer hops than SAI and DAI-T, whatever bos is, with {live.ALL_KNOWN} peers",
            ", ".join(f"{name} {beside[name, 1]['hops']:.0f} to {beside[name, last]['hops']:.0f}" for name in BESIDE),
            all(
                beside["live", bos]["hops"] < min(beside["sai", bos]["hops"], beside["dai-t", bos]["hops"])
                for bos in RATIOS
            ),
        ),
    ]


def main() -> None:
    chosen = sweep.options(sweep.parser(__doc__.splitlines()[0], scale=0.08).parse_args())
    asked = cells(chosen.scale, chosen.seed)
    print(f"seed={chosen.seed} {Size.of(chosen.scale)}", flush=True)
    results = sweep.run("cqdht_e2", cell, asked, chosen)
    both = list(zip(asked, results, strict=True))
    found = {(each["algorithm"], each["bos"]): result for each, result in both if "peers" not in each}
    beside = {(each["algorithm"], each["bos"]): result for each, result in both if "peers" in each}
    rows = [(str(bos), *(found[name, bos][what] for what in ("hops", "fingers") for name in ALL)) for bos in RATIOS]
    report.print_table(("bos", *(f"{labelled(name)} {what}" for what in ("hops", "fingers") for name in ALL)), rows)
    print(f"\nlive, with {live.ALL_KNOWN} peers, beside the same size of the others: hops per tuple")
    rows = [(str(bos), *(beside[name, bos]["hops"] for name in BESIDE)) for bos in RATIOS]
    report.print_table(("bos", *BESIDE), rows)
    report.print_claims(claims(found, beside))
    for what, unit in (("hops", "hops per tuple"), ("fingers", "fingers per rewriter")):
        series: dict[str, list[tuple[float, float]]] = {
            labelled(name): [(bos, found[name, bos][what]) for bos in RATIOS] for name in ALL
        }
        if what == "hops":
            series[f"live, {live.ALL_KNOWN} peers"] = [(bos, beside["live", bos][what]) for bos in RATIOS]
        plots.lines(chosen.out / f"cqdht_e2_{what}.png", series, title=f"E2: {unit}", x="bos", y=unit, log="xy")


if __name__ == "__main__":
    main()
