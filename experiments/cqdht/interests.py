"""Which attributes queries wait for: a publisher that knows it indexes its tuples under these only.

How publishers learn it is left open here; the catalogue could tell them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from experiments.cqdht.messages import JoinQuery
from experiments.cqdht.ready import ReadyQuery
from protocols.ids import Millis
from protocols.join_index.messages import LEFT, RIGHT, Attribute, JoinId


class Interest(NamedTuple):
    """What queries want of the tuples of an attribute."""

    by_value: bool  # At the value level too, by the publisher: SAI, DAI-Q, DAI-T.
    keep_ms: Millis  # How long evaluators must be able to find them: windows bound it, and DAI-T needs it not at all.


@dataclass(slots=True)
class Interests:
    """The interests of all queries, by attribute and query."""

    _queries: dict[Attribute, dict[JoinId, Interest]] = field(default_factory=dict)

    def add(self, query: JoinQuery) -> None:
        ready = ReadyQuery.of(query)
        for side in (LEFT, RIGHT):
            is_kept = query.algorithm in ("sai", "dai-q")
            interest = Interest(query.algorithm not in ("dai-v", "cells"), ready.keep_ms(side) if is_kept else 0)
            mine = self._queries.setdefault(ready.side(side).attribute, {})
            mine[query.id] = _either(interest, mine.get(query.id, interest))  # Both sides may have one attribute.

    def remove(self, query: JoinId) -> None:
        for at in [at for at, queries in self._queries.items() if query in queries]:
            del self._queries[at][query]
            if not self._queries[at]:
                del self._queries[at]

    def of(self, at: Attribute) -> Interest | None:
        """What is wanted of an attribute; None: nothing."""
        found: Interest | None = None
        for each in self._queries.get(at, {}).values():
            found = each if found is None else _either(found, each)
        return found


def _either(one: Interest, other: Interest) -> Interest:
    return Interest(one.by_value or other.by_value, max(one.keep_ms, other.keep_ms))
