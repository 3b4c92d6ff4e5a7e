"""StreamGlobe's two set-ups: backbones, photons, query templates, and what a stream of each content flows with.

Contents are exact sets over a sample of photons, so unions and containments are exact, too. The paper leaves open what
its constants and templates are, how fast its streams and its peers were. Two free parameters, the rate of a stream and
the speed of a peer, were fitted to the queries that data and query shipping reject; all else is foretold.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.streamglobe.capacity import Capacity, Work, cpu_name, link_name
from protocols.sharing.capacity import Resource
from queries.canonical import canonical
from queries.catalogue import Stream
from queries.compile import on_row
from queries.expressions import Expression
from queries.plan import Operator
from queries.properties import InputProperties, Path, properties
from queries.query import parse
from queries.schema import Row, Schema

PHOTONS_PER_S: Final = 90.0
CPU: Final = 36.6 * PHOTONS_PER_S  # A tenth of a peer, in selections of one photon per second.
LINK_BPS: Final = 1e6
SAMPLE: Final = 2000
GAMMA: Final = 0.5

SCHEMA: Final = Schema.parse(
    "coord record(cel record(ra decimal, dec decimal), det record(dx int, dy int)),"
    " phc int, en decimal, det_time decimal"
)
ELEMENTS: Final[dict[str, Path]] = {
    "ra": ("coord", "cel", "ra"),
    "dec": ("coord", "cel", "dec"),
    "dx": ("coord", "det", "dx"),
    "dy": ("coord", "det", "dy"),
    "phc": ("phc",),
    "en": ("en",),
    "det_time": ("det_time",),
}
ELEMENT_BYTES: Final = dict(zip(ELEMENTS.values(), (17, 19, 12, 12, 14, 14, 31), strict=True))  # As XML.
TAG_BYTES: Final = 54  # photon, coord, cel and det.
AGGREGATE_BYTES: Final = 60
PARTIAL_BYTES: Final = 80  # Count, sum, min and max of one element, with their tags.
EVERYTHING: Final = tuple(ELEMENTS.values())

# Right ascension and declination: families of boxes, each box within the one before; some families overlap.
REGIONS: Final = (
    (120.0, 138.0, -49.0, -40.0),
    (126.0, 137.0, -49.0, -42.0),
    (130.5, 135.5, -48.0, -45.0),
    (104.0, 118.0, -45.0, -34.0),
    (107.0, 116.0, -44.0, -36.0),
    (109.0, 113.0, -42.0, -38.0),
    (140.0, 156.0, -58.0, -48.0),
    (143.0, 150.0, -56.0, -50.0),
    (145.0, 148.0, -54.0, -52.0),
    (128.0, 144.0, -54.0, -44.0),
    (131.0, 142.0, -52.0, -45.0),
    (132.0, 136.0, -49.0, -45.5),
    (100.0, 125.0, -42.0, -30.0),
    (105.0, 120.0, -41.0, -33.0),
    (138.0, 158.0, -46.0, -32.0),
)
ENERGIES: Final = (None, None, 0.5, 0.9, 1.3, 2.0)
PROJECTIONS: Final = (
    ("ra", "dec", "phc", "en", "det_time"),
    ("ra", "dec", "en", "det_time"),
    ("ra", "dec", "en"),
    ("dx", "dy", "en", "det_time"),
    ("ra", "dec", "phc", "en"),
    tuple(ELEMENTS),
)
WINDOWS: Final = ((10, 10), (20, 10), (20, 20), (30, 10), (40, 20), (60, 20), (60, 40), (60, 60), (90, 30))
FUNCTIONS: Final = ("avg", "avg", "sum", "count", "min", "max")
WORK: Final = Work(carry_byte=0.25 / (TAG_BYTES + sum(ELEMENT_BYTES.values())))
MIX: Final = (0.5, 0.12, 0.38)  # Selections, projections, aggregates.


class Asked(NamedTuple):
    """A query of a set-up and the super-peer it is posed at."""

    number: int
    node: int
    stream: int
    text: str
    plan: Operator  # Canonical.
    needs: InputProperties

    @property
    def is_aggregate(self) -> bool:
        return self.needs.grouping is not None


@dataclass(frozen=True)
class Backbone:
    """Super-peers and their connections. The shortest way has the fewest hops, ties go by number."""

    neighbours: dict[int, tuple[int, ...]]
    sources: tuple[int, ...]
    _paths: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def cube(cls) -> Backbone:
        """Figure 1. It is lost, but the connections that the text names (4-5, 5-1, 5-7) are those of a cube."""
        return cls({node: tuple(node ^ bit for bit in (1, 2, 4)) for node in range(8)}, (4,))

    @classmethod
    def grid(cls, side: int = 4) -> Backbone:
        near: dict[int, tuple[int, ...]] = {}
        for node in range(side * side):
            row, column = divmod(node, side)
            around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
            near[node] = tuple(r * side + c for r, c in around if 0 <= r < side and 0 <= c < side)
        return cls(near, (side + 1, 2 * side + 2))

    @property
    def links(self) -> list[tuple[int, int]]:
        return [(a, b) for a, near in self.neighbours.items() for b in sorted(near) if a < b]

    def path(self, start: int, end: int) -> tuple[int, ...]:
        if (start, end) not in self._paths:
            before, waiting = {start: start}, deque([start])
            while waiting:
                node = waiting.popleft()
                for other in self.neighbours[node]:
                    if other not in before:
                        before[other] = node
                        waiting.append(other)
            for target in before:
                way = [target]
                while way[-1] != start:
                    way.append(before[way[-1]])
                self._paths[start, target] = tuple(reversed(way))
        return self._paths[start, end]


WEIGHTS: Final = {"link": GAMMA, "CPU": 1 - GAMMA}


@dataclass
class World:
    """One set-up drawn from a seed."""

    backbone: Backbone
    queries: list[Asked]
    samples: list[list[Row]]  # By stream.
    per_s: float = PHOTONS_PER_S
    cpu: float = CPU
    link_bps: float = LINK_BPS
    work: Work = WORK
    is_parsed_once: bool = False  # Whether all that reads one stream at one peer parses it together.
    _masks: dict[tuple[int, Expression | None], npt.NDArray[np.bool_]] = field(default_factory=dict)

    def capacity(self) -> Capacity:
        made = {link_name(*each): Resource(self.link_bps, "bit/s") for each in self.backbone.links}
        made |= {cpu_name(node): Resource(self.cpu, "selections/s") for node in self.backbone.neighbours}
        return Capacity(made)

    def mask(self, stream: int, predicate: Expression | None) -> npt.NDArray[np.bool_]:
        """Which photons of the sample meet a condition on elements, named as in properties."""
        key = (stream, predicate)
        if key not in self._masks:
            rows = self.samples[stream]
            if predicate is None:
                self._masks[key] = np.ones(len(rows), bool)
            else:
                keeps = on_row(predicate, stream_of(stream).source("").columns)
                self._masks[key] = np.array([keeps((*row, None)) is True for row in rows])
        return self._masks[key]

    def rows_per_s(self, stream: int, predicates: Sequence[Expression | None]) -> float:
        """Of the rows that meet any of them."""
        mask = np.zeros(len(self.samples[stream]), bool)
        for each in predicates:
            mask |= self.mask(stream, each)
        return self.per_s * float(mask.mean())


def item_bytes(paths: Sequence[Path]) -> int:
    return TAG_BYTES + sum(size for path, size in ELEMENT_BYTES.items() if any(path[: len(p)] == p for p in paths))


def stream_of(number: int) -> Stream:
    return Stream(f"photons{number}", SCHEMA)


def photons(seed: int) -> list[Row]:
    """A background and three sources; energies fall off."""
    luck = np.random.default_rng(seed)
    centres = luck.choice(4, SAMPLE, p=[0.4, 0.25, 0.2, 0.15])
    mean = np.array([[130, -45], [133, -46.5], [111, -40], [146, -53]])[centres]
    spread = np.array([[0, 0], [2.2, 1.6], [2.6, 1.8], [2.8, 1.8]])[centres]
    place = mean + luck.normal(size=(SAMPLE, 2)) * spread
    back = centres == 0
    place[back] = np.stack([luck.uniform(100, 160, back.sum()), luck.uniform(-60, -30, back.sum())], 1)
    energies = luck.gamma(2.0, 0.6, SAMPLE)
    numbers = zip(place[:, 0], place[:, 1], energies, strict=True)
    return [
        (((_decimal(ra), _decimal(dec)), (0, 0)), 0, _decimal(en), Decimal(number))
        for number, (ra, dec, en) in enumerate(numbers)
    ]


def _decimal(number: float) -> Decimal:
    return Decimal(f"{number:.9f}")


def drawn(count: int, backbone: Backbone, luck: random.Random, mix: tuple[float, ...] = MIX) -> list[Asked]:
    """Queries from the templates, with constants from small sets, "to enable a certain degree of shareability".

    Every other one is written in SQL, but for windows over det_time, which only WXQuery has.
    """
    made = []
    for number in range(count):
        node, stream = luck.randrange(len(backbone.neighbours)), luck.randrange(len(backbone.sources))
        kind = luck.choices(("selection", "projection", "aggregate"), mix)[0]
        region, energy = luck.choice(REGIONS), luck.choice(ENERGIES)
        if kind == "aggregate":
            having = luck.random() < 0.25
            function = luck.choice(FUNCTIONS)
            element, window = luck.choice(("en", "en", "phc")), luck.choice(WINDOWS)
            energy = luck.choice((None, 0.9))
            text = _aggregate(stream, conditions(region, energy), function, element, window, having=having)
        else:
            asked = conditions(region, energy) if kind == "selection" else []
            elements = luck.choice(PROJECTIONS[:5] if kind == "projection" else PROJECTIONS)
            text = (_sql if number % 2 else _wxquery)(stream, asked, elements)
        plan = canonical(parse(text, {f"photons{stream}": stream_of(stream)}).plan)
        (only,) = properties(plan)
        made.append(Asked(number, node, stream, text, plan, only.inputs[0]))
    return made


def conditions(region: tuple[float, float, float, float] | None, energy: float | None) -> list[str]:
    found = []
    if region is not None:
        west, east, south, north = region
        found += [f"coord/cel/ra >= {west}", f"coord/cel/ra <= {east}"]
        found += [f"coord/cel/dec >= {south}", f"coord/cel/dec <= {north}"]
    return found if energy is None else [*found, f"en >= {energy}"]


def _wxquery(stream: int, asked: Sequence[str], elements: Sequence[str]) -> str:
    where = f" where {' and '.join('$p/' + each for each in asked)}" if asked else ""
    returned = " ".join(f"{{ $p/{'/'.join(ELEMENTS[each])} }}" for each in elements)
    return f'<r>{{ for $p in stream("photons{stream}")/photons/photon{where} return <q> {returned} </q> }}</r>'


def _sql(stream: int, asked: Sequence[str], elements: Sequence[str]) -> str:
    where = f" WHERE {' AND '.join(asked).replace('/', '.')}" if asked else ""
    columns = ", ".join(".".join(ELEMENTS[each]) for each in elements)
    return f"SELECT {columns} FROM photons{stream}{where}"  # noqa: S608 (our own texts, for our own parser)


def _aggregate(
    stream: int, asked: Sequence[str], function: str, element: str, window: tuple[int, int], *, having: bool
) -> str:
    size, step = window
    return (
        f'<r>{{ for $w in stream("photons{stream}")/photons/photon[{" and ".join(asked)}]'
        f" |det_time diff {size} step {step}|"
        f" let $a := {function}($w/{element}){' where $a >= 1.3' if having else ''} return <q> {{ $a }} </q> }}</r>"
    )


def world(
    number: int,
    seed: int,
    *,
    is_tight: bool,
    factor: float = 1.0,
    is_parsed_once: bool = False,
    count: int | None = None,
) -> World:
    """Set-up 1 (the network of figure 1, 25 queries) or 2 (a grid, 100), at so many times the rate.

    The overload test has a tenth of the peers' CPU and links of 1 Mbit/s, other figures all of both.
    """
    luck = random.Random(seed)
    backbone = Backbone.cube() if number == 1 else Backbone.grid()
    queries = drawn(25 if number == 1 else 100, backbone, luck)
    samples = [photons(seed * 7 + each) for each in range(len(backbone.sources))]
    cpu, link = (CPU, LINK_BPS) if is_tight else (10 * CPU, 100 * LINK_BPS)
    return World(backbone, queries, samples, PHOTONS_PER_S * factor, cpu, link, is_parsed_once=is_parsed_once)
