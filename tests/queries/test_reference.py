"""The reference evaluator on examples computed by hand: what a window holds, what is due when, and what is late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from queries import functions
from queries.aggregates import aggregate
from queries.expressions import EPOCH, TIME, Column, Constant, Expression, Named
from queries.plan import Join, Operator, Project, Select, Source, Union, Window, WindowAggregate
from queries.reference import Result, Tuple, evaluate, late, same_rows
from queries.schema import Schema

SECOND = 1_000_000
A = Schema.parse("k int, x int null")
B = Schema.parse("k int, y string")
EVENTS = Schema.parse("at timestamp, k int")


def at(second: float) -> object:
    return EPOCH + timedelta(seconds=second)


def seconds(*of: tuple[float, tuple]) -> list[Tuple]:
    """Tuples by second; the id of each is its place."""
    return [Tuple(at(second), row, number) for number, (second, row) in enumerate(of)]


def a(window: Window | None = None, alias: str = "a") -> Source:
    return Source("A", alias, A, window)


def b(window: Window | None = None) -> Source:
    return Source("B", "b", B, window)


def col(source: Operator, name: str) -> Column:
    return next(column for column in source.columns if column.path == (name,))


def equal(one: Operator, other: Operator) -> Expression:
    return functions.call("=", col(one, "k"), col(other, "k"))


def made_of(results: list[Result]) -> list[tuple]:
    """The results as the ids they are made of, each with the second at which it is due."""
    return [(*(number for _, number in each.sources), (each.time - EPOCH).total_seconds()) for each in results]


def counts(plan: Operator, stream: list[Tuple], **options: bool) -> list[tuple]:
    """What an aggregate over A counted: start and end of the window, the number, the ids."""
    return [
        (*each.window, each.row[-4], [number for _, number in each.sources])
        for each in evaluate(plan, {"A": stream}, **options)
    ]


def counted(source: Operator, window: Window, keys: tuple[Named, ...] = ()) -> WindowAggregate:
    return WindowAggregate(source, window, keys, (aggregate("n", "count", None),))


# Joins: a row is in its window for a stretch of instants.


def test_without_windows_every_pair_that_satisfies_the_predicate_is_a_result():
    left, right = a(), b()
    streams = {
        "A": seconds((1, (7, 1)), (2, (8, 2)), (500_000, (7, 3))),
        "B": seconds((0, (8, "p")), (3, (7, "q"))),
    }
    results = evaluate(Join(left, right, equal(left, right)), streams)
    assert made_of(results) == [(1, 0, 2.0), (0, 1, 3.0), (2, 1, 500_000.0)]
    assert results[0].row == (8, 2, at(2), 8, "p", at(0))


def test_without_a_predicate_every_pair_is_a_result():
    streams = {"A": seconds((1, (7, 1)), (2, (8, 2))), "B": seconds((0, (8, "p")), (3, (7, "q")))}
    assert len(evaluate(Join(a(), b()), streams)) == 4


def test_unknown_is_not_true():
    plan = Select(a(), functions.call(">", Column("a", ("x",), "int", nullable=True), Constant.of(1)))
    assert [each.row[0] for each in evaluate(plan, {"A": seconds((1, (1, None)), (2, (2, 1)), (3, (3, 2)))})] == [3]


def test_a_range_without_slide_includes_its_end():
    left, right = a(Window("time", 10 * SECOND)), b(Window("time", 5 * SECOND))
    streams = {
        "A": seconds((100, (1, 0))),
        "B": seconds((94.999999, (1, "gone")), (95, (1, "just there")), (110, (1, "still")), (110.000001, (1, "late"))),
    }
    results = evaluate(Join(left, right, equal(left, right)), streams)
    assert made_of(results) == [(0, 1, 100.0), (0, 2, 110.0)]


def test_a_range_that_slides_is_looked_at_every_slide():
    """With [RANGE 20 SLIDE 10] a tuple of second 3 is seen at 10 and 20; at 30 it is older than 20 s."""
    left = a(Window("time", 20 * SECOND, 10 * SECOND))
    right = b(Window("time", 10 * SECOND, 10 * SECOND))
    streams = {
        "A": seconds((3, (1, 0))),
        "B": seconds((-1, (1, "seen at 0 only")), (0, (1, "at 10")), (19, (1, "at 20")), (20, (1, "at 30"))),
    }
    results = evaluate(Join(left, right, equal(left, right)), streams)
    assert made_of(results) == [(0, 1, 10.0), (0, 2, 20.0)]


def test_a_tuple_on_the_edge_of_a_slide_counts_from_the_next_one():
    left = a(Window("time", 10 * SECOND, 10 * SECOND))
    right = b(Window("time", 10 * SECOND, 10 * SECOND))
    streams = {"A": seconds((10, (1, 0))), "B": seconds((9, (1, "before")), (11, (1, "with it")))}
    assert made_of(evaluate(Join(left, right, equal(left, right)), streams)) == [(0, 1, 20.0)]


def test_a_slide_longer_than_its_range_leaves_gaps():
    left = a(Window("time", 2 * SECOND, 10 * SECOND))
    streams = {"A": seconds((5, (1, 0)), (8, (1, 0)), (9, (1, 0))), "B": seconds((0, (1, "p")))}
    assert made_of(evaluate(Join(left, b(), equal(left, b())), streams)) == [(1, 0, 10.0), (2, 0, 10.0)]


def test_a_range_that_slides_meets_one_that_does_not():
    """The tuple of A is seen from 10 until just before 20; the one without slide is there from its own time."""
    left, right = a(Window("time", 10 * SECOND, 10 * SECOND)), b(Window("time", 3 * SECOND))
    streams = {
        "A": seconds((5, (1, 0))),
        "B": seconds((6, (1, "gone by 9")), (7, (1, "there at 10")), (19, (1, "at once")), (20, (1, "over"))),
    }
    assert made_of(evaluate(Join(left, right, equal(left, right)), streams)) == [(0, 1, 10.0), (0, 2, 19.0)]


def test_a_row_leaves_a_window_of_rows_as_the_nth_later_one_arrives():
    left = a(Window("rows", 2))
    streams = {
        "A": seconds((1, (1, 0)), (2, (1, 0)), (3, (1, 0))),
        "B": seconds((0, (1, "p")), (2.5, (1, "q")), (4, (1, "r"))),
    }
    results = evaluate(Join(left, b(), equal(left, b())), streams)
    pairs = sorted((first, second) for first, second, _ in made_of(results))
    assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


def test_two_windows_of_rows_hold_only_what_they_hold_at_one_moment():
    left, right = a(Window("rows", 1)), b(Window("rows", 1))
    streams = {"A": seconds((1, (1, 0)), (3, (1, 0))), "B": seconds((2, (1, "p")), (4, (1, "q")))}
    assert made_of(evaluate(Join(left, right, equal(left, right)), streams)) == [
        (0, 0, 2.0),
        (1, 0, 3.0),
        (1, 1, 4.0),
    ]


def test_rows_of_one_time_count_in_order_of_arrival():
    left = a(Window("rows", 1))
    streams = {"A": seconds((1, (1, 0)), (1, (2, 0))), "B": seconds((1, (1, "p")), (1, (2, "q")))}
    # A's arrive first, as its name comes first: the first row has left when B's rows come.
    assert made_of(evaluate(Join(left, b(), equal(left, b())), streams)) == [(1, 1, 1.0)]


def test_windows_of_rows_rank_rows_before_selections():
    source = a(Window("rows", 1))
    chosen = Select(source, functions.call("=", col(source, "k"), Constant.of(1)))
    streams = {"A": seconds((1, (1, 0)), (2, (2, 0))), "B": seconds((3, (1, "p")))}
    assert evaluate(Join(chosen, b()), streams) == []


def test_three_streams_are_joined_at_one_moment_not_pair_by_pair():
    """First and third are never in their windows together, although each is with the second."""
    window = Window("time", 5 * SECOND)
    first, second, third = (a(window, alias) for alias in ("a1", "a2", "a3"))
    keys = [functions.call("=", col(each, "x"), Constant.of(n)) for n, each in enumerate((first, second, third))]
    left = Join(Select(first, keys[0]), Select(second, keys[1]))
    plan = Join(left, Select(third, keys[2]))
    apart = {"A": seconds((0, (1, 0)), (4, (1, 1)), (8, (1, 2)))}
    together = {"A": seconds((0, (1, 0)), (4, (1, 1)), (5, (1, 2)))}
    assert evaluate(plan, apart) == []
    assert made_of(evaluate(plan, together)) == [(0, 1, 2, 5.0)]
    bushy = Join(Select(first, keys[0]), Join(Select(second, keys[1]), Select(third, keys[2])))
    assert evaluate(bushy, apart) == []
    assert evaluate(bushy, together) == evaluate(plan, together)


def test_a_stream_joined_with_itself_pairs_a_tuple_with_itself_too():
    one, other = a(alias="p"), a(alias="q")
    results = evaluate(Join(one, other, equal(one, other)), {"A": seconds((1, (1, 0)), (2, (1, 1)))})
    assert made_of(results) == [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 2.0), (1, 1, 2.0)]


def test_numbers_of_different_types_meet():
    floats = Source("F", "f", Schema.parse("k float"))
    decimals = Source("D", "d", Schema.parse("k decimal"))
    streams = {
        "A": seconds((1, (7, 0)), (1, (1, 0))),
        "F": seconds((1, (7.0,)), (1, (0.1,))),
        "D": seconds((1, (Decimal("7.00"),)), (1, (Decimal("0.1"),))),
    }
    plan = Join(Join(a(), floats, equal(a(), floats)), decimals, equal(floats, decimals))
    assert [each.row[0] for each in evaluate(plan, streams)] == [7]


# Aggregates: windows of time, of rows, of a column's value.


def test_time_windows_tumble_at_multiples_of_their_size():
    plan = counted(a(), Window("time", 10 * SECOND))
    stream = seconds((0, (1, 0)), (9.999999, (1, 0)), (10, (1, 0)), (35, (1, 0)))
    assert counts(plan, stream) == [
        (at(0), at(10), 2, [0, 1]),
        (at(10), at(20), 1, [2]),
        (at(30), at(40), 1, [3]),
    ]
    assert [each.time for each in evaluate(plan, {"A": stream})] == [at(10), at(20), at(40)]


def test_time_windows_hop():
    plan = counted(a(), Window("time", 10 * SECOND, 4 * SECOND))
    assert counts(plan, seconds((9, (1, 0)), (12, (1, 0)))) == [
        (at(2), at(12), 1, [0]),
        (at(6), at(16), 2, [0, 1]),
        (at(10), at(20), 1, [1]),
    ]


def test_windows_of_rows_count_full_ones_from_the_first_row():
    plan = counted(a(), Window("rows", 3, 2))
    stream = seconds(*((second, (1, 0)) for second in range(6)))
    assert counts(plan, stream) == [(0, 3, 3, [0, 1, 2]), (2, 5, 3, [2, 3, 4])]
    assert [each.time for each in evaluate(plan, {"A": stream})] == [at(2), at(4)]


def test_windows_of_rows_at_a_source_count_rows_that_a_selection_drops():
    window = Window("rows", 2)
    source = a(window)
    odd = Select(source, functions.call("=", col(source, "k"), Constant.of(1)))
    stream = seconds((0, (1, 0)), (1, (2, 0)), (2, (2, 0)), (3, (2, 0)), (4, (1, 0)))
    assert counts(counted(odd, window), stream) == [(0, 2, 1, [0])]


def test_windows_of_rows_above_a_selection_count_what_it_keeps():
    odd = Select(a(), functions.call("=", col(a(), "k"), Constant.of(1)))
    stream = seconds((0, (1, 0)), (1, (2, 0)), (2, (1, 0)), (3, (1, 0)))
    assert counts(counted(odd, Window("rows", 2)), stream) == [(0, 2, 2, [0, 2])]


def test_value_windows_lie_at_multiples_of_the_step():
    """StreamGlobe's |det_time diff 20 step 10|: ends at every 10, holds the 20 before."""
    photons = Source("P", "p", Schema.parse("en decimal, seen record(det_time decimal null)"))
    window = Window("value", Decimal(20), Decimal(10), ("seen", "det_time"))
    plan = WindowAggregate(photons, window, (), (aggregate("mean", "avg", col(photons, "en")),))
    times = ("-0.5", "5", "19.9", "20", None)
    stream = seconds(*((n, (Decimal(n), (time and Decimal(time),))) for n, time in enumerate(times)))
    results = evaluate(plan, {"P": stream})
    assert [(each.window, each.row[0], each.time) for each in results] == [
        ((Decimal(-20), Decimal(0)), Decimal(0), at(0)),
        ((Decimal(-10), Decimal(10)), Decimal("0.5"), at(1)),
        ((Decimal(0), Decimal(20)), Decimal("1.5"), at(2)),
        ((Decimal(10), Decimal(30)), Decimal("2.5"), at(3)),
        ((Decimal(20), Decimal(40)), Decimal(3), at(3)),
    ]


