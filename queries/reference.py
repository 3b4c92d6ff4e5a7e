"""The reference evaluator: it defines what a plan means, over complete lists of tuples.

It is written to be believed, not to be fast. Whatever else runs a plan (the join index, an executor, Spark) must give
the same multiset of results. In short:

* Tuples arrive in the order of their publication, ties by stream name and place in the list. The TIME of a tuple is its
  event time where the stream has one, else its publication.
* The watermark of a stream is the highest TIME that has arrived, less the stream's lateness. At the end of the lists
  (`final`) everything is complete.
* In a join each tuple is in its window for a stretch of instants. A combination is a result if the stretches of its
  tuples have an instant in common, and is due at the first such instant. This speaks of all tuples at once, so the
  order of joins does not matter.
* An aggregate has one result for each of its windows and each group in it, due when the watermark of all streams of the
  query (of a union, of the branch) reaches the end. In a join it is in its window from then on.
* A nest looks at its list at the instant at which a row enters its own window. The result waits for the watermark of
  all streams to reach that time; what comes later is not in the list.
* A tuple that arrives after all its windows have been closed is late: it is dropped, and `late` counts it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from typing import Any, Final, NamedTuple, assert_never

import msgspec

from queries import aggregates, decimals, functions, restructure
from queries.expressions import EPOCH, MICROSECOND, RANK, Call, Column, Constant, Expression, conjuncts, inputs_of
from queries.plan import (
    Aggregate,
    Join,
    Nest,
    Operator,
    Project,
    Restructure,
    Select,
    Source,
    Union,
    Window,
    WindowAggregate,
    sources,
)
from queries.schema import Row


class Tuple(NamedTuple):
    """A tuple of a stream: its publication time, its values, and an id that msgpack can encode."""

    time: datetime
    row: Row
    id: Any


class Result(NamedTuple):
    """A result: its row, when it is due, and what it was made of."""

    row: Row
    time: datetime
    sources: tuple[tuple[str, Any], ...]  # Alias and tuple id, by alias; for an aggregate, those of each row in it.
    window: tuple[Any, Any] | None = None  # The bounds of an aggregate's window.
    branch: tuple[int, ...] = ()  # The branches of unions that it came through, the outermost first.

    def notification_id(self, query: str, revision: int = 0) -> str:
        """The identity under which this result is delivered; every peer and every replay computes the same one."""
        made_of = (query, self.sources, self.window, self.branch, revision)
        return sha256(msgspec.msgpack.encode(made_of)).hexdigest()


Streams = Mapping[str, Sequence[Tuple]]


def evaluate(plan: Operator, streams: Streams, *, final: bool = True) -> list[Result]:
    """The results of a plan, in the order in which they are due.

    Without `final` more tuples may come, so only what the watermark has completed is a result.
    """
    evaluation = _Evaluation(streams, final)
    items = [
        item for item in evaluation.all_items(plan) if final or not item.waits or evaluation.is_complete(item, plan)
    ]
    return [item.result() for item in sorted(items, key=lambda item: (item.time, item.arrival))]


def late(plan: Operator, streams: Streams) -> int:
    """How many tuples (or joined rows, if an aggregate drops them) came after all their windows were closed."""
    evaluation = _Evaluation(streams, final=True)
    evaluation.all_items(plan)
    return evaluation.late


def value(expression: Expression, row: Row, columns: Sequence[Column]) -> Any:
    """The value of an expression on a row with these columns, straight from the definitions of the functions."""
    match expression:
        case Constant():
            return expression.python
        case Column():
            return _field(expression, row, columns)
        case Call():
            return functions.value(expression, [value(each, row, columns) for each in expression.arguments])
    assert_never(expression)


def same_rows(left: Sequence[Row], right: Sequence[Row]) -> bool:
    """Whether two lists are the same multiset of rows, floats compared as nearly equal.

    >>> same_rows([(1, 0.1 + 0.2), (2, None)], [(2, None), (1, 0.3)])
    True
    """
    unmatched: dict[Any, list[Row]] = {}
    for row in right:
        unmatched.setdefault(_without_floats(row), []).append(row)
    for row in left:
        candidates = unmatched.get(_without_floats(row), [])
        match = next((place for place, other in enumerate(candidates) if _near(row, other)), None)
        if match is None:
            return False
        del candidates[match]
    return not any(unmatched.values())


# Instants. Of two instants at one time, that of the tuple which arrives first is the earlier. A sliding window is
# evaluated when its time comes, before any tuple of that time arrives; a closed range ends after all of them.

_BEFORE_TUPLES: Final = -1
_AFTER_TUPLES: Final = math.inf


class _Instant(NamedTuple):
    time: int  # Microseconds since the epoch.
    arrival: float


_NEVER: Final = _Instant(1 << 80, _AFTER_TUPLES)


@dataclass(frozen=True, slots=True)
class _Item:
    """A row on its way through the plan, with what its columns do not show."""

    row: Row
    time: int  # TIME of a tuple; for a combination, when it is due.
    arrival: int  # Arrival of the last of its tuples.
    enter: _Instant  # From here on all its tuples are in their windows …
    leave: _Instant  # … until just before this.
    sources: tuple[tuple[str, Any], ...]
    window: tuple[Any, Any] | None = None
    branch: tuple[int, ...] = ()
    ranked: bool = False  # It depends on a row's number in its stream, or on all rows before it.
    beside: tuple[str, ...] = ()  # Aliases whose watermark it waits for although it may hold nothing of them.

    @property
    def waits(self) -> bool:
        """Whether the watermark must come first: a sliding window made it, or an earlier row could still change it."""
        return self.ranked or (self.enter.arrival < 0 and self.time == self.enter.time)

    def order(self) -> tuple[int, int, bytes]:
        """By time, then arrival; results of one tuple have a fixed order too, whatever the order of joins."""
        return self.time, self.arrival, msgspec.msgpack.encode(self.sources)

    def result(self) -> Result:
        return Result(self.row, _datetime(self.time), self.sources, self.window, self.branch)


class _Arrived(NamedTuple):
    """A tuple as it arrives at a source: its TIME, its number, itself, and the highest TIME so far."""

    time: int
    arrival: int
    tuple: Tuple
    highest: int


class _Evaluation:
    """One evaluation of one plan: the tuples in order of arrival, and the number of late ones."""

    def __init__(self, streams: Streams, final: bool) -> None:
        everything = [
            (each.time, stream, place, each) for stream, listed in streams.items() for place, each in enumerate(listed)
        ]
        everything.sort(key=lambda entry: entry[:3])
        self._by_stream: dict[str, list[tuple[int, Tuple]]] = {}
        for arrival, (_, stream, _, each) in enumerate(everything):
            self._by_stream.setdefault(stream, []).append((arrival, each))
        self._sources: dict[tuple[str, str | None], list[_Arrived]] = {}
        self._final = final
        self._together: tuple[Source, ...] = ()  # The sources whose watermark closes windows.
        self.late = 0

    def all_items(self, plan: Operator) -> list[_Item]:
        """The items of a plan; in a union each branch goes by its own streams."""
        if isinstance(plan, Union):
            return [
                replace(item, branch=(number, *item.branch))
                for number, branch in enumerate(plan.branches)
                for item in self.all_items(branch)
            ]
        self._together = sources(plan)
        return self.items(plan)

    def items(self, plan: Operator) -> list[_Item]:
        match plan:
            case Source():
                return list(self._source(plan))
            case Select():
                columns = plan.input.columns
                return [item for item in self.items(plan.input) if value(plan.predicate, item.row, columns) is True]
            case Project():
                columns = plan.input.columns
                return [
                    replace(item, row=tuple(value(named.expression, item.row, columns) for named in plan.outputs))
                    for item in self.items(plan.input)
                ]
            case Join():
                return list(self._join(plan))
            case Nest():
                return list(self._nest(plan))
            case WindowAggregate():
                return list(self._aggregate(plan))
            case Union():
                return self.all_items(plan)
            case Restructure():
                to_xml = restructure.on_row(plan)
                fragments = [(item, to_xml(item.row)) for item in self.items(plan.input)]
                return [replace(item, row=(text,)) for item, text in fragments if text]
        assert_never(plan)

    # Time.

    def _arrived(self, source: Source) -> list[_Arrived]:
        """The tuples of a source as they arrive."""
        known = (source.stream, source.event_time)
        if known not in self._sources:
            names = [each.name for each in source.schema.fields]
            place = names.index(source.event_time) if source.event_time is not None else None
            arrived, highest = [], -(1 << 80)
            for arrival, each in self._by_stream.get(source.stream, ()):
                event = each.row[place] if place is not None else None
                time = _micros(each.time if event is None else event)
                highest = max(highest, time)
                arrived.append(_Arrived(time, arrival, each, highest))
            self._sources[known] = arrived
        return self._sources[known]

    def watermark(self, inputs: Sequence[Source], arrival: float = math.inf) -> float:
        """The time up to which these sources are complete, once the tuple at this place has arrived.

        It is the lowest of their watermarks; a source from which nothing has arrived holds all others back.
        """
        lowest = math.inf
        for source in inputs:
            arrived = self._arrived(source)
            count = bisect_right(arrived, arrival, key=lambda each: each.arrival)
            mark = arrived[count - 1].highest - source.lateness_ms * 1000 if count else -math.inf
            lowest = min(lowest, mark)
        return lowest

    def is_complete(self, item: _Item, plan: Operator) -> bool:
        """Whether the watermark of an item's sources has reached its time."""
        aliases = {*item.beside, *(alias for alias, _ in item.sources)}
        return item.time <= self.watermark([source for source in sources(plan) if source.alias in aliases])

    # Sources and joins.

    def _in_time(self, source: Source) -> list[_Arrived]:
        """The tuples that are not late, by TIME, then by arrival."""
        arrived = self._arrived(source)
        return sorted(
            each for each in arrived if _last_time(source.window, each) >= self.watermark([source], each.arrival)
        )

    def _source(self, source: Source) -> Iterator[_Item]:
        in_time = self._in_time(source)
        self.late += len(self._arrived(source)) - len(in_time)
        by_rows = source.window is not None and source.window.kind == "rows"
        for rank, each in enumerate(in_time):
            hidden = (_datetime(each.time), rank) if by_rows else (_datetime(each.time),)
            enter, leave = _stretch(source.window, in_time, rank)
            made_of = ((source.alias, each.tuple.id),)
            row = (*each.tuple.row, *hidden)
            yield _Item(row, each.time, each.arrival, enter, leave, made_of, ranked=by_rows)

    def _join(self, join: Join) -> Iterator[_Item]:
        left_keys, right_keys = _equal_keys(join)
        candidates: dict[Any, list[_Item]] = {}
        for right in self.items(join.right):
            candidates.setdefault(_key(right_keys, right.row, join.right.columns), []).append(right)
        columns = join.columns
        for left in self.items(join.left):
            for right in candidates.get(_key(left_keys, left.row, join.left.columns), ()):
                enter, leave = max(left.enter, right.enter), min(left.leave, right.leave)
                row = left.row + right.row
                if enter < leave and (join.predicate is None or value(join.predicate, row, columns) is True):
                    made_of = tuple(sorted(left.sources + right.sources, key=lambda source: source[0]))
                    arrival, ranked = max(left.arrival, right.arrival), left.ranked or right.ranked
                    yield _Item(row, enter.time, arrival, enter, leave, made_of, ranked=ranked)

    def _nest(self, plan: Nest) -> Iterator[_Item]:
        columns = (*plan.input.columns, *plan.nested.columns)
        beside = tuple(source.alias for source in sources(plan.nested))
        nested = sorted(self.items(plan.nested), key=_Item.order)
        for item in self.items(plan.input):
            found = [
                each
                for each in nested
                if each.enter <= item.enter < each.leave
                and (each.arrival <= item.arrival or self.watermark(self._together, each.arrival) < item.time)
                and (plan.predicate is None or value(plan.predicate, item.row + each.row, columns) is True)
            ]
            made_of = (*item.sources, *(source for each in found for source in each.sources))
            row = (*item.row, tuple(each.row for each in found))
            yield replace(item, row=row, sources=made_of, ranked=True, beside=(*item.beside, *beside))

    # Aggregates.

    def _aggregate(self, plan: WindowAggregate) -> Iterator[_Item]:
        columns = plan.input.columns
        groups: dict[Any, list[_Item]] = {}
        for item, windows in self._windowed(plan):
            keys = tuple(aggregates.same(value(key.expression, item.row, columns)) for key in plan.keys)
            for window in windows:
                groups.setdefault((window, keys), []).append(item)
        for (window, _), items in groups.items():
            last = max(items, key=_Item.order)
            time = int(window.end) if plan.window.kind == "time" else last.time
            keys = tuple(value(key.expression, items[0].row, columns) for key in plan.keys)
            results = tuple(
                aggregates.value_of(each, [_argument(each, item.row, columns) for item in items])
                for each in plan.aggregates
            )
            bounds = _shown(plan.window, window)
            made_of = tuple(source for item in items for source in item.sources)
            instant = _Instant(time, last.arrival)
            row = (*keys, *results, *bounds, _datetime(time))
            yield _Item(row, time, last.arrival, instant, _NEVER, made_of, bounds)

    def _windowed(self, plan: WindowAggregate) -> Iterator[tuple[_Item, list[_Bounds]]]:
        """Each row of the input, in order, with its windows that are complete and were still open when it came."""
        items = sorted(self.items(plan.input), key=_Item.order)
        match plan.window.kind:
            case "time":
                yield from self._in_time_windows(plan, items)
            case "rows":
                yield from self._in_row_windows(plan, items)
            case "value":
                yield from self._in_value_windows(plan, items)

    def _in_time_windows(self, plan: WindowAggregate, items: list[_Item]) -> Iterator[tuple[_Item, list[_Bounds]]]:
        ended = self.watermark(self._together)
        for item in items:
            all_windows = list(_windows(plan.window, item.time))
            now = self.watermark(self._together, item.arrival)
            open_windows = [window for window in all_windows if window.end > now]
            self.late += bool(all_windows) and not open_windows
            yield item, [window for window in open_windows if self._final or window.end <= ended]

    def _in_row_windows(self, plan: WindowAggregate, items: list[_Item]) -> Iterator[tuple[_Item, list[_Bounds]]]:
        rank = next((place for place, column in enumerate(plan.input.columns) if column.path == (RANK,)), None)
        if rank is not None:  # The stream's own numbers: rows that a selection dropped count too.
            (source,) = sources(plan.input)
            times = [each.time for each in self._in_time(source)]
            ranked = [(item.row[rank], item) for item in items]
        else:
            in_time = [item for item in items if item.time >= self.watermark(self._together, item.arrival)]
            self.late += len(items) - len(in_time)
            times = [item.time for item in in_time]
            ranked = list(enumerate(in_time))
        complete = len(times) if self._final else bisect_right(times, self.watermark(self._together))
        for number, item in ranked:
            yield item, [window for window in _windows(plan.window, number) if window.end <= complete]

    def _in_value_windows(self, plan: WindowAggregate, items: list[_Item]) -> Iterator[tuple[_Item, list[_Bounds]]]:
        """The stream is ordered by this value, so the highest one so far says how far it is complete."""
        columns = plan.input.columns
        by = next(column for column in columns if column.path == plan.window.by[:1])
        by = msgspec.structs.replace(by, path=plan.window.by)
        valued = [
            (Fraction(reference), item)
            for item in sorted(items, key=lambda item: item.arrival)
            if (reference := _field(by, item.row, columns)) is not None and math.isfinite(reference)
        ]
        ended = max((reference for reference, _ in valued), default=-math.inf)
        highest: Fraction | float = -math.inf
        for reference, item in valued:
            all_windows = [window for window in _windows(plan.window, reference) if _is_in_decimals(window)]
            open_windows = [window for window in all_windows if window.end > highest]
            self.late += bool(all_windows) and not open_windows
            highest = max(highest, reference)
            yield item, [window for window in open_windows if self._final or window.end <= ended]


