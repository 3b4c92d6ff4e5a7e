"""Slices give what the reference evaluator defines, to the last bit: any windows, groups, lateness and readers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queries import aggregates
from queries.aggregates import aggregate, value_of
from queries.expressions import EPOCH, MICROSECOND, Column, Named
from queries.partials import Part
from queries.plan import Aggregate, Source, Window, WindowAggregate
from queries.reference import Tuple, evaluate
from queries.schema import Row, Schema
from queries.slices import STEP, Slices
from queries.values import INT_MAX, INT_MIN

SECOND = 1_000_000
SCHEMA = Schema.parse("at timestamp, k float null, i int null, f float null, d decimal null, s string")
SOURCE = Source("s", "s", SCHEMA, None, "at")
COLUMN = {each.path[0]: each for each in SOURCE.columns}
WANTED = tuple(
    aggregate(f"{function} {name} {distinct}", function, COLUMN[name], distinct)
    for function in ("count", "sum", "avg", "min", "max", "stddev")
    for name in ("i", "f", "d", "s")
    if name != "s" or function in ("count", "min", "max")
    for distinct in (False, True)
)

floats = st.floats() | st.sampled_from((0.1, 0.2, 1e16, -1e16, 1e308, -1e308, 1.7e308, 5e-324, math.inf, -math.inf))
decimals = st.decimals(min_value=-(10**20) + 1, max_value=10**20 - 1, places=18, allow_nan=False)
ints = st.integers(-9, 9) | st.sampled_from((INT_MAX, INT_MIN, INT_MAX - 1))
values = st.tuples(
    st.none() | ints, st.none() | floats, st.none() | decimals | st.sampled_from((Decimal("1.0"), Decimal("1.00")))
)
keys = st.sampled_from((None, 1.0, math.nan, -0.0))
# How much time has passed at its publication, how much earlier it happened, its group, what it says.
arrivals = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 30), keys, values), max_size=40)
windows = st.builds(
    lambda size, slide: Window("time", size * SECOND, slide * SECOND if slide else None),
    st.integers(1, 14) | st.just(30),
    st.integers(0, 9) | st.sampled_from((1, 2)),
)
starts = st.sampled_from((-100, 0, 1_700_000_000))  # Seconds since the epoch.


def tuples_of(drawn: Sequence[tuple[int, int, float | None, tuple[Any, ...]]], start_s: int) -> list[Tuple]:
    made, now_s = [], start_s
    for number, (passed_s, ago_s, key, (i, f, d)) in enumerate(drawn):
        now_s += passed_s
        at = EPOCH + timedelta(seconds=now_s - ago_s)
        made.append(Tuple(EPOCH + timedelta(seconds=now_s), (at, key, i, f, d, "abc"[number % 3]), number))
    return made


def exact(rows: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """Rows as they are compared: to the last bit, but for the sign of a zero and the zeros at the end of a decimal."""
    return Counter(
        tuple("nan" if isinstance(each, float) and math.isnan(each) else each for each in row) for row in rows
    )


class Reader:
    """One window over the stream, from some tuple on; its watermark is that of the tuples since."""

    def __init__(
        self,
        slices: Slices,
        window: Window,
        wanted: tuple[Aggregate, ...],
        first: int,
        lateness_s: int,
        apart: int = 0,
    ):
        self.apart = apart
        self.window, self.wanted, self.first, self.lateness_s = window, wanted, first, lateness_s
        self.slices, self.number = slices, slices.join(window, wanted)
        self.watermark_us: int | None = None
        self.rows: list[Row] = []

    def advance(self, at_us: int) -> None:
        reached = at_us - self.lateness_s * SECOND
        self.watermark_us = reached if self.watermark_us is None else max(self.watermark_us, reached)
        self.close(self.watermark_us)

    def close(self, watermark_us: int) -> None:
        self.rows += [row for rows in self.slices.close(self.number, watermark_us) for row in rows]

    def expected(self, tuples: Sequence[Tuple]) -> list[Row]:
        source = Source("s", "s", SCHEMA, None, "at", self.lateness_s * 1000)
        plan = WindowAggregate(source, self.window, (Named("k", COLUMN["k"]),), self.wanted)
        return [result.row for result in evaluate(plan, {"s": tuples[self.first :]})]


def micros(each: Tuple) -> int:
    return int((each.row[0] - EPOCH) // MICROSECOND)


def with_time(each: Tuple) -> Row:
    return (*each.row, each.row[0])


END_US = 1 << 62


@pytest.mark.slow
@given(arrivals, windows, st.integers(0, 12), starts)
def test_one_reader_has_what_the_reference_says(drawn, window, lateness_s, start_s):
    tuples = tuples_of(drawn, start_s)
    slices = Slices((COLUMN["k"],), SOURCE.columns)
    reader = Reader(slices, window, WANTED, 0, lateness_s)
    for each in tuples:
        slices.add([with_time(each)], (reader.number,))
        reader.advance(micros(each))
    reader.close(END_US)
    assert exact(reader.rows) == exact(reader.expected(tuples))
    assert slices.rows == 0


readers = st.lists(
    st.tuples(
        windows,
        st.lists(st.sampled_from(WANTED), max_size=4, unique=True).map(tuple),
        st.integers(0, 40),  # The tuple before which it joins,
        st.integers(0, 40),  # how many before that are added for it alone,
        st.none() | st.integers(0, 40),  # after how many it leaves again,
        st.integers(0, (1 << 40) - 1) | st.just(0),  # and which it gets alone, though others get them, too.
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=5,
)


class Readers:
    """Readers of one set of slices, and the tuples that each of them gets."""

    def __init__(self, tuples: Sequence[Tuple]) -> None:
        self.tuples, self.there = tuples, list[Reader]()
        self.slices = Slices((COLUMN["k"],), SOURCE.columns)

    def join(self, number: int, window: Window, wanted: tuple[Aggregate, ...], asked: tuple[int, int, int]) -> None:
        before, apart, lateness_s = asked
        reader = Reader(self.slices, window, wanted, max(0, number - before), lateness_s, apart)
        for earlier in self.tuples[reader.first : number]:
            self.add(earlier, [reader])
        self.there.append(reader)

    def leave(self, window: Window, wanted: tuple[Aggregate, ...]) -> None:
        leaving = next((one for one in self.there if (one.window, one.wanted) == (window, wanted)), None)
        if leaving is not None:
            self.there.remove(leaving)
            self.slices.leave(leaving.number)

    def add(self, each: Tuple, some: Sequence[Reader]) -> None:
        if some:
            self.slices.add([with_time(each)], tuple(reader.number for reader in some))
        for reader in some:
            reader.advance(micros(each))


@given(arrivals, readers, starts)
def test_readers_that_come_and_go_share_slices_and_have_their_own_results(drawn, asked, start_s):
    tuples = tuples_of(drawn, start_s)
    readers = Readers(tuples)
    for number, each in enumerate((*tuples, None)):
        for window, wanted, joins_at, before, leaves_after, apart, lateness_s in asked:
            if number == min(joins_at, len(tuples)):
                readers.join(number, window, wanted, (before, apart, lateness_s))
            elif leaves_after is not None and number == joins_at + leaves_after:
                readers.leave(window, wanted)
        if each is not None:
            alone = [reader for reader in readers.there if reader.apart >> number & 1]
            for some in ([reader for reader in readers.there if reader not in alone], *([one] for one in alone)):
                readers.add(each, some)
    for reader in readers.there:
        reader.close(END_US)
    for reader in readers.there:
        assert exact(reader.rows) == exact(reader.expected(tuples))
    assert readers.slices.rows == 0


@pytest.mark.parametrize("wanted", WANTED, ids=lambda each: each.name)
@settings(max_examples=20)
@given(rows=st.lists(values, max_size=150), cuts=st.lists(st.integers(0, 150), max_size=4))
@example(rows=[(0, 1e308, None)] * 70 + [(0, -1e308, None)] * 70, cuts=[65])
@example(rows=[(0, 1e308, None)] * 100, cuts=[])
@example(rows=[(0, 0.1, None)] * 150, cuts=[1, 70])
def test_parts_put_together_in_any_way_have_the_value_of_the_whole(wanted, rows, cuts):
    place = {"i": 0, "f": 1, "d": 2, "s": 0}[wanted.argument.path[0]]
    given_values = [row[place] for row in rows]
    part = Part.of(wanted)
    whole = part.maker()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
        one = part.maker()
        one.add([value for value in given_values[begin:end] if value is not None])
        whole.merge(one)
    assert exact([(whole.value(wanted),)]) == exact([(value_of(wanted, given_values),)])


def test_an_infinite_sum_stays_infinite_and_opposite_infinities_have_none():
    sum_ = aggregate("a", "sum", Column("s", ("f",), "float"))
    for listed, expected in (([1e308, 1e308, math.inf], math.inf), ([math.inf, 1.0, -math.inf], math.nan)):
        partial = Part.of(sum_).maker()
        for value in listed * 70:
            partial.add([value])
        assert exact([(partial.value(sum_),)]) == exact([(expected,)])
    assert aggregates.float_sum([1e308, 1e308, -1e308]) == 1e308


def test_a_window_of_many_groups_closes_with_pauses():
    columns = (Column("s", ("k",), "int"), Column("s", ("$time",), "timestamp"))
    slices = Slices((columns[0],), columns)
    reader = slices.join(Window("time", SECOND), (aggregate("n", "count", None),))
    slices.add([(number, EPOCH) for number in range(5 * STEP)], (reader,))
    assert slices.rows == 5 * STEP
    parts = list(slices.close(reader, SECOND))
    assert sum(map(len, parts)) == 5 * STEP
    assert max(map(len, parts)) <= STEP
    assert len(parts) >= 10
    assert slices.rows == 0


def test_nothing_is_kept_of_rows_that_are_in_no_open_window():
    columns = (Column("s", ("$time",), "timestamp"),)
    slices = Slices((), columns)
    reader = slices.join(Window("time", 2 * SECOND, 10 * SECOND), (aggregate("n", "count", None),), 10 * SECOND)
    slices.add([(EPOCH + timedelta(seconds=second),) for second in range(30)], (reader,))
    assert slices.rows == 2  # The windows [18, 20) and [28, 30) have a slice each, and one group.
    assert [row[0] for rows in slices.close(reader, 30 * SECOND) for row in rows] == [2, 2]


def test_the_edges_of_a_reader_go_with_it_and_a_set_of_readers_has_one_layer():
    columns = (Column("s", ("$time",), "timestamp"),)
    slices = Slices((), columns)
    count = (aggregate("n", "count", None),)
    long, short = slices.join(Window("time", 10 * SECOND), count), slices.join(Window("time", SECOND), count)
    rows = [(EPOCH + timedelta(seconds=second),) for second in range(30)]
    slices.add(rows[:5], (long, short))
    slices.add(rows[5:6], (long,))
    slices.add(rows[6:10], (long, short))
    assert slices.rows == 9 + 1
    assert (slices.rows_of(long), slices.rows_of(short)) == (10, 9)
    slices.leave(short)
    slices.add(rows[10:], (long,))
    assert slices.rows == 10 + 2, "with edges every 10 seconds again"
    assert [row[0] for found in slices.close(long, 30 * SECOND) for row in found] == [10, 10, 10]
    assert slices.rows == 0
