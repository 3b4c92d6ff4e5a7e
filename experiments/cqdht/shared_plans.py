"""Rewritten queries as they travel to cells: each plan once for all who ask it, each source once for a message.

A source has its schema with it, which is longer than the rest of a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from experiments.cqdht.messages import Asked, Bundle, Contents, JoinQuery, Moved, Rewritten, Share, SharedPlan
from protocols.errors import RemoteProtocolError
from protocols.join_index.messages import Side
from queries.binder import joined
from queries.canonical import flattened
from queries.expressions import conjuncts
from queries.plan import Operator, Project, Source


@dataclass(slots=True)
class Sources:
    """The sources of a message: each has a place, and is told once."""

    _places: dict[Source, int] = field(default_factory=dict)

    def place(self, source: Source) -> int:
        return self._places.setdefault(source, len(self._places))

    def told(self) -> tuple[Source, ...]:
        return tuple(self._places)


def together(every: Iterable[Rewritten], sources: Sources) -> tuple[SharedPlan, ...]:
    """Rewritten queries as they travel; their sources are added to those of the message."""
    found: dict[tuple[Operator, Side], list[Asked]] = {}
    for each in every:
        of = each.query
        asked = Asked(of.id, of.subscriber, of.inserted_at, of.retention_ms, of.is_set)
        found.setdefault((of.plan, each.side), []).append(asked)
    return tuple(_shared(plan, side, tuple(queries), sources) for (plan, side), queries in found.items())


def _shared(plan: Operator, side: Side, queries: tuple[Asked, ...], sources: Sources) -> SharedPlan:
    assert isinstance(plan, Project), "only a plain join is indexed"
    (left, right), parts = flattened(plan.input)
    assert isinstance(left, Source)
    assert isinstance(right, Source)
    where = tuple(part for each in parts for part in conjuncts(each))
    return SharedPlan(sources.place(left), sources.place(right), where, plan.outputs, side, queries)


def apart(every: Iterable[SharedPlan], sources: tuple[Source, ...]) -> tuple[Rewritten, ...]:
    """Rewritten queries as they were before `together`."""
    found: list[Rewritten] = []
    for each in every:
        plan = Project(joined((_at(sources, each.left), _at(sources, each.right)), each.where), each.outputs)
        for of in each.queries:
            query = JoinQuery(of.id, of.subscriber, of.inserted_at, "cells", plan, of.retention_ms, is_set=of.is_set)
            found.append(Rewritten(query, each.side))
    return tuple(found)


def some_shares(message: Bundle, shares: Iterable[Share]) -> Bundle:
    """The same message with these of its shares, and no sources but theirs."""
    sources = Sources()
    kept = tuple(
        msgspec.structs.replace(each, plans=_renumbered(each.plans, message.sources, sources)) for each in shares
    )
    return msgspec.structs.replace(message, shares=kept, sources=sources.told())


def some_cells(message: Moved, cells: Iterable[Contents]) -> Moved:
    """The same message with these of its cells, and no sources but theirs."""
    sources = Sources()
    kept = []
    for each in cells:
        queries = tuple(
            msgspec.structs.replace(triggered, plans=_renumbered(triggered.plans, message.sources, sources))
            for triggered in each.queries
        )
        kept.append(msgspec.structs.replace(each, queries=queries))
    return msgspec.structs.replace(message, cells=tuple(kept), sources=sources.told())


def _renumbered(every: Iterable[SharedPlan], before: tuple[Source, ...], sources: Sources) -> tuple[SharedPlan, ...]:
    return tuple(
        msgspec.structs.replace(
            each, left=sources.place(_at(before, each.left)), right=sources.place(_at(before, each.right))
        )
        for each in every
    )


def _at(sources: tuple[Source, ...], place: int) -> Source:
    if not 0 <= place < len(sources):
        raise RemoteProtocolError(f"source {place} of a message that has {len(sources)}")
    return sources[place]
