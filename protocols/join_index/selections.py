"""Which queries of a group a tuple may concern, looked up by the constants that the queries compare with.

For each side of its join a query is filed under one comparison of an attribute with a constant (`filing.py`). A lookup
only leaves out queries that a tuple cannot concern; the whole condition is checked after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from protocols.clock import Stamp
from protocols.filing import Comparison, Filing, comparison_in
from protocols.ids import Millis
from protocols.join_index.condition import JoinCondition, Meeting, checked
from protocols.join_index.expiry import decrement
from protocols.join_index.messages import LEFT, RIGHT, JoinId, JoinQuery, Side
from protocols.subgraphs import Algorithm
from queries.expressions import conjuncts
from queries.schema import Row, Schema

GROUP_BYTES: Final = 12


class Member:
    """A query of a group. It is compiled when a pair of tuples first concerns it: many queries never have one."""

    __slots__ = (
        "_ready",
        "algorithm",
        "attributes",
        "group",
        "has_window",
        "inserted_at",
        "known_since",
        "query",
        "rest",
        "sources",
        "wants",
        "windows",
    )

    def __init__(self, query: JoinQuery) -> None:
        """Raises NotIndexed."""
        condition = checked(query)
        left, right = condition.sides
        self.query = query
        self.algorithm: Algorithm = query.algorithm
        self.inserted_at: Stamp = query.inserted_at
        self.sources = (left.source, right.source)
        self.attributes = (left.attribute, right.attribute)
        self.windows = (left.window_ms, right.window_ms)
        self.has_window = self.windows != (None, None)
        self.wants = (comparison_of(condition, LEFT), comparison_of(condition, RIGHT))
        # Queries of one algorithm and one join condition send and store the same triggers: they are a group.
        self.group = sha256(query.algorithm.encode() + condition.signature).digest()[:GROUP_BYTES]
        self.rest = condition.rest
        self.known_since = 0  # The number of the first load that an evaluator took with it.
        self._ready: Meeting | None = None

    @property
    def meeting(self) -> Meeting:
        if self._ready is None:
            left, right = self.sources
            self._ready = Meeting.of(self.query, self.rest, (left.alias, right.alias))
        return self._ready

    def keep_ms(self, side: Side) -> Millis:
        window = self.windows[side]
        return self.query.retention_ms if window is None else window

    def share_a_window(self, left: Millis, right: Millis) -> bool:
        """Whether the later tuple was published while the earlier was in its window. Both ends count."""
        earlier = self.sources[LEFT if left <= right else RIGHT].window
        return earlier is None or abs(right - left) * 1000 <= int(earlier.size)


def comparison_of(condition: JoinCondition, side: Side) -> Comparison | None:
    """The comparison that a side is filed under; None: every tuple may be wanted."""
    alias = condition.sides[side].source.alias
    return comparison_in(conjuncts(condition.predicate), lambda column: column.input == alias)


@dataclass(slots=True)
class Selections:
    """The queries of a group, filed by what they want of one side."""

    side: Side
    filed: Filing[Member]

    @classmethod
    def of(cls, side: Side, schema: Schema) -> Selections:
        return cls(side, Filing(schema))

    @property
    def tells_apart(self) -> bool:
        """Whether some query wants only some of the tuples."""
        return self.filed.tells_apart

    def add(self, member: Member) -> None:
        self.filed.add(member.query.id, member.wants[self.side], member)

    def remove(self, member: Member) -> None:
        self.filed.remove(member.query.id, member.wants[self.side])

    def found(self, row: Row) -> list[Member]:
        """The queries that a tuple may concern."""
        return self.filed.found(row)


@dataclass(slots=True)
class Group:
    """Queries with one join condition, filed by what they want of each side."""

    sides: tuple[Selections, Selections]
    members: dict[JoinId, Member] = field(default_factory=dict)
    windows: tuple[Counter[Millis], Counter[Millis]] = field(default_factory=lambda: (Counter(), Counter()))
    _tells_apart: bool = False  # Whether some query wants only some tuples of a side.

    @classmethod
    def of(cls, member: Member) -> Group:
        left, right = (source.schema for source in member.sources)
        return cls((Selections.of(LEFT, left), Selections.of(RIGHT, right)))

    def add(self, member: Member) -> None:
        self.members[member.query.id] = member
        for side in self.sides:
            side.add(member)
        self._tells_apart = any(side.tells_apart for side in self.sides)
        for window, windows in zip(member.windows, self.windows, strict=True):
            if window is not None:
                windows[window] += 1

    def remove(self, query: JoinId) -> None:
        member = self.members.pop(query)
        for side in self.sides:
            side.remove(member)
        self._tells_apart = any(side.tells_apart for side in self.sides)
        for window, windows in zip(member.windows, self.windows, strict=True):
            if window is not None:
                decrement(windows, window)

    def concerned(self, left: Row, right: Row) -> Collection[Member]:
        """The queries that two tuples may concern."""
        if not self._tells_apart:
            return self.members.values()
        by_left, by_right = self.sides
        if not by_right.tells_apart:
            return by_left.found(left)
        if not by_left.tells_apart:
            return by_right.found(right)
        fewer, more = sorted((by_left.found(left), by_right.found(right)), key=len)
        names = {member.query.id: None for member in more} if fewer else {}
        return [member for member in fewer if member.query.id in names]