def test_groups_have_rows_of_their_own_and_null_is_a_group():
    key = Named("x", col(a(), "x"))
    plan = counted(a(), Window("time", 10 * SECOND), (key,))
    stream = seconds((0, (1, None)), (1, (2, 5)), (2, (3, None)), (11, (4, 5)))
    assert [each.row[:2] for each in evaluate(plan, {"A": stream})] == [(5, 1), (None, 2), (5, 1)]


def test_without_aggregates_the_keys_are_distinct():
    plan = WindowAggregate(a(), Window("time", 10 * SECOND), (Named("x", col(a(), "x")),), ())
    stream = seconds((0, (1, 4)), (1, (2, 5)), (2, (3, 4)))
    assert sorted(each.row[0] for each in evaluate(plan, {"A": stream})) == [4, 5]


def test_an_aggregate_of_a_join_counts_pairs_by_the_time_they_are_due():
    joined = Join(a(), b(), equal(a(), b()))
    plan = counted(joined, Window("time", 10 * SECOND))
    streams = {"A": seconds((1, (1, 0)), (2, (1, 0))), "B": seconds((5, (1, "p")), (12, (1, "q")))}
    assert [(each.time, each.row[0]) for each in evaluate(plan, streams)] == [(at(10), 2), (at(20), 2)]


