"""StreamGlobe's overload test (section 4): how many of 100 queries are refused, and for what.

    python -m experiments.streamglobe.overload [--scale 0.2] [--seed N] [--master local[2]]

Peers have a tenth of their CPU, connections 1 Mbit/s. The rate of the streams and the speed of a peer were fitted to
what data and query shipping refuse; what sharing refuses is foretold. The second table raises the rate: as it is, and
with every stream parsed once at a peer for all that read it there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, told
from experiments.streamglobe.measure import PAPERS, STRATEGIES, Found, by_strategy, cells, mean, measure

PAPER: Final = {"data shipping": 47, "query shipping": 35, "SUBSCRIBE": 2}
NEAR: Final = 5  # Queries that a mean may be off.
FACTORS: Final = (1.5, 2.0, 3.0, 4.0)
FASTER: Final = ("query shipping", "SUBSCRIBE", "widening", "ours")
PARSED_ONCE: Final = ("query shipping", "SUBSCRIBE", "ours")

Faster = dict[str, list[tuple[float, float, int]]]
"""By strategy: the factor of the rate, the mean that is refused, the most that is refused."""


def figures(chosen: sweep.Options) -> dict[str, list[Found]]:
    asked = cells(chosen, 2, is_tight=True)
    return by_strategy(asked, sweep.run("streamglobe_overload", measure, asked, chosen))


def faster(chosen: sweep.Options) -> Faster:
    """With a third of the seeds."""
    few = chosen._replace(scale=chosen.scale / 3)
    asked: list[dict[str, Any]] = []
    for factor in (1.0, *FACTORS):
        asked += cells(few, 2, FASTER, is_tight=True, factor=factor)
        asked += cells(few, 2, PARSED_ONCE, is_tight=True, factor=factor, is_parsed_once=True)
    gathered: dict[tuple[str, float], list[int]] = {}
    for cell, result in zip(asked, sweep.run("streamglobe_faster", measure, asked, chosen), strict=True):
        name = f"{cell['strategy']}{', parsed once' if cell.get('is_parsed_once') else ''}"
        gathered.setdefault((name, cell["factor"]), []).append(result["refused"])
    lines: Faster = {}
    for (name, factor), refused in gathered.items():
        lines.setdefault(name, []).append((factor, sum(refused) / len(refused), max(refused)))
    return lines


def claims(found: dict[str, list[Found]], lines: Faster) -> Iterator[Claim]:
    refused = {name: mean(results, lambda one: one["refused"]) for name, results in found.items()}
    yield Claim(
        "sec 4",
        "data shipping refuses more than query shipping, and that far more than sharing",
        told(refused),
        refused["data shipping"] > refused["query shipping"] > 5 * max(1.0, refused["SUBSCRIBE"]),
    )
    yield Claim(
        "sec 4",
        f"47, 35 and 2 of 100 (within {NEAR})",
        ", ".join(f"{name} {refused[name]:.1f} (paper {PAPER[name]})" for name in PAPERS),
        all(abs(refused[name] - PAPER[name]) <= NEAR for name in PAPERS),
    )
    most = max(one["refused"] for one in found["ours"])
    yield Claim("ours", "0 of 100 in every run", f"{most} at most, in {len(found['ours'])} runs", most == 0)
    twice = [refused for factor, _, refused in lines["ours"] if factor == 2.0]
    yield Claim("ours", "0 of 100 at twice the rate", f"{twice[0]} at most", twice == [0])
    traffic = {name: mean(results, lambda one: one["total_mbps"]) for name, results in found.items()}
    yield Claim(
        "ours",
        "at most 0.75 of SUBSCRIBE's traffic, though it refuses none",
        f"Mbit/s: {told(traffic)}; {traffic['ours'] / traffic['SUBSCRIBE']:.3f}",
        traffic["ours"] <= 0.75 * traffic["SUBSCRIBE"],
    )


def draw(found: dict[str, list[Found]], lines: Faster, chosen: sweep.Options) -> None:
    series = {"paper": [float(PAPER.get(name, 0)) for name in STRATEGIES]}
    series["here"] = [mean(found[name], lambda one: one["refused"]) for name in STRATEGIES]
    title = "StreamGlobe, overload test: refused of 100 (the paper has no widening)"
    plots.bars(chosen.out / "streamglobe_overload.png", list(STRATEGIES), series, title=title, y="queries refused")
    plots.lines(
        chosen.out / "streamglobe_faster.png",
        {name: [(factor, refused) for factor, refused, _ in line] for name, line in lines.items()},
        title="Overload test with faster streams",
        x="rate of the streams, over that of the test",
        y="queries refused of 100, mean",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("StreamGlobe, overload test", scale=0.2).parse_args(arguments))
    found, lines = figures(chosen), faster(chosen)
    print(f"seed={chosen.seed}, {len(found['ours'])} seeds; CPU in selections of a whole stream")
    print_table(
        ("strategy", "paper", "refused", "least", "most", "for CPU", "Mbit/s", "CPU of the source", "CPU, all peers"),
        [
            (
                name,
                str(PAPER.get(name, "-")),
                mean(results, lambda one: one["refused"]),
                min(one["refused"] for one in results),
                max(one["refused"] for one in results),
                mean(results, lambda one: one["refused_for_cpu"]),
                mean(results, lambda one: one["total_mbps"]),
                mean(results, lambda one: one["source_cpu"]),
                mean(results, lambda one: one["all_cpu"]),
            )
            for name, results in found.items()
        ],
    )
    print("\nrefused of 100 at so many times the rate: mean (most)")
    print_table(
        ("strategy", *(f"{factor:g}" for factor in (1.0, *FACTORS))),
        [(name, *(f"{refused:.1f} ({most})" for _, refused, most in line)) for name, line in lines.items()],
    )
    print_claims(claims(found, lines))
    draw(found, lines, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
