"""CQ-DHT, experiment E1 (figure 5): hops and bytes per tuple as the join fingers train.

    python -m experiments.cqdht.e1 --scale 0.02
    python -m experiments.cqdht.e1 --scale 1 --master local[2]

workload.py says what is counted, and how. Beside the figure: the same without grouping, and with 8 K and 128 K queries
in place of 100 K. At larger scales each algorithm runs in ten parts, one for each attribute of the
relations; a run that was interrupted goes on with the part it was in.

The column "live" is what peers run (live.py), with 64 and with 200 peers, and with the relations and queries of
`--scale 0.02` at most. SAI, DAI-T and cells of the same size stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from experiments import plots, report, sweep
from experiments.cqdht import live
from experiments.cqdht.live import Column, LiveRun, labelled
from experiments.cqdht.messages import AlIndex, AnyAlgorithm, Bundle, Join, VlIndex
from experiments.cqdht.workload import ATTRIBUTES, BOS, Run, Size, limits_of

TRAINED: Final = (0, 5_000, 20_000, 40_000)
MEASURED: Final = 100 * (BOS + 1)
PAPERS: Final[tuple[AnyAlgorithm, ...]] = ("sai", "dai-q", "dai-t", "dai-v")
ALL: Final[tuple[AnyAlgorithm, ...]] = (*PAPERS, "cells")
WHOLE_BELOW: Final = 0.3  # Smaller ones run in one part.
KEPT_BELOW: Final = 0.1  # There cells keep what comes, so that what they hand on (MOVED) has its bytes.
FEW, MANY = 0.08, 1.28  # Of the queries: 8 K and 128 K.
NETWORKS: Final = {live.ALL_KNOWN: 4, live.SOME_KNOWN: 3}  # With the column "live": peers, and how many trainings;
BESIDE: Final[tuple[Column, ...]] = ("sai", "dai-t", "cells", "live")  # and what runs there.

Point = dict[str, float]
COSTS: Final = ("hops", "bytes", "index", "joins")


def cell(
    *,
    algorithm: Column,
    scale: float,
    seed: int,
    attributes: Sequence[str],
    trained: int,
    queries: float,
    groups: bool,
    peers: int = 0,
) -> list[Point]:
    """One algorithm, for tuples under some attributes: what the tuples cost after each of the first trainings.

    The scale says how many peers there are, unless `peers` does.
    """
    size = Size.of(scale)
    size = size._replace(queries=round(size.queries * queries), peers=peers or size.peers)
    measured = max(1, round(scale * MEASURED / (BOS + 1))) * (BOS + 1)
    goals = [round(goal * scale) for goal in TRAINED[:trained]]
    if algorithm == "live":
        whole = LiveRun(size, seed)
        whole.pose()
        return list(_live_points(whole, goals, measured))
    part = len(attributes) / ATTRIBUTES  # It has its part of the load.
    is_kept = algorithm == "cells" and scale < KEPT_BELOW
    limits = limits_of(size, is_kept=is_kept, groups=groups, part=part)
    run = Run(algorithm, size, seed, limits, part=frozenset(attributes))
    run.pose()
    points: list[Point] = []
    before = 0
    for goal in goals:
        run.insert(goal - before)
        before = goal
        run.measure(measured)
        points.append({"trained": before, **_costs(run, measured)})
    return points


def _live_points(run: LiveRun, goals: Sequence[int], measured: int) -> Iterator[Point]:
    before = 0
    for goal in goals:
        run.insert(goal - before)
        before = goal
        yield {"trained": goal, **run.measure(measured)}


def _costs(run: Run, tuples: int) -> Point:
    """Per tuple; fingers are a sum."""
    sent, sizes = run.network.sent, [len(node.rewriter.fingers) for node in run.network.nodes.values()]
    return {
        "hops": run.network.hops / tuples,
        "bytes": run.network.bytes() / tuples,
        "index": (sent[AlIndex] + sent[VlIndex]) / tuples,
        "joins": (sent[Join] + sent[Bundle]) / tuples,
        "fingers": sum(sizes),
        "rewriters": sum(size > 0 for size in sizes),
    }


def added(parts: Sequence[list[Point]]) -> list[Point]:
    """What the parts of a run cost together."""
    return [
        {name: found[0][name] if name == "trained" else sum(each[name] for each in found) for name in found[0]}
        for found in zip(*parts, strict=True)
    ]


def cells(scale: float, seed: int, trained: int = len(TRAINED)) -> list[dict[str, Any]]:
    """Every algorithm in its parts, then what is beside the figure: one part of it, where there are parts."""
    names = [f"a{number}" for number in range(ATTRIBUTES)]
    parts = [names] if scale < WHOLE_BELOW else [[name] for name in names]
    plain: dict[str, Any] = {"scale": scale, "seed": seed, "trained": trained, "queries": 1.0, "groups": True}
    found: list[dict[str, Any]] = [{**plain, "algorithm": each, "attributes": part} for part in parts for each in ALL]
    beside = {**plain, "attributes": parts[0]}
    found.append({**beside, "algorithm": "dai-q", "groups": False, "trained": 1})
    for algorithm in ("sai", "dai-t"):
        found += [{**beside, "algorithm": algorithm, "queries": share} for share in (FEW, MANY)]
    small = {**plain, "scale": min(scale, live.SCALE_MAX), "attributes": names}
    for peers, points in NETWORKS.items():
        some = {**small, "peers": peers, "trained": min(trained, points)}
        found += [{**some, "algorithm": column} for column in BESIDE]
    return found


class Found:
    """The points of all runs."""

    def __init__(self, asked: Sequence[dict[str, Any]], results: Sequence[list[Point]]) -> None:
        both = list(zip(asked, results, strict=True))
        self.points: dict[str, list[Point]] = {}
        for algorithm in ALL:
            mine = [found for each, found in both if each["algorithm"] == algorithm and _is_plain(each)]
            self.points[algorithm] = added(mine)
        self.parts = len(mine)
        self.ungrouped = next(found[0] for each, found in both if not each["groups"])
        self.by_queries = {
            (each["algorithm"], each["queries"]): found[-1] for each, found in both if each["queries"] != 1.0
        }
        self.live: dict[tuple[int, str], list[Point]] = {
            (each["peers"], each["algorithm"]): found for each, found in both if "peers" in each
        }

    def claims(self) -> list[report.Claim]:
        first = {name: points[0] for name, points in self.points.items()}
        last = {name: points[-1] for name, points in self.points.items()}
        found = []
        for more, less, times in (("dai-q", "sai", 7), ("dai-t", "sai", 7), ("sai", "dai-v", 3)):
            ratio = first[more]["hops"] / first[less]["hops"]
            says = f"untrained {less} needs about 1/{times} of the hops of {more}"
            measured = f"{first[less]['hops']:.0f} of {first[more]['hops']:.0f}: 1/{ratio:.1f}"
            found.append(report.Claim("fig 5a", says, measured, times * 0.75 <= ratio <= times * 1.25))
        falls = [f"{name} {first[name]['hops']:.0f} to {last[name]['hops']:.0f}" for name in PAPERS]
        is_falling = all(last[name]["hops"] < first[name]["hops"] for name in PAPERS)
        found.append(report.Claim("fig 5a", "hops fall as the fingers train", ", ".join(falls), is_falling))
        found += [_is_cheaper("cells", what, last, "at this scale") for what in ("hops", "bytes")]
        sizes = {name: _fingers(point) for name, point in last.items()}
        shown = ", ".join(f"{labelled(name)} {size:.0f}" for name, size in sizes.items())
        is_so = sizes["dai-q"] == sizes["dai-t"] > sizes["sai"] > sizes["dai-v"]
        says = "fingers per rewriter: DAI-Q and DAI-T the same, SAI far fewer, DAI-V fewest"
        found.append(report.Claim("fig 5b", says, shown, is_so))
        ungrouped = self.parts * self.ungrouped["joins"] / first["dai-q"]["joins"]
        found.append(
            report.Claim("E1", "without grouping DAI-Q sends 7 times as many", f"{ungrouped:.1f} times", ungrouped >= 5)
        )
        for algorithm in ("sai", "dai-t"):
            few, many = (self.parts * self.by_queries[algorithm, share]["hops"] for share in (FEW, MANY))
            says = f"{algorithm} needs about 10 hops more with 128 K queries than with 8 K"
            found.append(report.Claim("E1", says, f"{few:.0f} with 8 K, {many:.0f} with 128 K", many - few <= 20))
        return found

    def live_claims(self) -> list[report.Claim]:
        """Ours, of what peers run."""
        last: dict[int, dict[str, Point]] = {
            peers: {name: self.live[peers, name][-1] for name in BESIDE} for peers, _ in self.live
        }
        return [
            _is_cheaper("live", what, points, f"with {peers} peers")
            for what in ("hops", "bytes")
            for peers, points in last.items()
        ]


def _is_plain(cell: dict[str, Any]) -> bool:
    return bool(cell["queries"] == 1.0 and cell["groups"] and "peers" not in cell)


def _is_cheaper(column: str, what: str, points: Mapping[str, Point], where: str) -> report.Claim:
    """Ours, trained, against the paper's two."""
    shown = ", ".join(f"{labelled(name)} {points[name][what]:.0f}" for name in (column, "sai", "dai-t"))
    is_less = points[column][what] < min(points["sai"][what], points["dai-t"][what])
    says = f"{labelled(column)}: fewer {what} than SAI and DAI-T, trained, {where}"
    return report.Claim("ours", says, shown, is_less)