def test_the_bounds_and_the_time_are_columns_of_the_result():
    plan = counted(a(), Window("time", 10 * SECOND))
    (result,) = evaluate(plan, {"A": seconds((3, (1, 0)))})
    assert result.row == (1, at(0), at(10), at(10))
    assert [column.path[0] for column in plan.columns] == ["n", "$start", "$end", "$time"]


# What is complete, and what comes too late.


def test_before_the_end_a_window_waits_for_the_watermark():
    plan = counted(a(), Window("time", 10 * SECOND))
    stream = seconds((1, (1, 0)), (9, (1, 0)))
    assert counts(plan, stream, final=False) == []
    assert counts(plan, [*stream, Tuple(at(10), (1, 0), 2)], final=False) == [(at(0), at(10), 2, [0, 1])]


def test_before_the_end_a_pair_comes_at_once_or_when_its_window_slides():
    left = a(Window("time", 10 * SECOND, 10 * SECOND))
    streams = {"A": seconds((1, (1, 0))), "B": seconds((2, (1, "p")))}
    at_once = Join(a(), b(), equal(a(), b()))
    assert made_of(evaluate(at_once, streams, final=False)) == [(0, 0, 2.0)]
    sliding = Join(left, b(), equal(left, b()))
    assert evaluate(sliding, streams, final=False) == []
    later = {"A": [*streams["A"], Tuple(at(10), (5, 0), 1)], "B": [*streams["B"], Tuple(at(11), (6, "q"), 1)]}
    assert made_of(evaluate(sliding, later, final=False)) == [(0, 0, 10.0)]


