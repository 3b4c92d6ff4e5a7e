"""Window aggregates of several queries at one host: rows are added once, and each query has its own results."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.execution import aggregation, executor
from protocols.execution.aggregation import Aggregation, Aggregations, WindowRun
from protocols.execution.executor import MORE, WORK_MAX
from protocols.subgraphs import Sharing
from queries.query import parse
from queries.schema import Row
from tests.protocols.execution.parts import LEFT, STREAMS, at
from tests.protocols.execution.windows_together import World, play
from tests.sim import planted_slices
from tests.sim.bugs import BUGS

BY_PART = "SELECT part, sum(weight) AS s FROM left [RANGE {} SECONDS SLIDE {} SECONDS] {} GROUP BY part"
PLANTED = [name for name, each in BUGS.items() if each.plant.__module__ == planted_slices.__name__]


def world_of(*texts: str, lateness_ms: int = 20_000) -> World:
    """A host whose queries are asked, and whose streams are open."""
    world = World(random.Random(7), lateness_ms=lateness_ms)
    for text in texts:
        world.ask(text)
    for request in list(world.subscriptions):
        world.serve(request)
    world.drain()
    return world


def publish(world: World, *counts: int) -> None:
    """Batches that come at once, and all that follows from them."""
    for count in counts:
        world.publish(LEFT, count)
    for request in list(world.subscriptions):
        while world.serve(request):
            world.drain()


def aggregations(world: World) -> list[Aggregation]:
    return list(world.host.executor.aggregations._all)


def test_rows_are_added_once_for_all_queries_with_one_selection_and_one_grouping():
    world = world_of(*(BY_PART.format(2 + n, 1 + n % 3, "WHERE number <> 2") for n in range(10)))
    publish(world, 20, 30)
    (one,) = aggregations(world)
    assert len(world.subscriptions) == 1
    rows = sum(row[0] != 2 for _, row in world.rows[LEFT])
    assert (one.rows_added, one.rows_saved) == (rows, 9 * rows)
    assert world.host.executor.aggregations.sharing("left") == (10, 1)
    for _ in range(11):
        world.tick()
    assert [each.windows_with for each in world.queries.values()] == [9] * 10
    world.settle()
    world.check_results()


@pytest.mark.parametrize(
    ("other", "sharing"),
    [
        (BY_PART.format(2, 2, "WHERE number <> 3"), "auto"),
        ("SELECT number, count(*) AS n FROM left [RANGE 2 SECONDS] WHERE number <> 2 GROUP BY number", "auto"),
        (BY_PART.format(2, 2, "WHERE number <> 2"), "off"),
    ],
    ids=["another selection", "another grouping", "for itself"],
)
def test_who_needs_other_rows_or_groups_or_wants_to_be_alone_has_slices_of_its_own(other: str, sharing: Sharing):
    world = world_of(BY_PART.format(2, 2, "WHERE number <> 2"))
    world.ask(other, sharing)
    assert len(aggregations(world)) == 2


def test_names_and_the_order_of_conditions_make_no_difference():
    one = "SELECT part, count(*) AS n FROM left [RANGE 2 SECONDS] WHERE number <> 2 AND weight > 0 GROUP BY part"
    other = (
        "SELECT a.part AS p, max(a.weight) AS m FROM left AS a [RANGE 9 SECONDS SLIDE 4 SECONDS] "
        "WHERE 0 < a.weight AND a.number <> 2 GROUP BY a.part HAVING count(*) > 1"
    )
    assert len(aggregations(world_of(one, other))) == 1


def test_a_query_that_joins_later_has_nothing_of_earlier_rows():
    world = world_of(BY_PART.format(4, 2, ""))
    publish(world, 10)
    world.ask(BY_PART.format(6, 3, ""))
    publish(world, 10)
    (one,) = aggregations(world)
    assert (one.rows_added, one.rows_saved) == (20, 10)
    world.settle()
    world.check_results()


def test_what_is_left_for_other_events_is_added_for_all_all_the_same():
    """So many queries are not served in one event, and ticks come in between."""
    world = world_of(*(BY_PART.format(2 + n % 20, 1 + n % 7, "") for n in range(60)))
    world.publish(LEFT, 1500)
    assert 60 * 1500 // executor.ROWS_OF_WORK > 2 * WORK_MAX
    (request,) = world.subscriptions
    world.serve(request)
    turns = 0
    while MORE in world.timers:
        world.tick()
        for name in list(world.timers):
            world.fire(name)
        turns += 1
    assert turns
    world.drain()
    (one,) = aggregations(world)
    assert (one.rows_added, one.rows_saved) == (1500, 59 * 1500)


def two_runs() -> tuple[WindowRun, WindowRun]:
    """Of one aggregation, each of a window of two seconds."""
    world, known = world_of(BY_PART.format(2, 2, "")), Aggregations()
    plan = parse("SELECT count(*) AS n FROM left [RANGE 2 SECONDS]", STREAMS).plan
    views = next(iter(world.host.executor.hosted.values())).run._views()
    return known.enter("one", plan, None, views), known.enter("two", plan, None, views)


def rows_at(*seconds: float) -> list[Row]:
    return [(1, 1, 0.5, at(second), at(second)) for second in seconds]


def results_of(run: WindowRun) -> list[tuple[int | None, int]]:
    """Of each input: its number, and how many results it has."""
    return [(each.number, len(each.rows)) for each in run.taken()]


def test_a_tick_between_two_queries_that_get_the_same_rows_does_not_part_them():
    one, two = two_runs()
    rows = rows_at(1, 3)
    one.feed(1, "left", rows, True, None, is_common=True)
    two.feed(1, "left", (), True, None)
    two.feed(2, "left", rows, True, 2_000_000, is_common=True)
    one.feed(2, "left", (), True, 4_000_000)
    assert one.aggregation.work(awaited=rows) == [two], "its tick needs nobody else"
    assert results_of(two) == [(1, 0)]
    while one.aggregation.has_work:
        one.aggregation.work()
    assert (results_of(one), results_of(two)) == ([(1, 0), (2, 2)], [(2, 1)])
    assert (one.aggregation.rows_added, one.aggregation.rows_saved) == (2, 2)


def test_no_input_of_a_query_overtakes_another():
    """It got rows of its own before those that it has in common: here the common ones are too late for its window."""
    one, two = two_runs()
    rows = rows_at(1)
    one.feed(1, "left", rows, True, None, is_common=True)
    two.feed(1, "left", rows_at(1, 9), True, 4_000_000)
    two.feed(2, "left", rows, True, 4_000_000, is_common=True)
    one.feed(2, "left", (), True, 4_000_000)
    while one.aggregation.has_work:
        one.aggregation.work()
    assert (results_of(one), results_of(two)) == ([(1, 0), (2, 1)], [(1, 1), (2, 0)])
    assert (one.aggregation.rows_added, one.aggregation.rows_saved) == (4, 0)


def test_one_that_ends_while_its_windows_are_closed_disturbs_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aggregation, "STEPS", 1)
    monkeypatch.setattr(aggregation, "RUNS_OF_STEP", 1)
    monkeypatch.setattr(aggregation, "ROWS_OF_STEP", 3)
    texts = [BY_PART.format(2 + n, 1 + n % 3, "").replace("part", "number, part") for n in range(4)]
    for pause in range(0, 60, 3):
        world = world_of(*texts)
        world.publish(LEFT, 60)
        (request,) = world.subscriptions
        world.serve(request)
        for _ in range(pause):
            if world.timers:
                world.fire(next(iter(world.timers)))
        world.stop(world.queries[f"q{1 + pause % 4}.1"])
        world.drain()
        world.settle()
        world.check_results()


def test_state_that_several_queries_read_counts_once(monkeypatch: pytest.MonkeyPatch):
    world = world_of(*(BY_PART.format(40, 40, "") for _ in range(3)))
    publish(world, 10)
    kept = world.host.executor.aggregations.state_rows
    assert kept == aggregations(world)[0].state_rows
    assert [each.state_rows for each in aggregations(world)[0].runs] == [kept] * 3
    monkeypatch.setattr(executor, "STATE_ROWS_MAX", kept)
    world.tick()
    monkeypatch.setattr(executor, "STATE_ROWS_MAX", kept - 1)
    with pytest.raises(
        AssertionError, match=f"keep {kept} partial aggregates, shared by 3 queries, and all here may keep"
    ):
        world.tick()


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_queries_that_come_and_go_and_begin_again_have_the_results_of_the_reference(luck: random.Random):
    play(luck)


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.sampled_from((0, 2000)))
def test_rows_that_are_late_for_some_count_as_they_would_alone(luck: random.Random, lateness_ms: int):
    play(luck, lateness_ms=lateness_ms)


def test_most_rows_are_shared_in_these_plays():
    added = saved = 0
    for seed in range(10):
        for each in aggregations(play(random.Random(seed))):
            added, saved = added + each.rows_added, saved + each.rows_saved
    assert saved > added / 4


@pytest.mark.parametrize("name", PLANTED)
def test_the_plays_find_a_planted_bug(name: str):
    for seed in range(30):
        with BUGS[name].plant():
            try:
                play(random.Random(seed))
            except AssertionError:
                return
    raise AssertionError(f"{name} is not found in 30 seeds")
