"""StreamGlobe's figures 6 and 7: CPU load and traffic of each strategy, peer by peer, without limits that bind.

    python -m experiments.streamglobe.figure_6 [--scale 0.2] [--seed N] [--master local[2]]

Figure 6 is the network of figure 1 with 25 queries, figure 7 the grid with 100. The diagrams are lost with the paper's
images, so what its text reads off them is compared; our trees stand beside its strategies.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, span, told
from experiments.streamglobe.measure import STRATEGIES, Found, by_strategy, cells, mean, means, measure

CLOSE: Final = 1.5  # CPU loads of two strategies are comparable if none is so many times the other's.
CLOSELY: Final = 1.0001  # Sums in another order differ in their last bits.
MOST: Final = 0.8  # Of the peers.
GOAL: Final = 0.75  # Our traffic over SUBSCRIBE's.
PAPERS: Final = ("data shipping", "query shipping", "SUBSCRIBE")
SHOWN: Final = (*PAPERS, "ours")


class Setup(NamedTuple):
    """One figure: its number, what its set-up is, and the peers with a source."""

    figure: int
    setup: int
    says: str
    sources: tuple[int, ...]


SETUPS: Final = (
    Setup(6, 1, "8 super-peers, 1 stream, 25 queries", (4,)),
    Setup(7, 2, "4 x 4 grid, 2 streams, 100 queries", (5, 10)),
)

Figures = dict[str, list[Found]]


def figures(setup: int, chosen: sweep.Options) -> Figures:
    asked = cells(chosen, setup)
    return by_strategy(asked, sweep.run(f"streamglobe_{setup + 5}", measure, asked, chosen))


def claims(each: Setup, found: Figures) -> Iterator[Claim]:
    where = f"fig {each.figure}"
    cpu = {name: means(results, lambda one: one["cpu_percent"]) for name, results in found.items()}
    total = {name: mean(results, lambda one: one["total_mbps"]) for name, results in found.items()}
    at_source = {name: max(cpu[name][node] for node in each.sources) for name in found}
    elsewhere = [load for node, load in enumerate(cpu["query shipping"]) if node not in each.sources]
    yield Claim(
        where,
        "query shipping peaks at the sources: several times the load of any other peer, and of other strategies",
        f"CPU %: {told(at_source)}; query shipping elsewhere at most {max(elsewhere):.3f}",
        at_source["query shipping"] > 2 * max(elsewhere)
        and all(at_source["query shipping"] > at_source[name] for name in ("data shipping", "SUBSCRIBE")),
    )
    yield Claim(
        where,
        "the traffic of query shipping is low beside data shipping, that of sharing lower still",
        f"Mbit/s: {told(total)}",
        total["SUBSCRIBE"] < total["query shipping"] < 0.5 * total["data shipping"],
    )
    yield Claim(
        where,
        "sharing causes less overall CPU load than data shipping",
        f"CPU %, all peers: {told({name: sum(cpu[name]) for name in found})}",
        sum(cpu["SUBSCRIBE"]) < sum(cpu["data shipping"]),
    )
    uneven = {name: max(loads) / statistics.fmean(loads) for name, loads in cpu.items()}
    yield Claim(
        where,
        "sharing spreads the load over the peers better than query shipping",
        f"busiest over mean: {told(uneven)}",
        uneven["SUBSCRIBE"] < uneven["query shipping"],
    )
    yield from _peer_claims(each, found, cpu)
    yield from _our_claims(total, at_source)


def _peer_claims(each: Setup, found: Figures, cpu: dict[str, list[float]]) -> Iterator[Claim]:
    where, runs_of = f"fig {each.figure}", [found[name] for name in PAPERS]
    peers = {name: means(results, lambda one: one["peers_mbps"]) for name, results in found.items()}
    nodes = range(len(peers["SUBSCRIBE"]))
    least = [
        statistics.fmean(map(_is_least, *(each["peers_mbps"] for each in runs))) for runs in zip(*runs_of, strict=True)
    ]
    on_average = [peers["SUBSCRIBE"][node] / min(peers[name][node] for name in PAPERS[:2]) for node in nodes]
    yield Claim(
        where,
        f"sharing has the least traffic at single peers (at {MOST:.0%} of them in a run)",
        f"at {statistics.fmean(least):.0%}; peer by peer {span(on_average)} times the lower of the others, on average",
        statistics.fmean(least) >= MOST,
    )
    ratios = [
        cpu["SUBSCRIBE"][node] / max(cpu[name][node] for name in PAPERS[:2])
        for node in nodes
        if node not in each.sources
    ]
    close = [ratio for ratio in ratios if ratio <= CLOSE]
    yield Claim(
        where,
        f"CPU load of sharing is comparable on most peers but the sources (at most {CLOSE} times the others' higher)",
        f"at {len(close)} of {len(ratios)}: {span(ratios)} times",
        len(close) >= MOST * len(ratios),
    )


def _is_least(data: float, query: float, sharing: float) -> bool:
    return sharing <= min(data, query) * CLOSELY


def _our_claims(total: dict[str, float], at_source: dict[str, float]) -> Iterator[Claim]:
    yield Claim(
        "ours",
        f"at most {GOAL} of SUBSCRIBE's traffic",
        f"ours over SUBSCRIBE's: {total['ours'] / total['SUBSCRIBE']:.3f}, widening alone"
        f" {total['widening'] / total['SUBSCRIBE']:.3f}",
        total["ours"] <= GOAL * total["SUBSCRIBE"],
    )
    yield Claim(
        "ours",
        "less CPU load at the sources than SUBSCRIBE",
        f"CPU %: {told(at_source)}",
        at_source["ours"] < at_source["SUBSCRIBE"],
    )


def draw(each: Setup, found: Figures, chosen: sweep.Options) -> None:
    peers = range(len(found["ours"][0]["cpu_percent"]))
    cpu = {name: means(found[name], lambda one: one["cpu_percent"]) for name in SHOWN}
    title = f"StreamGlobe, figure {each.figure}: {each.says}"
    path = chosen.out / f"streamglobe_{each.figure}"
    plots.bars(
        path.with_name(f"{path.name}_cpu.png"),
        [f"{n}" for n in peers],
        cpu,
        title=title,
        y="CPU of super-peer 0, 1, …, %",
    )
    if each.figure == 6:
        links = list(found["ours"][0]["links_kbps"])
        flows = {name: means(found[name], lambda one: [one["links_kbps"][link] for link in links]) for name in SHOWN}
        groups, y = (
            [link.removeprefix("link ") for link in links],
            "traffic of a connection between super-peers, kbit/s",
        )
    else:
        flows = {name: means(found[name], lambda one: one["peers_mbps"]) for name in SHOWN}
        groups, y = [f"{n}" for n in peers], "traffic of super-peer 0, 1, …, in and out, Mbit/s"
    plots.bars(path.with_name(f"{path.name}_traffic.png"), groups, flows, title=title, y=y, log="y")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("StreamGlobe, figures 6 and 7", scale=0.2).parse_args(arguments))
    for each in SETUPS:
        found = figures(each.setup, chosen)
        print(f"\nfigure {each.figure}: {each.says}; seed={chosen.seed}, {len(found['ours'])} seeds")
        print_table(
            (
                "strategy",
                "Mbit/s, all links",
                "CPU, all peers (selections)",
                "CPU of the source",
                "CPU ms to plan a query",
            ),
            [
                (
                    name,
                    mean(results, lambda one: one["total_mbps"]),
                    mean(results, lambda one: one["all_cpu"]),
                    mean(results, lambda one: one["source_cpu"]),
                    mean(results, lambda one: statistics.fmean(one["plan_ms"])),
                )
                for name, results in ((name, found[name]) for name in STRATEGIES)
            ],
        )
        print_claims(claims(each, found))
        draw(each, found, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
