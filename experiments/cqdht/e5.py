"""CQ-DHT, experiment E5 (figure 9): how the load spreads as tuples, queries or peers grow; DAI-Q, as in the figure.

python -m experiments.cqdht.e5 --scale 0.04

The column "live" is what peers run (live.py), with one rewriter for each attribute, from 50 peers on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from experiments import plots, report, sweep
from experiments.cqdht.e4 import Load, cell
from experiments.cqdht.workload import Size

GROWN: Final = ("tuples", "queries", "peers")
TIMES: Final = (1.0, 2.0, 4.0)
LIVE_SCALE: Final = 0.005  # 50 peers, 160 queries, 250 tuples; four times as many peers do not all know each other.

Found = Mapping[tuple[str, float], dict[str, Load]]


def cells(scale: float, seed: int) -> list[dict[str, Any]]:
    base = {"algorithm": "dai-q", "scale": scale, "seed": seed}
    whole = {"algorithm": "live", "scale": min(scale, LIVE_SCALE), "seed": seed, "replicas": 1}
    return [{**each, what: times} for each in (base, whole) for what in GROWN for times in TIMES]


def claims(found: Found, who: str = "") -> list[report.Claim]:
    """What the figure says, of DAI-Q or of somebody else."""

    def shown(what: str, name: str) -> tuple[list[float], str]:
        values = [found[what, times]["TF"][name] for times in TIMES]
        return values, ", ".join(f"x{times:.0f}: {value:.0f}" for times, value in zip(TIMES, values, strict=True))

    result = []
    for what in ("tuples", "queries"):
        used, text = shown(what, "used")
        says = f"{who}more {what}: more load, and no fewer peers that share it"
        result.append(report.Claim("fig 9", says, f"peers: {text}", used == sorted(used)))
    means, text = shown("peers", "mean")
    is_less = means == sorted(means, reverse=True)
    result.append(report.Claim("fig 9", f"{who}more peers: less load for each", f"mean load: {text}", is_less))
    return result


def main() -> None:
    chosen = sweep.options(sweep.parser(__doc__.splitlines()[0], scale=0.04).parse_args())
    asked = cells(chosen.scale, chosen.seed)
    print(f"seed={chosen.seed} {Size.of(chosen.scale)}", flush=True)
    results = sweep.run("cqdht_e5", cell, asked, chosen)
    names = [(what, times) for what in GROWN for times in TIMES]
    found = dict(zip(names, results[: len(names)], strict=True))
    whole = dict(zip(names, results[len(names) :], strict=True))
    _print_growth(found)
    print(f"\nlive, from {Size.of(min(chosen.scale, LIVE_SCALE))} on:")
    _print_growth(whole)
    report.print_claims([*claims(found), *claims(whole, "live: ")])
    for what in GROWN:
        for shown, who in ((found, ""), (whole, "_live")):
            series = {f"x{times:.0f}": shown[what, times]["TF"]["curve"] for times in TIMES}
            path, title = chosen.out / f"cqdht_e5_{what}{who}.png", f"E5{who.replace('_', ', ')}: more {what}"
            plots.lines(path, series, title=title, x="heaviest peers", y="their filtering load")


def _print_growth(found: Found) -> None:
    figures = ("mean", "max", "uneven", "used")
    rows = [(what, times, *(loads["TF"][each] for each in figures)) for (what, times), loads in found.items()]
    report.print_table(("grown", "times", "mean", "max", "max/mean", "peers with any"), rows)


if __name__ == "__main__":
    main()
