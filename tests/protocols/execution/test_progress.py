"""The times of inputs: watermarks, floors, and what will never be needed again."""

from __future__ import annotations

from protocols.clock import COUNT_BITS
from protocols.delivery.messages import FINISHED_US, Origin, Publishers
from protocols.execution.progress import START_MS, InputClock
from protocols.ids import Millis
from protocols.subgraphs import PATIENCE_MS, Hold, Progress, Vector, merged
from tests.protocols.execution.parts import LEFT, NORTH, SOUTH, reach, silence

OTHER = Origin(SOUTH, "left", 1)
SECOND = 1_000_000
BOTH = Publishers(origins=(LEFT, OTHER))


def clock_of(publishers: Publishers = BOTH, *, since_ms: Millis = 0, **changes: int) -> InputClock:
    """An input in event time that knows its publishers."""
    clock = InputClock(changes.get("lateness_us", 0), follows_clock=False, since=since_ms << COUNT_BITS)
    clock.meet(publishers, now=0)
    return clock


def test_the_slowest_publisher_that_is_not_idle_holds_the_watermark():
    clock = clock_of(lateness_us=SECOND)
    clock.note(LEFT, 1, 9 * SECOND, 0, now=0)
    assert clock.advance(0) is None, "of the other nothing is known"
    clock.note(OTHER, 1, 5 * SECOND, 0, now=0)
    assert clock.advance(0) == 4 * SECOND
    assert clock.hold(now=7) == Hold(SOUTH, 7, has_rows=True)
    clock.note(LEFT, 2, 20 * SECOND, 0, now=0)
    assert clock.advance(PATIENCE_MS - 1) == 4 * SECOND, "how long we have waited does not matter"
    clock.note_silence(silence(OTHER, 1), now=0)
    assert clock.advance(0) == 19 * SECOND, "who says that it is silent holds nothing back"
    assert clock.floor_us == 4 * SECOND, "but may still have older rows"


def test_before_its_publishers_are_known_an_input_has_no_time():
    clock = InputClock(0, follows_clock=False)
    clock.note(LEFT, 1, 9 * SECOND, 0, now=0)
    assert clock.advance(0) is None
    assert not clock.is_idle(0)
    clock.meet(Publishers(origins=(LEFT,)), now=0)
    assert clock.advance(0) == 9 * SECOND


def test_a_stream_that_nobody_publishes_to_holds_nothing_back():
    assert clock_of(Publishers(origins=())).is_idle(0)


def test_at_the_start_of_a_query_every_publisher_is_waited_for():
    """It may have been silent for hours, and begin at the same time as the others."""
    clock = clock_of(since_ms=50_000)
    clock.note(LEFT, 1, 9 * SECOND, 0, now=0)
    clock.note_silence(silence(OTHER, 0, at_ms=50_000 + START_MS - 1), now=0)
    assert clock.advance(0) is None
    clock.note_silence(silence(OTHER, 0, at_ms=50_000 + START_MS), now=0)
    assert clock.advance(0) == 9 * SECOND


def test_a_publisher_that_nothing_is_heard_of_is_left_out_in_the_end():
    clock = clock_of()
    clock.note(OTHER, 1, 5 * SECOND, 0, now=10)
    clock.note(LEFT, 1, 9 * SECOND, 0, now=PATIENCE_MS)
    assert (clock.advance(PATIENCE_MS), clock.left_out(PATIENCE_MS)) == (5 * SECOND, ())
    assert (clock.advance(PATIENCE_MS + 10), clock.left_out(PATIENCE_MS + 10)) == (9 * SECOND, (SOUTH,))
    assert clock.floor_us == 5 * SECOND, "it may come back"
    assert clock.hold(PATIENCE_MS + 10) == Hold(NORTH, 10, has_rows=True)


def test_punctuation_moves_the_watermark_without_a_row():
    clock = clock_of(lateness_us=SECOND)
    clock.note(LEFT, 1, 9 * SECOND, 0, now=0)
    clock.note_silence(silence(OTHER, 0, is_idle=False, before_us=7 * SECOND), now=0)
    assert clock.advance(0) == 7 * SECOND, "what was said needs no lateness"
    clock.note_silence(silence(LEFT, 1, is_idle=False, before_us=FINISHED_US), now=0)
    clock.note_silence(silence(OTHER, 0, is_idle=False, before_us=FINISHED_US), now=0)
    assert clock.has_finished(0)
    clock.note(OTHER, 1, 8 * SECOND, 0, now=0)
    assert not clock.has_finished(0), "until it publishes again"


