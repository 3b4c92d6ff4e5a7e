"""The tables of an evaluator: tuples (the paper's VLTT) and triggers (VLQT) by value, and the results they make.

A trigger is a tuple that has triggered the queries of a group, which have one join condition. The paper stores a
rewritten query for each of them; here one trigger stands for the whole group. When a trigger meets a tuple, the group
says which queries the pair may concern.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from protocols.clock import Stamp, wall_ms
from protocols.delivery.messages import Origin
from protocols.ids import Millis
from protocols.join_index.condition import Meeting, time_of
from protocols.join_index.expiry import Expiry, Recently
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import LEFT, RIGHT, Attribute, JoinId, JoinQuery, Load, ResultRows, Side
from protocols.join_index.messages import ValueText as Value
from protocols.join_index.selections import Group, Member
from protocols.join_index.stays import Shelf, Stays
from protocols.subgraphs import Algorithm
from queries.schema import Row, Schema

ROWS_MAX: Final = 1000  # Most rows in one ResultRows.
RESULTS_BYTES: Final = 256 << 10  # Most bytes in one ResultRows.
_TOLD_BY_ORDER: Final = ("dai-q", "dai-t")  # Algorithms in which a pair meets at two evaluators.

_Key = tuple[int, int]  # The number of an origin, and the sequence.


class _Item:
    """A tuple or a trigger. Its row ends with TIME; `wall` is its publication time in milliseconds."""

    __slots__ = ("came", "key", "published_at", "row", "until", "wall")

    def __init__(self, key: _Key, published_at: Stamp, wall: Millis, row: Row, came: int, until: Millis) -> None:
        self.key = key
        self.published_at = published_at
        self.wall = wall
        self.row = row
        self.came = came  # The number of the load that brought it.
        self.until = until


_Lot = tuple[bytes, Side]  # Triggers of a group, by the side they take.
_Place = dict[_Lot, dict[_Key, _Item]]  # All tuples and triggers of one value.
_TUPLES: Final[_Lot] = (b"", LEFT)  # Tuples that wait for triggers.


@dataclass(slots=True)
class _Made:
    """Results of one query that are not encoded yet."""

    member: Member
    rows: list[Row] = field(default_factory=list)  # Both tuples, side by side.
    made_of: list[tuple[_Key, _Key]] = field(default_factory=list)


@dataclass(slots=True)
class Tables:
    """What an evaluator stores.

    Keeps:     queries; tuples and triggers, until the latest partner that their queries allow for can have come
    Invariant: two tuples that came for a query while it was known have met, or the query is among the late
    """

    limits: JoinLimits
    queries: dict[JoinId, Member] = field(default_factory=dict)
    stored: int = 0  # Tuples and triggers.
    taken: int = 0  # Tuples and triggers that have ever come.
    refused: int = 0  # Those for which there was no room.
    late: dict[JoinId, Member] = field(default_factory=dict)  # A tuple came too late for these.
    _loads: int = 0  # Numbers the loads.
    _stays: Stays = field(init=False)
    _groups: dict[bytes, Group] = field(default_factory=dict)
    _attempts: dict[str, JoinId] = field(default_factory=dict)  # The known attempt of each query.
    _removed: Recently[JoinId] = field(default_factory=Recently)  # Over: not taken in again.
    _places: dict[Attribute | None, dict[Value, _Place]] = field(default_factory=dict)
    _schemas: dict[Schema, Schema] = field(default_factory=dict)
    _origins: list[Origin] = field(default_factory=list)
    _numbers: dict[Origin, int] = field(default_factory=dict)
    _old: Expiry[tuple[Load, int]] = field(default_factory=Expiry)  # Loads, with the numbers of their origins.
    _made: dict[JoinId, _Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stays = Stays(self.limits.late_ms)

    # Queries.

    def know(self, query: JoinQuery, now: Millis) -> JoinId | None:
        """Take a query in, unless it is over. Ends an earlier attempt of it, and returns that one's id.

        Raises NotIndexed.
        """
        if query.id in self.queries or query.id in self._removed:
            return None
        name = query.id.rpartition("~")[0] or query.id
        before = self._attempts.get(name)
        if before is not None and not is_earlier_attempt(before, query.id):
            return None
        member = Member(query)
        member.known_since = self._loads + 1
        self._stays.add(member)
        if before is not None:
            self.end(before, now)
        self._attempts[name] = query.id
        self.queries[query.id] = member
        group = self._groups.get(member.group)
        if group is None:
            group = self._groups[member.group] = Group.of(member)
        group.add(member)
        return before

    def end(self, query: JoinId, now: Millis) -> None:
        """Its subscriber has ended it: do not take it in again, should it come once more."""
        self._removed.add(query, now + self.limits.recent_ms)
        self.forget(query)

    def forget(self, query: JoinId) -> None:
        """Drop a query, and what is stored for it alone."""
        member = self.queries.pop(query, None)
        if member is None:
            return
        del self._attempts[query.rpartition("~")[0] or query]
        self._made.pop(query, None)
        self.late.pop(query, None)
        self._stays.remove(member)
        group = self._groups[member.group]
        group.remove(query)
        if not group.members:
            del self._groups[member.group]
            self._take_away(member.group)

    def _take_away(self, group: bytes) -> None:
        """Let go of a group's triggers, and of tuples that no query waits for. A later query has them sent again."""
        for at in list(self._places):
            is_useless = Shelf(at, b"", LEFT) not in self._stays
            over: list[_Lot] = [(group, LEFT), (group, RIGHT), *([_TUPLES] if is_useless else [])]
            for value, place in list(self._places[at].items()):
                gone = [len(place.pop(lot)) for lot in over if lot in place]
                if gone:
                    self.stored -= sum(gone)
                    self._tidy(at, value)

    # Tuples.

    def take(self, load: Load, now: Millis) -> None:
        """Let tuples meet what is here, and keep them for what comes."""
        shelf = Shelf(load.at, load.group, load.side)
        if shelf not in self._stays:
            return  # The queries it is for are over.
        group = self._groups.get(load.group)
        self._loads += 1
        self.taken += len(load.sequences)
        schema = self._schemas.setdefault(load.schema, load.schema)
        wall, time = wall_ms(load.published_at), (time_of(load.published_at),)
        for member in self._stays.late(shelf, wall, self._groups):
            self.late[member.query.id] = member  # Also if it comes again: its subscriber must hear of it first.
        until = self._stays.until(shelf, wall, now)
        origin, refused = self._number(load.origin), self.refused
        places = self._places.setdefault(load.at, {})
        lot: _Lot = (load.group, load.side)
        partners: _Lot = _TUPLES if load.at is not None else (load.group, RIGHT if load.side == LEFT else LEFT)
        for sequence, value, row in zip(load.sequences, load.values, schema.decode(load.rows), strict=True):
            item = _Item((origin, sequence), load.published_at, wall, row + time, self._loads, until)
            place = places.get(value)
            if place is None:
                place = places[value] = {}
            elif group is None:
                self._meet_triggers(place, item)
            elif partners in place:
                self._meet(group, load.side, item, place[partners])
            self._keep(place.setdefault(lot, {}), item)
        self._old.add(until, (load, origin))
        if self.refused > refused:
            for value in load.values:
                self._tidy(load.at, value)

    def _number(self, origin: Origin) -> int:
        number = self._numbers.get(origin)
        if number is None:
            number = self._numbers[origin] = len(self._origins)
            self._origins.append(origin)
        return number

    def _keep(self, items: dict[_Key, _Item], item: _Item) -> None:
        known = items.get(item.key)
        if known is not None:
            known.came, known.until = item.came, max(known.until, item.until)
        elif self.stored >= self.limits.tuples_max:
            self.refused += 1
        else:
            items[item.key] = item
            self.stored += 1

    def _meet_triggers(self, place: _Place, item: _Item) -> None:
        for (name, side), triggers in place.items():
            if name and side == LEFT:
                for trigger in triggers.values():
                    self._pair(self._groups[name], trigger, item, LEFT)
            elif name:
                for trigger in triggers.values():
                    self._pair(self._groups[name], item, trigger, RIGHT)

    def _meet(self, group: Group, side: Side, trigger: _Item, partners: dict[_Key, _Item]) -> None:
        """A trigger meets tuples; in DAI-V, triggers of the other side."""
        for other in partners.values():
            if side == LEFT:
                self._pair(group, trigger, other, LEFT)
            else:
                self._pair(group, other, trigger, RIGHT)

    def _pair(self, group: Group, left: _Item, right: _Item, trigger: Side) -> None:
        row = left.row + right.row
        earlier = min(left.published_at, right.published_at)
        for member in group.concerned(left.row, right.row):
            if earlier < member.inserted_at:
                continue
            if member.has_window and not member.share_a_window(left.wall, right.wall):
                continue
            if member.algorithm in _TOLD_BY_ORDER and not self._is_told_here(member.algorithm, left, right, trigger):
                continue
            meeting = member.meeting
            if meeting.known and self._is_known(meeting, LEFT, left) and self._is_known(meeting, RIGHT, right):
                continue
            if meeting.rest is not None and meeting.rest(row) is not True:
                continue
            made = self._made.get(member.query.id)
            if made is None:
                made = self._made[member.query.id] = _Made(member)
            made.rows.append(row)
            made.made_of.append((left.key, right.key))

    def _is_known(self, meeting: Meeting, side: Side, item: _Item) -> bool:
        number, sequence = item.key
        return meeting.has_known(side, self._origins[number], sequence)

    def _is_told_here(self, algorithm: Algorithm, left: _Item, right: _Item, trigger: Side) -> bool:
        """In DAI-Q and DAI-T the order of publication decides which of two evaluators tells a pair."""
        return self._is_later(left, right) == (trigger == (LEFT if algorithm == "dai-q" else RIGHT))

    def _is_later(self, left: _Item, right: _Item) -> bool:
        """Whether the left tuple was published later. A tuple that meets itself is on the left first."""
        if left.published_at != right.published_at:
            return left.published_at > right.published_at
        one, other = (self._origins[item.key[0]] for item in (left, right))
        first = (one.publisher, one.stream, one.epoch, left.key[1])
        return first > (other.publisher, other.stream, other.epoch, right.key[1])

    # Results.

    def results(self) -> Iterator[tuple[Member, ResultRows]]:
        """The results since this was last asked."""
        made, self._made = self._made, {}
        for name, each in made.items():
            meeting = each.member.meeting
            rows = meeting.shown(each.rows)
            first = 0
            while first < len(rows):
                upto = min(len(rows), first + ROWS_MAX)
                encoded = meeting.schema.encode(rows[first:upto])
                while len(encoded) > RESULTS_BYTES and upto - first > 1:
                    upto = (first + upto) // 2
                    encoded = meeting.schema.encode(rows[first:upto])
                yield each.member, ResultRows(name, *self._told(each.made_of[first:upto]), encoded)
                first = upto

    def _told(self, pairs: list[tuple[_Key, _Key]]) -> tuple[tuple[Origin, ...], tuple[int, ...]]:
        places: dict[int, int] = {}
        made_of: list[int] = []
        for left, right in pairs:
            made_of += (
                places.setdefault(left[0], len(places)),
                left[1],
                places.setdefault(right[0], len(places)),
                right[1],
            )
        return tuple(self._origins[number] for number in places), tuple(made_of)

    # Time.

    def sweep(self, now: Millis) -> None:
        """Let go of what has expired."""
        for load, origin in self._old.due(now):
            places = self._places.get(load.at, {})
            for sequence, value in zip(load.sequences, load.values, strict=True):
                items = places.get(value, {}).get((load.group, load.side), {})
                item = items.get((origin, sequence))
                if item is not None and item.until <= now:
                    del items[item.key]
                    self.stored -= 1
                    self._stays.drop(Shelf(load.at, load.group, load.side), item.came, item.wall)
                    self._tidy(load.at, value)
        self._removed.sweep(now)

    def _tidy(self, at: Attribute | None, value: Value) -> None:
        """Remove a place with nothing in it."""
        place = self._places.get(at, {}).get(value)
        if place is None:
            return
        for lot in [lot for lot, items in place.items() if not items]:
            del place[lot]
        if not place:
            del self._places[at][value]
            if not self._places[at]:
                del self._places[at]

    def is_empty(self) -> bool:
        return not self.queries and not self.stored

    def validate(self) -> None:
        assert len(self._attempts) == len(self.queries) == sum(len(group.members) for group in self._groups.values())
        assert not self._made, "results are sent with the parcel that made them"
        assert not self.late, "subscribers are told at once"
        assert self.queries or self._stays.is_empty()
        assert self.stored <= self.limits.tuples_max


def is_earlier_attempt(one: JoinId, other: JoinId) -> bool:
    """Whether both are attempts of one query, and the second is the later one.

    >>> is_earlier_attempt("q.1~7", "q.1~12"), is_earlier_attempt("q.1~7", "q.2~12"), is_earlier_attempt("a", "b")
    (True, False, False)
    """
    (name, _, attempt), (other_name, _, other_attempt) = one.rpartition("~"), other.rpartition("~")
    are_numbers = attempt.isdecimal() and other_attempt.isdecimal()
    return bool(name) and name == other_name and are_numbers and int(attempt) < int(other_attempt)
