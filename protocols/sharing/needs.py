"""What the taps on a stream need together, and whether that is enough for one more.

Needs only grow while somebody needs them: the needs of a tap are covered by every version since the first one that
covers them, for as long as the tap is there (decision 54).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from protocols.delivery.needs import ALL_TUPLES, CONJUNCTIONS_MAX, Needs
from queries.expressions import Expression, conjunction
from queries.plan import Source
from queries.predicates import implies
from queries.schema import Field

COMPARED_MAX: Final = 32  # Among more conjunctions none is looked for that follows from another.

Conjunction = tuple[Expression, ...]


class Need(NamedTuple):
    """What one tap needs of a stream."""

    source: Source  # As it sees the stream.
    parts: Conjunction = ()  # A tuple that does not meet all of these is of no use to it.
    columns: tuple[str, ...] | None = None  # None: all.


def covers(needs: Needs, need: Need) -> bool:
    """Whether what is sieved by these needs has everything that a tap needs."""
    if needs.is_everything:
        return True
    if (needs.schema, needs.event_time) != (need.source.schema, need.source.event_time):
        return False
    if needs.columns is not None and (need.columns is None or not set(need.columns) <= set(needs.columns)):
        return False
    return need.parts in needs.conjunctions or any(_follows(each, need.parts) for each in needs.conjunctions)


def _follows(wide: Conjunction, narrow: Conjunction) -> bool:
    """Whether every tuple that meets the narrow conjunction meets the wide one."""
    return not wide or implies(conjunction(narrow), conjunction(wide))


def widened(needs: Needs, need: Need) -> Needs:
    """The next version, with what one more tap needs."""
    version = needs.version + 1
    if (needs.schema, needs.event_time) != (need.source.schema, need.source.event_time):
        return Needs(version, needs.schema, needs.event_time)
    columns = _together(needs.schema.fields, [needs.columns, need.columns])
    return Needs(version, needs.schema, needs.event_time, columns, _with(needs.conjunctions, need.parts))


def together(version: int, needs: Iterable[Need]) -> Needs:
    """What several taps need, and no more than that; there is at least one."""
    every = list(needs)
    source = every[0].source
    if any((each.source.schema, each.source.event_time) != (source.schema, source.event_time) for each in every):
        return Needs(version, source.schema, source.event_time)
    columns = _together(source.schema.fields, [each.columns for each in every])
    found: tuple[Conjunction, ...] = ()
    for parts in dict.fromkeys(each.parts for each in every):
        found = _with(found, parts)
        if found == ALL_TUPLES:
            break
    return Needs(version, source.schema, source.event_time, columns, found)


def _with(conjunctions: tuple[Conjunction, ...], parts: Conjunction) -> tuple[Conjunction, ...]:
    if parts in conjunctions:
        return conjunctions
    if len(conjunctions) <= COMPARED_MAX:
        if any(_follows(each, parts) for each in conjunctions):
            return conjunctions
        conjunctions = tuple(each for each in conjunctions if not _follows(parts, each))
    found = (*conjunctions, parts)
    return found if len(found) <= CONJUNCTIONS_MAX and parts else ALL_TUPLES


def _together(fields: Sequence[Field], columns: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """All columns that are named, in the order of the stream; None where all are needed."""
    named: dict[str, None] = {}
    for each in columns:
        if each is None:
            return None
        named.update(dict.fromkeys(each))
    kept = tuple(each.name for each in fields if each.name in named)
    return kept if len(kept) < len(fields) else None
