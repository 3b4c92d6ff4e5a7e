"""What holds of the reference evaluator for any tuples: join order does not matter, no result is taken back."""

from __future__ import annotations

import time
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from queries import functions
from queries.aggregates import aggregate
from queries.expressions import EPOCH, Column, Named
from queries.plan import Join, Operator, Source, Window, WindowAggregate
from queries.reference import Tuple, evaluate, late
from queries.schema import Schema

SECOND = 1_000_000
SCHEMA = Schema.parse("at timestamp, k int, v int")

time_windows = st.builds(lambda size: Window("time", size * SECOND), st.integers(1, 12)) | st.builds(
    lambda size, slide: Window("time", size * SECOND, slide * SECOND), st.integers(1, 12), st.integers(1, 6)
)
join_windows = st.none() | time_windows | st.builds(lambda size: Window("rows", size), st.integers(1, 4))
seconds = st.integers(0, 30)
# Publication, how much earlier it happened, key, value.
tuples = st.lists(
    st.tuples(seconds, st.sampled_from((0, 1, 4, 9)), st.integers(0, 1), st.integers(0, 40)), min_size=5, max_size=8
)


def source(name: str, window: Window | None, event_time: bool = False, lateness_s: int = 0) -> Source:
    return Source(name, name.lower(), SCHEMA, window, "at" if event_time else None, lateness_s * 1000)


def stream(drawn: list[tuple[int, int, int, int]]) -> list[Tuple]:
    made = []
    for number, (published, ago, key, value) in enumerate(drawn):
        happened = EPOCH + timedelta(seconds=published - ago)
        made.append(Tuple(EPOCH + timedelta(seconds=published), (happened, key, value), number))
    return made


def column(input_: Operator, name: str) -> Column:
    return next(each for each in input_.columns if each.path == (name,))


def on_key(left: Source, right: Source) -> object:
    return functions.call("=", column(left, "k"), column(right, "k"))


def ids(plan: Operator, streams: dict[str, list[Tuple]], **options: bool) -> list[str]:
    return sorted(each.notification_id("q") for each in evaluate(plan, streams, **options))


@given(st.tuples(tuples, tuples, tuples), st.tuples(join_windows, join_windows, join_windows), st.booleans())
def test_the_order_of_joins_does_not_matter(drawn, windows, event_time):
    streams = dict(zip("ABC", map(stream, drawn), strict=True))
    a, b, c = (source(name, window, event_time, 2) for name, window in zip("ABC", windows, strict=True))
    ab, bc = on_key(a, b), on_key(b, c)
    expected = ids(Join(Join(a, b, ab), c, bc), streams)
    assert ids(Join(a, Join(b, c, bc), ab), streams) == expected
    assert ids(Join(Join(c, a), b, functions.call("and", ab, bc)), streams) == expected


@given(tuples, tuples, join_windows, time_windows, st.booleans())
def test_nor_does_it_for_an_aggregate_of_a_join(drawn_a, drawn_b, join_window, window, event_time):
    streams = {"A": stream(drawn_a), "B": stream(drawn_b)}
    a, b = (source(name, join_window, event_time, 2) for name in "AB")
    count = aggregate("n", "count", None)
    one, other = (WindowAggregate(Join(*sides, on_key(a, b)), window, (), (count,)) for sides in ((a, b), (b, a)))
    assert ids(one, streams) == ids(other, streams)


aggregate_windows = (
    time_windows
    | st.builds(lambda size, slide: Window("rows", size, slide), st.integers(1, 4), st.integers(1, 3))
    | st.builds(lambda size, slide: Window("value", size, slide, ("v",)), st.integers(1, 12), st.integers(1, 6))
)


def assert_never_taken_back(plan: Operator, streams: dict[str, list[Tuple]]) -> None:
    """What is there at a moment before the end stays, whatever arrives later."""
    expected = set(ids(plan, streams))
    for now in {each.time for listed in streams.values() for each in listed}:
        arrived = {name: [each for each in listed if each.time <= now] for name, listed in streams.items()}
        assert expected.issuperset(ids(plan, arrived, final=False))


@given(tuples, aggregate_windows, st.booleans(), st.booleans(), st.integers(0, 5))
def test_a_window_that_is_complete_stays_as_it_is(drawn, window, at_source, event_time, lateness_s):
    read = source("A", window if at_source and window.kind == "rows" else None, event_time, lateness_s)
    keys = (Named("k", column(read, "k")),)
    plan = WindowAggregate(read, window, keys, (aggregate("n", "count", None),))
    assert_never_taken_back(plan, {"A": stream(drawn)})


@given(tuples, tuples, join_windows, join_windows, st.booleans(), st.integers(0, 5))
def test_a_pair_that_was_found_stays(drawn_a, drawn_b, window_a, window_b, event_time, lateness_s):
    a, b = source("A", window_a, event_time, lateness_s), source("B", window_b, event_time, lateness_s)
    assert_never_taken_back(Join(a, b, on_key(a, b)), {"A": stream(drawn_a), "B": stream(drawn_b)})


@given(tuples, tuples, join_windows, time_windows, st.booleans(), st.integers(0, 5))
def test_an_aggregate_of_a_join_stays_too(drawn_a, drawn_b, join_window, window, event_time, lateness_s):
    a, b = source("A", join_window, event_time, lateness_s), source("B", join_window, event_time, lateness_s)
    plan = WindowAggregate(Join(a, b, on_key(a, b)), window, (), (aggregate("n", "count", None),))
    assert_never_taken_back(plan, {"A": stream(drawn_a), "B": stream(drawn_b)})


@given(tuples, aggregate_windows)
def test_without_an_event_time_only_values_come_late(drawn, window):
    read = source("A", None)
    plan = WindowAggregate(read, window, (), (aggregate("n", "count", None),))
    assert window.kind == "value" or late(plan, {"A": stream(drawn)}) == 0


def test_a_join_of_five_streams_with_thirty_rows_each_is_done_in_time():
    streams = {name: stream([(n, 0, n % 6, n) for n in range(30)]) for name in "ABCDE"}
    plan: Operator = source("A", Window("time", 10 * SECOND))
    last = plan
    for name in "BCDE":
        right = source(name, Window("time", 10 * SECOND))
        plan, last = Join(plan, right, on_key(last, right)), right
    started = time.perf_counter()
    found = len(evaluate(plan, streams))
    print(f"{found} results in {time.perf_counter() - started:.2f} s")
    # For each of six keys: all five rows of one time (5 ways), or of two times 6 s apart (4 times 2⁵ - 2 ways).
    assert found == 6 * (5 + 4 * 30)
