"""SAND's section 5: the messages of the distributed placement, and how often anything is saved at all.

    python -m experiments.sand.messages [--scale 0.1] [--seed N] [--master local[2]]

The machines are those of protocols/placement, all peers in one process, every message delivered in order. Trees are
complete, of fanout d and height h, so with d^h sources; zones have one level of operators, or several. Distances come
with MAP here, so the paper's messages to collect them are not sent.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from experiments import plots, sweep
from experiments.report import Claim, print_claims, print_table, told
from experiments.sand.model import make_tree
from protocols.effects import Effect, Route, Send, Tell
from protocols.events import Event, Received
from protocols.ids import Key, PeerId, distance
from protocols.messages import Message
from protocols.placement.events import OperatorsPlaced, PlacementAsked
from protocols.placement.machine import PlacementMachine
from protocols.placement.messages import Terms
from protocols.placement.place import Placement, place
from protocols.placement.tree import ProcessingTree, overlay_cost
from protocols.placement.view import NetworkView

PEERS: Final = 128
HEIGHTS: Final = {2: (1, 2, 3, 4, 5, 6), 3: (1, 2, 3, 4)}
"""By fanout."""
ZONED: Final = {2: 6, 3: 4}  # The heights that zones of several levels are tried with.
INITIAL_MAX: Final = 4.0  # Messages for each source: what O(d^h) is taken to mean.
KINDS: Final = ("ADD_SUBTREE", "MAP", "OPERATOR_MAPPED", "OPERATOR_REMAPPED", "INVALIDATE_MAP")
SAVING_TREES: Final = 20  # In a run.

Shape = tuple[int, int, int]
"""Fanout, height, levels of a zone."""


def shapes() -> list[Shape]:
    """Zones of one level for every tree, and for the highest of each fanout those that divide its height."""
    highest = [(d, h, levels) for d, h in ZONED.items() for levels in range(2, h + 1) if h % levels == 0]
    return [(d, h, 1) for d, heights in HEIGHTS.items() for h in heights] + highest


class Together:
    """Peers in one process; a message takes no time and arrives."""

    def __init__(self, luck: random.Random) -> None:
        self.peers = sorted(PeerId(luck.randbytes(20)) for _ in range(PEERS))
        self._machines = {each: PlacementMachine(each) for each in self.peers}
        self.sent: Counter[str] = Counter()
        self.placed: OperatorsPlaced | None = None

    def happen(self, peer: PeerId, event: Event) -> int:
        """An event and all that follows; returns how many messages it led to at once."""
        waiting = deque(self._performed(peer, event))
        at_once = len(waiting)
        while waiting:
            to, what = waiting.popleft()
            waiting.extend(self._performed(to, what))
        return at_once

    def _performed(self, peer: PeerId, event: Event) -> list[tuple[PeerId, Event]]:
        effects = self._machines[peer].handle(event, now=0)
        return [(to, Received(peer, message)) for effect in effects for to, message in self._sent(effect)]

    def _sent(self, effect: Effect) -> list[tuple[PeerId, Message]]:
        match effect:
            case Send(peer=to, message=message):
                pass
            case Route(key=key, message=message):
                to = self._owner(key)
            case Tell(event=OperatorsPlaced() as placed):
                self.placed = placed
                return []
            case _:
                return []  # A timer; nothing is lost here.
        self.sent[str(type(message).__struct_config__.tag)] += 1
        return [(to, message)]

    def _owner(self, key: Key) -> PeerId:
        return min(self.peers, key=lambda peer: distance(peer, key))


def count(seed: int, fanout: int, height: int, levels: int, run: int) -> dict[str, float]:
    """The messages of one placement by Edge, and whether it is the centralised one."""
    luck = random.Random(f"{seed} {fanout} {height} {run}")
    together = Together(luck)
    tree = _tree(luck, together.peers, fanout, height)
    asked = PlacementAsked("q", 1, tree.vertices, Terms("edge", tree.proxy), levels)
    initial = together.happen(tree.proxy, asked)
    central = place("edge", tree, _no_distances(together.peers))
    assert isinstance(central, Placement)
    is_central = together.placed is not None and together.placed.hosts == central.hosts
    return {"initial": initial, "all": together.sent.total(), "is_central": is_central, **together.sent}


def saved(seed: int, fanout: int, height: int, run: int) -> float:
    """The share of trees on which Edge moves less between peers than the baseline."""
    luck = random.Random(f"{seed} {fanout} {height} {run} saved")
    view = _no_distances(Together(luck).peers)
    better = 0
    for _ in range(SAVING_TREES):
        tree = _tree(luck, view.peers, fanout, height)
        flows = {}
        for algorithm in ("edge", "baseline"):
            found = place(algorithm, tree, view)
            assert isinstance(found, Placement)
            flows[algorithm] = overlay_cost(tree, found.hosts, lambda a, b: 1.0)
        better += flows["edge"] < flows["baseline"] * (1 - 1e-9)
    return better / SAVING_TREES


def _tree(luck: random.Random, peers: Sequence[PeerId], fanout: int, height: int) -> ProcessingTree:
    proxy, *sources = luck.sample(peers, fanout**height + 1)
    return make_tree(luck, height, proxy, sources, fanout=fanout)


def _no_distances(peers: Sequence[PeerId]) -> NetworkView:
    """Edge knows none."""
    row = [1.0] * len(peers)
    return NetworkView(peers, [[*row[:place], 0.0, *row[place + 1 :]] for place in range(len(peers))], is_metric=True)


def paper_saves(fanout: int, height: int) -> float:
    """P_S: some operator right above the sources gives less than one of its inputs."""
    lowest: int = fanout ** (height - 1)
    return 1 - math.pow(1 / (fanout + 1), lowest)


# Figures.


def counts(chosen: sweep.Options) -> dict[Shape, Counter[str]]:
    """The mean of every count, by shape."""
    runs = range(max(1, round(100 * chosen.scale)))
    asked = [
        {"seed": chosen.seed, "fanout": fanout, "height": height, "levels": levels, "run": run}
        for fanout, height, levels in shapes()
        for run in runs
    ]
    results = sweep.run("sand_5_messages", count, asked, chosen)
    by_shape: dict[Shape, list[dict[str, float]]] = {}
    for cell, result in zip(asked, results, strict=True):
        by_shape.setdefault((cell["fanout"], cell["height"], cell["levels"]), []).append(result)
    return {shape: _means(found) for shape, found in by_shape.items()}


def _means(found: Sequence[dict[str, float]]) -> Any:
    names = dict.fromkeys(name for each in found for name in each)
    return Counter({name: statistics.fmean(each.get(name, 0) for each in found) for name in names})


def savings(chosen: sweep.Options) -> dict[tuple[int, int], float]:
    runs = range(max(5, round(100 * chosen.scale)))
    asked = [
        {"seed": chosen.seed, "fanout": fanout, "height": height, "run": run}
        for fanout in HEIGHTS
        for height in HEIGHTS[fanout][:3]
        for run in runs
    ]
    found: dict[tuple[int, int], list[float]] = {}
    for cell, share in zip(asked, sweep.run("sand_5_saved", saved, asked, chosen), strict=True):
        found.setdefault((cell["fanout"], cell["height"]), []).append(share)
    return {key: statistics.fmean(shares) for key, shares in found.items()}


def claims(found: dict[Shape, Counter[str]], shares: dict[tuple[int, int], float]) -> Iterator[Claim]:
    for fanout, heights in HEIGHTS.items():
        each = {f"h={h}": found[fanout, h, 1]["initial"] / fanout**h for h in heights}
        says = f"initialisation takes O(d^h) messages: at most {INITIAL_MAX:g} for each source (d={fanout})"
        yield Claim("section 5", says, told(each), max(each.values()) <= INITIAL_MAX)
    for fanout, height in ZONED.items():
        zones = {levels: found[fanout, height, levels] for d, h, levels in sorted(found) if (d, h) == (fanout, height)}
        adds = {f"t={levels}": each["ADD_SUBTREE"] / fanout ** (height - levels) for levels, each in zones.items()}
        says = f"ADD_SUBTREE is O(d^(h-t)): at most twice that (d={fanout}, h={height})"
        yield Claim("section 5", says, told(adds), max(adds.values()) <= 2)
        totals = {f"t={levels}": float(each["all"]) for levels, each in zones.items()}
        values = list(totals.values())
        says = f"larger zones need fewer messages (d={fanout}, h={height})"
        yield Claim("section 5", says, told(totals), values == sorted(values, reverse=True) and values[0] > values[-1])
    equal = min(each["is_central"] for each in found.values())
    yield Claim("section 4.2", "distributed Edge is centralised Edge", f"{equal:.0%} of the placements", equal == 1)
    more = {f"d={d} h={h}": share for (d, h), share in shares.items()}
    larger = [shares[d, h + 1] >= shares[d, h] for d, h in shares if (d, h + 1) in shares]
    beside = {f"d={d} h={h}": paper_saves(d, h) for d, h in shares}
    yield Claim(
        "section 5",
        "almost every larger tree can be improved on the baseline (P_S)",
        f"{told(more)}; P_S: {told(beside)}",
        all(larger),
    )


def _of_kinds(counted: Counter[str]) -> list[float]:
    return [float(counted[kind]) for kind in KINDS]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = sweep.options(sweep.parser("SAND, section 5", scale=0.1, seed=5).parse_args(arguments))
    found, shares = counts(chosen), savings(chosen)
    print(f"seed={chosen.seed} scale={chosen.scale:g}: {max(1, round(100 * chosen.scale))} placements of each shape")
    print_table(
        ("d", "h", "zone levels", "at the start", "all", "all/d^h", *KINDS),
        [
            (d, h, levels, float(each["initial"]), float(each["all"]), each["all"] / d**h, *_of_kinds(each))
            for (d, h, levels), each in found.items()
        ],
    )
    print_claims(claims(found, shares))
    plots.lines(
        chosen.out / "sand_5.png",
        {
            f"{what}, d={d}": [(float(d**h), float(found[d, h, 1][name])) for h in heights]
            for d, heights in HEIGHTS.items()
            for what, name in (("at the start", "initial"), ("all", "all"))
        },
        title="SAND, section 5: messages of a placement",
        x="sources, d^h",
        y="messages",
        log="xy",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
