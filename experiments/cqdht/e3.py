"""CQ-DHT, experiment E3 (figure 7): how replicas of rewriters spread the filtering load of the attribute level.

    python -m experiments.cqdht.e3 --scale 0.05

Tuples are indexed at the attribute level of networks with 10^5 peers (times the scale), under DR replicas of each of
the 500 attributes. Beside our identifiers, which lie in parts of the key space of their own, those of the paper
before it moves peers: the hash of the name, written DR times.

The column "live" is what peers run (live.py), with 64 peers and queries `WITH (replicas = DR)`. A share of the stream
goes by its publisher there, and a stream is read only where queries wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from experiments import plots, report, sweep
from experiments.cqdht import live
from experiments.cqdht.e4 import Load, described
from experiments.cqdht.events import TuplePublished
from experiments.cqdht.messages import AlIndex, StreamTuple, TupleId
from experiments.cqdht.workload import ATTRIBUTES, SCHEMA, Network, Size, Workload, limits_of
from protocols.clock import COUNT_BITS
from protocols.ids import Key, PeerId
from protocols.join_index.keys import attribute_key
from protocols.join_index.messages import Attribute

DEGREES: Final = (1, 10, 100)
PEERS: Final = 100_000
TUPLES: Final = 500_000
SWEEP_EVERY: Final = 10_000
LIVE_DEGREES: Final = (1, 10)
LIVE_TUPLES: Final = 500

Found = Mapping[int, dict[str, Any]]


def cell(*, degree: int, scale: float, seed: int) -> dict[str, Any]:
    size = Size.of(scale)._replace(peers=round(PEERS * scale))
    workload = Workload(size, seed)
    network = Network(size.peers, limits_of(size, replicas=degree))
    network.is_wanted = lambda message: type(message) is AlIndex
    for number in report.with_progress(range(round(TUPLES * scale)), f"DR={degree}: tuples"):
        relation, row = workload.tuple()
        peer = network.peer(workload.luck)
        each = StreamTuple(TupleId(peer, relation, 1, number), number << COUNT_BITS, SCHEMA.encode([row]))
        network.happen(peer, TuplePublished(each, SCHEMA, 0), number)
        if number % SWEEP_EVERY == 0:
            network.sweep(number)
    filtering = [node.rewriter.filtered for node in network.nodes.values()]
    names = [
        Attribute(f"r{relation}", (f"a{place}",)) for relation in range(size.relations) for place in range(ATTRIBUTES)
    ]
    ours = [[network.owner(attribute_key(at, replica)) for replica in range(degree)] for at in names]
    plain = [[network.owner(Key.of(str(at) * (replica + 1))) for replica in range(degree)] for at in names]
    return {
        "RF": described(filtering),
        "RS": _stored(ours),
        "doubled": sum(map(_doubled, ours)),
        "doubled_plain": sum(map(_doubled, plain)),
        "rewriters": len({peer for peers in ours for peer in peers}),
        "rewriters_plain": len({peer for peers in plain for peer in peers}),
    }


def live_cell(*, degree: int, scale: float, seed: int) -> dict[str, Any]:
    """RF of the peers that rewrite for all queries."""
    run = live.LiveRun(live.size_of(scale, live.ALL_KNOWN), seed, replicas=degree)
    run.pose()
    run.insert(LIVE_TUPLES)
    return {"RF": described(run.rewriting())}


def _stored(owners: list[list[PeerId]]) -> Load:
    """One query by each attribute, on each of its rewriters."""
    return described(list(Counter(peer for peers in owners for peer in peers).values()))


def _doubled(peers: list[PeerId]) -> int:
    """Identifiers of one attribute that a peer has beside another of it: they spread nothing."""
    return len(peers) - len(set(peers))


def cells(scale: float, seed: int) -> list[dict[str, Any]]:
    return [{"degree": degree, "scale": scale, "seed": seed} for degree in DEGREES]


def live_cells(scale: float, seed: int) -> list[dict[str, Any]]:
    return [{"degree": degree, "scale": min(scale, live.SCALE_MAX), "seed": seed} for degree in LIVE_DEGREES]


def spread_claims(found: Found, where: str, who: str) -> list[report.Claim]:
    """With more replicas, more peers share the load, and the heaviest has less."""
    used = ", ".join(f"DR={degree}: {each['RF']['used']}" for degree, each in found.items())
    heaviest = ", ".join(f"DR={degree}: {each['RF']['max']}" for degree, each in found.items())
    few, many = found[min(found)], found[max(found)]
    return [
        report.Claim(where, f"{who}more rewriters share the load", used, few["RF"]["used"] < many["RF"]["used"]),
        report.Claim(where, f"{who}the heaviest has less", heaviest, many["RF"]["max"] < few["RF"]["max"]),
    ]


def claims(found: Found) -> list[report.Claim]:
    many = found[DEGREES[-1]]
    doubled = f"{many['doubled']} identifiers of ours, {many['doubled_plain']} of plain hashes"
    return [
        *spread_claims(found, "fig 7a", ""),
        report.Claim(
            "fig 7",
            "one replica per peer: without it fewer peers share the load (12 K fewer of 10^5 peers at DR=100)",
            f"beside another of their attribute on one peer: {doubled}; rewriters: {many['rewriters']} and "
            f"{many['rewriters_plain']}",
            many["doubled"] < many["doubled_plain"],
        ),
    ]


def main() -> None:
    chosen = sweep.options(sweep.parser(__doc__.splitlines()[0], scale=0.05).parse_args())
    asked = cells(chosen.scale, chosen.seed)
    results = sweep.run("cqdht_e3", cell, asked, chosen)
    found = {each["degree"]: result for each, result in zip(asked, results, strict=True)}
    live_asked = live_cells(chosen.scale, chosen.seed)
    live_results = sweep.run("cqdht_e3_live", live_cell, live_asked, chosen)
    live_found = {each["degree"]: result for each, result in zip(live_asked, live_results, strict=True)}
    print(f"seed={chosen.seed} peers={round(PEERS * chosen.scale)} tuples={round(TUPLES * chosen.scale)}")
    _print_spread(found)
    print(f"\nlive, {live.ALL_KNOWN} peers, {LIVE_TUPLES} tuples:")
    _print_spread(live_found)
    report.print_claims([*claims(found), *spread_claims(live_found, "fig 7a", "live: ")])
    series = {f"DR={degree}": each["RF"]["curve"] for degree, each in found.items()}
    series |= {f"live, DR={degree}": each["RF"]["curve"] for degree, each in live_found.items()}
    path = chosen.out / "cqdht_e3_filtering.png"
    plots.lines(path, series, title="E3: rewriter filtering load", x="heaviest rewriters", y="their load", log="x")


def _print_spread(found: Found) -> None:
    names = ("used", "max", "mean", "uneven", "half")
    report.print_table(("DR", "rewriters", "max", "mean of all", "max/mean", "half is on"), [
        (str(degree), *(each["RF"][name] for name in names)) for degree, each in found.items()
    ])  # fmt: skip


if __name__ == "__main__":
    main()