def main() -> None:
    parser = sweep.parser(__doc__.splitlines()[0], scale=0.02)
    parser.add_argument("--points", type=int, default=len(TRAINED), help="how many trainings, the first is none")
    arguments = parser.parse_args()
    chosen = sweep.options(arguments)
    asked = cells(chosen.scale, chosen.seed, arguments.points)
    print(f"seed={chosen.seed} {Size.of(chosen.scale)}", flush=True)
    found = Found(asked, sweep.run("cqdht_e1", cell, asked, chosen))
    headers = ("algorithm", "trained", "hops", "bytes", "index", "JOIN, BUNDLE", "fingers per rewriter")
    rows = [
        (labelled(name), point["trained"], *(point[each] for each in COSTS), _fingers(point))
        for name, points in found.points.items()
        for point in points
    ]
    report.print_table(headers, rows)
    print(f"\nlive, beside the same size of the others (scale {min(chosen.scale, live.SCALE_MAX)}):")
    _print_live(found)
    report.print_claims([*found.claims(), *found.live_claims()])
    for what, unit in (("hops", "hops per tuple"), ("bytes", "bytes per tuple")):
        series = {labelled(name): _line(points, what) for name, points in found.points.items()}
        series |= {f"live, {peers} peers": _line(found.live[peers, "live"], what) for peers in NETWORKS}
        path = chosen.out / f"cqdht_e1_{what}.png"
        plots.lines(path, series, title=f"E1: {unit} as fingers train", x="tuples trained with", y=unit, log="y")


def _print_live(found: Found) -> None:
    """With what the counted messages leave out: receipts, and the rest of what peers say meanwhile."""
    beside = ("receipts", "receipt_bytes", "rest", "rest_bytes", "readings")
    headers = ("peers", "algorithm", "trained", *COSTS, *(name.replace("_", " ") for name in beside))
    rows = [
        (peers, labelled(name), point["trained"], *(point.get(each, "-") for each in (*COSTS, *beside)))
        for (peers, name), points in found.live.items()
        for point in points
    ]
    report.print_table(headers, rows)


def _line(points: Sequence[Point], what: str) -> list[tuple[float, float]]:
    return [(each["trained"], each[what]) for each in points]


def _fingers(point: Point) -> float:
    return point["fingers"] / max(1.0, point["rewriters"])


if __name__ == "__main__":
    main()