def test_an_origin_that_is_over_is_waited_for_until_its_copy_is_read():
    clock = clock_of()
    clock.note(LEFT, 1, 9 * SECOND, 0, now=0)
    clock.meet(Publishers(origins=(LEFT, OTHER), over=(OTHER,)), now=0)
    assert clock.advance(0) is None, "a backup has a copy"
    clock.note_silence(silence(OTHER, 0, is_idle=False), now=0)
    assert clock.advance(0) == 9 * SECOND


def test_a_publisher_that_leaves_is_not_waited_for_until_it_is_back():
    clock = clock_of()
    clock.note(LEFT, 1, 9 * SECOND, 0, now=0)
    clock.note_silence(silence(OTHER, 0, is_idle=False, is_leaving=True), now=0)
    assert clock.advance(0) == 9 * SECOND
    assert not clock.has_finished(0), "its windows stay open"
    clock.note(LEFT, 2, 11 * SECOND, 0, now=0)
    clock.note(OTHER, 1, 10 * SECOND, 0, now=0)
    assert clock.advance(0) == 10 * SECOND


def test_an_origin_that_is_over_and_has_no_copy_is_forgotten():
    clock = clock_of()
    clock.note(LEFT, 1, 9 * SECOND, 0, now=0)
    clock.meet(Publishers(origins=(LEFT,), over=(OTHER,)), now=0)
    assert clock.advance(0) == 9 * SECOND


def test_publication_time_goes_on_with_what_publishers_say():
    clock = InputClock(0, follows_clock=True)
    clock.meet(BOTH, now=0)
    clock.note(LEFT, 1, 4 * SECOND, 4000 << COUNT_BITS, now=0)
    assert clock.advance(0) is None
    clock.note_silence(silence(OTHER, 0, at_ms=3000), now=0)
    assert clock.advance(0) == 3 * SECOND
    clock.note_silence(silence(OTHER, 0, at_ms=9000), now=0)
    assert clock.advance(0) == 4 * SECOND
    clock.note_silence(silence(LEFT, 1, at_ms=8000), now=0)
    assert clock.advance(0) == 8 * SECOND
    assert clock.floor_us == 8 * SECOND, "later tuples have later stamps"
    assert not clock.is_idle(0)


def test_times_before_1970_are_times_like_others():
    clock = clock_of(Publishers(origins=(LEFT,)))
    clock.note(LEFT, 1, -50 * SECOND, 0, now=0)
    assert clock.advance(0) == -50 * SECOND
    assert clock.floor_us == -50 * SECOND


def test_there_is_no_floor_until_all_are_heard_that_an_earlier_attempt_has_read():
    clock = InputClock(0, follows_clock=False)
    clock.await_again((LEFT, OTHER), now=0)
    clock.meet(Publishers(origins=(LEFT,)), now=0)
    clock.note(LEFT, 5, 90 * SECOND, 0, now=2 * PATIENCE_MS)
    clock.advance(2 * PATIENCE_MS)
    assert clock.floor_us is None
    clock.note(OTHER, 5, 3 * SECOND, 0, now=0)
    clock.advance(0)
    assert clock.floor_us == 3 * SECOND


def test_a_low_is_behind_rows_that_can_meet_nothing_any_more():
    clock = InputClock(lateness_us=0, follows_clock=False, horizon_us=3 * SECOND)
    for number in range(10):
        clock.note(LEFT, number + 1, number * SECOND, 0, now=0)
    assert clock.lows("l", 7 * SECOND) == (reach("l", LEFT, 4),)
    assert clock.lows("l", 7 * SECOND) == (), "said once"


def test_without_a_horizon_nothing_is_kept():
    clock = InputClock(lateness_us=0, follows_clock=False)
    for number in range(10):
        clock.note(LEFT, number + 1, number, 0, now=0)
    assert clock.lows("l", 1 << 60) == ()
    clock.horizon_us = 0
    assert clock.lows("l", 1 << 60) == (), "there was nothing to tell"


def test_a_flow_in_parts_is_as_late_as_its_latest_row():
    """The last message alone says how far the flow got; rows of the first may be later than its own."""
    clock = InputClock(lateness_us=0, follows_clock=False, horizon_us=3 * SECOND, reported=Progress())
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
    clock = InputClock(0, follows_clock=False, horizon_us=SECOND, reported=Progress())
    for second in (4, 6):
        progress = Progress((), (reach("l", LEFT, second),), second * SECOND, second * SECOND)
        clock.note_flow("l+r", progress, second * SECOND, now=0)
    assert clock.lows("l+r", 3 * SECOND) == ()
    assert clock.lows("l+r", 5 * SECOND) == (reach("l", LEFT, 4),)
    assert clock.lows("l+r", 9 * SECOND) == (reach("l", LEFT, 6),)
