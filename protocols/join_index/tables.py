"""The tables of an evaluator: tuples (the paper's VLTT) and triggers (VLQT) by value, and the results they make.

A trigger is a tuple that has triggered the queries of a group, which have one join condition. The paper stores a
rewritten query for each of them; here one trigger stands for the whole group. When a trigger meets a tuple, the group
says which queries the pair may concern.

All that may take long is a generator. It pauses where `tests_left` is used up, and its caller goes on with it in a
later event. Only these generators change what is stored, one at a time. While one is paused, queries may end; new ones
wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from protocols.clock import Stamp, wall_ms
from protocols.delivery.messages import Origin
from protocols.errors import expect
from protocols.ids import Millis
from protocols.join_index.condition import Meeting, NotIndexed, timed_rows
from protocols.join_index.expiry import Expiry, Recently
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import LEFT, RIGHT, Attribute, JoinId, JoinQuery, Load, ResultRows, Side, other_side
from protocols.join_index.messages import ValueText as Value
from protocols.join_index.selections import Group, Member
from protocols.join_index.stays import Shelf, Stays, shelves_of
from protocols.subgraphs import Algorithm
from queries.schema import Row

ROWS_MAX: Final = 1000  # Most rows in one ResultRows.
RESULTS_BYTES: Final = 256 << 10  # Most bytes in one ResultRows.
_DIGITS_MAX: Final = 20  # Of the number of an attempt.
_MEET_TWICE: Final = ("dai-q", "dai-t")  # Algorithms in which a pair meets at two evaluators.

_Key = tuple[int, int]  # A tuple: the number of its origin, and its sequence.


class _Item:
    """A tuple or a trigger. Its row ends with TIME; `wall` is its publication time in milliseconds."""

    __slots__ = ("key", "load", "published_at", "row", "until", "wall")

    def __init__(self, key: _Key, published_at: Stamp, wall: Millis, row: Row, load: int, until: Millis) -> None:
        self.key = key
        self.published_at = published_at
        self.wall = wall
        self.row = row
        self.load = load  # The number of the last load that brought it.
        self.until = until


_Part = tuple[bytes, Side]  # Of a bucket: the triggers of a group, by the side they take. It is the end of a Shelf.
_TUPLES: Final[_Part] = (b"", LEFT)  # The part with the tuples, which wait for triggers.
_Bucket = dict[_Part, dict[_Key, _Item]]  # All tuples and triggers of one value.
_Kept = tuple[Load, int]  # A load, whose items may still be here, and the number of its origin.


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
    tests_left: int = 0  # Work until the next pause: queries tested on pairs, and tuples taken or dropped.
    chores: deque[Iterator[None]] = field(default_factory=deque)  # What is to be dropped.
    _loads: int = 0  # Numbers the loads.
    _stays: Stays = field(init=False)
    _groups: dict[bytes, Group] = field(default_factory=dict)
    _attempts: dict[str, JoinId] = field(default_factory=dict)  # The known attempt of each query.
    _removed: Recently[JoinId] = field(default_factory=Recently)  # They are over, and not taken in again.
    _buckets: dict[Attribute | None, dict[Value, _Bucket]] = field(default_factory=dict)
    _origins: list[Origin] = field(default_factory=list)  # By number.
    _numbers: dict[Origin, int] = field(default_factory=dict)
    _loaded: dict[Shelf, Expiry[_Kept]] = field(default_factory=dict)  # The loads that each shelf got.
    _is_sweeping: bool = False
    _made: dict[JoinId, _Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stays = Stays(self.limits.away_ms)

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
        if before is not None and self.queries[before].query.subscriber != query.subscriber:
            raise NotIndexed(f"{name} is a query of another subscriber")
        member = Member(query)
        if not self._stays.fits(member):
            raise NotIndexed("another query reads its streams with other columns")
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
        for shelf, _ in shelves_of(member):
            if shelf not in self._stays and (loads := self._loaded.pop(shelf, None)) is not None:
                self.chores.append(self._take_away(shelf, loads, self._loads))

    def _take_away(self, shelf: Shelf, loads: Expiry[_Kept], upto: int) -> Iterator[None]:
        """Drop what a shelf had that no query wants now, but not what later loads have brought again."""
        for load, origin in loads.every():
            for item, value in self._items(shelf, load, origin):
                if item.load <= upto:
                    self._drop(shelf, value, item)
            self.tests_left -= len(load.sequences)
            if self.tests_left <= 0:
                yield

    # Tuples.

    def take(self, load: Load, now: Millis) -> Iterator[None]:
        """Let tuples meet what is here, and keep them for what comes."""
        shelf = Shelf(load.at, load.group, load.side)
        if shelf not in self._stays:
            return  # The queries it is for are over.
        schema = self._stays.schema(shelf)
        expect(load.schema == schema, "tuples that do not have the columns of their stream")
        rows = timed_rows(schema, load.rows, load.published_at)
        self._loads += 1
        self.taken += len(load.sequences)
        wall = wall_ms(load.published_at)
        for member in self._stays.late(shelf, wall, self._groups):
            self.late[member.query.id] = member  # Also if it comes again: its subscriber must hear of it first.
        until = self._stays.until(shelf, wall, now)
        number, origin = self._loads, self._number(load.origin)
        self._loaded.setdefault(shelf, Expiry()).add(until, (load, origin))
        for sequence, value, row in zip(load.sequences, load.values, rows, strict=True):
            if self.tests_left <= 0:
                yield
                if shelf not in self._stays:
                    return  # They ended meanwhile. What it has brought so far is being taken away.
            self.tests_left -= 1
            if row is None:
                continue
            item = _Item((origin, sequence), load.published_at, wall, row, number, until)
            bucket = self._buckets.get(load.at, {}).get(value)
            if bucket is not None:
                for name, side, is_left, partners in _partners(bucket, load):
                    group = self._groups.get(name)
                    if group is None:  # Its triggers are being taken away.
                        continue
                    if len(partners) * len(group.members) <= self.tests_left:
                        self._meet(group, side, item, is_left, partners.values())
                    else:
                        yield from self._meet_in_turns(name, side, item, is_left, partners.values())
            self._keep(shelf, value, item)

    def _number(self, origin: Origin) -> int:
        number = self._numbers.get(origin)
        if number is None:
            number = self._numbers[origin] = len(self._origins)
            self._origins.append(origin)
        return number

    def _keep(self, shelf: Shelf, value: Value, item: _Item) -> None:
        items = self._buckets.get(shelf.at, {}).get(value, {}).get(shelf[1:], {})
        known = items.get(item.key)
        if known is not None:
            known.load, known.until = item.load, max(known.until, item.until)
        elif self.stored >= self.limits.tuples_max:
            self.refused += 1
        else:
            if not items:
                items = self._buckets.setdefault(shelf.at, {}).setdefault(value, {}).setdefault(shelf[1:], {})
            items[item.key] = item
            self.stored += 1

    def _meet(self, group: Group, trigger: Side, item: _Item, is_left: bool, partners: Iterable[_Item]) -> None:
        """A trigger meets tuples, or a tuple triggers; in DAI-V, triggers of both sides. `trigger` is its side."""
        for other in partners:
            left, right = (item, other) if is_left else (other, item)
            self._pair(group.concerned(left.row, right.row), left, right, trigger)

    def _meet_in_turns(
        self, name: bytes, trigger: Side, item: _Item, is_left: bool, partners: Iterable[_Item]
    ) -> Iterator[None]:
        """The same where it may take long."""
        for other in partners:
            if self.tests_left <= 0:
                yield
            group = self._groups.get(name)
            if group is None:
                return  # Its queries ended meanwhile.
            left, right = (item, other) if is_left else (other, item)
            members = group.concerned(left.row, right.row)
            if len(members) <= self.tests_left:
                self._pair(members, left, right, trigger)
                continue
            waiting = deque(members)
            while waiting:
                if self.tests_left <= 0:
                    yield
                some = [waiting.popleft() for _ in range(min(len(waiting), max(self.tests_left, 1)))]
                self._pair([each for each in some if each.query.id in self.queries], left, right, trigger)

    def _pair(self, members: Collection[Member], left: _Item, right: _Item, trigger: Side) -> None:
        self.tests_left -= len(members) or 1
        row = left.row + right.row
        earlier = min(left.published_at, right.published_at)
        for member in members:
            if earlier < member.inserted_at:
                continue
            if member.has_window and not member.share_a_window(left.wall, right.wall):
                continue
            if member.algorithm in _MEET_TWICE and not self._makes_it_here(member.algorithm, left, right, trigger):
                continue
            meeting = member.meeting
            if meeting.covered and self._is_covered(meeting, LEFT, left) and self._is_covered(meeting, RIGHT, right):
                continue
            if meeting.rest is not None and meeting.rest(row) is not True:
                continue
            made = self._made.get(member.query.id)
            if made is None:
                made = self._made[member.query.id] = _Made(member)
            made.rows.append(row)
            made.made_of.append((left.key, right.key))

    def _is_covered(self, meeting: Meeting, side: Side, item: _Item) -> bool:
        number, sequence = item.key
        return meeting.has_covered(side, self._origins[number], sequence)

    def _makes_it_here(self, algorithm: Algorithm, left: _Item, right: _Item, trigger: Side) -> bool:
        """Of the two evaluators at which a pair meets, one makes the result. The order of publication says which."""
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
                yield each.member, ResultRows(name, *self._sources(each.made_of[first:upto]), encoded)
                first = upto

    def _sources(self, pairs: list[tuple[_Key, _Key]]) -> tuple[tuple[Origin, ...], tuple[int, ...]]:
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
        """Let go of what has expired, as a chore."""
        self._removed.sweep(now)
        if not self._is_sweeping:
            self._is_sweeping = True
            self.chores.append(self._sweep(now))

    def _sweep(self, now: Millis) -> Iterator[None]:
        for shelf, loads in list(self._loaded.items()):
            self.tests_left -= 1
            for load, origin in loads.due(now):
                for item, value in self._items(shelf, load, origin):
                    if item.until <= now:
                        self._drop(shelf, value, item)
                        if shelf in self._stays:
                            self._stays.drop(shelf, item.load, item.wall)
                self.tests_left -= len(load.sequences)
                if self.tests_left <= 0:
                    yield
            if not loads and self._loaded.get(shelf) is loads:
                del self._loaded[shelf]
            if self.tests_left <= 0:
                yield
        self._is_sweeping = False

    def _items(self, shelf: Shelf, load: Load, origin: int) -> Iterator[tuple[_Item, Value]]:
        """What a load has brought that is still here."""
        for sequence, value in zip(load.sequences, load.values, strict=True):
            item = self._buckets.get(shelf.at, {}).get(value, {}).get(shelf[1:], {}).get((origin, sequence))
            if item is not None:
                yield item, value

    def _drop(self, shelf: Shelf, value: Value, item: _Item) -> None:
        """Remove an item, and what holds nothing else."""
        buckets, part = self._buckets[shelf.at], shelf[1:]
        del buckets[value][part][item.key]
        self.stored -= 1
        if not buckets[value][part]:
            del buckets[value][part]
            if not buckets[value]:
                del buckets[value]
                if not buckets:
                    del self._buckets[shelf.at]

    @property
    def remembers(self) -> bool:
        """Whether it knows of queries that are over."""
        return len(self._removed) > 0

    def is_empty(self) -> bool:
        return not self.queries and not self.stored

    def validate(self) -> None:
        assert len(self._attempts) == len(self.queries) == sum(len(group.members) for group in self._groups.values())
        assert not self._made, "results are sent with the parcel that made them"
        assert not self.late, "subscribers are told at once"
        assert self.queries or self._stays.is_empty()
        assert self.stored <= self.limits.tuples_max
        assert self.stored or not self._buckets
        assert all(shelf in self._stays for shelf in self._loaded), "nothing is kept for a query that is over"


def _partners(bucket: _Bucket, load: Load) -> Iterator[tuple[bytes, Side, bool, dict[_Key, _Item]]]:
    """What a new item meets: the group, the side of its triggers, whether the item is on the left, and the others."""
    if load.group:
        part = _TUPLES if load.at is not None else (load.group, other_side(load.side))
        if part in bucket:
            yield load.group, load.side, load.side == LEFT, bucket[part]
    else:
        for (name, side), triggers in bucket.items():
            if name:
                yield name, side, side == RIGHT, triggers


def is_earlier_attempt(one: JoinId, other: JoinId) -> bool:
    """Whether both are attempts of one query, and the second is the later one.

    >>> is_earlier_attempt("q.1~7", "q.1~12"), is_earlier_attempt("q.1~7", "q.2~12"), is_earlier_attempt("a", "b")
    (True, False, False)
    """
    (name, _, attempt), (other_name, _, other_attempt) = one.rpartition("~"), other.rpartition("~")
    are_numbers = all(each.isdecimal() and len(each) <= _DIGITS_MAX for each in (attempt, other_attempt))
    return bool(name) and name == other_name and are_numbers and int(attempt) < int(other_attempt)
