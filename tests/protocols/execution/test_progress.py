"""The times of inputs: watermarks, floors, and what will never be needed again."""

from __future__ import annotations

from protocols.delivery.messages import Origin
from protocols.execution.progress import CLOCK_LAG_MS, IDLE_MS, InputClock
from protocols.subgraphs import Progress, Vector, merged
from tests.protocols.execution.parts import LEFT, SOUTH, reach

OTHER = Origin(SOUTH, "left", 1)
SECOND = 1_000_000


def test_the_slowest_lively_publisher_holds_the_watermark():
    clock = InputClock(lateness_us=SECOND, follows_clock=False)
    clock.note(LEFT, 1, 9 * SECOND, now=0)
    clock.note(OTHER, 1, 5 * SECOND, now=IDLE_MS - 1)
    assert clock.advance(IDLE_MS - 1) == 4 * SECOND
    assert clock.advance(IDLE_MS) == 4 * SECOND, "it never goes back"
    clock.note(LEFT, 2, 20 * SECOND, now=2 * IDLE_MS)
    assert clock.advance(2 * IDLE_MS) == 19 * SECOND, "who is silent holds nothing back"
    assert clock.floor_us == 4 * SECOND, "but may still have older rows"


def test_a_stream_that_has_not_spoken_yet_is_silent_only_after_a_while():
    clock = InputClock(lateness_us=0, follows_clock=False, begun_at=50)
    assert not clock.is_idle(50 + IDLE_MS - 1)
    assert clock.is_idle(50 + IDLE_MS)


def test_a_silent_stream_of_publication_times_follows_the_clock():
    now = 1_000_000
    clock = InputClock(lateness_us=0, follows_clock=True)
    clock.note(LEFT, 1, (now - 100) * 1000, now)
    assert clock.advance(now) == (now - 100) * 1000
    later = now + 10 * IDLE_MS
    assert clock.advance(later) == (later - CLOCK_LAG_MS) * 1000


def test_times_before_1970_are_times_like_others():
    clock = InputClock(lateness_us=0, follows_clock=False)
    clock.note(LEFT, 1, -50 * SECOND, now=0)
    assert clock.advance(0) == -50 * SECOND
    assert clock.floor_us == -50 * SECOND


def test_there_is_no_floor_until_all_are_heard_that_an_earlier_attempt_has_read():
    clock = InputClock(lateness_us=0, follows_clock=False, awaited={LEFT: None, OTHER: None})
    clock.note(LEFT, 5, 90 * SECOND, now=0)
    clock.advance(0)
    assert clock.floor_us is None
    clock.note(OTHER, 5, 3 * SECOND, now=0)
    clock.advance(0)
    assert clock.floor_us == 3 * SECOND


def test_a_low_is_behind_rows_that_can_meet_nothing_any_more():
    clock = InputClock(lateness_us=0, follows_clock=False, horizon_us=3 * SECOND)
    for number in range(10):
        clock.note(LEFT, number + 1, number * SECOND, now=0)
    assert clock.lows("l", 7 * SECOND) == (reach("l", LEFT, 4),)
    assert clock.lows("l", 7 * SECOND) == (), "said once"


def test_without_a_horizon_nothing_is_kept():
    clock = InputClock(lateness_us=0, follows_clock=False)
    for number in range(10):
        clock.note(LEFT, number + 1, number, now=0)
    assert clock.lows("l", 1 << 60) == ()
    clock.horizon_us = 0
    assert clock.lows("l", 1 << 60) == (), "there was nothing to tell"


def test_a_flow_in_parts_is_as_late_as_its_latest_row():
    """The last message alone says how far the flow got; rows of the first may be later than its own."""
    clock = InputClock(lateness_us=0, follows_clock=False, horizon_us=3 * SECOND, said=Progress())
    clock.note_flow("l", Progress(), 20 * SECOND, now=0)
    clock.note_flow("l", Progress((reach("l", LEFT, 9),)), 2 * SECOND, now=0)
    assert clock.lows("l", 10 * SECOND) == ()
    assert clock.lows("l", 24 * SECOND) == (reach("l", LEFT, 9),)


def test_places_go_forward_only_and_each_source_has_its_own():
    vector = Vector.of((reach("a", LEFT, 5),))
    vector.advance((reach("a", LEFT, 3), reach("b", LEFT, 2)))
    assert vector.reaches() == (reach("a", LEFT, 5), reach("b", LEFT, 2))


def test_two_reports_of_one_flow_make_one():
    before = Progress((reach("a", LEFT, 5),), (reach("a", LEFT, 1),), watermark_us=9, floor_us=None, is_idle=True)
    after = Progress((reach("a", LEFT, 7),), (), watermark_us=None, floor_us=4, is_idle=False)
    assert merged(before, after) == Progress((reach("a", LEFT, 7),), (reach("a", LEFT, 1),), 9, 4, is_idle=False)


def test_what_an_inner_join_needs_no_more_is_passed_on_once_the_next_has_come_as_far():
    clock = InputClock(0, follows_clock=False, horizon_us=SECOND, said=Progress())
    for second in (4, 6):
        progress = Progress((), (reach("l", LEFT, second),), second * SECOND, second * SECOND)
        clock.note_flow("l+r", progress, second * SECOND, now=0)
    assert clock.lows("l+r", 3 * SECOND) == ()
    assert clock.lows("l+r", 5 * SECOND) == (reach("l", LEFT, 4),)
    assert clock.lows("l+r", 9 * SECOND) == (reach("l", LEFT, 6),)
