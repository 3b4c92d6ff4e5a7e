"""Which queries of a group a tuple may concern, looked up by the constants that the queries compare with.

For each side of its join a query is filed under one comparison of an attribute with a constant: an equality if it has
one, else a bound (`<`, `<=`, `>`, `>=`). A query without any is filed among those that every tuple may concern. A
lookup only leaves out queries that a tuple cannot concern; the whole condition is checked after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final, NamedTuple

from protocols.clock import Stamp
from protocols.ids import Millis
from protocols.join_index.condition import JoinCondition, Meeting, checked
from protocols.join_index.expiry import less
from protocols.join_index.keys import at_path, value_text
from protocols.join_index.messages import LEFT, RIGHT, JoinId, JoinQuery, Side, ValueText
from protocols.subgraphs import Algorithm
from queries.compile import OnRow
from queries.expressions import Call, Column, Constant, conjuncts
from queries.schema import Row, Schema

GROUP_BYTES: Final = 12
# The same comparison with its arguments exchanged.
_TURNED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NUMBERS: Final = (int, float, Decimal)
_bound = itemgetter(0)


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


class Comparison(NamedTuple):
    """An attribute compared with a constant."""

    path: tuple[str, ...]
    sign: str
    value: Any


def comparison_of(condition: JoinCondition, side: Side) -> Comparison | None:
    """The comparison that a side is filed under; None: every tuple may be wanted."""
    source = condition.sides[side].source
    bounds: list[Comparison] = []
    for part in conjuncts(condition.predicate):
        if not isinstance(part, Call) or part.function not in _TURNED:
            continue
        match part.arguments:
            case (Column() as column, Constant() as constant):
                sign = part.function
            case (Constant() as constant, Column() as column):
                sign = _TURNED[part.function]
            case _:
                continue
        if column.input != source.alias or column.path[0].startswith("$"):
            continue
        value = constant.python
        if sign == "=":
            return Comparison(column.path, sign, value)
        if _is_number(value):
            bounds.append(Comparison(column.path, sign, value))
    return bounds[0] if bounds else None


def getter(schema: Schema, path: tuple[str, ...]) -> OnRow:
    """A function from rows to the value at a path."""
    if len(path) == 1:
        return itemgetter(next(place for place, each in enumerate(schema.fields) if each.name == path[0]))
    return lambda row: at_path(schema, row, path)


_Bounds = list[tuple[Any, JoinId, Member]]


@dataclass(slots=True)
class Selections:
    """The queries of a group, filed by what they want of one side.

    Invariant: each query is filed once; a lookup by a tuple that satisfies its condition finds it
    """

    side: Side
    schema: Schema
    anything: dict[JoinId, Member] = field(default_factory=dict)  # Queries that every tuple may concern.
    _equal: dict[tuple[str, ...], dict[ValueText, dict[JoinId, Member]]] = field(default_factory=dict)
    _above: dict[tuple[str, ...], _Bounds] = field(default_factory=dict)  # Lower bounds, sorted.
    _below: dict[tuple[str, ...], _Bounds] = field(default_factory=dict)  # Upper bounds, sorted.
    _getters: dict[tuple[str, ...], OnRow] = field(default_factory=dict)

    @property
    def tells_apart(self) -> bool:
        """Whether some query wants only some of the tuples."""
        return bool(self._equal or self._above or self._below)

    def add(self, member: Member) -> None:
        wish, name = member.wants[self.side], member.query.id
        if wish is None:
            self.anything[name] = member
            return
        if wish.path not in self._getters:
            self._getters[wish.path] = getter(self.schema, wish.path)
        if wish.sign == "=":
            self._equal.setdefault(wish.path, {}).setdefault(value_text(wish.value), {})[name] = member
        else:
            insort(self._bounds(wish.sign).setdefault(wish.path, []), (wish.value, name, member), key=_bound)

    def remove(self, member: Member) -> None:
        wish, name = member.wants[self.side], member.query.id
        if wish is None:
            del self.anything[name]
        elif wish.sign == "=":
            by_value = self._equal[wish.path]
            text = value_text(wish.value)
            del by_value[text][name]
            if not by_value[text]:
                del by_value[text]
            if not by_value:
                del self._equal[wish.path]
        else:
            bounds = self._bounds(wish.sign)
            first = bisect_left(bounds[wish.path], wish.value, key=_bound)
            place = next(at for at in range(first, len(bounds[wish.path])) if bounds[wish.path][at][1] == name)
            del bounds[wish.path][place]
            if not bounds[wish.path]:
                del bounds[wish.path]

    def _bounds(self, sign: str) -> dict[tuple[str, ...], _Bounds]:
        return self._above if sign.startswith(">") else self._below

    def is_wanted(self, row: Row) -> bool:
        """Whether a tuple may concern any query."""
        return bool(self.anything) or bool(self.found(row))

    def found(self, row: Row) -> list[Member]:
        """The queries that a tuple may concern."""
        members = list(self.anything.values())
        for path, by_value in self._equal.items():
            members += by_value.get(value_text(self._getters[path](row)), {}).values()
        for path, bounds in self._above.items():
            if _is_number(value := self._getters[path](row)):
                members += (member for _, _, member in bounds[: bisect_right(bounds, value, key=_bound)])
        for path, bounds in self._below.items():
            if _is_number(value := self._getters[path](row)):
                members += (member for _, _, member in bounds[bisect_left(bounds, value, key=_bound) :])
        return members


def _is_number(value: Any) -> bool:
    """NaN is no number here: it is neither above nor below anything."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and value == value


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
        return cls((Selections(LEFT, left), Selections(RIGHT, right)))

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
                less(windows, window)

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
