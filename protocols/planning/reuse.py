"""What a query can read of a join that flows already: which of its streams, what is left to test, what it would add.

A join that is offered serves a set of a query's streams if it has the same streams with the same windows, and if its
conditions follow from the query's. What the query tests beyond that is the residual, tested where the join is. If only
filters of single streams stand in the way, or fields are missing, they can be relaxed and added (telescoped filters,
IFLOW, section 4.1): then the further rows and fields travel on every edge that feeds the join.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Final, NamedTuple

import msgspec

from protocols.ids import PeerId
from protocols.planning.problem import Derived, Origin, Streams, is_connected, members_of
from queries.cost import TYPE_BYTES
from queries.expressions import Column, Expression, columns_of, conjunction, rewritten
from queries.plan import Project, Source
from queries.predicates import implies
from queries.reorder import JoinGraph, SetEstimates, graph_of

PAIRINGS_MAX: Final = 24  # Ways to pair the streams of an offer with those of a query, if a stream is read repeatedly.


class Feed(NamedTuple):
    """An edge that feeds a join which is offered: which of its streams, how many rows, how far."""

    streams: Streams  # By the numbers of the offer.
    rate_per_s: float
    ms: float


class Offer(NamedTuple):
    """A join that flows: the fields that its rows hold, where they are, and what feeds it."""

    plan: Project  # Of columns, over joins.
    peer: PeerId
    feeds: tuple[Feed, ...] = ()


def served(offer: Offer, sets: SetEstimates) -> Iterator[Derived]:
    """The sets of a query's streams that an offer can stand for."""
    given, asked = graph_of(offer.plan), sets.graph
    if given is None:
        return
    for pairing in _pairings(given.sources, asked.sources):
        found = _paired(offer, given, sets, pairing)
        if found is not None:
            yield found


def _pairings(given: Sequence[Source], asked: Sequence[Source]) -> Iterator[tuple[int, ...]]:
    """For each source of the offer, that of the query that it may be: the same stream in the same window."""
    if len(given) > len(asked):
        return
    alike = [[number for number, each in enumerate(asked) if _same(each, source)] for source in given]
    candidates = sorted({number for numbers in alike for number in numbers})
    tried = 0
    for pairing in permutations(candidates, len(given)):
        if all(number in numbers for number, numbers in zip(pairing, alike, strict=True)):
            yield pairing
            tried += 1
            if tried == PAIRINGS_MAX:
                return


def _same(one: Source, other: Source) -> bool:
    return msgspec.structs.replace(one, alias="") == msgspec.structs.replace(other, alias="")


def _paired(offer: Offer, given: JoinGraph, sets: SetEstimates, pairing: tuple[int, ...]) -> Derived | None:
    asked = sets.graph
    streams = sum(1 << number for number in pairing)
    if not is_connected(asked.neighbours, streams):
        return None
    wanted = [part for read, part in asked.conditions if read | streams == streams]
    names = {source.alias: asked.sources[number].alias for source, number in zip(given.sources, pairing, strict=True)}
    tested = [(read, _renamed(part, names)) for read, part in given.conditions]
    whole = conjunction(tuple(wanted))
    narrower = [(read, part) for read, part in tested if not implies(whole, part)]
    if any(read.bit_count() > 1 for read, _ in narrower):
        return None  # A condition of the join itself cannot be relaxed.
    left = tuple(part for part in tested if part not in narrower)
    known = conjunction(tuple(part for _, part in left))
    residual = tuple(part for part in wanted if not implies(known, part))
    widening = _further_rows(offer, sets, pairing) if narrower else 0.0
    widening += _further_fields(offer, sets, pairing, names, residual)
    return Derived(streams, Origin(offer.peer, sets.beta(streams)), residual, widening)


def _renamed(part: Expression, names: Mapping[str, str]) -> Expression:
    def change(node: Expression) -> Expression:
        return msgspec.structs.replace(node, input=names[node.input]) if isinstance(node, Column) else node

    return rewritten(part, change)


def _further_rows(offer: Offer, sets: SetEstimates, pairing: tuple[int, ...]) -> float:
    """What the rows of the query add upstream, in bytes under way: all of them, though some may flow already."""
    return sum(feed.ms * sets.beta(_numbers(feed.streams, pairing)) for feed in offer.feeds)


def _further_fields(
    offer: Offer, sets: SetEstimates, pairing: tuple[int, ...], names: Mapping[str, str], residual: Sequence[Expression]
) -> float:
    """What fields that are not in the rows yet add upstream, in bytes under way."""
    there = {(names[each.input], each.path[0]) for each in _columns(offer.plan)}
    streams = _numbers((1 << len(pairing)) - 1, pairing)
    needed = [(sets.graph.sources[number].alias, name) for number, name in sets.needed(streams)]
    needed += [(column.input, column.path[0]) for part in residual for column in columns_of(part)]
    aliases = {sets.graph.sources[number].alias: number for number in pairing}
    estimate = sets.of(streams)
    added = 0.0
    for alias, name in dict.fromkeys(needed):
        if (alias, name) not in there and not name.startswith("$"):
            size = estimate.columns[alias, (name,)].row_bytes or TYPE_BYTES["string"]
            carrying = (feed for feed in offer.feeds if _numbers(feed.streams, pairing) >> aliases[alias] & 1)
            added += sum(feed.rate_per_s * size * feed.ms for feed in carrying)
    return added


def _numbers(streams: Streams, pairing: tuple[int, ...]) -> Streams:
    """A set by the numbers of the query."""
    return sum(1 << pairing[each] for each in members_of(streams))


def _columns(plan: Project) -> Iterator[Column]:
    for each in plan.outputs:
        yield from columns_of(each.expression)
