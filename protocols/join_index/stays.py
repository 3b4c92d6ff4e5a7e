"""How long tuples and triggers stay at an evaluator, and which queries may miss something that has expired.

A window says how long a tuple can meet later ones. It does not say when the last of these will have arrived: their
publisher may be away. So a tuple stays for the window and a lateness beyond it. A tuple that is later still may have
missed a partner that has expired. The evaluator notices, and the query begins an attempt that allows for more lateness.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocols.ids import Millis
from protocols.join_index.expiry import decrement
from protocols.join_index.messages import LEFT, SIDES, Attribute, Side, other_side
from protocols.join_index.selections import Group, Member
from queries.schema import Schema

NEVER: Final[Millis] = -(1 << 62)


class Shelf(NamedTuple):
    """What is stored together: tuples by one attribute (the group is empty), or triggers that look for such tuples.

    Triggers of different groups, or of different sides, are on different shelves.
    """

    at: Attribute | None
    group: bytes
    side: Side


@dataclass(slots=True)
class Dropped:
    """The arrivals and publication times of expired tuples; finds the latest time among those since an arrival.

    An arrival (`came`) is the number of a load, a time (`wall`) is in milliseconds.

    >>> dropped = Dropped()
    >>> for came, wall in ((1, 50), (3, 20), (2, 30), (4, 10)):
    ...     dropped.add(came, wall)
    >>> dropped.latest(), dropped.latest(2), dropped.latest(4), dropped.latest(5) == NEVER
    (50, 30, 10, True)
    """

    # Arrivals rise and times fall: a tuple that came before another and is older is never the latest.
    _came: list[int] = field(default_factory=list)
    _walls: list[Millis] = field(default_factory=list)

    def add(self, came: int, wall: Millis) -> None:
        place = bisect_left(self._came, came)
        if place < len(self._came) and self._walls[place] >= wall:
            return
        if place < len(self._came) and self._came[place] == came:
            place += 1
        first = place
        while first and self._walls[first - 1] <= wall:
            first -= 1
        self._came[first:place] = [came]
        self._walls[first:place] = [wall]

    def latest(self, since: int = 0) -> Millis:
        """The latest time among those that came then or later; NEVER: none of them has expired."""
        place = bisect_left(self._came, since)
        return self._walls[place] if place < len(self._walls) else NEVER


@dataclass(slots=True, eq=False)
class _Wishes:
    """How long the queries of one shelf want its tuples."""

    schema: Schema  # Of its tuples.
    keep_ms: Counter[Millis] = field(default_factory=Counter)  # After publication: partners published by then meet it.
    extra_ms: Counter[Millis] = field(default_factory=Counter)  # Beyond that, for partners that arrive late.
    longest: tuple[Millis, Millis] = (0, 0)

    def add(self, keep_ms: Millis, extra_ms: Millis) -> None:
        self.keep_ms[keep_ms] += 1
        self.extra_ms[extra_ms] += 1
        self.longest = (max(self.keep_ms), max(self.extra_ms))

    def remove(self, keep_ms: Millis, extra_ms: Millis) -> None:
        decrement(self.keep_ms, keep_ms)
        decrement(self.extra_ms, extra_ms)
        self.longest = (max(self.keep_ms, default=0), max(self.extra_ms, default=0))


@dataclass(slots=True)
class Stays:
    """The shelves of an evaluator.

    Keeps:     for each shelf how long its queries want its tuples, and what has expired there
    Invariant: a tuple that comes while a query is known stays as long as this query wants
    """

    away_ms: Millis  # The extra time of sides without a window.
    _wishes: dict[Shelf, _Wishes] = field(default_factory=dict)
    _dropped: dict[Attribute | None, dict[Shelf, Dropped]] = field(default_factory=dict)

    def __contains__(self, shelf: object) -> bool:
        """Whether any query wants its tuples."""
        return shelf in self._wishes

    def add(self, member: Member) -> None:
        for shelf, side in shelves_of(member):
            wishes = self._wishes.setdefault(shelf, _Wishes(member.sources[side].schema))
            wishes.add(*self._wish(member, side))

    def fits(self, member: Member) -> bool:
        """Whether a query reads its streams with the columns that the others read: a tuple is stored once for all."""
        known = ((self._wishes.get(shelf), member.sources[side].schema) for shelf, side in shelves_of(member))
        return all(wishes is None or wishes.schema == schema for wishes, schema in known)

    def schema(self, shelf: Shelf) -> Schema:
        """The columns of the tuples of a shelf that some query wants."""
        return self._wishes[shelf].schema

    def remove(self, member: Member) -> None:
        for shelf, side in shelves_of(member):
            self._wishes[shelf].remove(*self._wish(member, side))
            if not self._wishes[shelf].keep_ms:
                del self._wishes[shelf]
                dropped = self._dropped.get(shelf.at, {})
                if dropped.pop(shelf, None) is not None and not dropped:
                    del self._dropped[shelf.at]

    def _wish(self, member: Member, side: Side) -> tuple[Millis, Millis]:
        has_window = member.windows[side] is not None
        return member.keep_ms(side), member.query.late_ms if has_window else self.away_ms

    def until(self, shelf: Shelf, wall: Millis, now: Millis) -> Millis:
        """When a tuple that was published at `wall` and comes now expires."""
        keep_ms, extra_ms = self._wishes[shelf].longest
        return max(now, wall + keep_ms) + extra_ms

    def drop(self, shelf: Shelf, came: int, wall: Millis) -> None:
        """A tuple has expired."""
        self._dropped.setdefault(shelf.at, {}).setdefault(shelf, Dropped()).add(came, wall)

    def late(self, shelf: Shelf, wall: Millis, groups: Mapping[bytes, Group]) -> list[Member]:
        """Queries for which a tuple that was published at `wall` and comes now may have missed an expired partner."""
        found: list[Member] = []
        for other, dropped in self._dropped.get(shelf.at, {}).items():
            if not shelf.group and other.group:  # Tuples meet triggers.
                found += _missing(groups[other.group], other.side, wall, dropped)
            elif shelf.group and not other.group:  # Triggers meet tuples.
                found += _missing(groups[shelf.group], other_side(shelf.side), wall, dropped)
            elif shelf.at is None and other == Shelf(None, shelf.group, other_side(shelf.side)):  # DAI-V.
                found += _missing(groups[shelf.group], other.side, wall, dropped)
        return found

    def is_empty(self) -> bool:
        return not self._wishes and not self._dropped


def _missing(group: Group, side: Side, wall: Millis, dropped: Dropped) -> list[Member]:
    """Queries with a window on this side, of whose expired tuples one might have met a tuple of time `wall`."""
    if dropped.latest() < wall - max(group.windows[side], default=0):
        return []
    return [
        member
        for member in group.members.values()
        if (window := member.windows[side]) is not None and dropped.latest(member.known_since) >= wall - window
    ]


def shelves_of(member: Member) -> Iterator[tuple[Shelf, Side]]:
    """The shelves that may have tuples of each side for a query."""
    for side in SIDES:
        if member.algorithm == "dai-v":
            yield Shelf(None, member.group, side), side
        else:
            yield Shelf(member.attributes[side], b"", LEFT), side
            yield Shelf(member.attributes[other_side(side)], member.group, side), side