# Windows.


class _Bounds(NamedTuple):
    """A window of an aggregate, from start up to, not including, end; in microseconds, rows, or units of a column."""

    start: Any
    end: Any


def _windows(window: Window, place: int | Fraction) -> Iterator[_Bounds]:
    """The windows that hold a place. They end at multiples of the slide; ROWS windows start there."""
    size = Fraction(window.size)
    slide = size if window.slide is None else Fraction(window.slide)
    if window.kind == "rows":
        start = place // slide * slide
        while start >= 0 and start + size > place:
            yield _Bounds(start, start + size)
            start -= slide
    else:
        end = (place // slide + 1) * slide
        while end - size <= place:
            yield _Bounds(end - size, end)
            end += slide


def _is_in_decimals(window: _Bounds) -> bool:
    """Whether decimals reach as far as a window of values."""
    return decimals.fraction(window.start) is not None and decimals.fraction(window.end) is not None


def _stretch(window: Window | None, in_time: list[_Arrived], rank: int) -> tuple[_Instant, _Instant]:
    """The stretch of instants, end excluded, for which a tuple is in its window in a join."""
    time, arrival = in_time[rank].time, in_time[rank].arrival
    match window:
        case Window(kind="time", size=size, slide=None):
            return _Instant(time, arrival), _Instant(time + int(size), _AFTER_TUPLES)
        case Window(kind="time", size=size, slide=slide) if slide is not None:
            first = (time // slide + 1) * slide
            beyond = ((time + size) // slide + 1) * slide
            return _Instant(int(first), _BEFORE_TUPLES), _Instant(int(beyond), _BEFORE_TUPLES)
        case Window(kind="rows", size=size, slide=None) if rank + size < len(in_time):
            pushed_out_by = in_time[rank + int(size)]
            return _Instant(time, arrival), _Instant(pushed_out_by.time, pushed_out_by.arrival)
    return _Instant(time, arrival), _NEVER


def _last_time(window: Window | None, each: _Arrived) -> float:
    """The last time at which a tuple is in a window; a tuple that arrives with the watermark beyond it is late."""
    match window:
        case Window(kind="time", size=size, slide=None):
            return each.time + int(size)
        case Window(kind="time"):
            return _stretch(window, [each], 0)[1].time - 1
        case Window(kind="rows"):
            return each.time
    return math.inf


def _shown(window: Window, bounds: _Bounds) -> tuple[Any, Any]:
    """The bounds of a window, as a result shows them."""
    match window.kind:
        case "time":
            return _datetime(int(bounds.start)), _datetime(int(bounds.end))
        case "rows":
            return int(bounds.start), int(bounds.end)
    return _decimal(bounds.start), _decimal(bounds.end)


# Rows and values.


def _field(column: Column, row: Row, columns: Sequence[Column]) -> Any:
    """The value of a column in a row; null below a record that is null."""
    at, path = 0, column.path[:1]
    while columns[at].input != column.input or columns[at].path != path:
        at += 1
    found, fields = row[at], columns[at].fields
    for name in column.path[1:]:
        if found is None:
            return None
        place = next(place for place, each in enumerate(fields) if each.name == name)
        found, fields = found[place], fields[place].fields
    return found


def _argument(aggregate: Aggregate, row: Row, columns: Sequence[Column]) -> Any:
    """What an aggregate takes from a row: count takes its presence, collect its fields, others the argument's value."""
    if aggregate.argument is not None:
        return value(aggregate.argument, row, columns)
    if aggregate.function == "count":
        return True
    by_name = {column.path[0]: each for column, each in zip(columns, row, strict=True)}
    return tuple(by_name[each.name] for each in aggregate.fields)


def _equal_keys(join: Join) -> tuple[list[Expression], list[Expression]]:
    """Expressions that must be equal on both sides for the predicate to be true; they save testing every pair."""
    left_inputs = {column.input for column in join.left.columns}
    keys: tuple[list[Expression], list[Expression]] = ([], [])
    for part in conjuncts(join.predicate):
        if isinstance(part, Call) and part.function == "=":
            sides = sorted(part.arguments, key=lambda side: not left_inputs.issuperset(inputs_of(side)))
            left, right = (frozenset(inputs_of(side)) for side in sides)
            if left and right and left <= left_inputs and not right & left_inputs:
                keys[0].append(sides[0])
                keys[1].append(sides[1])
    return keys


def _key(expressions: list[Expression], row: Row, columns: Sequence[Column]) -> tuple[Any, ...]:
    return tuple(aggregates.same(value(expression, row, columns)) for expression in expressions)


def _without_floats(row: Any) -> Any:
    if isinstance(row, tuple):
        return tuple(map(_without_floats, row))
    return float if isinstance(row, float) else row


def _near(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(map(_near, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def _micros(time: datetime) -> int:
    return (time - EPOCH) // MICROSECOND


def _datetime(micros: int) -> datetime:
    """The time, clipped to the calendar: a window may reach beyond it."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if micros > 0 else datetime.min.replace(tzinfo=UTC)


def _decimal(value: Fraction) -> Decimal:
    bound = decimals.fraction(value)
    assert bound is not None, "windows of values lie within what a decimal holds"
    return bound
