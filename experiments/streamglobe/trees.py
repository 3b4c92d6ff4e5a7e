"""Ours beside SUBSCRIBE: for each base stream one tree of sieves, widened as queries come, with parents weighed again.

What goes over an edge of a tree is what anybody below needs: one or a few sieves, two of them merged where that is
smaller than both. A new query joins where the cost rises least, and widens the edges above. If nothing fits, nodes get
other parents until it does; in the background they get others that save enough. An aggregate is computed at the nearest
peer above its subscriber that has its rows anyway, and travels as partials of slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol, get_args

from experiments.streamglobe.capacity import Refusal, Shortage, Work, cpu_name, link_name
from experiments.streamglobe.windows import edges
from queries.expressions import Expression, columns_of
from queries.plan import Window
from queries.predicates import implies
from queries.properties import Path

GAIN_MIN: Final = 0.2  # A node gets another parent if that saves this share of what its stream costs.
ROUNDS_MAX: Final = 20
PLANS_MAX: Final = 3  # From so many plans it is tried to make a query fit by moves.
ALL: Final = 0  # The number of the selection that every row meets.

Loads = dict[str, float]
Width = Literal["least", "one", "whole"]
"""How the needs below a node reach it: as streams of the least traffic, as one stream, as the whole base stream."""


class Need(NamedTuple):
    """Rows that meet any of some selections, with some elements."""

    selections: tuple[int, ...]
    paths: frozenset[Path]


class Flow(NamedTuple):
    """What a need flows with."""

    rows_per_s: float
    bytes_per_s: float


class Partial(NamedTuple):
    """A window aggregate: of which element, and how often it has a result."""

    element: str
    window: Window
    results_per_s: float


class Reader(NamedTuple):
    """A query at its peer: the rows it wants, or those it aggregates."""

    query: str
    stream: int
    node: int
    need: Need
    partial: Partial | None = None


class Ground(Protocol):
    """The peers that can relay: who is next to whom, and the shortest ways."""

    @property
    def neighbours(self) -> Mapping[int, tuple[int, ...]]: ...

    def path(self, start: int, end: int) -> tuple[int, ...]: ...


@dataclass
class Facts:
    """What is known of one base stream: its selections by number, what follows from what, what flows."""

    rows_per_s: Callable[[Sequence[Expression | None]], float]
    item_bytes: Callable[[Iterable[Path]], float]
    every_path: frozenset[Path]
    partial_bytes: float
    _selections: dict[Expression | None, int] = field(default_factory=lambda: {None: ALL})
    _inside: dict[tuple[int, int], bool] = field(default_factory=dict)
    _flows: dict[Need, Flow] = field(default_factory=dict)

    @property
    def everything(self) -> Need:
        return Need((ALL,), self.every_path)

    def learn(self, rows_per_s: Callable[[Sequence[Expression | None]], float]) -> None:
        """Other rates: statistics have changed."""
        self.rows_per_s = rows_per_s
        self._flows.clear()

    def number(self, selection: Expression | None) -> int:
        return self._selections.setdefault(selection, len(self._selections))

    def is_inside(self, one: int, other: int) -> bool:
        """Whether each row that meets one selection meets the other."""
        if one == other or other == ALL:
            return True
        if (one, other) not in self._inside:
            known = list(self._selections)
            self._inside[one, other] = implies(known[one], known[other])
        return self._inside[one, other]

    def tested(self, selections: Iterable[int]) -> frozenset[Path]:
        """The elements that one needs to tell which rows meet them."""
        known = list(self._selections)
        predicates = (known[each] for each in selections)
        return frozenset(column.path for each in predicates if each is not None for column in columns_of(each))

    def flow(self, need: Need) -> Flow:
        if need not in self._flows:
            known = list(self._selections)
            rows = self.rows_per_s([known[each] for each in need.selections])
            self._flows[need] = Flow(rows, rows * self.item_bytes(need.paths))
        return self._flows[need]

    def holds(self, given: Need, wanted: Need) -> bool:
        """Whether rows and elements of one include those of the other, with what it takes to tell them apart."""
        if not wanted.paths <= given.paths:
            return False
        if not all(any(self.is_inside(each, wide) for wide in given.selections) for each in wanted.selections):
            return False
        return given.selections == wanted.selections or self.tested(wanted.selections) <= given.paths

    def both(self, one: Need, other: Need) -> Need:
        """What serves two needs. Whoever must pick out his rows gets the elements that he tests."""
        kept: list[int] = []
        for each in dict.fromkeys((*one.selections, *other.selections)):
            if not any(self.is_inside(each, wide) for wide in kept):
                kept = [wide for wide in kept if not self.is_inside(wide, each)] + [each]
        selections = tuple(sorted(kept))
        paths = one.paths | other.paths
        for part in (one, other):
            if part.selections != selections:
                paths |= self.tested(part.selections)
        return Need(selections, paths)

    def merged(self, needs: Iterable[Need], width: Width) -> list[Need]:
        """Two become one where that is smaller; or all do, whatever it costs the link."""
        left = list(dict.fromkeys(needs))
        if width == "whole":
            return [self.everything]
        if width == "one":
            return [reduce(self.both, left)] if left else []
        while len(left) > 1:
            best: tuple[float, int, int, Need] | None = None
            for i, one in enumerate(left):
                for j in range(i):
                    both = self.both(one, left[j])
                    saved = sum(self.flow(each).bytes_per_s for each in (one, left[j])) - self.flow(both).bytes_per_s
                    if saved >= 0 and (best is None or saved > best[0]):
                        best = (saved, i, j, both)
            if best is None:
                break
            _, i, j, both = best
            left = [*(each for place, each in enumerate(left) if place not in (i, j)), both]
        return list(dict.fromkeys(left))


@dataclass
class Tree:
    """One base stream on its way: each peer but the root has a parent, its neighbour."""

    root: int
    facts: Facts
    work: Work
    is_parsed_once: bool = True  # All that reads one stream at one peer parses it together.
    parents: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[Reader]] = field(default_factory=dict)
    widths: dict[int, Width] = field(default_factory=dict)  # Of what comes in at a node.

    def nodes(self) -> list[int]:
        """The root first, each node behind its parent."""
        children: dict[int, list[int]] = {}
        for child, parent in sorted(self.parents.items()):
            children.setdefault(parent, []).append(child)
        order = [self.root]
        for each in order:
            order += children.get(each, [])
        return order

    def validate(self) -> None:
        assert len(self.nodes()) == len(self.parents) + 1, "every node is below the root"

    def copy(self) -> Tree:
        readers = {node: list(each) for node, each in self.readers.items()}
        parents, widths = dict(self.parents), dict(self.widths)
        return Tree(self.root, self.facts, self.work, self.is_parsed_once, parents, readers, widths)

    def joined(self, way: Sequence[int], reader: Reader) -> Tree:
        """The tree with a reader more, who comes to it by a way from one of its nodes."""
        made = self.copy()
        made.parents |= {after: before for before, after in pairwise(way)}
        made.readers.setdefault(reader.node, []).append(reader)
        return made

    def needs(self) -> dict[int, list[Need]]:
        """What comes in at each node; the root has everything."""
        order, wanted = self.nodes(), {node: self._own(node) for node in self.nodes()}
        into = {self.root: [self.facts.everything]}
        for node in reversed(order[1:]):
            into[node] = self.facts.merged(wanted[node], self.widths.get(node, "least"))
            wanted[self.parents[node]] += into[node]
        return into

    def _own(self, node: int) -> list[Need]:
        return [each.need for each in self.readers.get(node, ()) if each.partial is None]

    def loads(self) -> Loads:
        """What the tree takes of each link and peer."""
        return _Weighing(self, self.needs()).loads()

    def reparented(self, ground: Ground, node: int) -> Iterator[Tree]:
        """The same tree with another parent of a node, by way of one new relay at most; idle relays are left out."""
        if node not in self.parents:
            return
        below = {node: None}
        for each in self.nodes():
            if self.parents.get(each) in below:
                below[each] = None
        inside = dict.fromkeys(self.nodes())
        for near in ground.neighbours[node]:
            if near in inside:
                if near not in below and near != self.parents[node]:
                    yield self._with({node: near})
            else:
                for far in ground.neighbours[near]:
                    if far in inside and far not in below:
                        yield self._with({node: near, near: far})

    def widened(self, node: int) -> Iterator[Tree]:
        """The same tree where a node gets one stream for all its needs, or the whole stream: less work above it."""
        for width in get_args(Width):
            if node in self.parents and width != self.widths.get(node, "least"):
                yield self._with({}, {node: width})

    def _with(self, parents: Mapping[int, int], widths: Mapping[int, Width] = MappingProxyType({})) -> Tree:
        made = self.copy()
        made.parents |= parents
        made.widths |= widths
        while idle := [
            each for each in made.parents if each not in made.parents.values() and not made.readers.get(each)
        ]:
            for each in idle:
                del made.parents[each]
                made.widths.pop(each, None)
        return made


@dataclass
class _Weighing:
    """One tree being weighed."""

    tree: Tree
    into: dict[int, list[Need]]
    _loads: Loads = field(default_factory=dict)
    _parsed: dict[int, dict[int, None]] = field(default_factory=dict)  # By node, which of its streams are parsed there.

    def loads(self) -> Loads:
        tree, work, facts = self.tree, self.tree.work, self.tree.facts
        for node in tree.nodes()[1:]:
            parent = tree.parents[node]
            for need in self.into[node]:
                flow = facts.flow(need)
                self._carry(parent, node, flow.bytes_per_s)
                if need not in self.into[parent]:
                    self._add(cpu_name(parent), work.project * flow.rows_per_s)
                self._serve(parent, need)
        for node, readers in tree.readers.items():
            for reader in readers:
                if reader.partial is None:
                    self._serve(node, reader.need)
                    self._add(cpu_name(node), (work.project + work.restructure) * facts.flow(reader.need).rows_per_s)
        self._aggregates()
        if tree.is_parsed_once:
            for node, places in self._parsed.items():
                rows = sum(facts.flow(self.into[node][place]).rows_per_s for place in places)
                self._add(cpu_name(node), work.parse * rows)
        return self._loads

    def _add(self, name: str, more: float) -> None:
        self._loads[name] = self._loads.get(name, 0.0) + more

    def _carry(self, one: int, other: int, bytes_per_s: float) -> None:
        self._add(link_name(one, other), 8 * bytes_per_s)
        for end in (one, other):
            self._add(cpu_name(end), self.tree.work.carry_byte * bytes_per_s)

    def _serve(self, node: int, need: Need) -> None:
        """Pick rows out of the stream that comes in and has them; nothing is to be done if it has just these."""
        facts, work = self.tree.facts, self.tree.work
        place = next(place for place, each in enumerate(self.into[node]) if facts.holds(each, need))
        given = self.into[node][place]
        if given == need:
            return
        self._parsed.setdefault(node, {})[place] = None
        each_row = work.test * len(need.selections) + (0.0 if self.tree.is_parsed_once else work.parse)
        self._add(cpu_name(node), each_row * facts.flow(given).rows_per_s)

    def _aggregates(self) -> None:
        """Partials are made once for all that aggregate the same rows at a peer, and sent once for all below."""
        tree, work = self.tree, self.tree.work
        sent: dict[tuple[int, int], dict[tuple[Need, str], list[Window]]] = {}
        made: dict[tuple[int, Need, str], None] = {}
        for node, readers in tree.readers.items():
            for reader in readers:
                if reader.partial is None:
                    continue
                at = self._has_rows(node, reader.need)
                what = (Need(reader.need.selections, frozenset()), reader.partial.element)
                if (at, *what) not in made:
                    made[at, *what] = None
                    self._serve(at, reader.need)
                    self._add(cpu_name(at), work.aggregate * tree.facts.flow(reader.need).rows_per_s)
                while node != at:
                    parent = tree.parents[node]
                    sent.setdefault((parent, node), {}).setdefault(what, []).append(reader.partial.window)
                    node = parent
                partials = _slices_per_s([reader.partial.window])
                own = work.aggregate * partials + work.restructure * reader.partial.results_per_s
                self._add(cpu_name(reader.node), own)
        for (parent, node), streams in sent.items():
            for windows in streams.values():
                self._carry(parent, node, tree.facts.partial_bytes * _slices_per_s(windows))

    def _has_rows(self, node: int, need: Need) -> int:
        """The nearest peer above that has the rows anyway."""
        while node != self.tree.root and not any(self.tree.facts.holds(each, need) for each in self.into[node]):
            node = self.tree.parents[node]
        return node


def _slices_per_s(windows: Sequence[Window]) -> float:
    """How many slices begin in a second; windows go by seconds. What has too many edges together is sent apart."""
    key = tuple(dict.fromkeys(windows))
    if key not in _SLICES:
        cut = edges(key)
        _SLICES[key] = sum(_slices_per_s([each]) for each in key) if cut is None else float(len(cut[1]) / cut[0])
    return _SLICES[key]


_SLICES: dict[tuple[Window, ...], float] = {}


class Weight(NamedTuple):
    """What trees take together."""

    over: float  # By how much something is overloaded, in shares of its limit.
    cost: float
    bits_per_s: float  # On all links.
    loads: Loads

    @property
    def rank(self) -> tuple[float, float]:
        return self.over, self.cost


@dataclass
class Forest:
    """The trees of all base streams, and what they take together."""

    ground: Ground
    trees: list[Tree]
    limits: Mapping[str, tuple[float, str]]  # Of each resource, with its unit.
    weights: Mapping[str, float]
    moves: bool = True  # Whether nodes get other parents if a query does not fit otherwise.
    refusals: list[Refusal] = field(default_factory=list)
    moved: int = 0
    _loads: list[Loads] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loads = [each.loads() for each in self.trees]

    @property
    def used(self) -> Loads:
        return _summed(self._loads)

    def add(self, reader: Reader) -> Refusal | None:
        """SUBSCRIBE with widening: join the tree where that costs least; if nothing fits, move nodes until it does."""
        tree, number = self.trees[reader.stream], reader.stream
        inside = tree.nodes()
        paths = [self.ground.path(node, reader.node) for node in inside]
        ways: Sequence[tuple[int, ...]] = (
            [()] if reader.node in inside else [way for way in paths if not any(each in inside for each in way[1:])]
        )
        choices = [tree.joined(way, reader) for way in ways]
        ranked = sorted((*self._weigh(number, each).rank, place) for place, each in enumerate(choices))
        before = (list(self.trees), list(self._loads))
        for over, _, place in ranked[: PLANS_MAX if self.moves else 1]:
            self._settle(number, choices[place], choices[place].loads())
            if not over or (self.moves and self.fit()):
                return None
            self.trees, self._loads = list(before[0]), list(before[1])
        refusal = Refusal(reader.query, self._shortages(number, choices[ranked[0][2]].loads()))
        self.refusals.append(refusal)
        return refusal

    def fit(self) -> bool:
        """Move nodes, or widen what they get, until nothing is overloaded; whether that succeeds."""
        now = self._weigh(0, self.trees[0]).rank
        for _ in range(ROUNDS_MAX):
            before = now
            for number, node in self._places():
                tree = self.trees[number]
                for other in (*tree.reparented(self.ground, node), *tree.widened(node)):
                    weight = self._weigh(number, other)
                    if weight.rank < now:
                        self._settle(number, other, weight.loads)
                        now = weight.rank
                        self.moved += 1
                        if not weight.over:
                            return True
            if now == before:
                break
        return False

    def improve(self) -> None:
        """In the background: nodes get parents by which less flows, if that saves enough and overloads nothing."""
        now = self._weigh(0, self.trees[0])
        for _ in range(ROUNDS_MAX):
            before = now
            for number, node in self._places():
                least = GAIN_MIN * self._bits_into(number, node)
                for other in self.trees[number].reparented(self.ground, node):
                    weight = self._weigh(number, other)
                    if weight.over <= now.over and weight.bits_per_s < now.bits_per_s - least:
                        self._settle(number, other, weight.loads)
                        now = weight
                        self.moved += 1
            if now is before:
                break

    def _places(self) -> Iterator[tuple[int, int]]:
        for number in range(len(self.trees)):
            for node in self.trees[number].nodes()[1:]:
                yield number, node

    def _weigh(self, number: int, tree: Tree) -> Weight:
        """All trees, with this one in place of the one of its stream."""
        loads = self._loads[number] if tree is self.trees[number] else tree.loads()
        over = cost = bits = 0.0
        for name, used in _summed([loads, *(each for n, each in enumerate(self._loads) if n != number)]).items():
            share, kind = used / self.limits[name][0], name.partition(" ")[0]
            cost += self.weights[kind] * share
            over += max(0.0, share - 1)
            bits += used if kind == "link" else 0.0
        return Weight(round(over, 9), round(cost, 9), bits, loads)

    def _bits_into(self, number: int, node: int) -> float:
        """What comes in at a node."""
        tree = self.trees[number]
        return sum(8 * tree.facts.flow(each).bytes_per_s for each in tree.needs().get(node, ()))

    def _settle(self, number: int, tree: Tree, loads: Loads) -> None:
        tree.validate()
        self.trees[number], self._loads[number] = tree, loads

    def _shortages(self, number: int, loads: Loads) -> tuple[Shortage, ...]:
        """What a tree with these loads would overload in place of the one of its stream."""
        others, used = [each for n, each in enumerate(self._loads) if n != number], self.used
        found = []
        for name, total in _summed([loads, *others]).items():
            limit, unit = self.limits[name]
            if total > limit:
                taken = used.get(name, 0.0)
                found.append(Shortage(name, total - taken, max(0.0, limit - taken), limit, unit))
        return tuple(found)


def _summed(parts: Iterable[Loads]) -> Loads:
    total: Loads = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