def test_windows_may_reach_beyond_the_calendar():
    source = events(0)
    plan = counted(source, Window("time", 10 * SECOND))
    last = datetime.max.replace(tzinfo=UTC)
    (result,) = evaluate(plan, {"E": [Tuple(at(0), (last, 1), 0)]})
    assert result.window == (last - timedelta(seconds=9, microseconds=999_999), last)


def test_a_branch_of_a_union_does_not_wait_for_the_others():
    left = a(Window("time", 10 * SECOND, 10 * SECOND))
    pairs = Project(Join(left, b()), (Named("k", col(left, "k")),))
    idle = Project(Source("E", "e", EVENTS), (Named("k", Column("e", ("k",), "int")),))
    streams = {"A": seconds((1, (1, 0)), (10, (2, 0))), "B": seconds((2, (1, "p")), (10, (2, "q"))), "E": []}
    assert made_of(evaluate(Union((pairs, idle)), streams, final=False)) == [(0, 0, 10.0), (0, 1, 10.0)]


def test_an_idle_stream_holds_the_others_back():
    plan = counted(Join(a(), b(), equal(a(), b())), Window("time", 10 * SECOND))
    streams = {"A": seconds((1, (1, 0)), (50, (1, 0))), "B": seconds((2, (1, "p")))}
    assert evaluate(plan, streams, final=False) == []
    streams["B"].append(Tuple(at(10), (9, "q"), 1))
    assert [each.row[0] for each in evaluate(plan, streams, final=False)] == [1]


def events(lateness_ms: int, window: Window | None = None) -> Source:
    return Source("E", "e", EVENTS, window, "at", lateness_ms)


def arriving(*times: float) -> dict[str, list[Tuple]]:
    """Events that arrive second by second, each telling when it happened."""
    return {"E": seconds(*((n, (at(time), 1)) for n, time in enumerate(times)))}


def test_time_is_the_event_time_of_a_stream_that_has_one():
    source = events(0)
    plan = Project(source, (Named("time", col(source, TIME)),))
    assert [(each.row[0], each.time) for each in evaluate(plan, arriving(30, 20))] == [
        (at(20), at(20)),
        (at(30), at(30)),
    ]


def test_a_row_whose_windows_have_all_been_closed_is_late():
    plan = counted(events(5_000), Window("time", 10 * SECOND))
    streams = arriving(3, 14, 9, 15, 8, 16)  # 15 - 5 s closes [0, 10), so 8 is late and 9 is not.
    assert [each.row[0] for each in evaluate(plan, streams)] == [2, 3]
    assert late(plan, streams) == 1


def test_a_row_counts_in_those_of_its_windows_that_are_open():
    plan = counted(events(0), Window("time", 10 * SECOND, 5 * SECOND))
    streams = arriving(1, 10, 6)  # 6 belongs to [0, 10), closed, and [5, 15), open.
    assert [(each.window[1], each.row[0]) for each in evaluate(plan, streams)] == [
        (at(5), 1),
        (at(10), 1),
        (at(15), 2),
        (at(20), 1),
    ]
    assert late(plan, streams) == 0


def test_a_row_comes_late_to_a_windowed_join_once_it_would_have_left():
    window = Window("time", 5 * SECOND)
    source = events(0, window)
    right = a()
    plan = Join(source, right, equal(source, right))
    streams = arriving(20, 15, 14.9) | {"A": seconds((15, (1, 0)))}
    assert [each.sources[1][1] for each in evaluate(plan, streams)] == [1, 0]
    assert late(plan, streams) == 1
    unwindowed = events(0)
    assert len(evaluate(Join(unwindowed, right, equal(unwindowed, right)), streams)) == 3
    assert late(unwindowed, streams) == 0


def test_rows_that_come_late_have_no_rank():
    window = Window("rows", 2)
    plan = counted(events(0, window), window)
    streams = arriving(1, 5, 3, 7, 8)
    assert [[number for _, number in each.sources] for each in evaluate(plan, streams)] == [[0, 1], [3, 4]]
    assert late(plan, streams) == 1


def test_values_that_go_back_behind_a_closed_window_are_late():
    window = Window("value", 10, None, ("x",))
    plan = counted(a(), window)
    stream = seconds((0, (1, 3)), (1, (1, 12)), (2, (1, 4)), (3, (1, 11)))
    assert counts(plan, stream) == [(Decimal(0), Decimal(10), 1, [0]), (Decimal(10), Decimal(20), 2, [1, 3])]
    assert late(plan, {"A": stream}) == 1


# Identity.


def test_results_of_one_query_have_ids_of_their_own_that_every_peer_derives():
    one = Project(a(), (Named("k", col(a(), "k")),))
    plan = Union((one, one))
    results = evaluate(plan, {"A": seconds((1, (1, 0)), (2, (1, 0)))})
    ids = [each.notification_id("q-1") for each in results]
    assert len(set(ids)) == 4
    assert ids == [each.notification_id("q-1") for each in evaluate(plan, {"A": seconds((1, (1, 0)), (2, (1, 0)))})]
    assert results[0].notification_id("q-2") != ids[0] != results[0].notification_id("q-1", revision=1)


def test_the_order_of_a_join_does_not_change_the_ids():
    streams = {"A": seconds((1, (1, 0)), (2, (1, 0))), "B": seconds((5, (1, "p")), (12, (1, "q")))}
    one = evaluate(Join(a(), b(), equal(a(), b())), streams)
    other = evaluate(Join(b(), a(), equal(a(), b())), streams)
    assert sorted(each.notification_id("q") for each in one) == sorted(each.notification_id("q") for each in other)


def test_the_ids_are_those_that_other_versions_know():
    (result,) = evaluate(counted(a(), Window("time", 10 * SECOND)), {"A": seconds((3, (1, 0)))})
    assert result.notification_id("q-1") == "3162a6f87505f8c01f6d03ccde29affa83d83aa7cac54588fdf3e61c76d377c8"


def test_multisets_are_equal_whatever_the_order_but_not_whatever_the_number():
    assert same_rows([(1, "a"), (2, "b"), (1, "a")], [(1, "a"), (1, "a"), (2, "b")])
    assert not same_rows([(1, "a"), (1, "a")], [(1, "a")])
    assert not same_rows([(1, "a")], [(1, "a"), (1, "a")])
    assert same_rows([(0.1 + 0.2, float("nan"))], [(0.3, float("nan"))])
    assert not same_rows([(0.3,)], [(0.3001,)])
    assert not same_rows([(None,)], [(0.0,)])
